"""Answers by depth and length

Log-odds of the answer against its distractors, in nats, by depth of the answer and length of the prompt; below each
number stands its standard error over prompts. At 0 the answer is as likely as all distractors together. The share of
exact answers is drawn in the same way, and has a ceiling.
"""

import diffscope
from diffscope import figures, readings

reading = readings.depths(diffscope.load("mini-diff"), [96, 192], prompts=3)
figure = figures.depth_by_length(reading, quantity="log_odds")
