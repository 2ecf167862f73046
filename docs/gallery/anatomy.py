"""What A2 is made of

Shares of A2 that are uniform, a matter of distance, a matter of the key, a copy of A1, and explained by none of these;
beside it A1, and the A2 of the next head in its place. The next head's A2 says how much of a copy any A2 would be. What
distance and key explain is fitted to other prompts, of which there should be more than here.
"""

import diffscope
from diffscope import figures, readings, tasks

scope, example = diffscope.load("mini-diff"), tasks.examples()[0]
cap = scope.capture(example.text, spans=example.spans)
reading = readings.composition(cap, readings.other_prompts(scope, cap, 4))
figure = figures.anatomy(reading)
