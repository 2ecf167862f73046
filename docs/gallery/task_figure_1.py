"""Figure 1 of the paper

How attention is divided among the first token, the text before the answer, the answer, the text after it and the question, for
two models on the same prompts. Bars are means over prompts, heads and layers, small points are the least head and the largest.
How the paper normalised its scores was not published; here shares are of the sum of |D|.
"""

import diffscope
from diffscope import figures, tasks

examples = tasks.examples()
texts, spans = [each.text for each in examples], [each.spans for each in examples]
models = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
figure = figures.allocation(diffscope.compare(*models, texts, spans=spans), venue="neurips")
