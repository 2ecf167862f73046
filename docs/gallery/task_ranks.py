"""Effective ranks with their controls

Effective rank of λ·A2, and of A in standard attention, by layer: lines are medians over heads, points are heads. A low
rank says something of where a map attends only if it is below both controls, the map with its rows permuted and the
uniform map, which attends to nothing and has a rank too.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
models = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
comparison = diffscope.compare(*models, example.text, spans=example.spans)
figure = figures.statistic_by_layer(comparison, statistic="effective_rank")
