"""A1, A2, λ·A2 and D of one head

Where each query looks, what the second map holds against it, and what is left. All four have one colour scale, which follows the
root of a weight, so that small weights show beside a sink; zero is white, and what a query cannot see is grey. A map is computed
from the queries and keys that the capture kept, and the capture proved that they rebuild the model's own output.

Drawn is the window from token 60 on: A1 is next to empty in its upper rows, which attend to keys before the window. The stripes
are the spans of the prompt; the one called "query" is the question at its end, not a query of the map.
"""

import diffscope

example = diffscope.tasks.examples()[0]
capture = diffscope.load("mini-diff").capture(example.text, spans=example.spans)
window = {"queries": (60, 96), "keys": (60, 96)}
figure = diffscope.figures.maps(capture, layer=2, head=1, **window, venue="neurips")
