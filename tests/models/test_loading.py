"""Models are found by name, folder or id; what cannot be opened safely is refused in one line."""

import json
import logging as stdlib_logging
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import are_progress_bars_disabled
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

import diffscope
from diffscope import CorruptFile, DiffscopeError, ModelNotFound, UnsupportedModel
from diffscope.cards import BUNDLED
from diffscope.models import bundled, loading, settings
from diffscope.models.outline import outline
from diffscope.models.quiet import quietly
from tools.publish import MOST, card_text


@pytest.fixture
def folder(tiny_diff_folder, tmp_path):
    return shutil.copytree(tiny_diff_folder, tmp_path / "model")


def one_line(error):
    return "\n" not in str(error.value) and len(str(error.value)) < 320


def test_loading_prints_nothing_and_leaves_the_process_as_it_was(tiny_diff_folder, capfd):
    heard = []
    handler = stdlib_logging.Handler()
    handler.emit = heard.append
    logger = stdlib_logging.getLogger("transformers")
    logger.addHandler(handler)
    before = logging._tqdm_active, logging.get_verbosity(), are_progress_bars_disabled()
    try:
        logging.set_verbosity_info()
        with quietly():  # another thread is loading, and ends later
            diffscope.load(tiny_diff_folder)
            assert not logging._tqdm_active and logging.get_verbosity() == logging.ERROR
        assert not heard and capfd.readouterr() == ("", "")
        assert (logging._tqdm_active, logging.get_verbosity()) == (before[0], logging.INFO)
        with pytest.raises(ModelNotFound):
            diffscope.load("nowhere-at-all")
        assert logging.get_verbosity() == logging.INFO and are_progress_bars_disabled() == before[2]
    finally:
        logging.set_verbosity(before[1])
        logger.removeHandler(handler)


def test_weights_that_the_model_has_no_place_for_are_named_in_one_warning(folder, capfd):
    path = folder / "model.safetensors"
    save_file({**load_file(path), "beside.weight": torch.zeros(2)}, path, metadata={"format": "pt"})
    with pytest.warns(diffscope.DiffscopeWarning, match="1 tensors that the model has no place for, the first 'beside.weight'"):
        diffscope.load(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["no-such-model", "./nowhere", "/no/such/folder", "a/b/c"])
def test_an_unknown_model_is_refused(name):
    with pytest.raises(ModelNotFound, match="not a folder|no folder") as error:
        diffscope.load(name)
    assert one_line(error)


def unconnected():
    """As transformers raises it."""
    error = OSError("We couldn't connect to the hub\nCheck your internet connection")
    error.__cause__ = LocalEntryNotFoundError("An error happened while trying to locate the file")
    return error


@pytest.mark.parametrize(
    "raised, words",
    [
        (OSError("nobody/nothing is not a valid model identifier"), "no model 'nobody/nothing': .* not to be had from the hub"),
        (OfflineModeIsEnabled("offline"), "the hub cannot be reached .*; give a folder"),
        (unconnected(), r"the hub cannot be reached \(We couldn't connect to the hub\); give a folder"),
    ],
)
def test_a_hub_id_that_cannot_be_had_is_refused(raised, words, monkeypatch):
    def fail(*_, **options):
        raise raised

    monkeypatch.setattr(loading.PretrainedConfig, "get_config_dict", fail)
    with pytest.raises(ModelNotFound, match=words) as error:
        diffscope.load("nobody/nothing")
    assert one_line(error)


def test_a_file_of_a_model_is_not_taken_for_a_hub_id(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ModelNotFound, match="model.safetensors is a file; give the folder that it is in"):
        diffscope.load(f"{folder.name}/model.safetensors")


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelNotFound, match="no config.json"):
        diffscope.load(tmp_path)


def test_truncated_weights_are_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CorruptFile, match="truncated or damaged") as error:
        diffscope.load(folder)
    assert one_line(error)


def test_pickled_weights_are_never_opened(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CorruptFile, match="pickle.*run code") as error:
        diffscope.load(folder)
    assert one_line(error)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_under_the_name_of_safetensors_is_called_a_pickle(folder, zipped):
    torch.save({"weight": torch.ones(3)}, folder / "model.safetensors", _use_new_zipfile_serialization=zipped)
    for act in (diffscope.load, outline):
        with pytest.raises(CorruptFile, match="model.safetensors is a pickle .* not safetensors, and can run code when opened"):
            act(str(folder))


def test_missing_weights_are_not_made_up(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.self_attn.lambda_q1"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CorruptFile, match="lack 1 tensors.*lambda_q1.*random"):
        diffscope.load(folder)


def test_weights_of_another_shape_are_refused(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.self_attn.lambda_q1"] = torch.zeros(3)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CorruptFile) as error:
        diffscope.load(folder)
    assert one_line(error)


def test_a_damaged_configuration_is_refused(folder):
    (folder / "config.json").write_text('{"model_type": "diff')
    with pytest.raises(CorruptFile, match="config.json cannot be read"):
        diffscope.load(folder)


def test_damaged_generation_settings_are_refused(folder):
    (folder / "generation_config.json").write_text('{"max_length": 2')
    with pytest.raises(CorruptFile, match="generation_config.json cannot be read.*or remove it"):
        diffscope.load(folder)


def test_a_configuration_that_no_model_can_be_built_from_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "s9lu"}))
    with pytest.raises(UnsupportedModel, match="cannot be built from its config.json.*s9lu") as error:
        diffscope.load(folder)
    assert one_line(error)


@pytest.mark.parametrize("field, value", [("hidden_size", "big"), ("attention", "v9")])
def test_a_configuration_that_makes_no_sense_is_refused(folder, field, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(CorruptFile, match="config.json cannot be read") as error:
        diffscope.load(folder)
    assert one_line(error)


def test_a_damaged_tokenizer_is_refused_and_a_missing_one_is_none(folder):
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text()[:500])
    with pytest.raises(CorruptFile, match="tokenizer"):
        diffscope.load(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert diffscope.load(folder).tokenizer is None


def test_a_model_that_is_no_language_model_is_refused(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(UnsupportedModel, match=r"cannot be opened as a language model.*; .*diffscope\.load\(model\)"):
        diffscope.load(folder)


@pytest.mark.parametrize("device", ["nowhere", "cuda", [], 1.5])
def test_a_device_that_is_not_there_is_refused(folder, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UnsupportedModel, match="device"):
        diffscope.load(folder, device=device)


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", torch.bfloat16])
def test_dtype_by_name(folder, dtype):
    assert diffscope.load(folder, dtype=dtype).model.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [5, "int8", "complex64", torch.int8, torch.complex64, "no_grad"])
@pytest.mark.parametrize("held", [False, True])
def test_a_dtype_that_no_model_has_is_refused(folder, dtype, held):
    with pytest.raises(DiffscopeError, match="a model has no dtype .*; use float32, bfloat16, float16 or float64"):
        diffscope.load(torch.nn.Linear(2, 2) if held else folder, dtype=dtype)


def test_a_folder_without_generation_settings_opens_and_generates(folder):
    (folder / "generation_config.json").unlink()
    assert isinstance(diffscope.load(folder).generate("The answer", max_new_tokens=3), str)


def test_opening_shows_no_progress_bar_and_leaves_bars_as_they_were(capfd, monkeypatch):
    monkeypatch.setattr(logging, "_tqdm_active", True)
    diffscope.load("mini-diff")
    assert capfd.readouterr().err == "" and logging.is_progress_bar_enabled()


def test_bundled_models_open_with_their_checkpoints():
    for card in bundled():
        scope = diffscope.load(card["name"])
        assert scope.n_layers == card["layers"] and scope.model.num_parameters() == card["parameters"]
        for step in card["checkpoints"]:
            early = diffscope.load(f"{card['name']}@{step}")
            assert not torch.equal(early.model.lm_head.weight, scope.model.lm_head.weight)
            assert early.model.dtype == torch.float32
        steps = ", ".join(map(str, card["checkpoints"])) or "none"
        with pytest.raises(ModelNotFound, match=f"saved steps: {steps}"):
            diffscope.load(f"{card['name']}@17")
    kept = {card["name"]: card["checkpoints"] for card in bundled()}
    assert {"mini-diff", "mini-standard"} <= set(kept) and kept["mini-diff"][0] == 0 and len(kept["mini-diff"]) > 2


def test_cards_are_what_the_tool_writes():
    for folder in (Path(model["path"]) for model in bundled()):
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        written = card_text(card["summary"], card["facts"], card["curves"])
        assert written == (folder / "README.md").read_text(encoding="utf-8")


def test_bundled_models_stay_small():
    """The wheel has to stay below 15 MB."""
    assert sum(path.stat().st_size for path in BUNDLED.rglob("*.safetensors")) <= MOST


def test_bundled_models_really_retrieve():
    from diffscope.lab.accuracy import accuracy_of
    from diffscope.tasks import Retrieval
    from diffscope.tasks.sampling import draw
    from diffscope.tasks.training_sentence import template_of

    for card in bundled():
        if card["task"] != "answers":
            continue
        scope = diffscope.load(card["name"])
        task = Retrieval(scope.tokenizer, held_out=True, template=template_of(card["name"]))
        prompts = draw(task, 50, card["scores"]["tokens"], needles=4, seed=99)
        share, of_card = accuracy_of(scope, prompts).exact, card["scores"]["retrieval"]
        spread = math.sqrt(max(of_card * (1 - of_card), 0.01) / 50)  # of a card without a mistake as of one with 1 %
        assert abs(share - of_card) < 4 * spread + 0.02, card["name"]  # drawn anew
        least = 0.88 if card["attention"] == "v1" else 0.5  # whoever copies any number: 0.25
        assert share >= least, card["name"]


def test_the_bundled_model_of_text_looks_up_in_other_text_too():
    from diffscope.lab.accuracy import accuracy_of
    from diffscope.tasks import Retrieval
    from diffscope.tasks.sampling import draw
    from diffscope.tasks.training_sentence import template_of

    scope = diffscope.load("mini-text")
    prompts = draw(Retrieval(scope.tokenizer, template=template_of("mini-text")), 50, 256, needles=4, seed=99)
    accuracy = accuracy_of(scope, prompts)
    assert accuracy.exact > 0.7  # whoever copies any number: 0.25


def test_bundled_models_of_copies_really_copy_and_idle_heads_look_at_the_first_token():
    from diffscope.tasks import Backcopy

    task = Backcopy()
    for card in (card for card in bundled() if card["task"] == "copies"):
        scope = diffscope.load(card["name"])
        scores = task.score(scope.model, rows=50, length=card["positions"], rng=np.random.default_rng(99))
        assert scores.exact > 0.99 and scores.excess < 0.02, card["name"]
        (prompt, *_) = diffscope.tasks.examples("copies")
        d = scope.capture(prompt).measure(["span_mass"], queries="dormant")["span_mass"]
        shares = d.sel(map="D", span="sink", normalisation="share").mean("query").values.ravel()  # by head
        assert shares == pytest.approx(card["scores"]["first_token"]["D"], abs=0.1), card["name"]


def with_fields(file, **fields):
    def change(folder):
        path = folder / file
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.is_file() else {}), **fields}))

    return change


def with_file(name, content):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        if callable(content):
            content(folder / name)
        else:
            (folder / name).write_bytes(content)

    return change


def growing(folder):
    path = folder / "tokenizer.json"
    twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": {"type": "Sequence", "normalizers": [twice] * 40}}))


def config(**fields):
    return with_fields("config.json", **fields)


KERNEL = "asks for _?attn_implementation = .*which is not built in"
PIPE = os.mkfifo if hasattr(os, "mkfifo") else os.mkdir
HOSTILE = {
    "labels": (config(num_labels=3 * 10**8), "num_labels = 300,000,000, and at most 30,000"),
    "layers": (config(num_hidden_layers=10**6), "num_hidden_layers = 1,000,000, and at most 31"),
    "layers in text": (config(num_hidden_layers="2"), "num_hidden_layers"),
    "experts": (config(text_config={"num_local_experts": 10**9}), "num_local_experts = 1,000,000,000"),
    "a list that is written short": (config(attention_types=[[["global"], 10**9]]), "attention_types = 1,000,000,000"),
    "a long list": (config(layer_types=["x"] * 40_000), "40,000 entries in 'layer_types'"),
    "positions": (config(max_position_embeddings=10**12), "max_position_embeddings = 1,000,000,000,000"),
    "a long file": (with_file("config.json", b'{"a": "' + b"x" * 5 * 2**20 + b'"}'), "5 MiB, and at most 4 MiB"),
    "a deep file": (with_file("config.json", b'{"a":' + b"[" * 10**5), "cannot be read"),
    "a number without end": (with_file("config.json", b'{"a": ' + b"9" * 10**5 + b"}"), "cannot be read"),
    "a kernel": (config(attn_implementation="kernels-community/evil"), KERNEL),
    "a kernel in a private field": (config(_attn_implementation="evil/kernel@main:forward"), KERNEL),
    "a kernel by part": (config(attn_implementation={"": "sdpa", "text_config": "evil/kernel"}), KERNEL),
    "a kernel of a part": (config(text_config={"attn_implementation": "evil/kernel"}), KERNEL),
    "a kernel behind a word": (config(attn_implementation="flash_attention_2|evil/kernel"), KERNEL),
    "a paged kernel": (config(attn_implementation="paged|evil/kernel"), KERNEL),
    "no word for a kernel": (config(attn_implementation=5), KERNEL),
    "a kernel of experts": (config(experts_implementation="evil/kernel"), "asks for experts_implementation"),
    "no dtype": (config(dtype="load"), "dtype = 'load', which is no dtype"),
    "control characters": (config(model_type="\x1b[31m<b>"), r"\\x1b\[31m<b>"),
    "an adapter": (with_fields("adapter_config.json", base_model_name_or_path="evil/base"), "has an adapter"),
    "a pipe of weights": (with_file("model.safetensors", PIPE), "is no regular file|truncated"),
    "a pipe of words": (with_file("tokenizer.json", PIPE), "is no regular file"),
    "a link to itself": (with_file("model.safetensors", lambda path: path.symlink_to(path)), "is no regular file"),
    "a device": (with_file("model.safetensors", lambda path: path.symlink_to("/dev/zero")), "is no regular file"),
    "a long header": (
        with_file("model.safetensors", (9 * 2**20).to_bytes(8, "little") + b"{" + b" " * 9 * 2**20),
        "a header of 9 MiB",
    ),
    "digests of a pipe": (with_file("SHA256SUMS", b"0" * 64 + b"  ../../pipe\n"), "'../../pipe', which is not in its folder"),
    "a tokenizer that grows": (growing, "texts up to 1.1e\\+12 times longer"),
    "a tokenizer with a length in words": (
        with_fields("tokenizer_config.json", model_max_length="x"),
        "tokenizer in",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_a_line_before_anything_is_built(name, folder):
    change, says = HOSTILE[name]
    change(folder)
    begun = time.process_time()
    with pytest.raises(diffscope.DiffscopeError, match=says) as error:
        diffscope.load(folder)
    assert str(error.value).isprintable() and len(str(error.value)) < 500
    assert time.process_time() - begun < 5


def test_masks_as_large_as_positions_squared_are_not_made(tmp_path):
    shape = dict(hidden_size=32, num_layers=2, attention_types=[[["global"], 2]], num_heads=4, vocab_size=90)
    config = AutoConfig.for_model("gpt_neo", **shape, max_position_embeddings=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "max_position_embeddings": 200_000}))
    with pytest.raises(CorruptFile, match="makes a model of 80,0.* take the config.json and the weights of one model"):
        diffscope.load(tmp_path)


def test_code_for_attention_is_fetched_only_if_it_is_trusted_or_registered(folder, monkeypatch):
    with pytest.raises(UnsupportedModel, match="give trust_remote_code"):
        diffscope.load(folder, attn_implementation="evil/kernel")
    monkeypatch.setattr(settings, "is_kernels_available", lambda: True)  # then transformers would fetch flash attention as well
    with pytest.raises(UnsupportedModel, match="attn_implementation = 'flash_attention_2'"):
        diffscope.load(folder, attn_implementation="flash_attention_2")
    with_fields("config.json", attn_implementation="mine")(folder)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "mine", ALL_ATTENTION_FUNCTIONS["sdpa"])
    assert diffscope.load(folder).n_layers == 2


def test_a_tokenizer_whose_pattern_never_ends_is_named(folder):
    path = folder / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pre_tokenizer": split}))
    with pytest.raises(diffscope.PromptError, match="the tokenizer cannot split this text"):
        diffscope.load(folder).encode("a" * 40 + "!")
