"""Depth × length

The share of |D| on the answer by depth of the answer and length of the prompt, for two models and for uniform attention,
on one scale. Each cell is a mean over heads, then layers, then prompts, with its standard error over prompts.
"""

import diffscope
from diffscope import figures, readings

models = {name: diffscope.load(name) for name in ("mini-diff", "mini-standard")}
found = {name: readings.depths(scope, [96, 160], prompts=2) for name, scope in models.items()}
figure = figures.depth_by_length(found, quantity="answer")
