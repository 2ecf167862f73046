"""Which statistic of heads is shown, asked as a person would ask."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import streamlit as st
import xarray as xr
from cache import measured, once
from url_state import bound

from diffscope.attention.maps import MAPS
from diffscope.figures.by_head import over_heads
from diffscope.figures.escaping import readable, shorten, visible
from diffscope.numbers import capital
from diffscope.readings.signs import of_span
from diffscope.stats import STATISTICS
from diffscope.stats.labels import called, is_unsigned
from diffscope.stats.registry import LABELS

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
WORDS = {name: entry.symbol for name, entry in MAPS.items()}
TITLES = {
    "map": "Map",
    "normalisation": "Normalised",
    "sink_set": "Keys",
    "k": "How many",
    "quantile": "Quantile",
    "lambda_value": "Which λ",
}
FIRST = {"map": "D", "normalisation": "share"}
LAST_TOKEN = "last token"  # in addresses; on Explore it is the token that is looked at, which begins as the last
ROWS = (LAST_TOKEN, "mean of all")
state = st.session_state


class Chosen(NamedTuple):
    """A statistic over layers and heads, and how it was chosen."""

    name: str
    query: int | str
    where: dict[str, str]
    measured: xr.Dataset
    over_heads: xr.Dataset


def label_of(cap) -> str:
    """Return what the grid of heads will show in this run, in short; the widgets that choose it come later."""
    asked = _asked(cap)
    wish = state.get("statistic", st.query_params.get("statistic", ""))
    question = state.get("question", st.query_params.get("question")) or question_of(wish)
    names = asked.get(question or "") or next(iter(asked.values()))
    name = wish if wish in names else names[0]
    return STATISTICS[name].description if name != "span_mass" else f"attention on {in_words(_wished(cap))}"


def question_of(statistic: str) -> str | None:
    """The question that a statistic belongs to; None for one that is not of a head."""
    return next((question for question, names in QUESTIONS.items() if statistic in names), None)


def in_words(span: str) -> str:
    """Name a span in a sentence; one that has no words of its own is its tokens."""
    words = called(span)
    return f"{span} tokens" if words == span else words


def title_of(chosen: Chosen, cap) -> str:
    """Say in words what the grid of heads shows: of which map, where, and for which token."""
    tokens = readable(cap.prompts[0])
    at = chosen.query if isinstance(chosen.query, str) else chosen.query % cap.n_tokens
    row = "on average over all tokens" if isinstance(at, str) else f"for token {at} “{shorten(visible(tokens[at]))}”"
    if "query" not in STATISTICS[chosen.name].dims:  # it is of the whole map
        row = ""
    if chosen.name != "span_mass" or chosen.where["normalisation"] not in ("share", "raw"):
        selection = ", ".join(WORDS.get(label, label) for label in chosen.where.values())
        return capital(" · ".join(filter(None, [STATISTICS[chosen.name].description, selection, row])))
    weights = "A" if all(layer.d_is_a1 for layer in cap.layers) else WORDS.get(chosen.where["map"], chosen.where["map"])
    place = in_words(chosen.where["span"])
    if chosen.where["normalisation"] == "raw":
        return f"What {weights} sums to on {place}, {row}"
    return f"How much of {weights} goes to {place}, as a share of {f'|{weights}|' if weights == 'D' else weights}, {row}"


def choose_statistic(cap, key: tuple, token: int = -1) -> Chosen:
    """Choose a statistic at a token, by default the last, and one label of every dimension that it has beside layer and head."""
    asked = _asked(cap)
    if "question" not in state and "question" not in st.query_params:  # an address may name just the statistic
        state["question"] = question_of(st.query_params.get("statistic", "")) or next(iter(asked))
    question = st.selectbox("Question", [*asked], **bound("question"), width=260)
    statistic = st.selectbox(
        "Statistic",
        asked[question],
        **bound("statistic", options=asked[question]),
        width=260,
        format_func=lambda name: STATISTICS[name].description,
    )
    where = {dim: _label(cap, dim) for dim in STATISTICS[statistic].dims if dim not in ("head", "query")}
    query: int | str = token
    if "query" in STATISTICS[statistic].dims:
        told = dict(zip(ROWS, ("the last token" if token < 0 else "this token", "all tokens, mean")))
        rows = st.selectbox("Averaged over", ROWS, **bound("rows", options=ROWS), width=160, format_func=told.__getitem__)
        query = token if rows == LAST_TOKEN else "mean"
    dataset = measured(cap, key, statistic, _queries(query, cap))
    data = over_heads(dataset[statistic], query, where, model=cap.model_name)
    return Chosen(statistic, query, where, dataset, data)


def _queries(query: int | str, cap) -> tuple[int] | None:
    """Return the token to measure at; None for all."""
    return (query % cap.n_tokens,) if isinstance(query, int) else None


def signs_of(chosen: Chosen, cap, key: tuple) -> str:
    """In which heads the weights that a share of |D| sums are negative; nothing of what has a sign of its own."""
    if chosen.name != "span_mass" or not is_unsigned(chosen.over_heads.attrs["selection"]):
        return ""
    span = chosen.where["span"]
    return once("signs", (*key, span, chosen.query), partial(of_span, cap, span, chosen.query))


def _asked(cap) -> dict[str, list[str]]:
    """Return the questions that a capture answers, and the statistics that do."""
    asked = {question: _of_model(cap, names) for question, names in QUESTIONS.items()}
    return {question: names for question, names in asked.items() if names}


def _of_model(cap, names: tuple[str, ...]) -> list[str]:
    """Statistics of heads that this model has: what needs a second map is left out of standard attention."""
    if cap.differential:
        return list(names)
    return [name for name in names if STATISTICS[name].kind not in ("branch", "layer")]


def _label(cap, dim: str) -> str:
    """One label along a dimension of a statistic."""
    if dim == "span":
        return _key_set(cap)
    labels = [str(label) for label in LABELS[dim]]
    if dim == "map" and not cap.differential:
        labels = ["D"]
    first = FIRST.get(dim, labels[0])
    standard = all(layer.d_is_a1 for layer in cap.layers)

    def words(label: str) -> str:
        return "A" if dim == "map" and standard else WORDS.get(label, label)

    return st.selectbox(TITLES[dim], labels, **bound(dim, options=labels, default=first), width=110, format_func=words)


def _key_sets(cap) -> list[str]:
    """Return the spans whose keys may count, the answer first."""
    (of_keys,) = cap.key_prompts or cap.prompts
    return sorted(of_keys.span_positions(), key=lambda name: (name != "answer", name))


def _wished(cap) -> str:
    """Return the span whose keys count: the one that was asked for, wherever the prompt has it; else the answer."""
    names = _key_sets(cap)
    wish = state.get("_span", st.query_params.get("span"))
    return wish if wish in names else names[0]


def _key_set(cap) -> str:
    """Choose the span whose keys count."""
    state.setdefault("_span", st.query_params.get("span"))
    state["span"] = _wished(cap)
    return st.selectbox(
        "Key set", _key_sets(cap), **bound("span"), width=130, on_change=lambda: state.update(_span=state["span"])
    )
