"""Attention by stock kernels, its log-sum-exp and its transpose, against softmax in float64."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffscope.errors import DiffscopeError, MissingExtra
from diffscope.kernels.attend import attend, attend_transposed, logsumexp, refusal

SCALE = 0.35
QUIET = settings(deadline=None, max_examples=150, derandomize=True, database=None)


@st.composite
def masks(draw, kernels=("sdpa", "rows")):
    """Numbers of queries and keys, and a mask with its anchor, some of whose queries or keys may see nothing."""
    kernel = draw(st.sampled_from(kernels))
    kind = draw(st.sampled_from(["full", "causal"] + ["window"] * (kernel != "sdpa")))
    how = {"causal": kind != "full", "window": draw(st.integers(1, 9)) if kind == "window" else None, "kernel": kernel}
    offset = draw(st.sampled_from(range(-5, 9))) if kind != "full" else 0
    return draw(st.integers(1, 17)), draw(st.integers(1, 17)), how | {"offset": offset}


def inputs(queries, keys, d=5, width=3, maps=2, dtype=torch.float64, size=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (queries, d), (keys, d), (keys, width)
    q, k, v = (torch.randn(maps, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (q * size).to(dtype), k.to(dtype), v.to(dtype)


def oracle(q, k, causal=False, window=None, offset=0, scale=SCALE, **_):
    """The map in float64, zeros in rows that see nothing, and its log-sum-exp."""
    scores = scale * q.double() @ k.double().mT
    position = offset if torch.is_tensor(offset) else torch.arange(q.shape[1]) + offset
    behind = position[:, None] - torch.arange(k.shape[1])
    if causal or window is not None:
        scores = scores.masked_fill((behind < 0) | (behind >= (window or torch.inf)), -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0), scores.logsumexp(-1)


def close(got, expected, tolerance):
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


@QUIET
@given(masks(), st.integers(0, 11), st.sampled_from([5, 16]), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_attention_and_its_log_sum_exp(mask, width, d, dtype):
    """Whatever the anchor of the mask and the width of the values; half precision is computed as the float32 of it."""
    queries, keys, how = mask
    q, k, v = inputs(queries, keys, d=d, width=width, dtype=dtype)
    a, expected = oracle(q, k, **how)
    out, lse = attend(q, k, v, scale=SCALE, **how)
    assert out.dtype == lse.dtype == torch.promote_types(dtype, torch.float32)
    close(out, a @ v.double(), 1e-12 if dtype == torch.float64 else 5e-6)
    close(lse, expected, 1e-12 if dtype == torch.float64 else 5e-6)
    close(logsumexp(q, k, scale=SCALE, **how), expected, 1e-12 if dtype == torch.float64 else 5e-6)


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


@pytest.mark.parametrize("kernel", ["sdpa", "rows"])
def test_values_wider_than_any_kernel_takes(kernel):
    q, k, v = inputs(6, 9, d=300, width=700)
    a, lse = oracle(q, k, causal=True, offset=3)
    out, got = attend(q, k, v, scale=SCALE, causal=True, offset=3, kernel=kernel)
    close(out, a @ v, 1e-12)
    close(got, lse, 1e-12)


def test_rows_come_in_blocks(monkeypatch):
    """Blocks of a few rows, each with only the keys in its reach, give what one block gives."""
    q, k, v = inputs(40, 45)
    for elements in (1, 700, 1500):
        monkeypatch.setitem(attend.__globals__["BLOCK_ELEMENTS"], "cpu", elements)
        for how in ({}, {"causal": True, "offset": 5}, {"window": 7, "offset": 5}, {"window": 30, "offset": 5}):
            a, lse = oracle(q, k, **how)
            out, got = attend(q, k, v, scale=SCALE, kernel="rows", **how)
            close(out, a @ v, 1e-12)
            close(attend_transposed(q, k, q, got, scale=SCALE, kernel="rows", **how), a.mT @ q, 1e-12)


def test_scattered_queries():
    q, k, v = inputs(4, 20)
    how = {"causal": True, "offset": torch.tensor([11, 3, 19, 4])}
    for window in (None, 5):
        a, lse = oracle(q, k, window=window, **how)
        out, got = attend(q, k, v, scale=SCALE, window=window, **how)
        close(out, a @ v, 1e-12)
        close(attend_transposed(q, k, q, got, scale=SCALE, window=window, **how), a.mT @ q, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "how", [{}, {"causal": True, "offset": 4}, {"window": 5, "offset": 4}, {"causal": True, "offset": torch.tensor([9, 2, 0])}]
)
def test_flex(how, dtype):
    """Where it is not compiled it warns once that it holds the whole map; nobody should hear of that."""
    q, k, v = inputs(3 if torch.is_tensor(how.get("offset")) else 8, 12, width=4, dtype=dtype)
    a, lse = oracle(q, k, **how)
    with warnings.catch_warnings(record=True) as heard:
        out, got = attend(q, k, v, scale=SCALE, kernel="flex", **how)
    assert not heard
    close(out, a @ v.double(), 5e-6)
    close(got, lse, 5e-6)
    if not torch.is_tensor(how.get("offset")):
        y = q[..., :2]
        close(attend_transposed(q, k, y, got, scale=SCALE, kernel="flex", **how), a.mT @ y.double(), 1e-5)


@pytest.mark.parametrize("kernel", ["sdpa", "rows"])
def test_near_one_hot_rows(kernel):
    """Scores of a hundred: the transpose takes their log-sum-exp from them again and must keep what is left."""
    q, k, _ = inputs(200, 200, d=16, dtype=torch.float32, size=70.0)
    how = {"causal": True, "scale": 0.25}
    a, _ = oracle(q, k, **how)
    lse = logsumexp(q, k, kernel=kernel, **how)
    received = attend_transposed(q, k, torch.ones(2, 200, 1), lse, kernel=kernel, **how)
    assert (0.25 * q @ k.mT).abs().max() > 200
    close(received[..., 0], a.sum(1), 2e-4)


def test_refusals_say_why():
    q, k, v = inputs(4, 4)
    reasons = {
        "no kernel is called 'magic'": {"kernel": "magic"},
        "no sliding window": {"kernel": "sdpa", "window": 2},
        "consecutive queries": {"kernel": "sdpa", "causal": True, "offset": torch.arange(4)},
        "float16 or bfloat16 on CUDA": {"kernel": "flash_attn"},
    }
    for reason, how in reasons.items():
        with pytest.raises(DiffscopeError, match=reason) as error:
            attend(q, k, v, scale=SCALE, **how)
        assert "\n" not in str(error.value)
    with pytest.raises(DiffscopeError, match="half precision"):
        attend_transposed(q, k, v, q[..., 0], scale=SCALE, kernel="flash_attn")
    assert refusal("sdpa", q, offset=2) is None


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["sdpa", "flex", "flash_attn", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [0, 40])
def test_on_a_gpu(kernel, dtype, width):
    q, k, v = (x.cuda() for x in inputs(70, 90, d=32, width=width, dtype=dtype))
    how = {"causal": True, "offset": 20, "kernel": kernel}
    if refusal(kernel, q):
        pytest.skip(refusal(kernel, q))
    try:
        out, lse = attend(q, k, v, scale=SCALE, **how)
    except MissingExtra as missing:
        pytest.skip(str(missing))
    a, expected = oracle(q.cpu(), k.cpu(), **how)
    close(lse.cpu(), expected, 2e-5)
    close(out.cpu(), a @ v.cpu().double(), 2e-2 if kernel == "flash_attn" else 2e-5)
    if kernel != "flash_attn":
        received = attend_transposed(q, k, torch.ones_like(q[..., :1]), lse, scale=SCALE, **how)
        close(received[..., 0].cpu(), a.sum(1), 5e-5)
