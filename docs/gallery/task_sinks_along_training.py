"""Sinks along training

The share of |D| that the last token gives to the first token, by head, at each checkpoint. One head is set apart. A
small model on short texts may have no sink at all.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
scopes = {step: diffscope.load(f"mini-diff@{step}") for step in (0, 308, 1036)}
captures = {step: scope.capture(example.text, spans=example.spans) for step, scope in scopes.items()}
figure = figures.training(captures, statistic="sink", layer=1, head=0)
