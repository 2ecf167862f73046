"""Table 3 of the paper as a table, with intervals

What the last query gives to the answer and to irrelevant tokens where the answer stands at 0 to 100 % of the text, and the share
of exact answers, for two models, as LaTeX or Markdown. Masses are shares of the sum of |D|, mean over all heads, which
hides the few that find the answer. Three prompts a depth make the intervals wide. The same drawn, in all four
normalisations: [Table 3 of the paper as a figure](task_table_3.md).
"""

import diffscope
from diffscope import readings, tables

scopes = {name: diffscope.load(name) for name in ("mini-diff", "mini-standard")}
by_model = {name: readings.depths(scope, [128], prompts=3) for name, scope in scopes.items()}
estimates = {name: reading.estimates for name, reading in by_model.items()}
table = tables.depths(estimates, normalisation="share")
