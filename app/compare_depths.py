"""Both sides on retrieval prompts by depth of the answer and length, measured in the background when a button is pressed."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import blocks
import streamlit as st
from background import Job, background
from edit_catalog import text_length
from edit_results import build_edits, texts
from messages import escape_markdown
from pair import PROMPTS, Pair, Side, edits_of
from url_state import bound

from diffscope import figures, readings
from diffscope.readings import signs
from diffscope.readings.retrieval import ROOM, usual_lengths
from diffscope.stats.labels import called
from diffscope.tasks import Retrieval
from diffscope.tasks.sampling import DEPTHS
from diffscope.tasks.training_sentence import template_mismatches, template_of

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
SPANS = {span: called(span) for span in ("answer", "irrelevant", "needles", "sink")}
MASS = "mass"
IN_CELLS = {MASS: "attention, share of |D|", "exact": "exact answers", "log_odds": "log-odds of the answer"}
state = st.session_state


class DepthRequest(NamedTuple):
    """What is measured of a side; its key says on what that depends: not on the prompt that is looked at above."""

    name: str
    scope: Any
    edits: tuple
    key: tuple
    template: str


def show_depths(pair: Pair) -> None:
    """The table of retrieval by depth, by length; or a line that says why there is none."""
    st.markdown("##### Retrieval by depth of the answer and length of the prompt")
    if pair.kind == PROMPTS:
        st.caption("This section generates its own prompts, so it needs two models or an edit.")
        return
    if named := [edit.words for side in pair.sides for edit in edits_of(side.subject) if edit.of_prompt]:
        words = f"This section has prompts of its own, and “{named[0]}” is an edit of the prompt above. Undo it to measure here."
        st.caption(escape_markdown(words))
        return
    settings = _choose_settings([side.subject.scope() for side in pair.sides])
    if not settings["lengths"]:
        st.caption("Choose a length.")
        return
    models = {side.name: side.subject.scope().model for side in pair.sides}
    template = template_of(next(iter(models.values())))  # both sides get the same prompts
    for remark in template_mismatches(template, models):
        st.caption(f"{escape_markdown(remark)}.")
    asked = [_asked(side, settings, template) for side in pair.sides]
    done: dict = state.setdefault("_depths", {})
    if all(side.key in done for side in asked):
        _show(pair, settings, [done[side.key] for side in asked])
        return
    key = tuple(side.key for side in asked)
    count = len(DEPTHS) * settings["prompts"] * len(settings["lengths"])
    cities = settings["distractors"] + 1
    background(
        key,
        "compare-measure",
        "Measure retrieval on both sides",
        lambda: partial(_measure, asked=asked, settings=settings, done=done),
        caption=f"{count} prompts a side: real text that states {cities} cities with a number each, and asks for one.",
    )


def _asked(side: Side, settings: dict, template: str) -> DepthRequest:
    subject = side.subject
    edits = edits_of(subject)
    read = {
        text_length(subject.scope(), side.cap) for edit in edits if edit.kind.reads
    }  # tokens of texts that edits are made from
    key = (*subject.key[:2], texts(edits), *read, *settings.values(), template)
    return DepthRequest(side.name, subject.scope(), build_edits(subject, side.cap, edits), key, template)


def _measure(job: Job, asked: list[DepthRequest], settings: dict, done: dict) -> None:
    """Measure what is not yet known of the sides, and keep it in the session."""
    for number, side in enumerate(asked):

        def report(prompt: int, prompts: int, before: int = number, name: str = side.name) -> None:
            job.report(before * prompts + prompt, len(asked) * prompts, f"{name}: prompt {prompt} of {prompts}")

        if side.key not in done:
            task = Retrieval(side.scope.tokenizer, template=side.template)
            done[side.key] = readings.depths(side.scope, edits=side.edits, task=task, progress=report, **settings)


def _choose_settings(scopes: list) -> dict:
    """Lengths, prompts of each cell and distractors, as :func:`depths` takes them."""
    room = min((scope.max_length - ROOM for scope in scopes if scope.max_length is not None), default=max(LENGTHS))
    options = [str(length) for length in LENGTHS if length <= room]
    fit = set.intersection(*(set(usual_lengths(scope)) for scope in scopes))
    usual = [option for option in options if int(option) in fit]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        lengths = st.multiselect(
            "Lengths in tokens",
            options,
            **bound("compare-lengths", options=options, default=usual, several=True),
            width=330,
            placeholder="choose lengths",
        )
        prompts = st.number_input("Prompts of each length and depth", 2, 100, **bound("compare-prompts", default=5), width=230)
        distractors = st.number_input("Distractors", 1, 40, **bound("compare-distractors", default=3), width=110)
    return {"lengths": tuple(sorted(map(int, lengths))), "prompts": int(prompts), "distractors": int(distractors)}


def _show(pair: Pair, settings: dict, of_sides: list) -> None:
    """What was measured: in words, by depth in all normalisations, and by depth and length."""
    reading = readings.contrast(*(measured.estimates for measured in of_sides), pair.names)
    sides = reading.estimates
    st.markdown(escape_markdown(reading.sentence))
    for name, measured in zip(pair.names, of_sides):
        st.caption(f"**{escape_markdown(name)}.** {escape_markdown(measured.sentence)}")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        lengths = list(settings["lengths"])
        length = st.selectbox(
            "Length in tokens", lengths, **bound("compare-length", options=lengths, default=lengths[len(lengths) // 2]), width=140
        )
        spans = list(SPANS)
        span = st.selectbox(
            "Attention to", spans, **bound("compare-span", options=spans), format_func=SPANS.__getitem__, width=170
        )
    named = dict(zip(pair.names, of_sides))
    lines = figures.by_depth(named, length=length, span=span)
    blocks.show_chart(lines, f"Attention to {SPANS[span]} by depth, in four normalisations", key="compare-depth-lines")
    st.caption(escape_markdown(signs.of_depths({name: measured.estimates for name, measured in named.items()}, [span])))
    st.caption(
        f"D at the last token of prompts of {length} tokens, mean over heads, layers and prompts, ± standard error over prompts."
    )
    options = list(IN_CELLS)
    kind = st.selectbox(
        "In the cells", options, **bound("compare-cells", options=options), format_func=IN_CELLS.__getitem__, width=200
    )
    quantity = span if kind == MASS else kind
    title = f"{IN_CELLS[kind]}: {SPANS[span]}" if kind == MASS else IN_CELLS[kind]
    cells = figures.depth_by_length(named, quantity=quantity, title=title)
    blocks.show_chart(cells, f"{title}, by depth and length", key="compare-depth-cells")
    _offer(pair, settings, sides, cells)


def _offer(pair: Pair, settings: dict, sides, cells) -> None:
    """Offer the cells and their numbers for export."""
    calls = []
    templates = [template_of(side.subject.scope().model) for side in pair.sides]
    arguments = ", ".join(f"{word}={value!r}" for word, value in settings.items())
    if len(set(templates)) > 1:
        arguments += f", task=diffscope.tasks.Retrieval(scope.tokenizer, template={templates[0]!r})"
    for name, side in zip(("first", "second"), pair.sides):
        edits = "edits=changes, " if edits_of(side.subject) else ""
        calls.append(f"{side.subject.code()}{name} = diffscope.readings.depths(scope, {edits}{arguments}).estimates\n\n")
    blocks.export_menu(
        "compare-depths",
        label="Export the table",
        figure=lambda: cells,
        data=lambda: sides,
        code=CODE.format(calls="".join(calls), names=pair.names) + blocks.saved(cells, "named", "depths"),
    )


CODE = """{calls}reading = diffscope.readings.contrast(first, second, {names!r})
print(reading)
named = dict(zip({names!r}, (first, second)))
"""
