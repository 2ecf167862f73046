"""What the branches of every head do to the logits of the answer and of what competes with it."""

from __future__ import annotations

from functools import partial

import streamlit as st
from background import CancellableScope, Measurement, cached_job
from messages import escape_markdown, show_errors
from question import ask, choose_distractors, in_python

from amplifier.scores import show_score
from amplifier.section import folded, heading, python
from amplifier.section import show as show_reading
from diffscope.errors import PromptError
from diffscope.figures import amplifier_charts as charts
from diffscope.readings import Question, branches, effort, synthetic_prompts

IMPORTS = "from diffscope.readings import branches\nfrom diffscope.readings import synthetic_prompts, question"
OTHERS = 4  # prompts whose A2 is the control
BRANCHES = "what each branch adds"


def branches_of(scope, key: tuple, question: Question) -> Measurement:
    """Return the measurement of this section, of the subject with this key: the reading, and why it has no control."""

    def compute(report):
        watched = CancellableScope(scope, partial(report, 0, 1))
        others, why = _others(watched, len(question.ids))
        return branches(watched, question, others), why

    runs = effort.of_runs(scope, len(question.ids), 1 + 2 * OTHERS)
    return Measurement((key, question.key), BRANCHES, runs, compute)


def show(subject, cap) -> None:
    """Show what the branches of every head add to the logits, and why a head looks at a token."""
    show_branches(subject, cap, choose_distractors(subject))
    show_score(subject, cap)


@st.fragment
def show_branches(subject, cap, distractors: tuple[str, ...]) -> None:
    """Show bars by head, and all parts of the model that add up to the logits."""
    heading("logits", "Does −λ·A₂ lower the distractors, and spare the answer?")
    with show_errors():
        question = ask(subject, cap, distractors)
        result = cached_job(*branches_of(subject.scope(), subject.key, question))
        if result is None:
            return
        reading, why = result
        if why:
            st.caption(escape_markdown(f"There is no control: {why}."))
        estimates = reading.estimates
        lines = (
            f"asked = {in_python(subject, cap, question)}",
            f"reading = branches(scope, asked, synthetic_prompts(scope, len(asked.ids), {OTHERS}))",
            "print(reading)",
        )
        show_reading(
            "branches",
            charts.added(estimates),
            "What A₁ and −λ·A₂ of every head add to the logits of the answer and of distractors",
            estimates[["contribution"]],
            python(subject, IMPORTS, *lines, "charts.added(reading.estimates).save('branches.pdf')"),
            estimates["contribution"].attrs["reads"],
            reading.sentence,
        )
        with folded("logits", "All parts of the model") as is_open:
            if is_open:
                show_reading(
                    "account",
                    charts.account(estimates),
                    "What all parts of the model add to the logits of the answer and of distractors, by layer",
                    estimates[["account", "logit", "unexplained"]],
                    python(subject, IMPORTS, *lines, "charts.account(reading.estimates).save('account.pdf')"),
                    "All bars of a panel together, those up minus those down, are the logit.",
                )


def _others(scope, length: int) -> tuple[list[list[int]], str]:
    """Return other prompts of as many tokens; if none can be made, none, and why."""
    try:
        return synthetic_prompts(scope, length, OTHERS), ""
    except PromptError as error:
        return [], str(error)
