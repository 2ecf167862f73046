"""Five bars

What the last token gives to the first token, to the text before the answer, to the answer, to the text after it, and to
the question, for two models and for uniform attention. Bars are means over heads, then layers, and small points are
the least head and the largest: few heads find the answer, and a mean hides them. Shares are of the sum of |D|.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
models = {name: diffscope.load(name) for name in ("mini-diff", "mini-standard")}
captures = {
    name: scope.capture(example.text, spans=example.spans)  # of one prompt
    for name, scope in models.items()
}
figure = figures.allocation(captures)
