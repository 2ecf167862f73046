"""A trainer's callback sends what is measured to the trackers that the trainer has."""

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import diffscope
from diffscope import MissingExtra
from diffscope.errors import DiffscopeWarning
from diffscope.monitoring import Monitor
from tests import tiny

ROWS = [{"input_ids": row, "labels": row} for row in torch.tensor([tiny.ids(12, seed) for seed in range(24)])]


def small():
    return tiny.diffllama(hidden_size=32, intermediate_size=32, num_hidden_layers=1).train()


def trainer_of(model, folder, **more):
    options = dict(max_steps=6, per_device_train_batch_size=4, logging_steps=2, use_cpu=True, disable_tqdm=True, save_steps=3)
    arguments = TrainingArguments(output_dir=folder, **{**options, "report_to": "none"} | more)
    return Trainer(model, arguments, train_dataset=ROWS)


MODELS = [small, lambda: tiny.own(hidden_size=32, intermediate_size=32), lambda: tiny.standard("llama")]


def scalars(folder):
    """What the event files of TensorBoard hold, by (tag, step)."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for file in folder.rglob("events.out.*"):
        data = file.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            data = data[16 + size :]
    return found


def test_the_trainer_reports_it_and_trains_and_logs_as_before(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    without = trainer_of(small(), tmp_path / "without")
    without.train()
    model = small()
    monitor = Monitor(
        model,
        [tiny.ids(20)],
        statistics=["lambda", "overlap"],
        every=2,
        steps=(0, 1),
        budget=None,
        strict=True,
        maps=[(0, 3)],
        maps_every=2,
    )
    trainer = trainer_of(model, tmp_path / "with", report_to="tensorboard")
    trainer.add_callback(monitor.callback())
    trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(without.model.state_dict().values(), model.state_dict().values(), strict=True))
    losses = [[row["loss"] for row in each.state.log_history if "loss" in row] for each in (without, trainer)]
    assert losses[0] == losses[1]
    kept = diffscope.open(tmp_path / "with" / "monitor")
    assert kept["step"].values.tolist() == [0, 1, 2, 4, 6]
    assert kept["loss"].sel(step=4) == losses[0][0]  # the last one that was known
    reported = scalars(tmp_path / "board")
    by_layer = kept["lambda"].sel(lambda_value="used").mean("head").values[:, 0]
    assert {step for tag, step in reported if tag == "diffscope/maps/layer_0/head_3/D"} == {0, 4}
    assert [reported["train/diffscope/lambda/layer_0/mean", step] for step in (0, 1, 2, 4, 6)] == pytest.approx(by_layer)


@pytest.mark.parametrize("make", MODELS)
def test_values_are_those_of_the_saved_checkpoint(make, tmp_path):
    model = make().train()
    monitor = Monitor(model, [tiny.ids(20)], statistics=["entropy"], every=3, queries=None, budget=None, strict=True)
    trainer = trainer_of(model, tmp_path)
    trainer.add_callback(monitor.callback())
    trainer.train()
    kept = diffscope.open(tmp_path / "monitor")
    for step in (3, 6):
        cap = diffscope.load(tmp_path / f"checkpoint-{step}").capture(tiny.ids(20))
        expected = cap.measure(["entropy"])["entropy"].mean("query")
        assert kept["entropy"].sel(step=step).values == pytest.approx(expected.values, rel=1e-6, nan_ok=True)


def test_a_training_that_is_resumed_goes_on_in_its_folder(tmp_path):
    for resumed in (False, True):
        model = small()
        monitor = Monitor(model, [tiny.ids(20)], statistics=["lambda"], every=1, budget=None, strict=True)
        trainer = trainer_of(model, tmp_path, max_steps=6 if resumed else 4)
        trainer.add_callback(monitor.callback())
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3") if resumed else None)
    for folder in (tmp_path, tmp_path / "monitor"):
        assert diffscope.open(folder)["step"].values.tolist() == list(range(7))


def test_a_model_that_the_trainer_makes_is_watched(tmp_path):
    monitor = Monitor(small(), [tiny.ids(20)], statistics=["lambda"], every=2, budget=None, strict=True)
    arguments = TrainingArguments(output_dir=tmp_path, max_steps=2, use_cpu=True, disable_tqdm=True, report_to="none")
    trainer = Trainer(args=arguments, model_init=small, train_dataset=ROWS, callbacks=[monitor.callback()])
    trainer.train()
    assert monitor.scope.model is trainer.model
    assert isinstance(monitor.callback(), TrainerCallback)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # Lightning's own
@pytest.mark.parametrize("make", MODELS)
def test_lightning_sends_it_to_its_loggers(make):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make().train()

        def training_step(self, batch, number):
            return self.model(**batch, use_cache=False).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Kept(lightning.loggers.logger.DummyLogger):
        def __init__(self):
            super().__init__()
            self.rows = {}

        def log_metrics(self, metrics, step=None):
            if any(name.startswith("diffscope") for name in metrics):
                self.rows[step] = metrics

    module, logger = Module(), Kept()
    monitor = Monitor(
        module.model, [tiny.ids(20)], statistics=["entropy"], every=2, steps=(), queries=None, budget=None, strict=True
    )
    trainer = lightning.Trainer(
        max_steps=4,
        accelerator="cpu",
        logger=logger,
        callbacks=[monitor.lightning_callback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(ROWS, batch_size=4))
    assert list(logger.rows) == [0, 2, 4]
    own = diffscope.load(module.model.eval()).capture(tiny.ids(20)).measure(["entropy"])["entropy"].sel(map="A1", layer=0)
    assert logger.rows[4]["diffscope/entropy_A1/layer_0/mean"] == pytest.approx(float(own.mean()), rel=1e-6)


def test_without_lightning_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lightning.pytorch", None)
    with pytest.raises(MissingExtra, match="diffscope-attention.lightning"):
        Monitor(small(), [tiny.ids(9)], statistics=["lambda"]).lightning_callback()


def test_a_training_whose_monitor_cannot_begin_goes_on(tmp_path):
    (tmp_path / "monitor").mkdir()
    (tmp_path / "monitor" / "notes.txt").write_text("of somebody else's")
    model = small()
    monitor = Monitor(model, [tiny.ids(20)], statistics=["lambda"], every=1)
    trainer = trainer_of(model, tmp_path)
    trainer.add_callback(monitor.callback())
    with pytest.warns(DiffscopeWarning, match="this training is not watched: .* holds no measurements of a training"):
        trainer.train()
    assert trainer.state.global_step == 6 and monitor.record is None and (tmp_path / "monitor" / "notes.txt").is_file()


def test_a_loss_is_kept_once_and_a_tracker_that_fails_ends_nothing(tmp_path):
    model = small()
    monitor = Monitor(model, [tiny.ids(20)], statistics=["lambda"], every=1, budget=None)
    trainer = trainer_of(model, tmp_path, logging_steps=3)
    callback = monitor.callback()
    trainer.add_callback(callback)
    begin = callback.on_train_begin

    class Broken(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            raise ConnectionError("no network")

    def begun(*args, **kwargs):
        begin(*args, **kwargs)
        callback._reporters = [Broken()]

    callback.on_train_begin = begun
    with pytest.warns(DiffscopeWarning, match="a tracker did not take step 1: ConnectionError: no network"):
        trainer.train()
    kept = diffscope.open(tmp_path / "monitor")["loss"]
    assert kept["step"].values.tolist() == list(range(7))
    assert kept.dropna("step")["step"].values.tolist() == [4]  # the first after it was logged, at step 3


def test_a_second_training_begins_without_the_loss_of_the_first(tmp_path):
    model = small()
    monitor = Monitor(model, [tiny.ids(20)], statistics=["lambda"], every=2, steps=(), budget=None, strict=True)
    callback = monitor.callback()
    for folder in ("first", "second"):
        trainer = trainer_of(model, tmp_path / folder, logging_steps=6)
        trainer.add_callback(callback)
        trainer.train()
    kept = diffscope.open(tmp_path / "second" / "monitor")
    assert kept["step"].values.tolist() == [0, 2, 4, 6] and "loss" not in kept
