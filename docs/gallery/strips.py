"""Any labelled values as strips

Every head as a point, two models beside each other in each layer: the Gini index of D at the last token. Head 0 of one
model is not head 0 of the other, so that nothing joins them.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
models = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
comparison = diffscope.compare(*models, example.text, spans=example.spans)
gini = comparison.measure("gini", queries=[-1])["gini"].isel(query=0, drop=True)
figure = figures.strips(gini.sel(map="D", drop=True), series="model")
