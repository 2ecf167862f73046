"""Attention by depth, as a table

What the last query gives to the answer and to irrelevant tokens where the answer stands at 0 to 100 % of the text, and the share
of exact answers, for two models: the third table of the DIFF Transformer's paper, with intervals. Masses are shares of
the sum of |D|, mean over all heads, which hides the few that find the answer. Three prompts a depth make the intervals
wide.
"""

import diffscope
from diffscope import readings, tables

scopes = {name: diffscope.load(name) for name in ("mini-diff", "mini-standard")}
estimates = {name: readings.depths(scope, [128], prompts=3).estimates for name, scope in scopes.items()}
table = tables.depths(estimates, normalisation="share")
