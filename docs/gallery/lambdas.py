"""λ by layer

The coefficient of A2 by layer: its mean and range over heads and tokens, beside its initial value. Most mechanisms have
one λ a layer; then there is no range.
"""

import diffscope
from diffscope import figures

cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
figure = figures.lambdas(cap)
