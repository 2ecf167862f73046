"""Compare: two models, prompts or checkpoints, or a model with and without an edit, side by side."""

from __future__ import annotations

from functools import partial

import blocks
import streamlit as st
import xarray as xr
from compare_depths import show_depths
from kept import kept_option
from place import choose_head, follow, move
from sides import Pair, Side, choose_sides
from statistic import WORDS, choose_statistic, same_statistic
from words import as_call, in_words, plain

from diffscope import Comparison, figures
from diffscope.readings.allocation import allocation
from diffscope.readings.bars import bars
from diffscope.readings.differences import differences
from diffscope.stats import STATISTICS
from diffscope.stats.formulas.spans import NORMALISATIONS

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
    follow(pair.first.cap, pair.first.subject.key)
    follow(pair.second.cap, pair.second.subject.key, SECOND)
    with in_words():
        st.markdown(plain(_differences(pair.key, pair).sentence))
    show_heads(pair)
    with in_words():
        show_statistic(pair)
    with in_words():
        show_differences(pair)
    with in_words():
        show_depths(pair)


@st.fragment
def show_heads(pair: Pair) -> None:
    """The maps of one head of each side, linked, and what heads give to the parts of the prompt."""
    title("Maps")
    same = pair.matched and st.toggle("Same layer and head on both sides", **kept_option("compare-same", [True, False]))
    if not pair.linked:
        counts = " and ".join(str(side.cap.n_tokens) for side in (pair.first, pair.second))
        st.caption(f"The two sides have other tokens ({counts}): colours have one scale, and cursors are not linked.")
    places = []
    with blocks.beside("first", "second", least=480) as columns:
        for column, side, of in zip(columns, (pair.first, pair.second), ("", SECOND)):
            with column:
                show_facts(side)
                follow_first = bool(of) and same
                places.append(places[0] if follow_first else _choose_head(side, of))
                _show_view(side, *places[-1], "" if follow_first else of, key=f"compare-view{of}")
    with in_words():
        offer_maps(pair, *places)
    with in_words():
        show_bars(pair, tuple(places))


def _choose_head(side: Side, of: str) -> tuple[int, int]:
    with st.container(horizontal=True):
        return choose_head(side.cap, of)


def _show_view(side: Side, layer: int, head: int, of: str, key: str) -> None:
    on_move = partial(move, side.cap, layer, head, of=of)
    blocks.show_view(side.cap, layer, head, on_move=on_move, key=key, group="compare")


def show_facts(side: Side) -> None:
    """One line on a side."""
    cap = side.cap
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"**{plain(side.name)}** · {plain(cap.family)} · {cap.n_layers} layers × {cap.n_heads} heads · {cap.n_tokens} tokens",
            width="content",
        )
        blocks.show_fidelity(cap)


def offer_maps(pair: Pair, first: tuple[int, int], second: tuple[int, int]) -> None:
    """The maps of both sides in one figure where they are of the same tokens, else one of each side."""
    if pair.linked:
        comparison = Comparison(pair.names, (pair.first.cap, pair.second.cap))
        places = {"layer": (first[0], second[0]), "head": (first[1], second[1])}
        blocks.take_away(
            "compare-maps",
            label="Take the maps away",
            figure=partial(figures.maps, comparison, **places),
            data=partial(comparison.maps, **places),
            code=f"{pair.code()}\n"
            + as_call("figure = diffscope.figures.maps", "comparison", places)
            + 'figure.save("maps.pdf")\n',
        )
        return
    with st.container(horizontal=True):
        for side, (layer, head) in zip((pair.first, pair.second), (first, second)):
            call = as_call("figure = diffscope.figures.maps", "cap", {"layer": layer, "head": head})
            blocks.take_away(
                f"compare-maps-{side.name}",
                label=f"Take the maps of {plain(side.name)} away",
                figure=partial(figures.maps, side.cap, layer=layer, head=head),
                data=partial(side.cap.maps, layer, [head]),
                code=f'{side.subject.code()}\n{call}figure.save("maps.pdf")\n',
            )


def show_bars(pair: Pair, places: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """What the last token gives to the five parts of the prompt."""
    title("What the last token gives to each part of the prompt")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        options = [ALL_HEADS, THESE_HEADS]
        heads = st.selectbox("Heads", options, **kept_option("compare-heads", options), width=200)
        maps = ["D", "A1", "A2"]
        drawn = st.selectbox(
            "Map", maps, **kept_option("compare-map", maps), format_func=lambda name: WORDS.get(name, name), width=90
        )
        options = list(NORMALISATIONS)
        usual = kept_option("compare-normalisation", options, "share")
        how = st.selectbox("Normalised", options, **usual, format_func=NORMALISED.__getitem__, width=200)
    readings = [_allocation(side.subject.key, side.cap) for side in (pair.first, pair.second)]
    choices = {"map": drawn, "normalisation": how, "heads": places if heads == THESE_HEADS else None}
    dataset = bars(*(reading.estimates for reading in readings), pair.names, **choices)
    ends = {end: dataset[end] for end in ("low", "high") if end in dataset}
    figure = figures.curves(dataset["value"], x="part", series="side", style="bars", **ends)
    blocks.show_chart(figure, "Attention to each part of the prompt, both sides beside each other", key="compare-bars")
    if ends:
        st.caption("Bars are means over heads, then layers; whiskers lead from the least head to the largest.")
    for side, reading in zip((pair.first, pair.second), readings):
        st.caption(f"**{plain(side.name)}.** {plain(reading.sentence)}")
    blocks.take_away(
        "compare-allocation",
        label="Take the bars away",
        figure=lambda: figure,
        data=lambda: dataset,
        code=pair.code() + BARS.format(call=as_call("dataset = bars", "*estimates, comparison.names", choices)),
    )


BARS = """
from diffscope.readings.allocation import allocation
from diffscope.readings.bars import bars

estimates = [allocation(cap).estimates for cap in comparison.captures]
{call}diffscope.figures.curves(dataset["value"], x="part", series="side", style="bars").save("bars.pdf")
"""


def show_statistic(pair: Pair) -> None:
    """One statistic of all heads, both sides beside each other."""
    title("All heads")
    leads = pair.second if pair.second.cap.differential and not pair.first.cap.differential else pair.first
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = choose_statistic(leads.cap, leads.subject.key)
    sides = [same_statistic(chosen, side.cap, side.subject.key).over_heads for side in (pair.first, pair.second)]
    dimension = xr.DataArray(list(pair.names), dims="side", name="side")
    values = xr.concat([side[chosen.name] for side in sides], dimension, join="outer", combine_attrs="override")
    values = values.assign_attrs(long_name=sides[0].attrs["long_name"], units=sides[0].attrs["units"])
    figure = figures.strips(values, joined=pair.matched)
    blocks.show_chart(figure, f"{sides[0].attrs['long_name']} of every head of both sides", key="compare-strips")
    lines = (
        "Lines lead from a head to the same head." if pair.matched else "Head h of one side is not head h of the other: no lines."
    )
    st.caption(
        f"{plain(STATISTICS[chosen.name].definition)} · {plain(sides[0].attrs['selection'])}. Each point is a head. {lines}"
    )
    choices = {"statistic": chosen.name, "query": chosen.query, "where": chosen.where}
    blocks.take_away(
        "compare-statistic",
        label="Take the statistic away",
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


def show_differences(pair: Pair) -> None:
    """What differs most, listed."""
    title("What differs most")
    reading = _differences(pair.key, pair)
    blocks.show_differences(reading.estimates, key="compare-differences")
    where = (
        "Each head is compared with itself"
        if pair.matched
        else "Means over the heads of a layer (medians of ratios) are compared"
    )
    st.caption(f"{where}, at the last token of each side; a spread is the standard deviation over the heads of all layers.")
    blocks.take_away(
        "compare-differences",
        label="Take the list away",
        data=lambda: reading.estimates,
        code=pair.code() + DIFFERENCES.format(matched=pair.matched),
    )


DIFFERENCES = """
from diffscope.readings.differences import differences

print(differences(comparison, matched={matched}))
"""


def title(words: str) -> None:
    """The title of a view."""
    st.markdown(f"##### {words}")


@st.cache_resource(show_spinner="Measuring", max_entries=16)
def _allocation(key: tuple, _cap):
    return allocation(_cap)


@st.cache_resource(show_spinner="Comparing", max_entries=16)
def _differences(key: tuple, _pair: Pair):
    comparison = Comparison(_pair.names, (_pair.first.cap, _pair.second.cap))
    return differences(comparison, matched=_pair.matched)


with in_words():
    pair = choose_sides()
    if pair is not None:
        show_pair(pair)
