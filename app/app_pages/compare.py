"""Compare: two models, prompts or checkpoints, or a model with and without an edit, side by side."""

from __future__ import annotations

from functools import partial

import blocks
import streamlit as st
import xarray as xr
from compare_depths import show_depths
from messages import as_call, escape_markdown, show_errors
from pair import Pair, Side, choose_sides
from selection import choose_head, init_selection, select
from statistic_picker import WORDS, choose_statistic, same_statistic, signs_of
from url_state import bound, save_view_state, view_state

from app.questions import LETTERS
from diffscope import Comparison, figures, readings
from diffscope.errors import check_index
from diffscope.figures.escaping import visible
from diffscope.numbers import percent
from diffscope.stats import STATISTICS
from diffscope.stats.spans import NORMALISATIONS

Place = tuple[int, int]  # layer and head
SECOND = "compare-"  # begins the keys of the second side's layer and head
NORMALISED = {
    "share": "share: |D| / Σ|D|",
    "raw": "raw: D itself",
    "signed": "signed: D / (1 − λ)",
    "positive": "positive: D⁺ / ΣD⁺",
}
ALL_HEADS = "mean over all heads"
THESE_HEADS = "the heads above"


def show_pair(pair: Pair) -> None:
    """The page below the choice of both sides."""
    init_selection(pair.first.cap, pair.first.subject.key)
    init_selection(pair.second.cap, pair.second.subject.key, SECOND)
    with show_errors():
        show_answers(pair)
    show_heads(pair)
    with show_errors():
        show_statistic(pair)
    with show_errors():
        show_differences(pair, _differences((pair.key, pair.names), pair))
    with show_errors():
        show_depths(pair)


def show_answers(pair: Pair) -> None:
    """What each side says next, and which of its heads find the answer."""
    for side in pair.sides:
        says = ""
        if side.cap.next:
            token, probability = side.cap.next[0]
            says = f"says next “{visible(str(token))}” with {percent(float(probability))}. "
        sentence = _finders(side.subject.key, side.cap).sentence
        st.markdown(f"**{escape_markdown(side.name)}** {escape_markdown(says + sentence)}")


@st.fragment
def show_heads(pair: Pair) -> None:
    """One head of each side, and what heads give to the parts of the prompt; a click here draws only these again."""
    title("Maps")
    same = None  # the head of both sides, where it is one
    if pair.matched:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            if st.toggle("Same layer and head on both sides", **bound("compare-same", options=[True, False])):
                same = choose_head(pair.first.cap)
    if not pair.linked:
        counts = " and ".join(str(side.cap.n_tokens) for side in pair.sides)
        st.caption(f"The two sides have other tokens ({counts}): colours have one scale, and cursors are not linked.")
    with show_errors():
        with blocks.columns("first", "second", least=480) as (left, right):
            with left:
                first = show_side(pair.first, "compare-left", "", same)
            with right:
                second = show_side(pair.second, "compare-right", "" if same else SECOND, same)
        offer_maps(pair, first, second)
        with show_errors():
            show_bars(pair, (first, second))


def show_side(side: Side, key: str, prefix: str, place: Place | None) -> Place:
    """The maps of one side: of `place`, or of a head that is chosen here under keys that begin with `prefix`."""
    blocks.show_facts(side.cap, side.name)
    if place is None:
        with st.container(horizontal=True):
            place = choose_head(side.cap, prefix)
    layer, head = place
    check_index("layer", layer, side.cap.layer_numbers)
    check_index("head", head, range(side.cap.n_heads))
    blocks.show_view(
        side.cap,
        layer,
        head,
        on_head=partial(select, prefix=prefix),
        key=key,
        group="compare",
        state=view_state(key),
        on_state=partial(save_view_state, key),
    )
    return place


def offer_maps(pair: Pair, first: Place, second: Place) -> None:
    """The maps of both sides in one figure where they are of the same tokens, else one of each side."""
    if pair.linked:
        comparison = Comparison(pair.names, (pair.first.cap, pair.second.cap))
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
        for number, side, (layer, head) in zip((1, 2), pair.sides, (first, second)):
            call = as_call("figure = diffscope.figures.maps", "cap", {"layer": layer, "head": head})
            blocks.export_menu(
                f"compare-maps-{number}",
                label=f"Export the maps of {escape_markdown(side.name)}",
                figure=partial(figures.maps, side.cap, layer=layer, head=head),
                data=partial(side.cap.maps, layer, [head]),
                code=f'{side.subject.code()}\n{call}figure.save("maps.pdf")\n',
            )


def show_bars(pair: Pair, places: tuple[Place, Place]) -> None:
    """What the last token gives to the five parts of the prompt."""
    title("What the last token gives to each part of the prompt")
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
    of_sides = [_allocation(side.subject.key, side.cap) for side in pair.sides]
    choices = {"map": drawn, "normalisation": how, "heads": places if heads == THESE_HEADS else None}
    dataset = readings.bars(*(reading.estimates for reading in of_sides), pair.names, **choices)
    ends = {end: dataset[end] for end in ("low", "high") if end in dataset}
    extremes = [name for name in pair.names if ends]
    figure = figures.curves(dataset["value"], x="part", series="side", style="bars", extremes=extremes, **ends)
    blocks.show_chart(figure, "Attention to each part of the prompt, both sides beside each other", key="compare-bars")
    if ends:
        st.caption("Bars are means over heads, then layers; small points are the least head and the largest.")
    for side, reading in zip(pair.sides, of_sides):
        st.caption(f"**{escape_markdown(side.name)}.** {escape_markdown(reading.sentence)}")
    blocks.export_menu(
        "compare-allocation",
        label="Export the bars",
        figure=lambda: figure,
        data=lambda: dataset,
        code=pair.code()
        + BARS.format(call=as_call("dataset = diffscope.readings.bars", "*estimates, comparison.names", choices)),
    )


BARS = """
estimates = [diffscope.readings.allocation(cap).estimates for cap in comparison.captures]
{call}diffscope.figures.curves(dataset["value"], x="part", series="side", style="bars").save("bars.pdf")
"""


def show_statistic(pair: Pair) -> None:
    """One statistic of all heads, both sides beside each other."""
    title("A statistic of all heads")
    leads = pair.second if pair.second.cap.differential and not pair.first.cap.differential else pair.first
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = choose_statistic(leads.cap, leads.subject.key)
    sides = [same_statistic(chosen, side.cap, side.subject.key).over_heads for side in pair.sides]
    dimension = xr.DataArray(list(pair.names), dims="side", name="side")
    values = xr.concat([side[chosen.name] for side in sides], dimension, join="outer", combine_attrs="override")
    values = values.assign_attrs(long_name=sides[0].attrs["long_name"], units=sides[0].attrs["units"])
    figure = figures.strips(values, joined=pair.matched)
    blocks.show_chart(figure, f"{sides[0].attrs['long_name']} of every head of both sides", key="compare-strips")
    words = STATISTICS[chosen.name]
    lines = "Lines lead from a head to the same head." if pair.matched else "Head h of one side is not head h of the other."
    about = f"{words.description} · {sides[0].attrs['selection']}. Each point is a head. {lines}"
    st.caption(escape_markdown(about), help=escape_markdown(f"{words.formula}. {LETTERS}."))
    for side in pair.sides:
        if signs := signs_of(chosen, side.cap, side.subject.key):
            st.caption(f"**{escape_markdown(side.name)}.** {escape_markdown(signs)}")
    if lacking := [name for name, side in zip(pair.names, sides) if side[chosen.name].isnull().all()]:
        st.caption(
            f"No head of {escape_markdown(' and '.join(lacking))} has a value. Undefined: {escape_markdown(words.undefined)}."
        )
    choices = {"statistic": chosen.name, "query": chosen.query, "where": chosen.where}
    blocks.export_menu(
        "compare-statistic",
        label="Export the statistic",
        figure=lambda: figure,
        data=lambda: values.to_dataset(name=chosen.name),
        code=pair.code()
        + STRIPS.format(call=as_call("diffscope.figures.heads", "cap", choices).strip(), name=chosen.name, joined=pair.matched),
    )


STRIPS = """
import xarray

side = xarray.DataArray(list(comparison.names), dims="side", name="side")
values = [{call}.data[{name!r}] for cap in comparison.captures]
values = xarray.concat(values, side, join="outer", combine_attrs="override")
diffscope.figures.strips(values, joined={joined}).save("strips.pdf")
"""


def show_differences(pair: Pair, reading) -> None:
    """What differs most, listed."""
    title("What differs most")
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
        code=pair.code() + DIFFERENCES.format(matched=pair.matched),
    )


DIFFERENCES = """
print(diffscope.readings.differences(comparison, matched={matched}))
"""


def title(words: str) -> None:
    """The title of a view."""
    st.markdown(f"##### {words}")


@st.cache_resource(show_spinner="Measuring", max_entries=16)
def _allocation(key: tuple, _cap):
    return readings.allocation(_cap)


@st.cache_resource(show_spinner="Measuring", max_entries=16)
def _finders(key: tuple, _cap):
    return readings.answer_heads(_cap)


@st.cache_resource(show_spinner="Comparing", max_entries=16)
def _differences(key: tuple, _pair: Pair):
    comparison = Comparison(_pair.names, (_pair.first.cap, _pair.second.cap))
    return readings.differences(comparison, matched=_pair.matched)


with show_errors():
    pair = choose_sides()
    if pair is not None:
        show_pair(pair)
