"""What each head is worth

How the log-odds of the answer change when the second map of one head is taken away (λ = 0), mean over prompts with
standard errors, in nats. The title has what taking all of them away does. Heads that stand in for each other cost
little one by one.
"""

import diffscope
from diffscope import figures, readings, tasks

reading = readings.ablations(diffscope.load("mini-diff"), tasks.examples(), what="A2")
figure = figures.ablation(reading)
