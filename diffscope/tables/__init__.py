"""Tables for papers, as LaTeX, Markdown, Parquet or CSV.

Of statistics, retrieval by depth, types of heads, conformance, verdicts and published claims.

>>> import diffscope
>>> report = diffscope.check("mini-diff")
>>> diffscope.tables.conformance(report).save("conformance.tex")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from diffscope.lazily import lazily

# imported on first use, since tables of verdicts and claims need no torch
_OF = ("board", "claims", "conformance", "depths", "head_types", "statistic", "statistics")
__getattr__, __dir__, __all__ = lazily(__name__, {"Table": "table", **{name: f"of_{name}" for name in _OF}})

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from diffscope.tables.of_board import board as board
    from diffscope.tables.of_claims import claims as claims
    from diffscope.tables.of_conformance import conformance as conformance
    from diffscope.tables.of_depths import depths as depths
    from diffscope.tables.of_head_types import head_types as head_types
    from diffscope.tables.of_statistic import statistic as statistic
    from diffscope.tables.of_statistics import statistics as statistics
    from diffscope.tables.table import Table as Table
