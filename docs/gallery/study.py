"""The arms of a study, seed by seed

Log-odds of the answer by number of distractors, a panel a length: small points are seeds, larger ones their means,
lines 95 % intervals. Other quantities are when the lookup circuit forms, λ along the training and rejected noise.
"""

from diffscope import figures
from diffscope.hypotheses.study import open_study

figure = figures.study(open_study("laptop"), quantity="log_odds")
