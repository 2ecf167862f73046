"""The arms of a study, seed by seed

Log-odds of the answer by number of distractors, a panel a length: small points are seeds, larger ones their means,
lines 95 % intervals. Other quantities are when the lookup circuit forms, λ along the training and rejected noise.
These seeds were made up, with differential attention that gains the more, the more distractors there are.
"""

from diffscope import figures
from diffscope.hypotheses.outcomes import outcomes
from diffscope.hypotheses.planted_cohort import planted_cohort
from diffscope.hypotheses.study import Study

cohort = planted_cohort("NC", seeds=8)
study = Study({"recipe": "planted"}, {}, [], outcomes=outcomes(cohort))
figure = figures.study(study, quantity="log_odds")
