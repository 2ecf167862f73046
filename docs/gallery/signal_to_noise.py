"""Signal-to-noise gain

Whether the answer stands out more of D·V than of A₁·V: eight answers are put into each of eight other texts, and what
answers change in a head's output (signal) stands over what texts change (noise), in dB. Beside it the same with a uniform A₂,
which is a flat pedestal (grey), and with the A₂ of the next head. At 0 dB the subtraction changes nothing.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
measured = diffscope.instruments.signal_to_noise(diffscope.load("mini-diff"), example.text, spans=example.spans)
figure = figures.signal_to_noise(measured)
