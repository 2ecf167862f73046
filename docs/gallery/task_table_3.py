"""Table 3 of the paper as a figure

Attention of the last query to the answer and to irrelevant tokens by depth of the answer, for two models in all four
normalisations. The form is that of Table 3 of "Differential Transformer"; which normalisation it used was not
published. Three prompts a depth are enough to see the form; report twenty or more. The numbers, with intervals:
[the same as a table](task_table_of_depths.md).
"""

import diffscope
from diffscope import figures, readings

models = {name: diffscope.load(name) for name in ("mini-diff", "mini-standard")}
found = {name: readings.depths(scope, [128], prompts=3) for name, scope in models.items()}
figure = figures.by_depth(found)
