"""Any labelled values as curves

Values along one dimension, a colour for each label of another: here the share of |D| that the last token gives to four
spans, by layer, mean over heads. Whatever `measure` gives can be drawn so once one label is selected, or an average
taken, along every other dimension.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
cap = diffscope.load("mini-diff").capture(example.text, spans=example.spans)
mass = cap.measure("span_mass", queries=[-1])["span_mass"].isel(query=0, drop=True)
spans = ["answer", "needles", "query", "sink"]
shares = mass.sel(map="D", normalisation="share", span=spans, drop=True)
figure = figures.curves(shares.mean("head", keep_attrs=True), x="layer", series="span")
