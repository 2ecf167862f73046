"""A statistic by layer

Entropy of the last token's row by layer: lines are means over heads, points are heads, and the broken line is uniform
attention over the same keys. Any statistic of the registry is drawn so, with the control that belongs to it. A row of
few keys has low entropy anyhow; compare prompts of one length.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
models = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
comparison = diffscope.compare(*models, example.text, spans=example.spans)
figure = figures.statistic_by_layer(comparison, statistic="entropy")
