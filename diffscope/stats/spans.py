"""Statistics of how much of a row of attention falls on a set of keys, and on sinks: the first tokens, or any one token.

A signed row has no one "mass": a reader has to know which is meant, so every result carries all four normalisations by name;
"share" counts |D|, "signed" counts D over its sum. A value is NaN if it would be the same for every model: in rows that see none
of the set's keys, and in rows that see no other keys (rows with one visible key among them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from diffscope.stats.collect import BlockRows, Columns, Quantity, Request, add_by_key, of_three_maps, place, take
from diffscope.stats.rows import ROW
from diffscope.stats.statistic import Statistic, declare

SINK = "When Attention Sink Emerges in Language Models: An Empirical View (Gu et al., 2024)"
MASSES = (
    "raw: sum_X x; share: sum_X |x| / sum |x|; signed: sum_X x / sum x, which is sum_X D / (g - lambda) without sink logits; "
    "positive: sum_X x+ / sum x+"
)
NO_MASS = "rows that see no key of X, or no other; signed where |sum x| < 0.001; share and positive where their denominator is 0"

NORMALISATIONS = ("raw", "share", "signed", "positive")
SINK_SETS = ("S", "first_four")
SMALLEST_NET = 1e-3
RATE_THRESHOLD = 0.3


def denominators(total: Tensor, positive: Tensor, net: Tensor) -> Tensor:
    """Return what each normalisation divides a row by, (..., normalisation); NaN if that is undefined.

    `total` and `positive` (...) are sum |x| and sum max(x, 0) of the row. `net` is what it sums to: 1 for probabilities and
    gain - lambda for D; with sink logits its own sum.
    """
    net = torch.where(net.abs() < SMALLEST_NET, math.nan, net).to(total.dtype).expand_as(total)
    total, positive = (torch.where(sums > 0, sums, math.nan) for sums in (total, positive))
    return torch.stack([torch.ones_like(total), total, net, positive], dim=-1)


def fixed_by_construction(n: Tensor, seen: Tensor) -> Tensor:
    """Return whether rows see no key of a set, or no other, (..., span): of n (...) keys they see, `seen` are in the set."""
    return (seen == 0) | (seen == n.unsqueeze(-1))


def mass(x: Tensor, spans: Sequence[Columns], below: Tensor, n: Tensor) -> Tensor:
    """Compute the mass of rows on key sets, in all four normalisations: (..., span, normalisation).

    ============ ==========================================================
    raw          sum_S x
    share        sum_S |x| / sum |x|
    signed       sum_S x / net, NaN if |net| < 1e-3
    positive     sum_S max(x, 0) / sum max(x, 0), NaN if nothing is positive
    ============ ==========================================================

    Rows x (..., key) are of A1, A2 or D, with exact zeros on invisible keys, and n (...) are their visible keys. `spans` has the
    key positions of each set, and how many of them each row sees; `below` is of :func:`denominators`.
    """
    sums = []
    for span in spans:
        part = take(x, span.keys)
        net = part.sum(-1)
        sums.append(torch.stack([net, part.abs().sum(-1), net, part.clamp_min(0).sum(-1)], dim=-1))
    fixed = fixed_by_construction(n, torch.stack([span.seen for span in spans], dim=-1))
    return (torch.stack(sums, dim=-2) / below.unsqueeze(-2)).masked_fill(fixed.unsqueeze(-1), math.nan)


def column_sums(x: Tensor, below: Tensor, n: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum the normalised mass that each key receives from a block of queries, and count those queries.

    Rows x (head, query, key) with one visible key are left out, as are rows in which a normalisation is undefined; `below` is of
    :func:`denominators`, and `weights` (query,) say how many queries each one stands for. Returned are, in float64, the sums and
    behind them the number of rows that were added, (head, normalisation, key + 1).
    """
    counts = torch.ones_like(n) if weights is None else weights
    factors = below.reciprocal()
    valid = factors.isfinite() & (n > 1)[:, None]
    counts = torch.where(valid, counts.to(x.dtype)[:, None], 0)  # (head, query, normalisation)
    by_normalisation = torch.where(valid, factors * counts, 0).unbind(-1)
    views = (x, x.abs(), x, x.clamp_min(0))
    sums = [torch.einsum("hq,hqk->hk", factor, view) for factor, view in zip(by_normalisation, views, strict=True)]
    return torch.cat([torch.stack(sums, dim=1).double(), counts.double().sum(1).unsqueeze(-1)], dim=-1)


def _masses(block: BlockRows, columns: Sequence[Columns]) -> Tensor:  # (head, map, query, span, normalisation)
    below = denominators(block.moments["total"], block.moments["positive"], block.net)
    values = [mass(x, columns, of_map, block.n) for x, of_map in zip(block.maps, below)]
    return of_three_maps(values, block.request.layer, dim=1)


def _on_spans(block: BlockRows, statistics: Sequence[Statistic]) -> Tensor:
    return _masses(block, block.of_spans)


def _on_sinks(block: BlockRows, statistics: Sequence[Statistic]) -> Tensor:
    request = block.request
    first = torch.arange(min(4, request.layer.n_keys), device=block.n.device)
    return _masses(block, block.columns([request.spans.get("sink", first[:1]), first]))


def _received(block: BlockRows, statistics: Sequence[Statistic]) -> Tensor:  # (head, map, normalisation, key + 1)
    below = denominators(block.moments["total"], block.moments["positive"], block.net)
    values = [column_sums(x, of_map, block.n, block.weights) for x, of_map in zip(block.maps, below)]
    return of_three_maps(values, block.request.layer, dim=1)


ROWS = 256  # whose visible keys are looked at together
SUMS = frozenset({"total", "positive"})
SPAN_MASS = Quantity(_on_spans, place(query_dim=2), SUMS)
SINK_MASS = Quantity(_on_sinks, place(query_dim=2), SUMS)
RECEIVED = Quantity(_received, add_by_key, SUMS)
span = partial(declare, kind="span", units="1")


@span(
    dims=(*ROW, "span", "normalisation"),
    quantity=SPAN_MASS,
    description="attention on each key set",
    formula=MASSES,
    range=("-inf", "inf"),
    undefined=NO_MASS,
)
def span_mass(mass: Tensor, request: Request) -> Tensor:
    """Return the mass on the requested key sets, (head, map, query, span, normalisation)."""
    return mass


@span(
    dims=(*ROW, "sink_set", "normalisation"),
    quantity=SINK_MASS,
    description="attention on the first token, or the span named sink where one is given, and on the first four",
    formula=MASSES,
    range=("-inf", "inf"),
    undefined=NO_MASS,
)
def sink_mass(mass: Tensor, request: Request) -> Tensor:
    """Return the mass on the sink sets, (head, map, query, sink set, normalisation)."""
    return mass


@span(
    dims=("map", "sink_set", "normalisation"),
    quantity=SINK_MASS,
    description="share of heads with an attention sink",
    formula="share of heads whose mean mass over queries is above 0.3",
    range=("0", "1"),
    undefined="where no head has a mean",
    source=SINK,
    averaged_over="queries, then heads",
)
def sink_rate(mass: Tensor, request: Request) -> Tensor:
    """Compute the share of heads with a sink, (map, sink set, normalisation), over the heads that have a mean."""
    weights = None if request.weights is None else request.weights.cpu()
    return rate(mass.movedim(2, -1), weights)


def rate(mass: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the share of heads whose mean mass (head, ..., query) over queries is above the 0.3 of Gu et al. (2024).

    Rows that are NaN are left out of the mean; NaN if no head has a mean. `weights` (query,) say how many queries each one stands
    for.
    """
    weights = torch.where(mass.isnan(), 0, torch.ones_like(mass) if weights is None else weights.to(mass.dtype))
    mean = (mass.nan_to_num() * weights).sum(-1) / weights.sum(-1)  # 0/0 if all are NaN
    return torch.where(mean.isnan(), math.nan, (mean > RATE_THRESHOLD).to(mass.dtype)).nanmean(0)


@span(
    dims=("head", "map", "normalisation"),
    quantity=RECEIVED,
    description="mean mass of the most attended key",
    formula="max over keys of the mean over queries",
    range=("-inf", "inf"),
    undefined="where no row has a value",
    source=SINK,
    averaged_over="queries",
)
def column_sink(received: Tensor, request: Request) -> Tensor:
    """Return the mean mass of the most attended key, (head, map, normalisation)."""
    return most_attended(received, request.once(seen_keys))[0]


@partial(declare, kind="span")(
    dims=("head", "map", "normalisation"),
    quantity=RECEIVED,
    units="position",
    description="the most attended key",
    formula="argmax over keys of the mean over queries",
    range=("0", "keys - 1"),
    undefined="where no row has a value",
    source=SINK,
    averaged="not",
    averaged_over="queries",
)
def column_sink_position(received: Tensor, request: Request) -> Tensor:
    """Return the position of the most attended key, (head, map, normalisation)."""
    return most_attended(received, request.once(seen_keys))[1]


def seen_keys(request: Request) -> Tensor:
    """Return which keys are seen by some row that sees two or more, as :func:`column_sums` adds them, bool (key,)."""
    seen = torch.zeros(request.layer.n_keys, dtype=torch.bool)
    for some in request.queries.flip(0).split(ROWS):  # the last queries see most keys
        rows = request.layer.visible(some).cpu()  # (query, key)
        seen |= rows[rows.sum(1) > 1].any(0)
        if seen.all():
            break
    return seen


def most_attended(received: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most attended of the keys that are `seen`: its mean mass over queries, and its position, float64.

    Both are NaN if no row was added.

    The mean is over all queries that were added, those that cannot see the key among them, so that the last keys, which few
    queries see, do not win by their own diagonal. `received` (..., key + 1) is of :func:`column_sums`, added over blocks.
    """
    means = (received[..., :-1] / received[..., -1:]).masked_fill(~seen.to(received.device), -math.inf)
    mean, position = torch.where(received[..., -1:] > 0, means, math.nan).max(-1)
    return mean, position.double().masked_fill(mean.isnan(), math.nan)
