"""Entropy and Gini index against the standard model

How spread the last token's row of D is in a differential model, and A in a standard one, by layer: entropy is low and
the Gini index high where few keys have most of it. Lines are means over heads, points are heads, and the broken line is
uniform attention. Both are of |D|, since D has negative weights.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
models = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
comparison = diffscope.compare(*models, example.text, spans=example.spans)
figure = figures.statistic_by_layer(comparison, statistic=["entropy", "gini"])
