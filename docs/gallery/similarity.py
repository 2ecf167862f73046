"""What two maps share

Overlap of A1 and A2 on irrelevant tokens, head by head, at the last token: 0 where they share nothing, 1 where they
are equal. In grey the same of A1 and the A2 of the other heads of its layer, the null. With two heads in a layer the null
is one number; do not read much into a single one.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
cap = diffscope.load("mini-diff").capture(example.text, spans=example.spans)
figure = figures.similarity(cap, statistic="overlap", span="irrelevant")
