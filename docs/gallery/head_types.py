"""Which head is of which known type

What A1, A2 and D of every head give to the token before, to the query's own token, to what followed it, to the first
token, and how often the token that comes next gets the largest weight where the text states it (retrieval). Scores
below 0: the subtraction takes weight from these keys. A score is no type without its controls, which the caption has.
"""

import diffscope
from diffscope import figures, readings, tasks

reading = readings.head_types(diffscope.load("mini-diff"), tasks.examples(), copying=False)
figure = figures.head_types(reading, text="prompts")
