"""A board of hypotheses

Estimates of one test with their intervals, beside what there would be without an effect, in units of what would matter.
Ten prompts are too few for a verdict, and one model says nothing of an architecture; it shows the form.
"""

from diffscope import figures, hypotheses

verdicts = hypotheses.test("mini-diff", tests=["noise-symmetry"], prompts=10)
figure = figures.board(verdicts)
