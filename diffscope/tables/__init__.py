"""Tables for papers, as LaTeX, Markdown, Parquet or CSV.

Of statistics, retrieval by depth, types of heads, conformance, verdicts and published claims.

>>> import diffscope
>>> report = diffscope.check("mini-diff")
>>> diffscope.tables.conformance(report).save("conformance.tex")  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

#: every public name and the module that it is in
_NAMES = {
    "Table": "table",
    **{name: f"of_{name}" for name in ("board", "claims", "conformance", "depths", "head_types", "statistic", "statistics")},
}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: tables of verdicts and claims need no torch."""
    if name not in _NAMES:
        raise AttributeError(f"module 'diffscope.tables' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"diffscope.tables.{_NAMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


if TYPE_CHECKING:  # the same names, for editors and type checkers
    from diffscope.tables.of_board import board as board
    from diffscope.tables.of_claims import claims as claims
    from diffscope.tables.of_conformance import conformance as conformance
    from diffscope.tables.of_depths import depths as depths
    from diffscope.tables.of_head_types import head_types as head_types
    from diffscope.tables.of_statistic import statistic as statistic
    from diffscope.tables.of_statistics import statistics as statistics
    from diffscope.tables.table import Table as Table
