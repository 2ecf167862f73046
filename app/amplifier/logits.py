"""Logits: what each branch of a head adds to the logits of the answer and its distractors, and what a score is made of."""

from __future__ import annotations

from functools import partial

import blocks
import streamlit as st
from background import CancellableScope, Measurement, cached_job
from messages import escape_markdown, show_errors
from question import ask, choose_distractors, in_python
from selection import choose_head, choose_query
from url_state import bound, token_ids

from amplifier import Section, heading
from diffscope import figures
from diffscope.attribution import score_attribution
from diffscope.errors import PromptError
from diffscope.figures import amplifier_charts as charts
from diffscope.figures.escaping import short_name
from diffscope.numbers import head_name
from diffscope.readings import Question, branches, effort, score_parts, synthetic_prompts

OTHERS = 4  # prompts whose A2 is the control
BRANCHES = "what each branch adds"
KEY = "cell-key"  # in the address, and where a click in the maps leaves it
OF_PROMPT = "_cell-prompt"  # the tokens of the prompt that this key is of
RUNS = 3  # of a model, for the score of a cell
READS = (
    "A cell is what a part of the query times a part of the key adds to the score, before the softmax and counted from the "
    "mean of the row. It says what the score is made of, and not what the head would look at without a part."
)
state = st.session_state


def show_logits(subject, cap) -> None:
    """Show what the branches of every head add to the logits, and why a head looks at a token."""
    show_branches(subject, cap, choose_distractors(subject, cap))
    show_score(subject, cap)


def branches_of(scope, key: tuple, question: Question) -> Measurement:
    """Return the measurement of branches, of the subject with this key: the reading, and why it has no control."""

    def compute(report):
        watched = CancellableScope(scope, partial(report, 0, 1))
        others, why = _others(watched, len(question.ids))
        return branches(watched, question, others), why

    runs = effort.of_runs(scope, len(question.ids), 1 + 2 * OTHERS)
    return Measurement((key, question.key), BRANCHES, runs, compute)


def _others(scope, length: int) -> tuple[list[list[int]], str]:
    """Return other prompts of as many tokens; if none can be made, none, and why."""
    try:
        return synthetic_prompts(scope, length, OTHERS), ""
    except PromptError as error:
        return [], str(error)


@st.fragment
def show_branches(subject, cap, distractors: tuple[str, ...]) -> None:
    """Show bars by head, and all parts of the model that add up to the logits."""
    heading("What each branch does to the logits", "Does −λ·A₂ lower the distractors, and spare the answer?", "logits")
    with show_errors():
        question = ask(subject, cap, distractors)
        result = cached_job(branches_of(subject.scope(), subject.key, question))
        if result is None:
            return
        reading, why = result
        if why:
            st.caption(escape_markdown(f"There is no control: {why}."))
        estimates = reading.estimates
        python = (
            f"asked = {in_python(subject, cap, question)}\n"
            f"reading = readings.branches(scope, asked, readings.synthetic_prompts(scope, len(asked.ids), {OTHERS}))"
        )
        section = Section(subject, python, estimates)
        section.show(
            "contribution",
            charts.added,
            alt="What A₁ and −λ·A₂ of every head add to the logits of the answer and of distractors",
            name="branches",
            says=reading.sentence,
        )
        with blocks.folded("All parts of the model", "amplifier-more-logits") as is_open:
            if is_open:
                section.show(
                    "account",
                    charts.account,
                    alt="What all parts of the model add to the logits of the answer and of distractors, by layer",
                    data=estimates[["account", "logit", "unexplained"]],
                    reads="All bars of a panel together, those up minus those down, are the logit.",
                )


def score_of(subject, cap, layer: int, head: int, query: int, key: int, name: str) -> Measurement:
    """Return the measurement of what earlier parts make up the score of one cell of A1 or A2."""
    scope = subject.scope()
    cell = (layer, head, query, key)

    def compute(report):
        watched = CancellableScope(scope, partial(report, 0, 1))
        return score_parts(score_attribution(watched, list(cap.prompts[0].ids), *cell, map=name, against="row"))

    seconds = effort.of_runs(scope, cap.n_tokens, RUNS)
    return Measurement((subject.key, "score", *cell, name), "what the score is made of", seconds, compute)


@st.fragment
def show_score(subject, cap) -> None:
    """Show what the score of the locked cell is made of, and let another cell be chosen."""
    heading("Why a head looks there", "Why does a head look at a token?", "scores")
    with blocks.folded("What the score of one cell is made of", "amplifier-more-scores") as is_open:
        if is_open:
            with show_errors():
                _show_cell(subject, cap)


def _show_cell(subject, cap) -> None:
    """Show the choice of a cell, and what its score is made of."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, head = choose_head(cap)
        query = choose_query(cap, "Query")
        key = _choose_key(cap, query)
        names = ["A1", "A2"] if cap.differential else ["A1"]
        name = st.selectbox("Map", names, **bound("cell-map", options=names, default=names[0]), width=90)
    reading = cached_job(score_of(subject, cap, layer, head, query, key, name))
    if reading is None:
        return
    figure = figures.score_parts(reading)
    cell = f"scope, list(cap.prompts[0].ids), {layer}, {head}, {query}, {key}, map={name!r}, against='row'"
    blocks.show_figure(
        figure,
        f"What the score of token {key} at token {query} in {name} of {head_name(layer, head)} is made of",
        key="amplifier-score",
        name=f"{short_name(cap.model_name)}-score",
        says=reading.sentence,
        caption=READS,
        data=lambda: reading.estimates,
        code=f"{subject.code()}\nparts = diffscope.attribution.score_attribution({cell})\n"
        f"print(diffscope.readings.score_parts(parts))\n{blocks.saved(figure, 'parts', 'score')}",
    )


def _choose_key(cap, query: int) -> int:
    """Return the key of the cell: what was locked in the maps, else the answer's first token, as far as the query sees it."""
    first = min(cap.spans.get("answer", (0,)))
    if state.get(OF_PROMPT, token_ids(cap)) != token_ids(cap):
        state[KEY] = min(first, query)
    state[OF_PROMPT] = token_ids(cap)
    if state.get(KEY) is not None and state[KEY] > query:
        state[KEY] = query
    key = st.number_input("Key", 0, query, None, step=1, **bound(KEY, default=min(first, query), named=True), width=110)
    return min(first, query) if key is None else key
