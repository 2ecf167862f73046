"""A board of hypotheses

Points are the estimates of one test, dark lines their intervals. The light grey bar of a row is where its estimate
would lie if there were no effect; the grey field between −1 and 1 is what would not matter. All is in units of the
smallest effect that matters, and the axis bends: beyond ±1 it becomes a logarithm, so that large effects fit.
Ten prompts are too few for a verdict, and one model says nothing of an architecture; it shows the form.
"""

from diffscope import figures, hypotheses

verdicts = hypotheses.test("mini-diff", tests=["noise-symmetry"], prompts=10)
figure = figures.board(verdicts)
