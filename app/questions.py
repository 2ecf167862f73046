"""The statistics of a head by the question that a person has, in plain words."""

from __future__ import annotations

#: questions, and the statistics that answer them
QUESTIONS: dict[str, tuple[str, ...]] = {
    "Where does it look?": ("span_mass", "sink_mass", "column_sink", "argmax"),
    "How spread out is it?": (
        "entropy",
        "entropy_normalised",
        "effective_tokens",
        "participation",
        "gini",
        "hoyer",
        "pseudo_norm",
        "near_zero",
        "top_k_mass",
        "quantiles",
    ),
    "What does the subtraction change?": (
        "noise_gain",
        "signal_gain",
        "selectivity",
        "residual_noise",
        "residual_floor",
        "lambda_star",
        "lambda",
        "cmrr",
    ),
    "Do A1 and A2 agree?": ("overlap", "cosine", "shape_overlap", "js", "kl_12", "kl_21"),
    "Is it signed?": ("negative_share", "negative_count", "row_sum"),
}

#: what the letters of the formulas stand for
LETTERS = (
    "x: a row of A1, A2 or D, over the keys that its query sees; n: how many these are; p = |x| / sum|x|: its shares; "
    "X: the key set, on which <,>_X and |.|_X are taken; q: the shares of A2 where p are those of A1; g: the gain of A1, "
    "1 in most models; lambda: the coefficient of A2"
)


def question_of(statistic: str) -> str | None:
    """The question that a statistic belongs to; None for one that is not of a head."""
    return next((question for question, names in QUESTIONS.items() if statistic in names), None)
