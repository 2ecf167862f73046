"""Explore: one prompt, every layer and head; the maps of one head; one token's row."""

from __future__ import annotations

import math
from functools import partial

import blocks
import streamlit as st
from sources import age, bundled, capture, examples, in_words, measured, plain, saved, scope

from diffscope.attention.indexing import check_index
from diffscope.figures.escaping import shorten, visible
from diffscope.figures.heads import over_heads
from diffscope.figures.panels import short_name
from diffscope.stats import STATISTICS

OTHER = "a folder or a saved capture"
OWN = "own text"
BARS = 4096  # keys of a row that are drawn as bars
KINDS = ("span", "row", "branch")  # statistics that are cheap enough to choose from a list
WORDS = {"A1": "A₁", "A2": "A₂", "lambda_A2": "λ·A₂"}
state = st.session_state


def choose_model() -> tuple[str, bool] | None:
    """The name or path of what to look at, and whether it is a saved capture."""
    cards = {card["name"]: card for card in bundled()}
    with st.sidebar:
        if not cards:
            st.info(
                "No model is installed with this package. Train one with `diffscope train`, or give the folder of a model below."
            )
        name = st.selectbox("Model", [*cards, OTHER], key="model", bind="query-params")
        if name != OTHER:
            steps = list(cards[name].get("checkpoints") or [])
            if steps:
                last = "end of training"
                step = st.select_slider("Training step", [*map(str, steps), last], value=last, key="step", bind="query-params")
                name = name if step == last else f"{name}@{step}"
            return name, False
        path = st.text_input(
            "Folder of a model, or file of a capture", key="path", bind="query-params", placeholder="/path/to/model"
        ).strip()
        if not path:
            return None
        return path, path.endswith((".dscope", ".safetensors"))


def choose_prompt() -> tuple[str, dict, str]:
    """The prompt, its spans by name, and the answer's text."""
    known = {example.name: example for example in examples()}
    with st.sidebar:
        chosen = st.selectbox("Prompt", [*known, OWN], key="example", bind="query-params")
        example = known.get(chosen)
        places = {"text": f"_text-{chosen}", "answer": f"_answer-{chosen}"} if example else {"text": "prompt", "answer": "answer"}
        usual = {"text": example.text, "answer": example.answer} if example else {"text": "", "answer": ""}

        def make_own() -> None:
            """An example that was changed is the reader's own prompt, and its address says it all."""
            state["prompt"] = state[places["text"]]
            state["answer"] = state.get(places["answer"], usual["answer"])
            state["example"] = OWN

        shared = {"on_change": make_own, "value": None} if example else {"bind": "query-params"}
        text = st.text_area(
            "Text",
            **shared | ({"value": usual["text"]} if example else {}),
            key=places["text"],
            height=190,
            label_visibility="collapsed",
            placeholder="a prompt of your own",
        )
        by_text = (
            st.segmented_control(
                "Answer",
                ["text", "token range"],
                default="text",
                required=True,
                key="mark",
                bind="query-params",
                help="Mark the answer where it stands in the prompt.",
            )
            == "text"
        )
        answer = ""
        if by_text:
            answer = st.text_input(
                "Answer",
                **shared | ({"value": usual["answer"]} if example else {}),
                key=places["answer"],
                label_visibility="collapsed",
                placeholder="the answer as it stands in the prompt",
            )
    if example and by_text:
        return text, example.spans, answer
    return text, {"answer": answer} if answer.strip() else {}, answer


def token_range(model: str, text: str) -> dict:
    """The answer as a range of tokens, for a prompt in which its text stands twice or not at all."""
    n = len(scope(model, age(model)).tokenize(text))
    if n < 2:
        return {}
    with st.sidebar:
        first, last = st.slider("Answer tokens", 0, n - 1, (max(0, n - 2), n - 1), key="tokens", bind="query-params")
    return {"answer": (first, last + 1)}


def take(model: str, text: str, spans: dict, answer: str):
    """The capture; where the answer cannot be marked it says so, and looks without it."""
    from diffscope.errors import SpanError

    try:
        return capture(model, age(model), text, spans), spans
    except SpanError as error:
        st.warning(plain(str(error)))
        return capture(model, age(model), text, {}), {}


def choose_statistic(cap, key: tuple):
    """A statistic over layers and heads, as the data of the figure of heads."""
    choices = {
        name: s
        for name, s in STATISTICS.items()
        if s.kind in KINDS and "head" in s.dims and (cap.differential or s.kind != "branch")
    }
    name = st.selectbox(
        "Statistic",
        list(choices),
        index=list(choices).index("span_mass") if "span_mass" in choices else 0,
        key="statistic",
        bind="query-params",
        width=190,
    )
    where = {}
    dims = choices[name].dims
    if "map" in dims:
        maps = ["D", "A1", "A2"] if cap.differential else ["D"]
        where["map"] = st.selectbox(
            "Map",
            maps,
            key="map",
            bind="query-params",
            width=80,
            format_func=lambda m: "A" if all(layer.d_is_a1 for layer in cap.layers) else WORDS.get(m, m),
        )
    if "span" in dims:
        names = sorted(cap.spans, key=lambda s: (s != "answer", s))
        where["span"] = st.selectbox("Key set", names, key="span", bind="query-params", width=120)
    if "normalisation" in dims:
        where["normalisation"] = st.selectbox(
            "Normalised", ["share", "raw", "signed", "positive"], key="norm", bind="query-params", width=110
        )
    rows = st.selectbox("Queries", ["last token", "mean of all"], key="rows", bind="query-params", width=125)
    last = cap.n_tokens - 1
    dataset = measured(cap, key, name, (last,) if rows == "last token" else None)
    return over_heads(dataset[name], -1 if rows == "last token" else "mean", 0, where, model=cap.model_name)


def strongest(cap, key: tuple) -> tuple[int, int]:
    """Where to begin: the head with the most of the answer at the last token."""
    if "answer" not in cap.spans:
        return cap.layer_numbers[cap.n_layers // 2], 0
    mass = measured(cap, key, "span_mass", (cap.n_tokens - 1,))["span_mass"]
    mass = mass.sel(map="D", span="answer", normalisation="share").isel(query=-1).fillna(-1.0)
    best = mass.isel(mass.argmax(...))  # from where it stands to what the model calls it
    return int(best["layer"]), int(best["head"])


def follow(cap, key: tuple) -> None:
    """Layer, head and token begin where the answer is attended to most, and stay where the reader puts them."""
    model = (cap.model_name, tuple(cap.layer_numbers), cap.n_heads)
    best = strongest(cap, key)
    now = (state.get("layer"), state.get("head"))
    if state.get("_model") is None:
        begin = not {"layer", "head"} & set(st.query_params)  # an address that names a head is followed
    else:
        begin = state["_model"] != model or now == state["_best"] or None in now
    if begin:
        state["layer"], state["head"] = best
    last = cap.n_tokens - 1
    if "_last" not in state:
        begin = "query" not in st.query_params
    else:
        begin = state.get("query") in (None, state["_last"]) or state["query"] > last
    if begin:
        state["query"] = last
    state["_model"] = model
    state["_best"] = best
    state["_last"] = last


def show_capture(cap, key: tuple) -> None:
    """The page below the choice of model and prompt; `key` says which capture it is."""
    follow(cap, key)
    show_facts(cap)
    above = st.container(horizontal=True, vertical_alignment="bottom")
    left, middle, right = st.columns([5, 3, 3], gap="medium")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, head = choose_head(cap)
        buttons = st.container(horizontal=True, horizontal_alignment="right")
    check_index("layer", layer, cap.layer_numbers)
    check_index("head", head, range(cap.n_heads))
    statistic = None
    with above, in_words():
        statistic = choose_statistic(cap, key)
    with left:
        if statistic is not None:
            blocks.show_heads(statistic, (layer, head), on_pick=select)
            st.caption(plain(statistic.attrs["definition"]))
    with middle:
        blocks.show_lambda(cap, layer)
    with right:
        blocks.show_next(cap)
    blocks.show_view(cap, layer, head, on_move=partial(move, cap, layer, head), on_lock=partial(read_row, cap))
    with buttons, in_words():
        offer_downloads(cap, layer, head, statistic)
    show_row(cap, layer, head)


def move(cap, layer: int, head: int, layers: int, heads: int) -> None:
    """An arrow key chooses the head beside this one, as far as there is one."""
    numbers = cap.layer_numbers
    at = numbers.index(layer) + layers
    state["layer"] = numbers[min(max(at, 0), len(numbers) - 1)]
    state["head"] = min(max(head + heads, 0), cap.n_heads - 1)


def read_row(cap, rows: list[int], columns: list[int]) -> None:
    """A row that is locked is the one that is read below."""
    if rows and 0 <= rows[-1] < cap.n_tokens:
        state["query"] = rows[-1]


def select(layer: int, head: int) -> None:
    """A click on a head chooses it."""
    state["layer"] = layer
    state["head"] = head


def show_facts(cap) -> None:
    """One line on the model and the capture."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"**{plain(short_name(cap.model_name))}** · {plain(cap.family)} · {cap.n_layers} layers × {cap.n_heads} heads · "
            f"{cap.n_tokens} tokens",
            width="content",
        )
        blocks.show_fidelity(cap)


def choose_head(cap) -> tuple[int, int]:
    """Layer and head of the maps; without default values, so that the address always names the head."""
    numbers = cap.layer_numbers
    step = math.gcd(*(number - numbers[0] for number in numbers)) or 1  # over layers without attention
    layer = st.number_input("Layer", numbers[0], numbers[-1], None, step=step, key="layer", bind="query-params", width=110)
    head = st.number_input("Head", 0, cap.n_heads - 1, None, step=1, key="head", bind="query-params", width=110)
    if layer is None or head is None:
        layer, head = state["_best"]
    return layer, head


def offer_downloads(cap, layer: int, head: int, statistic) -> None:
    """Buttons for the maps, for print and as a page, and for the statistic over layers and heads, if there is one."""
    blocks.download_maps(cap, layer, head, f"{short_name(cap.model_name)}-layer{layer}-head{head}")
    if statistic is None:
        return
    name = statistic.attrs["statistic"]
    table = statistic[name].to_dataframe().reset_index().to_csv(index=False)
    later = {"on_click": "ignore"}
    st.download_button("Statistic as CSV", table.encode, f"{name}.csv", "text/csv", key="csv", **later)
    text = lambda: blocks.as_json(statistic)  # noqa: E731 (made when the button is pressed)
    st.download_button("as JSON", text, f"{name}.json", "application/json", key="json", **later)


def show_row(cap, layer: int, head: int) -> None:
    """What one token attends to, as bars and as text."""
    last = cap.n_tokens - 1
    with st.container(horizontal=True, vertical_alignment="bottom"):
        query = st.number_input("Read the row of token", 0, last, None, step=1, key="query", bind="query-params", width=160)
        query = last if query is None else query
        token = plain(shorten(visible(cap.tokens[query])))
        colours = ": A₁ adds (blue), λ·A₂ takes away (orange), D is what is left (black)." if cap.differential else "."
        st.caption(f"What token {query} “{token}” attends to{colours}")
    keys = None if cap.n_tokens <= BARS else (max(0, query - BARS + 1), query + 1)
    row = blocks.show_row(cap, layer, head, query, keys)
    if row is not None:
        with st.container(height=240 if cap.n_tokens > 600 else "content", border=False):
            blocks.show_text(row)


with in_words():
    source = choose_model()
    if source is None:
        st.info("Give the folder of a model, or the file of a saved capture.")
    elif source[1]:
        file = (source[0], age(source[0]))  # a file that was written again is another capture
        show_capture(saved(*file), file)
    else:
        text, spans, answer = choose_prompt()
        if not text.strip():
            st.info("Write a prompt to look at.")
        else:
            if state.get("mark") == "token range":
                spans = token_range(source[0], text)
            cap, spans = take(source[0], text, spans, answer)
            show_capture(cap, (source[0], age(source[0]), text, spans))
