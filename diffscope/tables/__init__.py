"""Tables for papers: statistics, retrieval by depth, conformance, verdicts, published claims; as LaTeX, Markdown, Parquet, CSV.

>>> import diffscope
>>> report = diffscope.check("mini-diff")
>>> diffscope.tables.conformance(report).save("conformance.tex")  # doctest: +SKIP
"""

from diffscope.tables.board import board
from diffscope.tables.claims import claims
from diffscope.tables.conformance import conformance
from diffscope.tables.depths import depths
from diffscope.tables.statistics import statistics
from diffscope.tables.table import Table

__all__ = ["Table", "board", "claims", "conformance", "depths", "statistics"]
