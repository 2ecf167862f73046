"""The best coefficient

The best coefficient λ* of a head is the one with which A1 − λ*·A2 is as small as it can be: its size on these tokens,
root of the sum of squares. It is drawn against the learned λ, a point a head, on irrelevant tokens and on the answer.
Below the broken line the learned λ takes away more than that. In grey the same with the A2 of other heads: where these
lie as high, A2 shares with A1 what any other map does. A triangle at the top is a value above the axis, which ends at
2: a λ* beyond says only that A2 has next to nothing there that could be subtracted.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
cap = diffscope.load("mini-diff").capture(example.text, spans=example.spans)
figure = figures.amplifier(cap, quantity="best_lambda")
