"""What a capture proves

The relative error of each layer's output as it is rebuilt from the capture, beside the tolerance that it has to stay
below. A capture whose error is above is refused.
"""

import diffscope
from diffscope import figures

cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
figure = figures.fidelity(cap)
