"""A half-precision layer is proved by its own module in float32; what cannot be is said to be undecided."""

from dataclasses import replace
from threading import Thread
from weakref import ref

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import diffscope
from diffscope import FidelityError, UnsupportedModel, edits
from diffscope.attention.precision import tf32_allowed, without_tf32
from diffscope.families.unilm import UnilmV1
from diffscope.proof.float32_copy import float32_copy, widened
from tests import tiny
from tests.layouts import planted
from tests.layouts.planted import DifferentialAttention

HALF = (torch.bfloat16, torch.float16)
IDS = tiny.ids(40)


@pytest.mark.usefixtures("no_causes")
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("mistake", ["λ × 1.05", "λ without the exponentials", "scores × 1.05", "eps of the norm"])
def test_mistakes_within_the_rounding_of_half_precision_are_refused(mistake, dtype):
    model = planted.tiny(mistake)
    for layer in model.layers:  # as small as they are when a model is new
        for name in ("q1", "k1", "q2", "k2"):
            getattr(layer, f"lambda_{name}").data.mul_(0.3)
    with pytest.raises(FidelityError, match="in a float32 run of the layer"):
        diffscope.load(model.to(dtype)).capture(IDS)


def test_the_module_runs_in_float32_once_in_every_capture_and_seldom_in_generation():
    model = tiny.own("v1").to(torch.bfloat16)
    runs = []
    forward = type(model.model.layers[0].self_attn).forward

    def counted(module, *args, **kwargs):
        runs.append(module.o_proj.weight.dtype)
        return forward(module, *args, **kwargs)

    class Counted(type(model.model.layers[0].self_attn)):
        pass

    Counted.forward = counted
    for layer in model.model.layers:
        layer.self_attn.__class__ = Counted
    scope = diffscope.load(model)

    def in_float32(run, *args):
        runs.clear()
        run(*args)
        return runs.count(torch.float32)

    assert [in_float32(scope.capture, prompt) for prompt in (IDS, IDS, IDS[:9], [IDS, IDS[:9]])] == [2, 2, 2, 2]
    with torch.no_grad():
        assert in_float32(model, torch.tensor([IDS])) == in_float32(scope.generate, IDS, 3) == 0
    with scope.edit(edits.uniform_a2(layers=1)):
        assert in_float32(scope.capture, IDS) == 2 and in_float32(scope.loss, IDS) == 1
        # The prompt, the first step, and the step at which there are twice as many keys.
        assert in_float32(scope.generate, IDS[:6], 10) == 3


class Stubborn(DifferentialAttention):
    """Runs in half precision alone, as kernels do that know nothing else."""

    def forward(self, x, rel_pos, attn_mask=None):
        if x.dtype not in HALF:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type\nuse another")
        return super().forward(x, rel_pos, attn_mask)


class Halting(DifferentialAttention):
    """Runs in half precision alone, and notices last."""

    def forward(self, x, rel_pos, attn_mask=None):
        out = super().forward(x, rel_pos, attn_mask)
        assert x.dtype in HALF, "half precision alone"
        return out


class Rounding(DifferentialAttention):
    """Rounds what enters its output projection, whatever it is given."""

    def norm(self, out):
        return super().norm(out).to(torch.bfloat16).to(out.dtype)


class Drawing(DifferentialAttention):
    def forward(self, x, rel_pos, attn_mask=None):
        return super().forward(x + 0 * torch.rand(1).to(x.dtype), rel_pos, attn_mask)


class Quantised(nn.Parameter):
    """Stands for the packed weights of a quantiser."""


def half(kind=DifferentialAttention, mistake="none"):
    model = planted.tiny(mistake).to(torch.bfloat16)
    for layer in model.layers:
        layer.__class__ = kind
    return model


def test_a_module_that_cannot_run_in_float32_is_not_decided():
    scope = diffscope.load(half(Stubborn))
    capture = scope.capture(IDS)
    (reason,) = capture.undecided
    assert reason == "its module cannot be run in float32: FlashAttention only support fp16 and bf16 data type"
    assert capture.undecided[reason] == [0, 1] and capture.fidelity.error_float32.isnull().all()
    report = diffscope.check(scope)
    assert report.passed and [(f.check, f.says) for f in report.findings if f.verdict == "undecided"] == [("pairing", reason)]


@pytest.mark.parametrize("kind", [DifferentialAttention, Stubborn, Halting])
def test_one_copy_of_a_layer_is_in_memory_at_a_time(kind, monkeypatch):
    copies, held = [], []

    def counted(module):
        held.append(sum(earlier() is not None for earlier in copies))
        duplicate = float32_copy(module)
        copies.append(ref(duplicate))
        return duplicate

    monkeypatch.setattr("diffscope.proof.float32_copy.float32_copy", counted)
    diffscope.load(half(kind)).capture(IDS)
    assert held == [0, 0]


@pytest.mark.usefixtures("no_causes")
def test_a_module_that_rounds_by_itself_is_proved_without_that_rounding():
    assert float(diffscope.load(half(Rounding)).capture(IDS).fidelity.error_float32.max()) < 1e-5
    with pytest.raises(FidelityError, match="in a float32 run of the layer"):
        diffscope.load(half(Rounding, "λ × 1.05")).capture(IDS)


def test_a_forward_that_was_replaced_leaves_the_layer_undecided():
    model = half()
    module = model.layers[0]
    of_module = module.forward
    module.forward = lambda *args, **kwargs: of_module(*args, **kwargs)
    (reason,) = (undecided := diffscope.load(model).capture(IDS).undecided)
    assert "cannot be run in float32" in reason and undecided[reason] == [0]


def test_a_float32_run_draws_no_random_numbers_of_the_callers():
    model = half(Drawing)
    torch.manual_seed(0)
    with torch.no_grad():
        model(torch.tensor([IDS]))
    alone = torch.get_rng_state()
    torch.manual_seed(0)
    diffscope.load(model).capture(IDS)
    assert torch.equal(torch.get_rng_state(), alone)


def test_float32_products_are_in_float32_whatever_the_caller_allows():
    before = torch.get_float32_matmul_precision()
    products = torch.backends.cuda.matmul
    try:
        torch.set_float32_matmul_precision("high")
        assert not without_tf32()(tf32_allowed)() and torch.get_float32_matmul_precision() == "high"
        torch.set_float32_matmul_precision("highest")
        products.fp32_precision = "tf32"  # the newer setting
        assert tf32_allowed() and not without_tf32()(tf32_allowed)() and products.fp32_precision == "tf32"
    finally:
        products.fp32_precision = "ieee"
        torch.set_float32_matmul_precision(before)


def test_weights_that_cannot_be_copied_leave_the_layer_undecided():
    quantised = half()
    quantised.layers[1].k_proj.weight = Quantised(quantised.layers[1].k_proj.weight.data)
    capture = diffscope.load(quantised).capture(IDS)
    (reason,) = capture.undecided
    assert "its weights (Quantised) are quantised" in reason and capture.undecided[reason] == [1]


class Packed(torch.Tensor):
    """Stands for a quantised tensor that knows how to be multiplied, and nothing else."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].held)
        if func is torch.ops.aten.t.default:
            return cls(args[0].held.t())
        if func is torch.ops.aten.mm.default:
            return func(args[0], args[1].held)
        raise NotImplementedError(f"Packed dispatch: attempting to run unimplemented operator {func}")


@pytest.mark.parametrize("name", ["q_proj", "v_proj", "out_proj"])
def test_weights_that_can_only_be_multiplied_leave_the_layer_undecided(name):
    model, plain = half(), half()
    projection = getattr(model.layers[1], name)
    projection.weight = nn.Parameter(Packed(projection.weight.data), requires_grad=False)
    assert projection.weight.numel() <= 4096
    capture, expected = (diffscope.load(each).capture(IDS) for each in (model, plain))
    assert list(capture.undecided.values()) == [[1]] and "its weights (Packed) are quantised" in next(iter(capture.undecided))
    assert capture.map("D", 1, 0).equals(expected.map("D", 1, 0))


def test_float32_chooses_the_reading_that_half_precision_cannot_tell():
    """Of two readings with λ 3 % apart the right one is taken, though both are within the rounding."""

    class Two(UnilmV1):
        def readings(self, passage):
            layer = self.read(passage)
            yield replace(layer, lam=layer.lam * 1.03)
            yield layer

        def read(self, passage):
            return next(UnilmV1.readings(self, passage))

    model = half()
    right = diffscope.load(model).capture(IDS)
    capture = diffscope.load(model, family=Two()).capture(IDS)
    assert torch.equal(capture.layers[0].lam, right.layers[0].lam) and float(capture.fidelity.error_float32.max()) < 1e-5


def test_a_copy_shares_nothing_that_is_changed_and_calls_no_hooks():
    model = tiny.own("v1").to(torch.bfloat16)
    module = model.model.layers[0].self_attn
    module.register_forward_hook(lambda *_: pytest.fail("the copy ran somebody's hook"))
    duplicate = float32_copy(module)
    assert duplicate.config is module.config
    before = {name: (id(value), value.clone()) for name, value in module.state_dict(keep_vars=True).items()}
    for parameter in duplicate.parameters():
        assert parameter.dtype == torch.float32 and not parameter.requires_grad
        parameter.zero_()
    for name, value in module.state_dict(keep_vars=True).items():
        assert id(value) == before[name][0] and torch.equal(value, before[name][1])
    duplicate.o_proj(torch.zeros(1, 64))


def test_what_a_module_was_given_is_copied_in_float32():
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4, dtype=torch.float16), torch.ones(1, 2, 3, 4, dtype=torch.float16), 0)
    lowest = torch.tensor([0.0, torch.finfo(torch.float16).min], dtype=torch.float16)
    wide = widened({"cache": cache, "mask": (lowest, None), "ids": torch.arange(2)})
    assert wide["mask"][0].tolist() == [0.0, torch.finfo(torch.float32).min] and wide["ids"].dtype == torch.int64
    wide["cache"].update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), 0)
    assert wide["cache"].layers[0].keys.dtype == torch.float32 and wide["cache"].get_seq_length() == 4
    assert cache.get_seq_length() == 3 and cache.layers[0].keys.dtype == torch.float16
    with pytest.raises(UnsupportedModel, match="it was given a Thread, which has no copy"):
        widened([Thread()])


@pytest.mark.parametrize("dtype", HALF)
def test_every_step_from_the_cache_is_decided_in_half_precision(dtype):
    model = tiny.diffllama().to(dtype)
    report = diffscope.check(model)
    assert report.passed and not [finding for finding in report.findings if finding.verdict == "undecided"]
