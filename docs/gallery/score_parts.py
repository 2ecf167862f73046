"""Why a head looks at a token

What the score of one cell of a map is made of: what earlier parts wrote at the query, times what they wrote at the key,
before the softmax and counted from the mean of the row. Norms are held at their factors. It says what the score is made
of, and not what the head would look at without a part.
"""

import diffscope
from diffscope import figures, tasks

scope, example = diffscope.load("mini-diff"), tasks.examples()[0]
key = int(scope.encode(example.text, example.spans).spans["answer"][0])
parts = diffscope.attribution.score_attribution(scope, example.text, 1, 1, -1, key, against="row")
figure = figures.score_parts(parts)
