"""What one query attends to

A1 points up, λ·A2 down, and the points are D, their difference. It is the row of the last token by default, the one that answers.
The spans of the prompt lie behind it in their colours.
"""

import diffscope

example = diffscope.tasks.examples()[0]
capture = diffscope.load("mini-diff").capture(example.text, spans=example.spans)
figure = diffscope.figures.row(capture, layer=1, head=0, venue="neurips")
