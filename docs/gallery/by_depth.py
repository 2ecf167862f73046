"""Attention by depth of the answer

What the last query of retrieval prompts gives to the answer and to irrelevant tokens, where the answer stands at 0 to
100 % of the text, in all four normalisations. Lines are means over heads, then layers, then prompts, with standard
errors over prompts. Models that rank one way in one normalisation may rank the other way in another; say which one you
report.
"""

import diffscope
from diffscope import figures, readings

reading = readings.depths(diffscope.load("mini-diff"), [128], prompts=3)
figure = figures.by_depth(reading)
