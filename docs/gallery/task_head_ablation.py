"""Head ablation

How the log-odds of the answer change when the output of one head is removed, by layer and head, for two models: means
over prompts with standard errors, in nats. Titles have what removing all heads does. Heads that stand in for each other
cost little one by one.
"""

import diffscope
from diffscope import figures, readings, tasks

models = {name: diffscope.load(name) for name in ("mini-diff", "mini-standard")}
found = {name: readings.ablations(scope, tasks.examples()) for name, scope in models.items()}
figure = figures.ablation(found)
