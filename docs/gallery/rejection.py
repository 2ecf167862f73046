"""Rejection of injected noise

How much more noise of opposite sign on the two maps changes D than the same noise on both does, in dB, over the
strength of the noise: the median over heads, and every head as a point. In grey the same with the A2 of other heads. At
0 dB nothing cancels. A head that hardly attends to the noisy keys has a ratio of two small numbers.
"""

import diffscope
from diffscope import figures, readings, tasks

example = tasks.examples()[0]
cap = diffscope.load("mini-diff").capture(example.text, spans=example.spans)
figure = figures.rejection(readings.rejection(cap, sigmas=(0.1, 0.2, 0.5, 1, 2), draws=16))
