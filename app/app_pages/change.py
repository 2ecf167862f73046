"""Change: change what a model computes, and see what it says then and which heads changed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import blocks
import pandas as pd
import streamlit as st
from amplifier.noise import show_noise
from edit_controls import ablated, is_without_a2, show_stack, switch_head
from edit_results import Edited, captured, changes, continued, new_tokens, predicted, spans
from messages import as_call, escape_markdown, show_errors
from pair import EDIT, Pair, Side, offer_maps
from question import ODDS, answer_of, choose_distractors, encoded_question
from selection import choose_head, heads_by_layer, init_selection, select
from sidebar import choose_subject
from url_state import bound, save_view_state, view_state

from diffscope import figures
from diffscope.figures.by_head import over_heads
from diffscope.figures.escaping import short_name, visible
from diffscope.numbers import ABSENT, between, listed
from diffscope.numbers import two_figures as number
from diffscope.readings import answers, next_tokens
from diffscope.readings.edit_effects import conclusion

state = st.session_state
SIDES = ("without edits", "with edits")
OF = {"D": "D", "output": "what heads give on"}
WHY = {"all": "all that changed", "edit": "the edit itself", "input": "its input"}
CHANGED = {"D": "D", "output": "the output"}
THROUGH = {"all": "in all", "edit": "through the edit itself", "input": "through its input"}


@st.fragment
def show_page(subject, cap) -> None:
    """The page below the choice of model and prompt; whatever is changed here draws this alone again."""
    with show_errors():
        init_selection(cap, subject.key)
        above, below = st.container(), st.container()
        with below:
            layer, head = choose_maps(cap)
        with above, blocks.columns("edits", "says", "changes", least=330) as (left, middle, right):
            with left, st.container(key="change-edits"):
                edits = tuple(show_stack(cap, layer, head))
            with middle:  # first, since it is what one waits for
                without = "all else that the model may say (where noise is put in: against the other numbers of the prompt)"
                distractors = choose_distractors(subject, cap, ODDS.format(without))
                show_predictions(subject, cap, edits, distractors)
            after = captured(subject, cap, edits)
            reading = changes(subject, cap, edits)
            with right:
                where = show_changes(cap, edits, reading, layer, head)
        with below:
            show_maps(cap, after, layer, head)
            offer(pair_of(subject, cap, edits, after), (layer, head), reading, where)
            show_rejection(subject, cap, layer, head, distractors)


def show_predictions(subject, cap, edits, distractors) -> None:
    """What the model says next without and with the edits: the answer, tokens, a few generated tokens."""
    question = None
    with show_errors():
        question = encoded_question(subject, cap, distractors)
    before = predicted(subject, cap, (), question)
    after = predicted(subject, cap, edits, question)
    reading = answers(before, after)
    tokens = next_tokens(before, after, subject.scope().tokenizer)
    if edits:
        which = "Without A₂" if len(edits) == 1 and is_without_a2(edits[0]) else "With edits"
        st.markdown(f"##### {escape_markdown(f'{which} {said(tokens)}')}")
    if question is not None:
        show_answer(reading, answer_of(subject, cap), distractors)
    with st.container(key="change-next"):
        blocks.show_both(tokens)
    with show_errors():
        for words, side in zip(SIDES, ((), edits)):
            st.markdown(f"{words.capitalize()} it goes on: {escape_markdown(visible(continued(subject, cap, side)))}")
    drawn = tokens["probability"].assign_coords(token=names(tokens))
    blocks.export_menu(
        "next-tokens",
        label="Export the predictions",
        figure=partial(figures.curves, drawn, x="token", series="side", style="bars"),
        data=lambda: tokens.assign(reading.estimates.rename(probability="answer_probability")),
        code=python(subject, cap, edits, distractors),
    )


def pair_of(subject, cap, edits, after) -> Pair:
    """The model without and with edits, as Compare has them."""
    edited = Edited(**vars(subject) | {"spans": spans(subject, cap)}, written=edits)
    return Pair(EDIT, Side(SIDES[0], replace(subject, spans=edited.spans), cap), Side(SIDES[1], edited, after), True)


PYTHON = """question = {question}
says = diffscope.readings.predict(scope, first, question)
continuation = scope.generate(prompt, {tokens})
with scope.edit(*changes):
    says_then = diffscope.readings.predict(scope, first, question)
    continuation_then = scope.generate(prompt, {tokens})

print(diffscope.readings.next_tokens(says, says_then, scope.tokenizer).to_dataframe())
print(diffscope.readings.answers(says, says_then))
print(repr(continuation), "→", repr(continuation_then))
"""


def python(subject, cap, edits, distractors) -> str:
    """Python that gives the predictions."""
    answer = answer_of(subject, cap)
    asked = f"diffscope.readings.encode_question(scope, first, {answer!r}, {list(distractors)!r})" if answer else None
    return pair_of(subject, cap, edits, cap).code() + PYTHON.format(question=asked, tokens=new_tokens(subject, cap))


def said(tokens) -> str:
    """Which token comes first without and with edits, to as many decimals as the table beside it has."""
    probability = tokens["probability"]
    before, after = (int(probability.sel(side=side).argmax("token")) for side in ("before", "after"))
    (first, then), (_, last) = ([f"{share:.3f}" for share in probability[at].values.tolist()] for at in (before, after))
    called = names(tokens)
    if before == after:
        return f"it still says {called[before]} ({first} → {then})."
    return f"it says {called[after]} ({last}) instead of {called[before]} ({first} → {then})."


def names(tokens) -> list[str]:
    """What tokens are called on an axis: two of one text by their ids too."""
    texts = [visible(str(text)) for text in tokens["text"].values]
    return [text if texts.count(text) == 1 else f"{text} ({token})" for text, token in zip(texts, tokens["token"].values)]


def show_answer(reading, answer: str, distractors: tuple[str, ...]) -> None:
    """The probability of the answer without and with edits, and its log-odds, which are against its distractors alone."""
    probability, odds = (reading.estimates[name].values.tolist() for name in ("probability", "log_odds"))
    against = listed(distractors) if distractors else "all else"
    of = f"the whole answer {answer}"
    st.markdown(escape_markdown(f"Probability of {of}: {' → '.join(f'{share:.3f}' for share in probability)}."))
    words = f"Log-odds of {of} against {against}: {' → '.join(map(number, odds))} nats."
    others = " They compare these alone, and not with other tokens." if distractors else ""
    st.caption(escape_markdown(words + others), help=escape_markdown(reading.sentence))


def show_changes(cap, edits, reading, layer: int, head: int) -> dict[str, str]:
    """How much every head changed, as a grid in which heads are ablated; gives which change it is coloured by."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        quantity = st.selectbox("Quantity", list(OF), **bound("change-of", options=list(OF)), format_func=OF.get, width=170)
        why = st.selectbox("Cause", list(WHY), **bound("change-why", options=list(WHY)), format_func=WHY.get, width=145)
    where = {"quantity": quantity, "cause": why}
    grid = over_heads(reading.estimates["change"], choices=where, model=cap.model_name)
    switch = partial(switch_head, edits, cap)
    title = f"How much {CHANGED[quantity]} of each head changed {THROUGH[why]}, as a share of its size before"
    off, heads = ablated(edits, cap), heads_by_layer(cap)
    blocks.show_heads(grid, (layer, head), select, "change-grid", off=off, on_switch=switch, heads=heads, title=title)
    st.markdown(f"**{escape_markdown(conclusion(reading.estimates, quantity))}**")
    show_causes(reading, quantity)
    return where


def show_causes(reading, quantity: str) -> None:
    """Show how many heads change through the edit itself and through their input, and by how much."""
    rows = {}
    for cause, words in THROUGH.items():
        change = reading.estimates["change"].sel(quantity=quantity, cause=cause)
        sizes = change.where(change > reading.estimates["rounding"])
        size = between(sizes.values[sizes.notnull().values], number) if sizes.notnull().any() else ABSENT
        rows[words] = {"heads": int(sizes.notnull().sum()), "change by": size}
    size = st.column_config.TextColumn(help=f"Of the size of {CHANGED[quantity]} before: |x′ − x| / |x|")
    alt = "How many heads change, and by how much, through the edit itself and through their input"
    blocks.show_table(pd.DataFrame(rows).T, hide_index=False, column_config={"change by": size}, key="change-causes", alt=alt)
    st.caption(
        "A head of an edited layer changes through the edit itself, one of a later layer through its input.",
        help=escape_markdown(reading.sentence),
    )


def choose_maps(cap) -> tuple[int, int]:
    """Whose maps are shown."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        return choose_head(cap)


def show_maps(cap, after, layer: int, head: int) -> None:
    """Show D of one head without and with the edits, as large, linked and on one scale."""
    look = {"state": view_state("change-view", cap), "on_state": partial(save_view_state, "change-view")}
    names = [f"change-{words.partition(' ')[0]}" for words in SIDES]
    with blocks.columns(*(f"{name}-maps" for name in names), least=480) as columns:
        for name, words, capture, more, column in zip(names, SIDES, (cap, after), (look, {}), columns):
            with column:
                with st.container(horizontal=True, vertical_alignment="center"):
                    st.markdown(f"**{words.capitalize()}**", width="content")
                    blocks.show_fidelity(capture)
                blocks.show_view(capture, layer, head, select, key=name, group="change", **more)


def show_rejection(subject, cap, layer: int, head: int, distractors: tuple[str, ...]) -> None:
    """Whether noise on both maps is removed, and what it costs the answer; measured once the row is open."""
    with blocks.folded("Is noise that both maps get removed?", "change-noise") as is_open:
        if is_open:
            show_noise(subject, cap, layer, head, state["query"], distractors)


def offer(pair: Pair, place: tuple[int, int], reading, where: dict[str, str]) -> None:
    """What can be taken away: the maps of the head without and with edits, and how all heads changed."""
    cap = pair.first.cap
    with st.container(horizontal=True):
        if st.button("Compare with this model without edits", key="change-compare"):
            state["compare-by"] = EDIT
            st.switch_page("app_pages/compare.py", query_params={})
        offer_maps(pair, place, place)
        blocks.export_menu(
            f"{short_name(cap.model_name)}-changes",
            label="Export the changes",
            figure=partial(figures.heads, cap, statistic="change", measured=reading.estimates, where=where),
            data=lambda: reading.estimates,
            code=f"{pair.code()}reading = diffscope.readings.effects(first, second, changes)\nprint(reading)\n"
            + as_call(
                "figure = diffscope.figures.heads", "first, measured=reading.estimates", {"statistic": "change", "where": where}
            )
            + 'figure.save("changes.pdf")\n',
        )


with show_errors():
    subject = choose_subject()
    if subject is not None:
        subject.scope()  # or it is said that there is none
        cap = subject.capture()
        blocks.show_facts(cap)
        show_page(subject, cap)
