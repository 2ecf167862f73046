"""One statistic of every head, of two models

The share of Σ|D| that the last token gives to the answer. Head h of one model is not head h of the other: compare the numbers of
heads that find the answer, not cell with cell.
"""

import diffscope

example = diffscope.tasks.examples()[0]
models = diffscope.load("mini-diff"), diffscope.load("mini-standard")
pair = diffscope.compare(*models, example.text, spans=example.spans)
figure = diffscope.figures.heads(pair, statistic="span_mass", span="answer", venue="neurips")
