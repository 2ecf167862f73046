"""Attention by torch's kernels, its log-sum-exp and its transpose, against softmax in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffscope.attention.components import Mask
from diffscope.stats.ranks.attend import attend, attend_transposed, reason_unsupported
from tests.kernels.test_rows import _random

SCALE = 0.35
QUIET = settings(deadline=None, max_examples=60, derandomize=True, database=None)


@st.composite
def masks(draw):
    """Numbers of queries and keys, and a mask with its anchor, some of whose queries or keys may see nothing."""
    causal = draw(st.booleans())
    offset = draw(st.sampled_from(range(-5, 9))) if causal else 0
    return draw(st.integers(1, 17)), draw(st.integers(1, 17)), {"causal": causal, "offset": offset}


def inputs(queries, keys, d=5, width=3, maps=2, dtype=torch.float64, size=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (queries, d), (keys, d), (keys, width)
    q, k, v = (torch.randn(maps, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (q * size).to(dtype), k.to(dtype), v.to(dtype)


def oracle(q, k, causal=False, offset=0, scale=SCALE):
    """The map in float64, zeros in rows that see nothing, and its log-sum-exp."""
    scores = scale * q.double() @ k.double().mT
    hidden = torch.arange(k.shape[1]) > torch.arange(q.shape[1])[:, None] + offset
    scores = scores.masked_fill(hidden, -torch.inf) if causal else scores
    return scores.softmax(-1).nan_to_num(0.0), scores.logsumexp(-1)


def close(got, expected, tolerance):
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


@QUIET
@given(masks(), st.integers(1, 11), st.sampled_from([5, 16]), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_attention_and_its_log_sum_exp(mask, width, d, dtype):
    """Whatever the anchor of the mask and the width of the values; half precision is computed as the float32 of it."""
    queries, keys, how = mask
    q, k, v = inputs(queries, keys, d=d, width=width, dtype=dtype)
    a, expected = oracle(q, k, **how)
    out, lse = attend(q, k, v, scale=SCALE, **how)
    assert out.dtype == lse.dtype == torch.promote_types(dtype, torch.float32)
    close(out, a @ v.double(), 1e-12 if dtype == torch.float64 else 5e-6)
    close(lse, expected, 1e-12 if dtype == torch.float64 else 5e-6)


@QUIET
@given(masks(), st.integers(1, 7), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_what_keys_receive(mask, width, dtype):
    queries, keys, how = mask
    q, k, _ = inputs(queries, keys, dtype=dtype)
    y = inputs(queries, queries, width=width, seed=1)[2].to(dtype)
    a, lse = oracle(q, k, **how)
    received = attend_transposed(q, k, y, lse.to(torch.promote_types(dtype, torch.float32)), scale=SCALE, **how)
    assert received.dtype == torch.promote_types(dtype, torch.float32)
    close(received, a.mT @ y.double(), 1e-12 if dtype == torch.float64 else 1e-5)
    assert (received[a.sum(1) == 0] == 0).all()


def test_values_wider_than_the_kernels_take():
    q, k, v = inputs(6, 9, d=300, width=700)
    a, lse = oracle(q, k, causal=True, offset=3)
    out, measured = attend(q, k, v, scale=SCALE, causal=True, offset=3)
    close(out, a @ v, 1e-12)
    close(measured, lse, 1e-12)


def test_near_one_hot_rows():
    """Scores of a hundred: the transpose takes their log-sum-exp from them again and must keep what is left."""
    q, k, v = inputs(200, 200, d=16, dtype=torch.float32, size=70.0)
    how = {"causal": True, "scale": 0.25}
    a, _ = oracle(q, k, **how)
    _, lse = attend(q, k, v, **how)
    received = attend_transposed(q, k, torch.ones(2, 200, 1), lse, **how)
    assert (0.25 * q @ k.mT).abs().max() > 200
    close(received[..., 0], a.sum(1), 2e-4)


def test_what_cannot_be_served_says_why():
    layer = _random(0)
    assert reason_unsupported(layer) is None
    reasons = {
        "neither causal nor full": replace(layer, mask=Mask("window", 4)),
        "scores were rounded": replace(layer, score_dtype=torch.bfloat16),
        "changed mid-forward": replace(layer, changes=(object(),)),
        "2 prompts": replace(layer, lengths=(8, 8)),
    }
    for reason, other in reasons.items():
        assert reason in reason_unsupported(other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 40])
def test_on_a_gpu(dtype, width):
    q, k, v = (x.cuda() for x in inputs(70, 90, d=32, width=width, dtype=dtype))
    how = {"causal": True, "offset": 20}
    out, lse = attend(q, k, v, scale=SCALE, **how)
    a, expected = oracle(q.cpu(), k.cpu(), **how)
    close(lse.cpu(), expected, 2e-5)
    close(out.cpu(), a @ v.cpu().double(), 2e-5)
    received = attend_transposed(q, k, torch.ones_like(q[..., :1]), lse, scale=SCALE, **how)
    close(received[..., 0].cpu(), a.sum(1), 5e-5)
