"""A training is the same to the bit with a monitor and without one."""

import contextlib
import random
import warnings
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import torch.distributed
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from diffscope.monitoring import Monitor
from diffscope.monitoring.record import Record
from diffscope.monitoring.shards import Shards
from tests import tiny
from tests.forked import begun, ended

PROMPTS = torch.tensor([tiny.ids(24, seed) for seed in (1, 2)])  # (prompt, token)
EVERY = 6


def small(make=tiny.diffllama, **more):
    return make(hidden_size=32, intermediate_size=32, **more).train()


def trained(model, steps, forward=None, autocast=None, monitor=None, lengths=(12,)):
    """The state after some steps: weights, buffers, the optimizer's, losses, and what the generators draw next."""
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    forward = model if forward is None else forward
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    losses = []
    for step in range(steps):
        ids = torch.randint(2, tiny.VOCABULARY, (2, lengths[step % len(lengths)]))
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = forward(input_ids=ids, labels=ids, use_cache=False).loss
            if monitor and autocast and step == 3:
                monitor.step(step)  # also in the middle of a step
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        losses.append(loss.item())
        if monitor:
            monitor.step(step)
    drawn = [torch.rand(1).item(), np.random.rand(), random.random()]
    return {
        "weights": [value.clone() for value in model.state_dict().values()],
        "buffers": [buffer.clone() for buffer in model.buffers()],
        "optimizer": [value for state in optimizer.state.values() for value in state.values()],
        "numbers": torch.tensor([*losses, *drawn], dtype=torch.float64),
        "modes": torch.tensor([part.training for part in model.modules()]),
        "hooks": torch.tensor([len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]),
    }


def assert_equal(one, other):
    for name, values in one.items():
        others = other[name]
        pairs = zip(values, others, strict=True) if isinstance(values, list) else [(values, others)]
        assert all(torch.equal(a, b) for a, b in pairs), name


def monitor_of(model, **more):
    return Monitor(model, PROMPTS, every=EVERY, steps=(0, 3), budget=None, strict=True, queries=8, **more)


def plain(model):
    return model, {}


def checkpointed(model):
    model.activation_checkpointing_enable()
    return model, {}


def under_autocast(model):
    return model, {"autocast": True}


def compiled(model):
    return model, {"forward": torch.compile(model, backend="aot_eager")}


def adapted(model):
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)), {}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # of PEFT
@pytest.mark.parametrize("wrap", [plain, checkpointed, under_autocast, adapted, compiled])
def test_a_training_is_equal_to_the_bit(wrap, full):
    steps = 200 if full else 8
    layers = 1 if wrap is compiled else 2  # each takes seconds to compile
    torch.compiler.reset()
    model, options = wrap(small(num_hidden_layers=layers))
    beginning = {name: value.clone() for name, value in model.state_dict().items()}
    without = trained(model, steps, **options)
    model.load_state_dict(beginning)
    model.zero_grad()
    monitor = monitor_of(options.get("forward", model))
    assert_equal(trained(model, steps, **options, monitor=monitor), without)
    assert not monitor.alerts


def test_a_training_with_dynamic_rope_is_equal_to_the_bit():
    """Prompts longer and shorter than the model's length change its frequencies, and the monitor's are of another length."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    models = [small(max_position_embeddings=32, rope_parameters=rope) for _ in range(2)]
    without, with_monitor = (
        trained(model, 4, lengths=(48, 20), monitor=monitor)
        for model, monitor in zip(models, (None, monitor_of(models[1])), strict=True)
    )
    assert_equal(with_monitor, without)


def test_a_training_whose_gradients_are_read_is_equal_to_the_bit(full):
    steps = 200 if full else 8
    without = trained(small(), steps)
    model = small()
    assert_equal(trained(model, steps, monitor=monitor_of(model, gradients=True)), without)


def test_a_compiled_model_is_not_compiled_again():
    torch.compiler.reset()
    model = small(num_hidden_layers=1)
    forward = torch.compile(model, backend="eager")
    monitor = monitor_of(forward)
    counts = torch._dynamo.utils.counters["stats"]
    ids = torch.tensor([tiny.ids(12)])
    for step in range(4):
        forward(input_ids=ids, use_cache=False)
        if step == 0:
            before = counts["unique_graphs"]
        assert monitor.step(step) or step not in (0, 3)
    assert before > 0 and counts["unique_graphs"] == before


def replicated(model):
    return model, DistributedDataParallel(model)


def sharded(model):
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model), None


def whole(state):
    """A state, of which shards are gathered."""
    gathered = {name: [each.full_tensor() if hasattr(each, "full_tensor") else each for each in state[name]] for name in state}
    return {name: values if isinstance(state[name], list) else state[name] for name, values in gathered.items()}


WRAPS = [replicated, sharded]


def _of_process(rank, folder, steps):
    """Train as one of two processes, each way without a monitor and with one."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        for wrap in WRAPS:
            for with_monitor in (False, True):
                model, forward = wrap(small())
                kept = folder / f"kept-{wrap.__name__}"
                monitor = monitor_of(forward or model, path=kept) if with_monitor else None
                state = whole(trained(model, steps, forward=forward, monitor=monitor))
                torch.save(state, folder / f"{wrap.__name__}-{with_monitor}-{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, full):
    """The folder of what two processes came to, and the steps that they took."""
    folder, steps = tmp_path_factory.mktemp("processes"), 200 if full else 8
    both = [begun(_of_process, rank, folder, steps) for rank in range(2)]
    assert [ended(process, 600) for process in both] == [0, 0]
    return folder, steps


@pytest.mark.slow
@pytest.mark.parametrize("wrap", WRAPS)
def test_two_processes_train_as_without_it_and_the_first_writes(wrap, two_processes):
    folder, steps = two_processes
    for rank in range(2):
        with_it, without = (torch.load(folder / f"{wrap.__name__}-{kind}-{rank}.pt") for kind in (True, False))
        assert_equal(with_it, without)
    assert Record(folder / f"kept-{wrap.__name__}").steps == [0, 3, *range(EVERY, steps, EVERY)]


def test_time_is_taken_when_the_device_of_the_shards_is_done(monkeypatch):
    """The whole model is on the CPU, and the training may be on a GPU."""
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    monitor = monitor_of(small())
    monitor._now()
    assert not waited
    on_gpu = SimpleNamespace(parameters=lambda: [SimpleNamespace(is_cuda=True)])
    monitor._shards = SimpleNamespace(model=on_gpu)
    monitor._now()
    assert waited


def test_weights_of_blocks_that_are_wrapped_are_gathered_by_their_own_names():
    model = small()
    expected = {name: value.clone() for name, value in model.named_parameters()}
    model.model.layers[0] = checkpoint_wrapper(torch.compile(model.model.layers[0], backend="eager"))
    shards = Shards(model, first=True)
    shards.gather()
    gathered = dict(shards.whole.named_parameters())
    assert gathered.keys() == expected.keys() and all(torch.equal(gathered[name], expected[name]) for name in expected)


@pytest.fixture
def accelerate_anew():
    """accelerate without the one state that a process has of it, such as that of a Trainer in another test."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_weights_that_are_wrapped_in_autocast_by_accelerate_are_measured_in_float32(accelerate_anew):
    from accelerate import Accelerator

    model = small(tiny.own)
    alone = monitor_of(model).step(0)
    wrapped = Accelerator(cpu=True, mixed_precision="bf16").prepare_model(model)
    forward = vars(model)["forward"]
    assert monitor_of(wrapped).step(0) == alone
    assert vars(model)["forward"] is forward


def test_a_failure_that_cannot_even_be_said_does_not_end_a_training():
    model = small()
    monitor = Monitor(model, PROMPTS, ["lambda"], every=1)
    model.forward = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert monitor.step(0) == {}
