"""A head along training

The share of |D| that every head gives the answer at each checkpoint, one head set apart, beside uniform attention.
Steps are evenly spaced. What happened between two checkpoints is not known.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
steps = ("@0", "@308", "@1036", "")
scopes = {int(step[1:] or 1900): diffscope.load(f"mini-diff{step}") for step in steps}
captures = {step: scope.capture(example.text, spans=example.spans) for step, scope in scopes.items()}
figure = figures.training(captures, statistic="answer", layer=1, head=0)
