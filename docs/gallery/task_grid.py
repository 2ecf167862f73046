"""D of every head of two models, at the width of a NeurIPS page

A row a layer, a column a head, one scale for all; of standard attention it is the one map that it has. Of a prompt of more than
64 tokens a picture shows the value of largest magnitude of each bin, so that single strong weights survive.
"""

import diffscope

example = diffscope.tasks.examples()[0]
models = diffscope.load("mini-diff"), diffscope.load("mini-standard")
pair = diffscope.compare(*models, example.text)
figure = diffscope.figures.maps(pair, layers="all", heads="all", venue="neurips")
