"""What a capture proves

The relative error of each layer's output as it is rebuilt from the capture, beside the tolerance that it has to stay
below. A capture whose error is above is refused.
"""

import diffscope
from diffscope import figures

cap = diffscope.load("mini-diff").capture("The magic number: Paris 7421. The magic number: Paris")
figure = figures.fidelity(cap)
