"""Row statistics: closed forms, an oracle for each, and what must not change them."""

import math
from functools import partial

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from diffscope.stats import rows as d
from diffscope.stats.moments import QUANTILES, of_rows

WEIGHTED = {
    name: partial(d.of, name)
    for name in (
        "entropy",
        "entropy_normalised",
        "effective_tokens",
        "participation",
        "gini",
        "hoyer",
        "pseudo_norm",
        "near_zero",
        "negative_share",
        "argmax",
    )
}
WEIGHTED["top_1_mass"] = lambda x, n: d.of("top_k_mass", x, n)[..., 0]
WEIGHTED["median"] = lambda x, n: d.of("quantiles", x, n)[..., QUANTILES.index(0.5)]


def _oracle(row):
    """The definitions on the visible keys of one row, in other words where there are any."""
    p, n = np.abs(row) / np.abs(row).sum(), len(row)
    nats = scipy.stats.entropy(p)
    return {
        "entropy": nats,
        "entropy_normalised": nats / np.log(n),
        "effective_tokens": np.exp(nats),
        "participation": 1 / np.sum(p**2),
        "gini": np.abs(p[:, None] - p[None, :]).sum() / (2 * n),
        "hoyer": (np.sqrt(n) - 1 / np.linalg.norm(p)) / (np.sqrt(n) - 1),
        "pseudo_norm": np.linalg.norm(p, 0.5),
        "near_zero": np.mean(p < 0.1 / n),
        "top_1_mass": p.max(),
        "median": n * np.quantile(p, 0.5, method="inverted_cdf"),
        "negative_share": -row[row < 0].sum() / np.abs(row).sum(),
    }


@st.composite
def _rows(draw):
    """A signed row, and the same row between keys that it cannot see."""
    n = draw(st.integers(2, 30))
    size = st.floats(1e-4, 1.0)
    row = draw(arrays.arrays(np.float64, n, elements=st.one_of(st.just(0.0), size, size.map(lambda value: -value))))
    assume(np.abs(row).sum() > 0)
    front, back = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    return row, np.concatenate([np.zeros(front), row, np.zeros(back)])


@given(_rows())
def test_rows_agree_with_the_definitions_wherever_their_visible_keys_are(rows):
    row, padded = rows
    oracle = _oracle(row)
    p = np.abs(row) / np.abs(row).sum()
    assume(np.abs(p * len(row) - 0.1).min() > 1e-9)  # a share on the threshold may fall to either side
    for name, value in oracle.items():
        measured = float(WEIGHTED[name](torch.from_numpy(padded), torch.tensor(len(row))))
        assert measured == pytest.approx(value, rel=1e-9, abs=1e-9), name
    assert float(d.of("negative_count", torch.from_numpy(padded), torch.tensor(len(row)))) == np.sum(row < 0)


@given(_rows(), st.floats(1e-3, 1e3), st.randoms(use_true_random=False))
def test_concentration_ignores_scale_order_and_sign(rows, scale, random):
    x, n = torch.from_numpy(rows[1]), torch.tensor(len(rows[0]))
    other = x[torch.tensor(random.sample(range(len(x)), len(x)))].abs() * scale
    for name in WEIGHTED.keys() - {"near_zero", "negative_share", "argmax"}:
        torch.testing.assert_close(WEIGHTED[name](other, n), WEIGHTED[name](x, n), msg=name)


def test_closed_forms():
    """Eight visible keys of ten: uniform, one key, and two levels (half of the keys hold 90 %)."""
    uniform, one_key, two_levels = torch.zeros(3, 10)
    uniform[:8], one_key[3] = 1 / 8, -1
    two_levels[:8] = torch.tensor([0.225] * 4 + [0.025] * 4)
    x, n = torch.stack([uniform, one_key, two_levels]), torch.tensor(8)
    two_nats = -4 * (0.225 * math.log(0.225) + 0.025 * math.log(0.025))
    expected = {
        "entropy": [math.log(8), 0, two_nats],
        "entropy_normalised": [1, 0, two_nats / math.log(8)],
        "effective_tokens": [8, 1, math.exp(two_nats)],
        "participation": [8, 1, 1 / (4 * 0.225**2 + 4 * 0.025**2)],
        "gini": [0, 7 / 8, 0.4],
        "hoyer": [0, 1, (8**0.5 - (4 * 0.225**2 + 4 * 0.025**2) ** -0.5) / (8**0.5 - 1)],
        "pseudo_norm": [8, 1, (4 * 0.225**0.5 + 4 * 0.025**0.5) ** 2],
        "near_zero": [0, 7 / 8, 0],
        "top_1_mass": [1 / 8, 1, 0.225],
        "median": [1, 0, 8 * 0.025],
        "negative_share": [0, 1, 0],
        "argmax": [0, 3, 0],
    }
    for name, values in expected.items():
        measured = WEIGHTED[name](x, n).double()
        torch.testing.assert_close(measured, torch.tensor(values, dtype=torch.float64), rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", WEIGHTED)
def test_one_visible_key_and_rows_of_zeros_are_undefined(name):
    one_key, zeros = torch.tensor([1.0, 0, 0]), torch.zeros(3)
    assert WEIGHTED[name](torch.stack([one_key, zeros]), torch.tensor([1, 3])).isnan().all()


def test_top_k_mass_is_undefined_where_k_keys_are_all_there_are():
    x = torch.tensor([[0.3, 0.25, 0.2, 0.1, 0.1, 0.05], [0.6, 0.4, 0, 0, 0, 0], [0.5, 0.2, 0.1, 0.1, 0.1, 0]])
    mass = d.of("top_k_mass", x, torch.tensor([6, 2, 5]))
    expected = torch.tensor([[0.3, 0.95, math.nan], [0.6, math.nan, math.nan], [0.5, math.nan, math.nan]])
    torch.testing.assert_close(mass, expected, equal_nan=True)


def test_what_needs_no_order_is_the_same_without_sorting():
    """Near-zero keys and the largest weights are read off sorted rows where there are any."""
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).double()
    x[:, 30:], n = 0, torch.tensor(30)
    apart, sorted_too = of_rows(x, n, ["small", "top"]), of_rows(x, n, ["small", "top", "gini"])
    for name in apart:
        torch.testing.assert_close(apart[name], sorted_too[name], msg=name)


def test_visible_keys_are_counted_by_query_for_every_head():
    """n (query,) broadcasts against rows (head, query, key)."""
    x = torch.tril(torch.ones(4, 4)).div(torch.arange(1, 5)[:, None]).expand(2, 4, 4)
    n = torch.arange(1, 5)
    torch.testing.assert_close(WEIGHTED["effective_tokens"](x, n)[:, 1:], torch.tensor([2.0, 3, 4]).expand(2, 3))
    torch.testing.assert_close(WEIGHTED["gini"](x, n)[:, 1:], torch.zeros(2, 3), atol=1e-6, rtol=0)
    assert d.of("top_k_mass", x, n).shape == (2, 4, 3) and d.of("quantiles", x, n).shape == (2, 4, 4)


def test_float32_rows_of_many_keys_keep_their_digits():
    logits = 3 * torch.randn(2, 2**16, generator=torch.Generator().manual_seed(0))
    x, n = logits.softmax(-1), torch.tensor(2**16)
    for name in ("entropy", "participation", "gini", "hoyer", "pseudo_norm", "near_zero"):
        exact = WEIGHTED[name](x.double(), n)
        torch.testing.assert_close(WEIGHTED[name](x, n).double(), exact, rtol=2e-6, atol=0, msg=name)


def test_a_small_negative_share_keeps_its_digits():
    x = torch.tensor([1.0, -1e-9, 0.5])
    assert float(WEIGHTED["negative_share"](x, torch.tensor(3))) == pytest.approx(1e-9 / 1.5, rel=1e-6)


def test_row_sum_is_always_defined():
    torch.testing.assert_close(
        d.of("row_sum", torch.tensor([[1.0, 0.0], [-0.5, 0.25]]), torch.tensor([1, 2])), torch.tensor([1.0, -0.25])
    )
