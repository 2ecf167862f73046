"""The statistics that diffscope knows: a table that lists itself."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from diffscope.errors import DiffscopeError
from diffscope.stats import collectors, effective_rank, layer_statistics
from diffscope.stats.collectors import Collector, PerSpan, Request, RowStatistics
from diffscope.stats.formulas import outliers, rank, row_sums, sinks, spans

#: the labels along the dims whose length does not depend on the prompt
LABELS = {
    "map": collectors.MAPS,
    "ranked_map": collectors.RANKED_MAPS,
    "normalisation": spans.NORMALISATIONS,
    "sink_set": sinks.SINK_SETS,
    "k": row_sums.TOP_K,
    "quantile": row_sums.QUANTILES,
    "lambda_value": layer_statistics.LAMBDA_VALUES,
    "outlier": outliers.LABELS,
    "definition": rank.DEFINITIONS,
    "control": rank.CONTROLS,
    "rank": rank.RESIDUAL_RANKS,
}

#: names that stand for several statistics, and the kinds they stand for
GROUPS = {
    "row": ("row",),
    "span": ("span",),
    "branch": ("branch",),
    "layer": ("layer",),
    "rank": ("map",),
    "all": ("row", "span", "branch", "layer", "map"),
}


class UnknownStatistic(DiffscopeError, ValueError):
    """No statistic or group goes by this name."""


@dataclass(frozen=True)
class Statistic:
    """One entry of the table.

    Attributes
    ----------
    name : str
        As in SCIENCE.md; the variable's name in a Dataset.
    kind : {"row", "span", "branch", "layer", "map"}
    dims : tuple of str
        Of the variable.
    units : str
        "1" if dimensionless.
    description : str
        One line.
    definition : str
        The formula, and where it comes from if it has an author.
    collector : callable, optional
        Makes, for a request and names of statistics, what takes them from the rows as they stream past. Statistics of one
        collector share it.
    compute : callable, optional
        In place of a collector: takes the statistic from the layer itself.
    note : callable, optional
        What else has to be said of it, as attributes, where it was computed.
    averageable : bool
        Whether a mean over queries or heads says anything; of positions and of decibels it does not.
    """

    name: str
    kind: str
    dims: tuple[str, ...]
    units: str
    description: str
    definition: str
    collector: Callable[[Request, Sequence[str]], Collector] | None = None
    compute: Callable[[Request], Tensor] | None = None
    averageable: bool = True
    note: Callable[[Request], dict[str, str]] | None = None


def select(names: Iterable[str] | str | None) -> list[Statistic]:
    """The statistics that names and group names stand for, each once; None stands for the group "row".

    Raises
    ------
    UnknownStatistic
        With the names that come close.
    """
    names = ["row"] if names is None else [names] if isinstance(names, str) else names
    return list({statistic.name: statistic for name in names for statistic in _named(name)}.values())


def _named(name: str) -> list[Statistic]:
    if name in STATISTICS:
        return [STATISTICS[name]]
    if name in GROUPS:
        return [statistic for statistic in STATISTICS.values() if statistic.kind in GROUPS[name]]
    near = difflib.get_close_matches(name, [*STATISTICS, *GROUPS], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join([*STATISTICS, *GROUPS])}"
    raise UnknownStatistic(f"no statistic is called {name!r}; {hint}")


# name: units, description, definition; x is a row of A1, A2 or D, p = |x|/sum|x| its shares, n its visible keys
ROW = {
    "entropy": ("nats", "entropy of the shares", "-sum p ln p, p = |x|/sum|x|"),
    "entropy_normalised": ("1", "entropy over that of a uniform row", "entropy / ln n"),
    "effective_tokens": ("keys", "keys of a uniform row of the same entropy", "exp(entropy)"),
    "participation": ("keys", "inverse participation of the shares", "1 / sum p²"),
    "gini": ("1", "Gini index", "sum_i (2i - n - 1)|x|_(i) / (n sum|x|), ascending (Hurley & Rickard 2009)"),
    "hoyer": ("1", "Hoyer sparsity", "(sqrt n - |x|_1/|x|_2) / (sqrt n - 1) (Hoyer 2004)"),
    "pseudo_norm": ("1", "pseudo-norm of the shares at 1/2", "(sum p^(1/2))²"),
    "near_zero": ("1", "fraction of keys with next to no weight", "#{visible keys with p < 0.1/n} / n"),
    "top_k_mass": ("1", "share of the k largest weights", "sum of the k largest p; NaN where n <= k"),
    "quantiles": ("1", "quantiles of the shares, uniform = 1", "n times the ceil(q n)-th smallest p"),
    "argmax": ("position", "key of the largest weight", "argmax |x|"),
    "negative_share": ("1", "share of the absolute mass that is negative", "sum max(-x, 0) / sum|x|"),
    "negative_count": ("keys", "keys of negative weight", "#{x < 0}"),
    "row_sum": ("1", "sum of the row", "sum x; gain - lambda for D"),
}

# X is a key set; <,>_X and |.|_X are taken on it; p, q are A1, A2 renormalised on it; g is the gain of A1
BRANCH = {
    "cosine": ("1", "cosine of the branches", "<A1,A2>_X / (|A1|_X |A2|_X); NaN on one key"),
    "lambda_star": ("1", "coefficient that leaves least of A1", "<A1,A2>_X / <A2,A2>_X; compare with lambda/g"),
    "residual_noise": ("1", "what the subtraction leaves", "|D|_X / |g A1|_X, Euclidean norms"),
    "residual_floor": ("1", "what the best coefficient leaves", "sqrt(1 - cosine²)"),
    "noise_gain": ("1", "absolute mass out over mass in", "sum_X |D| / sum_X A1"),
    "signal_gain": ("1", "net mass out over mass in", "sum_X D / sum_X A1"),
    "selectivity": ("1", "share in D over share in A1", "(sum_X |D| / sum |D|) / sum_X A1"),
    "rho": ("1", "relative difference of the branches", "sum_X |A1 - A2| / sum_X (A1 + A2)"),
    "kl_12": ("nats", "divergence of A2 from A1", "KL(A1|A2) = sum p ln(p/q); NaN on one key"),
    "kl_21": ("nats", "divergence of A1 from A2", "KL(A2|A1) = sum q ln(q/p); NaN on one key"),
    "js": ("nats", "Jensen-Shannon divergence of the branches", "(KL(p|m) + KL(q|m))/2, m = (p + q)/2; NaN on one key"),
    "overlap": ("1", "overlap of the branches", "sum min(p, q); NaN on one key"),
}

MASSES = "raw: sum_S x; share: sum_S |x| / sum |x|; signed: sum_S x / (g - lambda); positive: sum_S x+ / sum x+"
RANKS = (
    "of singular values s: erank: exp H(s/sum s) (Roy & Vetterli 2007); erank_energy: exp H(s²/sum s²); "
    "participation: (sum s²)²/sum s⁴; stable_rank: sum s²/max s²; r90: fewest s² that hold 90 %; controls: the uniform "
    "map over the same visible keys, the map with each row's visible keys permuted; always of all queries; beyond 4,096 tokens "
    "estimated matrix-free, and NaN where that is not within 5 %"
)
ROWS = ("head", "map", "query")
OF_RANKS = ("head", "ranked_map")

OTHERS = (
    Statistic(
        "span_mass",
        "span",
        (*ROWS, "span", "normalisation"),
        "1",
        "attention on each key set",
        MASSES,
        collector=collectors.SpanMass,
    ),
    Statistic(
        "sink_mass",
        "span",
        (*ROWS, "sink_set", "normalisation"),
        "1",
        "attention on the first token and on the first four",
        MASSES,
        collector=collectors.SinkMass,
    ),
    Statistic(
        "sink_rate",
        "span",
        ("map", "sink_set", "normalisation"),
        "1",
        "share of heads with an attention sink",
        "share of heads whose mean mass over queries is above 0.3 (Gu et al. 2024)",
        collector=collectors.SinkRate,
    ),
    Statistic(
        "column_sink",
        "span",
        ("head", "map", "normalisation"),
        "1",
        "mean mass of the most attended key",
        "max over keys of the mean over queries",
        collector=collectors.ColumnSink,
    ),
    Statistic(
        "column_sink_position",
        "span",
        ("head", "map", "normalisation"),
        "position",
        "the most attended key",
        "argmax over keys of the mean over queries",
        collector=collectors.ColumnSink,
        averageable=False,
    ),
    Statistic(
        "lambda",
        "layer",
        ("head", "query", "lambda_value"),
        "1",
        "the coefficient of A2",
        "used: after casting; fp32: before; init: at initialisation; minus_init: used - init",
        compute=layer_statistics.lam,
    ),
    Statistic(
        "cmrr",
        "layer",
        ("head", "query"),
        "dB",
        "common-mode rejection ratio",
        "20 log10(((g + lambda)/2) / |g - lambda|)",
        compute=layer_statistics.cmrr,
        averageable=False,
    ),
    Statistic(
        "logit_outliers",
        "layer",
        ("outlier",),
        "1",
        "largest and median magnitude of the attention logits",
        "of |scale q.k| over all maps of the layer and the keys each query sees, exact",
        compute=layer_statistics.logit_outliers,
    ),
    Statistic(
        "map_distance",
        "layer",
        ("map",),
        "1",
        "mean cosine distance between the heads' maps",
        "mean over pairs of heads of 1 - <A_i,A_j> / (|A_i||A_j|)",
        collector=collectors.MapDistance,
    ),
    Statistic(
        "head_cka",
        "layer",
        ("head", "other_head"),
        "1",
        "linear CKA between the heads' outputs",
        "|Yj'Yi|² / (|Yi'Yi||Yj'Yj|), Y = D V centred over queries (Kornblith et al. 2019)",
        collector=collectors.HeadCKA,
    ),
    Statistic(
        "effective_rank",
        "map",
        (*OF_RANKS, "definition", "control"),
        "1",
        "effective ranks beside their controls",
        RANKS,
        compute=effective_rank.effective_rank,
        note=effective_rank.said_of_ranks,
    ),
    Statistic(
        "effective_rank_error",
        "map",
        (*OF_RANKS, "definition", "control"),
        "1",
        "half-widths of the effective ranks",
        "0 where they are exact; else half the bracket of their quadrature and three standard errors",
        compute=effective_rank.effective_rank_error,
    ),
    Statistic(
        "rank_residual",
        "map",
        ("head", "map", "rank"),
        "1",
        "what the best approximation of rank r leaves",
        "|A - A_r|_F / |A|_F (Eckart & Young 1936), for A2 without lambda; always of all queries",
        compute=effective_rank.rank_residual,
        note=effective_rank.said_of_ranks,
    ),
    Statistic(
        "rank_residual_error",
        "map",
        ("head", "map", "rank"),
        "1",
        "half-widths of the rank residuals",
        "0 where they are exact",
        compute=effective_rank.rank_residual_error,
    ),
)


def _row(name: str) -> Statistic:
    more = {"top_k_mass": ("k",), "quantiles": ("quantile",)}.get(name, ())
    return Statistic(name, "row", (*ROWS, *more), *ROW[name], collector=RowStatistics, averageable=name != "argmax")


def _branch(name: str) -> Statistic:
    return Statistic(name, "branch", ("head", "query", "span"), *BRANCH[name], collector=PerSpan)


STATISTICS = {s.name: s for s in (*map(_row, ROW), *map(_branch, BRANCH), *OTHERS)}

#: collectors whose statistics are of each head by itself, and lead with it
BY_HEAD = (RowStatistics, PerSpan, collectors.SpanMass, collectors.SinkMass, collectors.ColumnSink)
