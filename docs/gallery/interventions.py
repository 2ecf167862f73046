"""Edits and what they cost

Log-odds of the answer and loss of the text where λ of every head is multiplied by a factor. Lines are means over
prompts with standard errors, points are prompts, and broken lines are the model as it is. Six prompts are few: standard
errors are over these prompts, not over trainings.
"""

import diffscope
from diffscope import edits, figures, readings, tasks

tried = {factor: edits.scale_lambda(factor) for factor in (0, 0.5, 1, 1.5, 2)}
scope = diffscope.load("mini-diff")
reading = readings.interventions(scope, tasks.examples(), tried, along="factor of λ")
figure = figures.interventions(reading)
