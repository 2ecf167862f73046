"""How far a right reading may be off, and which mistakes are refused all the same."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diffscope
from benchmarks import proof as mistaken
from diffscope.attention.components import Mask, Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.proof.diagnosis import mismatch
from diffscope.proof.fidelity import fidelities
from diffscope.proof.tolerance import rounding
from tests import tiny

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def unit_in_numpy(weights, values, dtype=torch.float32):
    """The unit of rounding of rows of weights (query, key) and values (key, width), in float64 and in other words."""
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 0.1, torch.float16: 0.015}[dtype]
    weights, values = weights.double().numpy(), values.double().numpy()
    size = np.sqrt((values**2).mean(1))
    unit = []
    for row in weights:
        lost = row * (row < 2**-24)
        absolute = 4 * 2**-24 * np.sqrt(np.count_nonzero(row)) * np.sqrt(np.sum(row * size**2)) + 2 * np.sum(lost * size)
        absolute += 2**-24 if dtype is torch.float16 else 0
        result = np.sqrt(((row @ values) ** 2).mean())
        unit.append(result + 0.5 * np.sqrt(np.sum((row * size) ** 2)) + absolute / tolerance)
    return np.array(unit)


def test_the_unit_of_rounding_is_what_it_is_said_to_be():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 700, 16, generator=generator)
    weights = (6 * torch.randn(3, 50, 700, generator=generator)).softmax(-1)
    for dtype in DTYPES:
        measured = rounding(weights, weights @ values, values.square().mean(-1), torch.full((50,), 700), dtype)
        expected = np.stack([unit_in_numpy(weights[i], values[i], dtype) for i in range(3)])
        assert np.allclose(measured, expected, rtol=1e-5)


def values_of(kind, shape, generator):
    """Values whose sums are hard to keep: beside random ones such that have something in common, or cancel."""
    noise = torch.randn(shape, generator=generator)
    position = torch.arange(shape[-2])[:, None] / shape[-2]
    return {
        "random": noise,
        "common": 0.1 * noise + torch.randn((*shape[:-2], 1, shape[-1]), generator=generator),
        "one large channel": 0.1 * noise + 10.0 * (torch.arange(shape[-1]) == 0),
        "halves that cancel": 0.01 * noise + torch.where(position < 0.5, 1.0, -1.0),
        "waves": 0.1 * noise + torch.sin(20 * position),
        "small": 1e-4 * noise,
    }[kind]


def attended(kind, scores, length, width, dtype=torch.float32, seed=0, lam=0.3):
    """A layer of one head, and what SDPA, in the dtype of the layer, gives for it."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 2, length, width, generator=generator) * scores**0.5 for _ in range(2))
    v = values_of(kind, (1, 1, length, 2 * width), generator)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    number = torch.full((1, 1, 1), lam)
    layer = LayerAttention(0, "test", q, k, v, width**-0.5, Pairing.stripes(1), (length,), lam=number, norm=Norm("rms", 1e-5))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        maps = [
            torch.nn.functional.scaled_dot_product_attention(q, k, half.expand(1, 2, -1, -1).contiguous(), is_causal=True)
            for half in v.chunk(2, -1)
        ]
    first, second = torch.cat(maps, -1)[0]
    out = (first - number.to(dtype)[0, 0] * second).float()
    out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-5)
    return layer, out.to(dtype)[None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["random", "common", "one large channel", "halves that cancel", "waves", "small"])
def test_what_rounds_as_models_do_is_not_refused(kind, dtype):
    worst = 0.0
    for length, width in ((100, 64), (1000, 8), (4096, 8)):
        for scores in (0.01, 4.0):
            if dtype is torch.float32 or length < 4096:  # sums are kept in float32 in any case
                layer, observed = attended(kind, scores, length, width, dtype)
                (proof,) = fidelities([layer], [observed], decide=False)
                worst = max(worst, proof.error / proof.tolerance)
    assert worst < 0.7


@pytest.mark.parametrize(
    "length, dtype", [*((100, dtype) for dtype in mistaken.DTYPES), (1000, "bfloat16"), (1000, "float16"), (1000, "float64")]
)
def test_planted_mistakes_are_refused_at_every_length(length, dtype):
    read = mistaken.read(mistaken.diffllama("heads of 8", 0, mistaken.DTYPES[dtype], length), tiny.ids(length))
    right = read.proof()
    assert right.error < 0.7 * right.tolerance
    for name, mistake in mistaken.MISTAKES.items():
        wrong = read.proof(mistake)
        assert wrong.error > wrong.tolerance, name


@pytest.mark.slow
def test_a_long_prompt_is_held_as_tightly_as_a_short_one():
    read = mistaken.read(mistaken.diffllama("heads of 8", 1, torch.float32, 8192), tiny.ids(8192))
    right = read.proof()
    assert right.error < 0.7 * right.tolerance and right.lam_within < 1e-4
    for name, mistake in mistaken.MISTAKES.items():
        wrong = read.proof(mistake)
        assert wrong.error > wrong.tolerance, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_score_that_the_model_rounds_the_other_way_is_no_misreading(dtype):
    info = torch.finfo(dtype)
    q, v = torch.ones(1, 1, 2, 1, dtype=dtype), torch.tensor([1.0, -1.0], dtype=dtype).reshape(1, 1, 2, 1)
    k = torch.full((1, 1, 2, 1), 60.0, dtype=dtype)
    layer = LayerAttention(0, "test", q, k, v, 1.0, Pairing.plain(1), (2,), score_dtype=dtype)
    off = torch.sigmoid(torch.tensor(32 * info.eps))  # the first key's score is one number of the dtype higher
    observed = torch.stack([torch.tensor(1.0), 2 * off - 1]).to(dtype).reshape(1, 2, 1)
    (proof,) = fidelities([layer], [observed])
    assert {torch.float16: 0.015, torch.bfloat16: 0.1}[dtype] < proof.error < proof.tolerance


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    lam=st.floats(-1.5, 1.5),
    width=st.sampled_from([1, 2, 8, 32]),
    length=st.integers(1, 300),
    scores=st.sampled_from([0.01, 1.0, 5.0]),
    kind=st.sampled_from(["random", "common", "one large channel", "waves"]),
)
def test_lambda_is_pinned_to_what_is_said(lam, width, length, scores, kind):
    layer, observed = attended(kind, scores, length, width, lam=lam)
    (right,) = fidelities([layer], [observed], decide=False)
    assert right.error <= right.tolerance
    for sign in (-1, 1):
        if right.lam_within < 0.01:  # beyond, the norm bends what a change of λ does
            off = sign * 1.05 * right.lam_within
            (wrong,) = fidelities([replace(layer, lam=layer.lam + off)], [observed], decide=False)
            assert wrong.error > wrong.tolerance
        (alike,) = fidelities([replace(layer, lam=layer.lam + sign * 0.2 * right.lam_within)], [observed], decide=False)
        assert right.lam_within == np.inf or right.lam_within > 0.01 or alike.error <= alike.tolerance


def test_how_far_lambda_is_pinned_is_said_of_every_layer(tmp_path):
    scope = diffscope.load(tiny.own("v1"))
    assert (scope.capture(tiny.ids(40)).fidelity.lam_within < 1e-4).all()
    one = scope.capture([5])  # its map is 1 whatever λ is, and the norm takes the rest away
    assert (one.fidelity.lam_within > 1).all()
    one.save(tmp_path / "one.dscope")
    assert diffscope.open(tmp_path / "one.dscope").fidelity.identical(one.fidelity)
    assert diffscope.load(tiny.own("standard")).capture(tiny.ids(40)).fidelity.lam_within.isnull().all()
    half = diffscope.load(tiny.own("v1").bfloat16()).capture(tiny.ids(40))
    assert (half.fidelity.lam_within < 1e-4).all()  # by the float32 run
    layer, observed = attended("random", 2.0, 60, 8, torch.bfloat16)  # half precision is all there is
    (rounded,) = fidelities([layer], [observed])
    (off,) = fidelities([replace(layer, lam=layer.lam + 2e-3)], [observed])
    assert off.error <= off.tolerance and 2e-3 < rounded.lam_within < 0.3
    heads = diffscope.load(tiny.own("v2")).capture(tiny.ids(40))
    assert (heads.fidelity.lam_within < 1e-4).all()


def test_a_mask_that_hides_all_keys_leaves_nothing_proved():
    layer, observed = attended("random", 1.0, 5, 8)
    hidden = Mask("given", visible=torch.zeros(1, 5, 5, dtype=torch.bool))
    standard = LayerAttention(0, "test", layer.q[:, :1], layer.k[:, :1], layer.v, 1.0, Pairing.plain(1), (5,))
    for each, decide in itertools.product((layer, standard), (True, False)):
        (proof,) = fidelities([replace(each, mask=hidden)], [observed], decide)
        assert proof.rows == 0 and not proof.decided and "nothing to compare" in proof.reason


@pytest.mark.parametrize("size", [3e-5, 1e-3, 1.0])
def test_no_cause_is_named_where_none_explains_the_deviation(size):
    layer, observed = attended("random", 2.0, 60, 8)
    observed = observed + size * torch.randn(observed.shape, generator=torch.Generator().manual_seed(1))
    (proof,) = fidelities([layer], [observed])
    assert proof.error > proof.tolerance
    message = str(mismatch(layer, observed, proof))
    assert "likely cause" not in message and f"error {proof.error:.2g}, tolerance 2e-05" in message
    assert message.endswith(
        "no mistake that is known explains it: remove hooks and changes from the module, or correct its family"
    )


@pytest.mark.usefixtures("no_causes")
def test_a_check_says_that_no_cause_is_known():
    model = tiny.own("v1", num_hidden_layers=1)

    def noisy(module, arguments):
        noise = torch.randn(arguments[0].shape, generator=torch.Generator().manual_seed(1))
        return (arguments[0] + noise,)

    model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(noisy)
    fails = [f.says for f in diffscope.check(model).findings if (f.verdict, f.check) == ("fail", "fidelity")]
    assert fails and all("not what the model computed; no mistake that is known explains it" in says for says in fails)
