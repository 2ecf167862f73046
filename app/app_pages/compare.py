"""Compare: two models, prompts or checkpoints, or a model with and without an edit, side by side."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import blocks
import pandas as pd
import streamlit as st
from cache import once
from compare_depths import show_depths
from messages import escape_markdown, show_errors
from pair import MODELS, Pair, Side, about_second, choose_sides, offer_maps
from selection import choose_head, init_selection, select
from statistic_picker import LETTERS, WORDS, Chosen, choose_statistic, signs_of
from url_state import bound, save_view_state, view_state

from diffscope import figures, readings
from diffscope.errors import DiffscopeError
from diffscope.figures.escaping import visible
from diffscope.numbers import capital, counted, listed
from diffscope.readings.comparison import chance_in_words
from diffscope.readings.head_sentence import MOST
from diffscope.stats import STATISTICS
from diffscope.stats.spans import NORMALISATIONS

Place = tuple[int, int]  # layer and head
SECOND = "compare-"  # begins the keys of the second side's layer and head
state = st.session_state
VIEWS = ("compare-left", "compare-right")
LEAST = 480  # pixels of a side
ROW = 170  # pixels of a row
BARS = 512  # keys of a causal row
NORMALISED = {
    "share": "share: |D| / Σ|D|",
    "raw": "raw: D itself",
    "signed": "signed: D / (1 − λ)",
    "positive": "positive: D⁺ / ΣD⁺",
}
ALL_HEADS = "mean over all heads"
COLUMNS = ["answer", "before", "after", "first token", "question"]  # parts, the most asked for first
THESE_HEADS = "the heads above"


def show_pair(pair: Pair) -> None:
    """Show the page below the choice of both sides."""
    init_selection(pair.first.cap, pair.first.subject.key)
    init_selection(pair.second.cap, pair.second.subject.key, SECOND)
    if has_other_keys(pair):
        st.info("Of cross-attention only the maps are compared. Choose other layers in the sidebar to see the rest of the page.")
        show_heads(pair)
        return
    with show_errors():
        show_answers(pair)
    show_heads(pair)
    with show_errors():
        show_statistic(pair)
    with show_errors():
        show_differences(pair, measure_differences(pair))
    with show_errors():
        show_depths(pair)


def has_other_keys(pair: Pair) -> bool:
    """Return whether a side is of cross-attention, of which there are no readings."""
    return any(side.cap.key_prompts is not None for side in pair.sides)


def show_answers(pair: Pair) -> None:
    """Say what the second side is beside the first, what each says next, which heads find the answer, and what chance gives."""
    if words := about_second(pair):
        st.markdown(escape_markdown(words))
    finders = [once("finders", side.subject.key, partial(readings.answer_heads, side.cap)) for side in pair.sides]
    chance = ""
    with suppress(DiffscopeError):  # which is said where the differences are listed
        chance = chance_in_words(measure_differences(pair).estimates)
    counts = capital("; ".join(filter(None, [count_finders(pair, finders), chance])))
    said = " ".join(filter(None, [says_next(pair), counts and f"{counts}."]))
    st.markdown(f"**{escape_markdown(said)}**")
    with st.expander("Which heads give the answer most"):
        for side, finder in zip(pair.sides, finders):
            st.markdown(f"**{escape_markdown(side.name)}.** {escape_markdown(finder.sentence)}")


def says_next(pair: Pair) -> str:
    """Say which token comes first on each side; nothing where a side has no predictions."""
    if not all(side.cap.next for side in pair.sides):
        return ""
    (first, p), (second, q) = ((visible(str(token)), f"{float(p):.3f}") for token, p in (s.cap.next[0] for s in pair.sides))
    names = pair.names
    if first == second:
        return f"Both say {first} next ({p} and {q})."
    return f"Next is {first} ({names[0]}: {p}), and {second} ({names[1]}: {q})."


def count_finders(pair: Pair, finders: list) -> str:
    """Say how many heads of each side give the answer half of their weight or more; nothing where none is marked."""
    if not all(finder.estimates for finder in finders):
        return ""
    counts = {}
    for side, finder in zip(pair.sides, finders):
        share, net = finder.estimates["share"], finder.estimates["net"]
        of = f"of {side.name}" if pair.kind == MODELS else f"({side.name})"
        count = f"{int(((share >= MOST) & (net >= 0)).sum())} of {counted(int(share.notnull().sum()), 'head')} {of}"
        weights = "|D| or more, whatever its sign" if side.cap.differential else "A or more"
        counts.setdefault(weights, []).append(count)
    verbs = (" give the answer", "")
    return ", and ".join(f"{listed(sides)}{verb} half of {weights}" for (weights, sides), verb in zip(counts.items(), verbs))


@st.fragment
def show_heads(pair: Pair) -> None:
    """Show one head of each side, and what heads give to the parts of the prompt; a click here draws only these again."""
    title("What one token attends to, and the maps")
    same = None  # the head of both sides, if it is one
    if pair.matched:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            if st.toggle("Same layer and head on both sides", **bound("compare-same", options=[True, False])):
                same = choose_head(pair.first.cap)
    if not pair.linked:
        counts = " and ".join(str(side.cap.n_tokens) for side in pair.sides)
        st.caption(f"The two sides have other tokens ({counts}): colours have one scale, and cursors are not linked.")
    prefixes = ("", "" if same else SECOND)
    with show_errors():
        with blocks.columns("first", "second", least=LEAST) as columns:
            places = [choose_place(*each, same) for each in zip(pair.sides, prefixes, columns)]
        query = state["query"]  # of the second side too where its tokens are the same, else its last
        queries = (query, query if pair.linked else pair.second.cap.n_tokens - 1)
        with blocks.columns("first-row", "second-row", least=LEAST) as columns:
            for key, side, place, at, column in zip(VIEWS, pair.sides, places, queries, columns):
                with column:
                    blocks.show_row(side.cap, *place, at, BARS, key=f"{key}-row", height=ROW)
        with blocks.columns("first-map", "second-map", least=LEAST) as columns:
            for key, side, prefix, place, column in zip(VIEWS, pair.sides, prefixes, places, columns):
                with column:
                    show_side(side, key, prefix, place)
        offer_maps(pair, *places)
        if not has_other_keys(pair):
            with show_errors():
                show_bars(pair, places)


def choose_place(side: Side, prefix: str, column, same: Place | None) -> Place:
    """Show what a side is, and choose its head under keys that begin with `prefix`, unless both have the same."""
    with column:
        blocks.show_facts(side.cap, side.name)
        if same is None:
            with st.container(horizontal=True):
                return choose_head(side.cap, prefix)
    return same


def show_side(side: Side, key: str, prefix: str, place: Place) -> None:
    """Show the map that is compared, with the controls of both below the first."""
    blocks.show_view(
        side.cap,
        *place,
        on_head=partial(select, prefix=prefix),
        key=key,
        group="compare",
        state=view_state(key, side.cap),
        on_state=partial(save_view_state, key),
    )


def show_bars(pair: Pair, places: list[Place]) -> None:
    """Show what the last token gives to the five parts of the prompt."""
    title("What the last token gives to each part of the prompt")
    allocated = [once("allocation", side.subject.key, partial(readings.allocation, side.cap)) for side in pair.sides]
    show_shares(pair, allocated)
    with st.expander("In words, with what is negative and what heads range over"):
        for side, reading in zip(pair.sides, allocated):
            st.markdown(f"**{escape_markdown(side.name)}.** {escape_markdown(reading.sentence)}")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        options = [ALL_HEADS, THESE_HEADS]
        heads = st.selectbox("Heads", options, **bound("compare-heads", options=options), width=200)
        maps = ["D", "A1", "A2"]
        drawn = st.selectbox(
            "Map", maps, **bound("compare-map", options=maps), format_func=lambda name: WORDS.get(name, name), width=90
        )
        options = list(NORMALISATIONS)
        usual = bound("compare-normalisation", options=options, default="share")
        how = st.selectbox("Normalisation", options, **usual, format_func=NORMALISED.__getitem__, width=200)
    layers, numbers = zip(*places) if heads == THESE_HEADS else (None, None)
    choices = {"map": drawn, "normalisation": how, "layer": layers, "head": numbers}
    key = (*pair.key, *choices.values())
    figure = once("bars", key, lambda: figures.allocation(pair.comparison(), **choices))
    blocks.show_figure(
        figure,
        "Attention to each part of the prompt, both sides beside each other",
        key="compare-bars",
        name="compare-allocation",
        caption=figure.caption,
        label="Export the bars",
        code=pair.code() + blocks.saved(figure, "comparison", "bars"),
    )


def show_shares(pair: Pair, allocated: list) -> None:
    """Show the share of each part as a table, mean over heads: of D and of A1 beside it, or of standard attention's A."""
    rows = {}
    for side, reading in zip(pair.sides, allocated):
        shares = reading.estimates["over_layers"].sel(normalisation="share")
        for drawn, words in (("D", "|D|"), ("A1", "A1")) if side.cap.differential else (("D", "A"),):
            rows[f"{side.name}: {words}"] = shares.sel(map=drawn).to_series()
    table = pd.DataFrame(rows).T[COLUMNS]
    st.dataframe(
        table,
        column_config={name: st.column_config.NumberColumn(format="%.3f") for name in COLUMNS},
        row_height=28,
        height=38 + 28 * len(table),
        key="compare-shares",
        alt="Share of the attention of the last token on each part of the prompt, mean over heads",
    )


def show_statistic(pair: Pair) -> None:
    """Show one statistic of all heads, both sides beside each other."""
    title("A statistic of all heads")
    leads = pair.second if pair.second.cap.differential and not pair.first.cap.differential else pair.first
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = choose_statistic(leads.cap, leads.subject.key)
    figure = draw_heads(pair, chosen)
    words = STATISTICS[chosen.name]
    blocks.show_chart(figure, f"{words.description} of every head of both sides", key="compare-statistic-chart")
    about = f"{words.description} · {chosen.over_heads.attrs['selection']}."
    about += "" if pair.matched else " Head h of one side is not head h of the other."
    st.caption(escape_markdown(about), help=escape_markdown(f"{words.formula}. {LETTERS}."))
    say_signs(pair, chosen)
    if lacking := [name for name in pair.names if figure.data["value"].sel(panel=name).isnull().all()]:
        st.caption(
            f"No head of {escape_markdown(' and '.join(lacking))} has a value. Undefined: {escape_markdown(words.undefined)}."
        )
    blocks.export_menu(
        "compare-statistic",
        label="Export the statistic",
        figure=lambda: figure,
        data=lambda: figure.data,
        code=pair.code() + blocks.saved(figure, "comparison", "heads"),
    )


def draw_heads(pair: Pair, chosen: Chosen) -> figures.Figure:
    """Return a statistic of all heads of both sides, drawn once."""
    queries = [chosen.query] if isinstance(chosen.query, int) else None

    def draw() -> figures.Figure:
        comparison = pair.comparison()
        measured = comparison.measure([chosen.name], queries=queries)
        return figures.heads(comparison, statistic=chosen.name, query=chosen.query, where=chosen.where, measured=measured)

    return once("heads", (*pair.key, chosen.name, chosen.query, *chosen.where.items()), draw)


def say_signs(pair: Pair, chosen: Chosen) -> None:
    """Say of each side in which heads the weights are negative that a share sums."""
    for side in pair.sides:
        if signs := signs_of(chosen, side.cap, side.subject.key):
            st.caption(f"**{escape_markdown(side.name)}.** {escape_markdown(signs)}")


def show_differences(pair: Pair, reading) -> None:
    """List what differs most."""
    title(escape_markdown(capital(chance_in_words(reading.estimates))) or "What differs most")
    st.markdown(escape_markdown(reading.sentence))
    blocks.show_differences(reading.estimates, key="compare-differences")
    where = (
        "Each head is compared with itself"
        if pair.matched
        else "Means over the heads of a layer (medians of ratios) are compared"
    )
    st.caption(f"{where}, at the last token of each side; a spread is the standard deviation over the heads of all layers.")
    blocks.export_menu(
        "compare-differences",
        label="Export the list",
        data=lambda: reading.estimates,
        code=f"{pair.code()}print(diffscope.readings.differences(comparison, matched={pair.matched}))\n",
    )


def title(words: str) -> None:
    """Show the title of a view."""
    st.markdown(f"##### {words}")


def measure_differences(pair: Pair):
    """Return what differs most between both sides."""
    return once("differences", pair.key, lambda: readings.differences(pair.comparison(), matched=pair.matched))


with show_errors():
    pair = choose_sides()
    if pair is not None:
        show_pair(pair)
