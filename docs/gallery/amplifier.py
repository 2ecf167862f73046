"""The best coefficient

λ* of every head, the coefficient that would leave least of A1, against the learned λ, on irrelevant tokens and on the
answer. Below the broken line the learned λ takes more than that. In grey the same with the A2 of other heads: where
these lie as high, A2 shares with A1 what any other map does.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
cap = diffscope.load("mini-diff").capture(example.text, spans=example.spans)
figure = figures.amplifier(cap, quantity="best_lambda")
