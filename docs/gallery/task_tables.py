"""A table of statistics, for LaTeX and for other programs

Entropy, Gini index and attention on the answer of two models at the last token. `table.save("statistics.tex")` writes it
for LaTeX with booktabs, `table.save("statistics.parquet")` unrounded for other programs. A value is the mean over
heads, then layers, rounded to two digits of what stands beside it: of one prompt the standard deviation over heads, of
several the 95 % interval over prompts. The first says how heads differ, and nothing of other prompts.
"""

import diffscope
from diffscope import tables, tasks

example = tasks.examples()[0]
models = diffscope.load("mini-diff"), diffscope.load("mini-standard")
comparison = diffscope.compare(*models, example.text, example.spans)
statistics = ["entropy", "gini", "span_mass"]
table = tables.statistics(comparison, statistics, queries="last", span=["answer", "irrelevant"])
