"""A swept dataset

The share of |D| on the answer by the number of distractors, of two models, from a sweep over prompts: means over heads,
then layers, then prompts, with standard errors over prompts, and every head as a point. Any variable of a sweep can be
drawn along any of its dimensions or fields of its prompts.
"""

import tempfile

import diffscope
from diffscope import figures
from diffscope.lab.plan import Plan
from diffscope.lab.sweep import sweep

prompts = {"task": "controlled", "count": 3, "length": 128, "slots": 4, "distractors": [1, 2, 4]}
models = ["mini-diff", "mini-standard"]
plan = Plan.of({"models": models, "statistics": ["span_mass"], "prompts": [prompts]})
swept = sweep(plan, tempfile.mkdtemp())
figure = figures.sweep(diffscope.open(swept.dataset), statistic="span_mass", x="distractors")
