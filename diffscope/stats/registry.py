"""The statistics that diffscope knows: a table that lists itself."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from diffscope.errors import DiffscopeError
from diffscope.stats import collectors, layer_statistics
from diffscope.stats.collectors import Collector, PerSpan, Request, RowStatistics
from diffscope.stats.definitions import BRANCH, DEFINITIONS, ROW, Averaged, Definition
from diffscope.stats.formulas import outliers, row_sums, sinks, spans
from diffscope.stats.ranks import exact as rank
from diffscope.stats.ranks import statistic as effective_rank

#: the labels along the dims whose length does not depend on the prompt
LABELS: dict[str, Sequence] = {
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
        The variable's name in a Dataset.
    kind : {"row", "span", "branch", "layer", "map"}
    dims : tuple of str
        Of the variable.
    collector : callable, optional
        Makes, for a request and names of statistics, what takes them from the rows as they stream past. Statistics of one
        collector share it.
    compute : callable, optional
        In place of a collector: takes the statistic from the layer itself.
    note : callable, optional
        What else has to be said of it, as attributes, where it was computed.
    """

    name: str
    kind: str
    dims: tuple[str, ...]
    collector: Callable[[Request, Sequence[str]], Collector] | None = None
    compute: Callable[[Request], Tensor] | None = None
    note: Callable[[Request], dict[str, str]] | None = None

    @property
    def words(self) -> Definition:
        """Its formula, range, where it is undefined, and the source."""
        return DEFINITIONS[self.name]

    @property
    def units(self) -> str:
        return self.words.units

    @property
    def description(self) -> str:
        return self.words.description

    @property
    def definition(self) -> str:
        """The formula."""
        return self.words.formula

    @property
    def averaged(self) -> Averaged:
        """By what it is averaged over queries, heads and layers: "mean", "median", or "not"."""
        return self.words.averaged


def select(names: Iterable[str] | str | None) -> list[Statistic]:
    """The statistics that names and group names stand for, each once; None stands for the group "row".

    Raises
    ------
    UnknownStatistic
        With the names that come close.
    """
    if names is None:
        names = ["row"]
    elif isinstance(names, str):
        names = [names]
    return list({statistic.name: statistic for name in names for statistic in _named(name)}.values())


def _named(name: str) -> list[Statistic]:
    if name in TURNED:
        raise UnknownStatistic(f"no statistic is called {name!r} any more; ask for {TURNED[name]}")
    if name in STATISTICS:
        return [STATISTICS[name]]
    if name in GROUPS:
        return [statistic for statistic in STATISTICS.values() if statistic.kind in GROUPS[name]]
    near = difflib.get_close_matches(name, [*STATISTICS, *GROUPS], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join([*STATISTICS, *GROUPS])}"
    raise UnknownStatistic(f"no statistic is called {name!r}; {hint}")


def _row(name: str) -> Statistic:
    more = {"top_k_mass": ("k",), "quantiles": ("quantile",)}.get(name, ())
    return Statistic(name, "row", (*ROWS, *more), RowStatistics)


def _branch(name: str) -> Statistic:
    return Statistic(name, "branch", ("head", "query", "span"), PerSpan)


ROWS = ("head", "map", "query")
COLUMN = ("head", "map", "normalisation")
RANKS = ("head", "ranked_map", "definition", "control")
RESIDUALS = ("head", "map", "rank")

OTHERS = (
    Statistic("span_mass", "span", (*ROWS, "span", "normalisation"), collectors.SpanMass),
    Statistic("sink_mass", "span", (*ROWS, "sink_set", "normalisation"), collectors.SinkMass),
    Statistic("sink_rate", "span", ("map", "sink_set", "normalisation"), collectors.SinkRate),
    Statistic("column_sink", "span", COLUMN, collectors.ColumnSink),
    Statistic("column_sink_position", "span", COLUMN, collectors.ColumnSink),
    Statistic("lambda", "layer", ("head", "query", "lambda_value"), compute=layer_statistics.lam),
    Statistic("cmrr", "layer", ("head", "query"), compute=layer_statistics.cmrr),
    Statistic("logit_outliers", "layer", ("outlier",), compute=layer_statistics.logit_outliers),
    Statistic("map_distance", "layer", ("map",), collectors.MapDistance),
    Statistic("head_cka", "layer", ("head", "other_head"), collectors.HeadCKA),
    Statistic("effective_rank", "map", RANKS, compute=effective_rank.effective_rank, note=effective_rank.attrs_of_ranks),
    Statistic("effective_rank_error", "map", RANKS, compute=effective_rank.effective_rank_error),
    Statistic("rank_residual", "map", RESIDUALS, compute=effective_rank.rank_residual, note=effective_rank.attrs_of_ranks),
    Statistic("rank_residual_error", "map", RESIDUALS, compute=effective_rank.rank_residual_error),
)

STATISTICS = {statistic.name: statistic for statistic in (*map(_row, ROW), *map(_branch, BRANCH), *OTHERS)}

#: statistics that are given as their complement now
TURNED = {"rho": "'overlap', which is 1 − ρ: 0 where A1 and A2 share nothing, 1 where they are equal"}

#: collectors whose statistics are of each head by itself, and lead with it
BY_HEAD = (RowStatistics, PerSpan, collectors.SpanMass, collectors.SinkMass, collectors.ColumnSink)
