"""The two sides of a comparison: what differs between them, chosen by the reader."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import blocks
import streamlit as st
from cache import examples, stamp_of, unmarked
from catalog import bundled, cards, step_of, without_step
from edit_catalog import Written
from edit_controls import show_stack
from edit_results import Edited
from messages import as_call, escape_markdown
from selection import default_head
from sidebar import (
    LAST_STEP,
    OWN,
    Subject,
    answer_span,
    as_code,
    as_loaded,
    check_length,
    choose_model,
    choose_subject,
    is_saved,
    refuse_encoder,
)
from url_state import bound

from diffscope import figures
from diffscope.capture.comparison import Comparison
from diffscope.cards import are_matched, is_standard, to_compare_with
from diffscope.errors import DiffscopeError
from diffscope.figures.escaping import short_name
from diffscope.models.folders import steps_of
from diffscope.numbers import stretches
from diffscope.prompts.encoded import Chars

MODELS = "two models"
PROMPTS = "two prompts"
STEPS = "two checkpoints"
EDIT = "with and without an edit"
KINDS = (MODELS, PROMPTS, STEPS, EDIT)
IMPORT = "import diffscope\n\n"
state = st.session_state


def edits_of(subject: Subject) -> tuple[Written, ...]:
    """The edits that a subject is looked at under."""
    return subject.written if isinstance(subject, Edited) else ()


class Side(NamedTuple):
    """One side: what it is called, what it looks at, and with what."""

    name: str
    subject: Subject
    cap: object


class Pair(NamedTuple):
    """Both sides, what differs between them, and whether head h of one is head h of the other."""

    kind: str
    first: Side
    second: Side
    matched: bool

    @property
    def sides(self) -> tuple[Side, Side]:
        """The first and the second."""
        return (self.first, self.second)

    @property
    def key(self) -> tuple:
        """What distinguishes it from any other pair."""
        return (self.first.subject.key, self.second.subject.key, self.names)

    @property
    def names(self) -> tuple[str, str]:
        """What the sides are called."""
        return (self.first.name, self.second.name)

    @property
    def linked(self) -> bool:
        """Whether both look at the same tokens."""
        first, second = ([(each.ids, each.tokens) for each in side.cap.all_prompts] for side in self.sides)
        return first == second

    def comparison(self) -> Comparison:
        """Both captures, as figures take them."""
        return Comparison(self.names, (self.first.cap, self.second.cap))

    def code(self) -> str:
        """Python that gives both captures as a Comparison."""
        first, second = (side.subject for side in (self.first, self.second))
        if self.kind in (MODELS, STEPS) and self.linked and not (first.saved or second.saved):
            return (
                f"{IMPORT}first = {as_loaded(first.model)}\n"
                f"second = {as_loaded(second.model)}\n"
                f"prompt = {first.prompt!r}\n"
                f"comparison = diffscope.compare(first, second, prompt, spans={as_code(first.marked_spans())})\n"
            )
        return (
            f"{first.code()}first = cap\n\n"
            f"{second.code().removeprefix(IMPORT)}second = cap\n\n"
            f"comparison = diffscope.Comparison({self.names!r}, (first, second))\n"
        )


def choose_sides() -> Pair | None:
    """Both sides as the reader chose them; None while something is missing, which is said."""
    kind = st.segmented_control("What differs between the two sides", KINDS, **bound("compare-by", options=KINDS), required=True)
    subject = choose_subject()
    if subject is None:
        return None
    if subject.saved and kind != MODELS:
        raise DiffscopeError(
            f"a saved capture has maps but no model to run: choose a model for {kind}, or compare it with a model"
        )
    choose = {MODELS: _another_model, PROMPTS: _another_prompt, STEPS: _another_step, EDIT: _with_edit}[kind]
    cap = subject.capture()
    other = choose(subject, cap)
    if other is None:
        return None
    second, names = other
    if second.spans == subject.spans and not subject.spans.keys() <= cap.spans.keys():
        second = replace(second, spans={})  # that they cannot be marked was said of the first side
    return _pair(kind, subject, cap, second, names)


def _another_model(subject: Subject, cap):
    """A second model on the same prompt, or a saved capture of whatever prompt."""
    base = without_step(subject.model)
    others = to_compare_with(base, bundled())
    if others:
        bound("compare-model", default=others[0])
        if state.get("_compared", subject.model) != subject.model == state.get("compare-model"):
            state["compare-model"] = others[0]  # beside itself a model that was chosen just now shows nothing
    state["_compared"] = subject.model
    name = choose_model(key="compare-model", label="Second model")
    if name is None:
        return None
    if is_saved(name):
        return Subject(name, saved=True, kind=subject.kind), (short_name(subject.model), short_name(name))
    refuse_encoder(name)
    if subject.saved:
        prompt, spans = _as_text(cap)
        second = Subject(name, prompt=prompt, spans=spans)
    else:
        second = replace(subject, model=name, spans=_for_any_model(subject, cap, name))
    return second, (short_name(subject.model), short_name(name))


def about_second(pair: Pair) -> str:
    """Return what the second of two bundled models is beside the first; nothing of other pairs."""
    known = bundled()
    names = [without_step(side.subject.model) for side in pair.sides]
    checkpoints = any(name != side.subject.model for name, side in zip(names, pair.sides))  # which no card describes
    if pair.kind != MODELS or checkpoints or not set(names) <= known.keys() or names[0] == names[1]:
        return ""
    first, second = (known[name] for name in names)
    if not are_matched(first, second):
        return f"{pair.names[1]} is no match of {pair.names[0]}: they differ in more than attention."
    kind = "standard attention" if is_standard(second) else "differential attention"
    if is_standard(first) == is_standard(second):
        return f"{pair.names[1]} is {kind} too, as deep and trained on the same data, with {second['heads']} heads a layer."
    return (
        f"{pair.names[1]} is {kind}, and matches {pair.names[0]} in depth, width and data, and in parameters within 1 %. "
        "Where they differ it is by their attention, as far as one pair of trainings can tell."
    )


def _for_any_model(subject: Subject, cap, model: str) -> dict:
    """Spans by characters where they were marked token by token, since another model may have other tokens.

    Raises
    ------
    DiffscopeError
        A chat, whose text each model has in a form of its own, has such spans and other tokens.
    """
    by_token = {
        name for name, span in subject.spans.items() if isinstance(span, list) and all(isinstance(at, int) for at in span)
    }
    if not isinstance(subject.prompt, str) or cap.text is None:
        if by_token and unmarked(model, stamp_of(model), subject.asked).tokens != cap.tokens:
            raise DiffscopeError(
                f"spans by token are of the tokens that {short_name(subject.model)} has of this chat, and {short_name(model)} "
                "has others; take the spans away, or write the answer"
            )
        return subject.spans
    return subject.spans | {name: span for name, span in _as_text(cap)[1].items() if name in by_token}


def _as_text(cap) -> tuple[str, dict]:
    """The prompt of a saved capture and the spans that it was given, by characters, for any model."""
    if cap.text is None:
        raise DiffscopeError("this saved capture is of token ids without their text, which a second model cannot be given")
    encoded = cap.prompts[0]
    spans = {
        name: [Chars(encoded.offsets[first][0], encoded.offsets[stop - 1][1]) for first, stop in stretches(positions)]
        for name, positions in encoded.spans.items()
    }
    return cap.text, spans


def _another_prompt(subject: Subject, cap):
    """The same model on a second prompt."""
    known = {example.name: example for example in examples(subject.model)}
    options = [*known, OWN]
    with st.sidebar:
        other = next((name for name in known if name != state.get("example")), OWN)
        chosen = st.selectbox("Second prompt", options, **bound("compare-example", options=options, default=other))
        if chosen != OWN:
            example = known[chosen]
            second = replace(subject, prompt=example.text, spans=dict(example.spans), answer=example.answer)
            return second, ("first prompt", "second prompt")
        text = st.text_area("Second text", **bound("compare-prompt"), height=190, placeholder="a prompt of your own")
        answer = st.text_input("Its answer", **bound("compare-answer"), placeholder="the answer as it stands in the text")
        spans = answer_span(text, answer, "compare-answer-at")
    check_length(text)
    if not text.strip():
        st.info("Write a second prompt to look at.")
        return None
    return replace(subject, prompt=text, spans=spans, answer=answer), ("first prompt", "second prompt")


def _another_step(subject: Subject, cap):
    """The same model at another step of its training."""
    base = without_step(subject.model)
    step = step_of(subject.model)
    steps = [str(number) for number in kept_steps(base)]
    if not steps:
        raise DiffscopeError(f"no checkpoints of the training of {short_name(base)} are kept; choose another model")
    options = [*steps, LAST_STEP]
    with st.sidebar:
        other = st.select_slider("Second training step", options, **bound("compare-step", options=options))
    names = tuple(f"{short_name(base)}, {LAST_STEP if at == LAST_STEP else f'step {at}'}" for at in (step or LAST_STEP, other))
    return replace(subject, model=base if other == LAST_STEP else f"{base}@{other}"), names


def kept_steps(base: str) -> list[int]:
    """The steps of a training at which the model is kept."""
    offered = cards()
    return list(offered[base].get("checkpoints") or []) if base in offered else list(steps_of(base))


def _with_edit(subject: Subject, cap):
    """The same model under an edit."""
    with st.sidebar:
        written = tuple(show_stack(cap, *default_head(cap, subject.key)))
    if not written:
        st.info("Add an edit in the sidebar.")
        return None
    name = written[0].words if len(written) == 1 else f"with {len(written)} edits"  # which stand at the side
    return Edited(**vars(subject), written=written), ("as it is", name)


def _pair(kind: str, subject: Subject, cap, second: Subject, names: tuple[str, str]) -> Pair:
    """Both sides with what they attend with; sides of one name are numbered."""
    if names[0] == names[1]:
        names = (f"{names[0]} (1)", f"{names[1]} (2)")
    other = second.capture()
    same_model = without_step(subject.model) == without_step(second.model)
    matched = same_model and cap.layer_numbers == other.layer_numbers and cap.n_heads == other.n_heads
    return Pair(kind, Side(names[0], subject, cap), Side(names[1], second, other), matched)


def offer_maps(pair: Pair, first: tuple[int, int], second: tuple[int, int]) -> None:
    """Offer the maps of a head of each side in one figure if they are of the same tokens, else one of each side."""
    if pair.linked:
        comparison = pair.comparison()
        places = {"layer": (first[0], second[0]), "head": (first[1], second[1])}
        blocks.export_menu(
            "compare-maps",
            label="Export the maps",
            figure=partial(figures.maps, comparison, **places),
            data=partial(comparison.maps, **places),
            code=f"{pair.code()}\n"
            + as_call("figure = diffscope.figures.maps", "comparison", places)
            + 'figure.save("maps.pdf")\n',
        )
        return
    with st.container(horizontal=True):
        for number, side, place in zip((1, 2), pair.sides, (first, second)):
            label = f"Export the maps of {escape_markdown(side.name)}"
            blocks.offer_maps(side.cap, *place, side.subject.code(), name=f"compare-maps-{number}", label=label)
