"""Any labelled values as cells

The share of |D| on the answer at the last token by layer and head, of two models on one scale: weights are counted by
size, and the caption of `figures.heads` says how much of it is negative. Values below zero, as of `normalisation="raw"`,
turn the scale into one with zero in its middle.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
models = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
comparison = diffscope.compare(*models, example.text, spans=example.spans)
mass = comparison.measure("span_mass", queries=[-1])["span_mass"].isel(query=0, drop=True)
shares = mass.sel(map="D", span="answer", normalisation="share", drop=True)
figure = figures.cells(shares, panels="model")
