"""The table of the statistics, as their functions declare them."""

import difflib
from collections.abc import Iterable, Sequence

from diffscope.attention.maps import MEASURED_MAPS, RANKED_MAPS
from diffscope.errors import DiffscopeError
from diffscope.stats import branches, heads, moments, outliers, rows, spans  # noqa: F401 (all of them declare statistics)
from diffscope.stats.ranks import exact
from diffscope.stats.ranks import statistic as ranks  # noqa: F401 (it declares statistics)
from diffscope.stats.statistic import DECLARED, KINDS, Statistic

STATISTICS: dict[str, Statistic] = {
    statistic.name: statistic for kind in KINDS for statistic in DECLARED.values() if statistic.kind == kind
}

#: the labels along the dimensions whose length does not depend on the prompt
LABELS: dict[str, Sequence] = {
    "map": MEASURED_MAPS,
    "ranked_map": RANKED_MAPS,
    "normalisation": spans.NORMALISATIONS,
    "sink_set": spans.SINK_SETS,
    "k": moments.TOP_K,
    "quantile": moments.QUANTILES,
    "lambda_value": heads.LAMBDA_VALUES,
    "outlier": outliers.LABELS,
    "definition": exact.DEFINITIONS,
    "control": exact.CONTROLS,
    "rank": exact.RESIDUAL_RANKS,
}

#: statistics that are given as their complement now
TURNED = {"rho": "'overlap', which is 1 − ρ: 0 if A1 and A2 share nothing, 1 if they are equal"}


class UnknownStatistic(DiffscopeError, ValueError):
    """No statistic and no kind has this name."""


def select(names: Iterable[str] | str | None) -> list[Statistic]:
    """Return the statistics of some names and kinds (``KINDS``, or "all"), each once; by default of the kind "row".

    Raises UnknownStatistic, which names those that come close.
    """
    names = ["row"] if names is None else [names] if isinstance(names, str) else names
    names = list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in names):
        raise UnknownStatistic(f"statistics are chosen by their names, not by {names!r}; for example ['entropy', 'gini']")
    chosen: dict[str, Statistic] = {}
    for name in names:
        if name in STATISTICS:
            chosen[name] = STATISTICS[name]
        elif name == "all" or name in KINDS:
            chosen |= {each.name: each for each in STATISTICS.values() if name in ("all", each.kind)}
        else:
            raise _unknown(name)
    return list(chosen.values())


def _unknown(name: str) -> UnknownStatistic:
    if name in TURNED:
        return UnknownStatistic(f"no statistic is called {name!r} any more; ask for {TURNED[name]}")
    known = [*STATISTICS, *KINDS, "all"]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"choose from {', '.join(known)}"
    if near:
        hint = f"did you mean {' or '.join(near)}? `diffscope measure --list` names all"
    return UnknownStatistic(f"no statistic is called {name!r}; {hint}")
