"""A map along training

D of one head at every checkpoint of a training, on one scale: what is added is blue, what is taken away orange. A long
prompt is drawn in bins, each of which shows its value of largest magnitude.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
scopes = {step: diffscope.load(f"mini-diff@{step}") for step in (0, 308, 1036)}
captures = {step: scope.capture(example.text, spans=example.spans) for step, scope in scopes.items()}
figure = figures.checkpoints(captures, layer=1, head=0)
