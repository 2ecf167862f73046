"""A table of statistics, for LaTeX and for other programs

Entropy, Gini index and attention on the answer of two models at the last token, as LaTeX sets it with booktabs, and
unrounded as Parquet. A value is the mean over heads, then layers, rounded to two digits of what stands beside it: of
one prompt the standard deviation over heads, of several the 95 % interval over prompts. The first says how heads
differ, and nothing of other prompts.
"""

import tempfile
from pathlib import Path

import diffscope
from diffscope import tables, tasks

example = tasks.examples()[0]
comparison = diffscope.compare(diffscope.load("mini-diff"), diffscope.load("mini-standard"), example.text, example.spans)
statistics = tables.statistics(comparison, ["entropy", "gini", "span_mass"], queries="last", span=["answer", "irrelevant"])
for name in ("statistics.tex", "statistics.parquet"):
    statistics.save(Path(tempfile.gettempdir()) / name)
table = statistics
