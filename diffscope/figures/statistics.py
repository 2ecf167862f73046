"""Figures of captures, of one model or of several: where attention goes, statistics by layer, what two maps share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Unpack

import xarray as xr

from diffscope.capture.captions import count_of_prompts, edits_of
from diffscope.capture.capture import Capture
from diffscope.capture.comparison import one_each
from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.inputs import Captures, captures_of, check_defined, check_labels, undefined_said
from diffscope.figures.labelled import values_title
from diffscope.figures.values import curves, panels_beside
from diffscope.numbers import listed
from diffscope.prompts.selection import checked_query
from diffscope.stats.labels import is_unsigned, usual_label
from diffscope.stats.negative_mass import WHATEVER

Normalisation = Literal["share", "raw", "signed", "positive"]


@figure(wide=False)
def allocation(
    subject: Captures,
    *,
    map: str | None = None,
    normalisation: Normalisation = "share",
    layer: int | tuple[int, int] | None = None,
    head: int | tuple[int, int] | None = None,
    query: int | Literal["last"] = -1,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw five bars: what a query gives to the first token, before the answer, to the answer, after it, and to the question.

    The form of the first figure of "Differential Transformer" (Ye et al., 2024), of any number of models. Bars are means over
    heads, then layers (of a batch, over its prompts first), and small points are the least head and the largest; or all is of
    one layer or head. Beside them stands what uniform attention would give: the share of keys that the query sees.

    Parameters
    ----------
    subject : Capture, Comparison, mapping of str to captures, or sequence of captures
        Of prompts with a span ``answer``.
    map : {"D", "A1", "A2"}, optional
        By default D, which of standard attention is A.
    normalisation : {"share", "raw", "signed", "positive"}
        "share" is Σ|D| on a part over Σ|D|; the others as in docs/statistics.md.
    layer, head : int or tuple of int, optional
        As the model numbers them; a head is of a layer; of several models one for each, where they are not the same. By default
        the mean over all.
    query : int or "last"
        A token; negative ones count from a prompt's end.

    Returns
    -------
    Figure
        ``value``, ``low`` and ``high`` (panel, series, x), a series a model and one for uniform attention.

    Raises
    ------
    SpanError
        A prompt has no span ``answer``.
    DiffscopeError
        There is no such map, normalisation, layer, head or token, or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, tasks
    >>> example = tasks.examples()[0]
    >>> cap = diffscope.load("mini-diff").capture(example)
    >>> figures.allocation(cap)
    <diffscope figure 'allocation' of value, low, high (panel: 1, series: 2, x: 5)>
    """
    from diffscope.readings.prompt_parts import allocation as divided
    from diffscope.readings.prompt_parts import bars as bars_of
    from diffscope.readings.signs import amount

    map = map or "D"
    query = checked_query(query)
    captures = captures_of(subject)
    if head is not None and layer is None:
        raise DiffscopeError(f"head {head} is of a layer; give layer= too")
    estimates = {name: divided(cap, query).estimates for name, cap in captures.items()}
    layers, numbers = one_each(captures, "layer", layer), one_each(captures, "head", head)
    for name, table in estimates.items():
        check_labels(table["allocation"], map=map, normalisation=normalisation, layer=layers[name], head=numbers[name])
        estimates[name] = _of_one_layer(table.mean("prompt") if "prompt" in table.dims else table, layers[name])
    heads = None if head is None else {name: (layers[name], numbers[name]) for name in estimates}
    bars = bars_of(estimates, map=map, normalisation=normalisation, heads=heads)
    sides = list(estimates)
    if not bars["value"].sel(side=sides).notnull().any():
        raise DiffscopeError(f"there is nothing to draw: {map} is undefined in every capture")
    uniform = [str(side) for side in bars["side"].values if side not in sides]
    values = undefined_said(bars["value"], "side").assign_attrs(bars["value"].attrs)
    ends = {end: bars[end].assign_coords(side=values["side"]) for end in ("low", "high") if end in bars}
    of_head = {name: "" if heads is None else f", head {numbers[name]}" for name in estimates}
    where = {name: f"layer {layers[name]}{of_head[name]}" for name in estimates}
    alike = len(set(where.values())) == 1
    places = next(iter(where.values())) if alike else listed([f"{place} of {name}" for name, place in where.items()])
    over = "all heads, then layers" if layer is None else f"the heads of {places}"
    over = places if heads is not None else f"mean over {over}; small points are the least head and the largest"
    counts = [len(cap.prompts) for cap in captures.values()]
    prompts = f", mean over {count_of_prompts(counts)}" if max(counts) > 1 else ""
    at = "last query" if query == -1 else f"query at {query}"
    caption = f"Attention of the {at} to five parts of the prompt ({amount(map, normalisation)}){prompts}, {over}."
    if (map, normalisation) == ("D", "share"):
        caption += _of_bars({name: table for name, table in estimates.items() if captures[name].differential}, numbers)
    drawing = curves.drawing(
        values, x="part", series="side", style="bars", controls=uniform, extremes=values["side"].values.tolist(), **ends
    )
    facts = {"map": map, "normalisation": normalisation, "layer": layer, "head": head, "query": query}
    return drawing.described(caption, edits=edits_of(captures), model=", ".join(estimates), **facts)


@figure(wide=False)
def statistic_by_layer(
    subject: Captures,
    *,
    statistic: str | Sequence[str] = "entropy",
    map: str | None = None,
    span: str | None = None,
    normalisation: str | None = None,
    where: Mapping[str, str] | None = None,
    query: int | Literal["last", "mean"] = -1,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw a statistic by layer: its mean over heads as a line, every head as a point behind it, and its controls.

    The mean is a median where the registry averages the statistic so (ratios without a bound, ranks). Of a batch every point is
    that of a head over its prompts. Controls are grey broken lines, with the marker of their model where it is not the same for
    all: of effective ranks the map with its rows permuted and the uniform map; of what compares A1 and A2 the same with the A2 of
    other heads; of λ its initial value; of all else that is of a map, uniform attention over the keys that the query sees.

    Parameters
    ----------
    subject : Capture, Comparison, mapping of str to captures, or sequence of captures
    statistic : str, or sequence of str
        Names from ``diffscope.stats.STATISTICS``; several are panels with scales of their own.
    map : str, optional
        Which of A1, A2 and D; of effective ranks A1, lambda_A2 and D. By default D, of ranks lambda_A2; of standard attention A.
    span, normalisation : str, optional
        By default the span "answer" (else the sink), of what compares A1 and A2 "irrelevant"; and "share".
    where : mapping of str to str, optional
        The same along other dimensions, such as ``{"definition": "r90"}`` of effective ranks.
    query : int, "last" or "mean"
        At which query; negative ones count from a prompt's end. "mean" is over all queries, where what compares A1 and A2 has no
        control. Ranks are of whole maps.

    Returns
    -------
    Figure
        ``value`` (panel, series, x) and ``points`` (panel, series, x, point), a point a head.

    Raises
    ------
    DiffscopeError
        There is no such statistic, label or query; the statistic is not by head or has no mean (positions, decibels; see
        :func:`diffscope.figures.heads`); or it is undefined everywhere.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures
    >>> cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
    >>> figures.statistic_by_layer(cap, statistic=["entropy", "gini"])
    <diffscope figure 'statistic_by_layer' of value, points (panel: 2, series: 2, x: 3, point: 2)>
    """
    from diffscope.readings.layers import by_layer  # which loads code of models
    from diffscope.readings.pairing_control import compares_maps

    captures = captures_of(subject)
    query = checked_query(query, "mean")
    names = [statistic] if isinstance(statistic, str) else list(statistic)
    if not names:
        raise DiffscopeError("no statistic was chosen; give one, such as 'entropy'")
    choices = {"map": map, "span": span, "normalisation": normalisation, **(where or {})}
    estimates = {name: by_layer(captures, name, choices=choices, query=query).estimates for name in names}
    for table in estimates.values():
        check_defined(table["heads"])
    tables = {
        name: table.assign_coords(series=undefined_said(table["heads"], "series")["series"]) for name, table in estimates.items()
    }
    abouts = [table["heads"].attrs for table in tables.values()]
    titles = [values_title(table["heads"]) for table in tables.values()]
    heads, middle = (_beside(tables, part, titles) for part in ("heads", "middle"))
    drawing = curves.drawing(
        middle,
        x="layer",
        series="series",
        panels="statistic" if len(names) > 1 else None,
        points=heads,
        looks=_looks(tables, list(captures)),
        scale="own",
    )
    facts = {"statistic": ", ".join(names), "query": str(query), "selection": "; ".join(about["selection"] for about in abouts)}
    chosen = "; ".join(f"{words}: {about['selection']}" for words, about in zip(titles, abouts))
    averages = " or ".join(dict.fromkeys(table["middle"].attrs["averaged"] for table in tables.values()))
    caption = f"{chosen}. Lines are the {averages} over heads, points single heads."
    if query == "mean" and (lone := [name for name in names if compares_maps(name)]):
        caption += f" Over all queries {' and '.join(lone)} {'has' if len(lone) == 1 else 'have'} no control."
    if "span_mass" in names and is_unsigned(estimates["span_mass"]["heads"].attrs["selection"].partition(" or ")[0]):
        caption += _of_captures(captures, span, query)
    elif any(is_unsigned(about["selection"].partition(" or ")[0]) for about in abouts):
        caption += f" {WHATEVER}."
    return drawing.described(caption, edits=edits_of(captures), model=", ".join(captures), **facts)


@figure()
def similarity(
    subject: Captures,
    *,
    statistic: str = "overlap",
    span: str = "irrelevant",
    query: int | Literal["last"] = -1,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what A1 and A2 of every head share, beside the null: the same of A1 and the A2 of the other heads of its layer.

    Two softmax maps of one model share position and sinks anyhow; only what is beyond every such pair is a head's own. The null
    is drawn as the mean over the other heads (a median where the statistic is averaged so), with a range from the least to the
    largest of them. A head whose layer has no other A2 has none.

    Parameters
    ----------
    subject : Capture, Comparison, mapping of str to Capture, or sequence of Capture
        Each of one prompt and of differential attention; several are panels.
    statistic : str
        Of both maps on a span: overlap, cosine, shape_overlap, js, kl_12, kl_21, lambda_star, residual_noise, residual_floor,
        noise_gain, signal_gain, selectivity.
    span : str
        The keys that they are compared on.
    query : int or "last"
        A token; negative ones count from the prompt's end.

    Returns
    -------
    Figure
        ``value``, ``low`` and ``high`` (panel, series, x), x being heads such as L1H0.

    Raises
    ------
    DiffscopeError
        There is no such statistic, span or token; a capture is of several prompts; or all is undefined, as of standard attention.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures
    >>> cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
    >>> figures.similarity(cap, statistic="cosine")
    <diffscope figure 'similarity' of value, low, high (panel: 1, series: 2, x: 6)>
    """
    from diffscope.figures.amplifier_charts import beside_other_heads
    from diffscope.readings.pairing_control import paired_statistic  # which loads code of models

    captures = captures_of(subject)
    at = int(checked_query(query))
    values = {name: paired_statistic(cap, statistic, span, at) for name, cap in captures.items()}
    if all(not pair.notnull().any() for pair in values.values()):
        raise DiffscopeError(f"there is nothing to draw: {statistic} compares A1 and A2 on {span}, and is undefined everywhere")
    lacking = [name for name, pair in values.items() if not pair.notnull().any()]
    parts = {name: beside_other_heads(pair) for name, pair in values.items() if name not in lacking}
    drawing = panels_beside(parts)
    about = next(iter(values.values())).attrs
    caption = f"{about['long_name']} on {span} keys, {about['definition']}, beside the same with the A2 of other heads (range)."
    caption += f" Undefined: {', '.join(lacking)}." if lacking else ""
    facts = {"statistic": statistic, "span": span, "query": at}
    return drawing.described(caption, edits=edits_of(captures), model=", ".join(values), **facts)


def _looks(tables: Mapping[str, xr.Dataset], models: list[str]) -> dict[str, tuple[str, str]]:
    """Return a colour for each model, and for its controls a grey and a broken line: dots where a control knows nothing."""
    colours, greys = theme.model_colours(models), theme.control_colours(models)
    looks = {}
    for table in tables.values():
        for label, model, control in zip(*(table[name].values.tolist() for name in ("series", "model", "control"))):
            dash = ("dot" if control.startswith("uniform") else "dash") if control else "solid"
            looks[label] = ((greys if control else colours).get(model, theme.MUTED), dash)
    return looks


def _beside(tables: Mapping[str, xr.Dataset], part: str, titles: Sequence[str]) -> xr.DataArray:
    """Return one variable of several statistics along ``statistic``, called by their titles; of one as it is."""
    arrays = [table[part].drop_vars(["model", "control"]) for table in tables.values()]
    if len(arrays) == 1:
        return arrays[0].assign_attrs(long_name=titles[0], units="1")
    series = list(dict.fromkeys(str(label) for array in arrays for label in array["series"].values))
    together = xr.concat(arrays, xr.DataArray(list(titles), dims="statistic", name="statistic"), join="outer")
    return together.sel(series=series).assign_attrs(long_name="", units="1")


def _of_captures(captures: Mapping[str, Capture], span: str | None, query: int | str) -> str:
    """Return in which heads of each model |D| on a span is negative."""
    from diffscope.readings.signs import of_span

    chosen = {name: span or usual_label([*cap[0].key_sets], "span") for name, cap in captures.items()}
    return _of_models({name: of_span(cap, chosen[name], query) for name, cap in captures.items()})


def _of_bars(estimates: Mapping[str, xr.Dataset], heads: Mapping[str, int | None]) -> str:
    """Return in which of the heads that are drawn of each model |D| on the answer is negative."""
    from diffscope.readings.signs import by_head

    sentences = {}
    for name, table in estimates.items():
        chosen = table if heads[name] is None else table.sel(head=[heads[name]])
        share = chosen["allocation"].sel(map="D", part="answer", normalisation="share", drop=True)
        sentences[name] = by_head(share, chosen["negative"].sel(map="D", part="answer", drop=True))
    return _of_models(sentences)


def _of_models(said: Mapping[str, str]) -> str:
    """Return sentences by model, each with its name where there are several models."""
    from diffscope.readings.signs import within

    return "".join(f" {within(f'In {name}', words) if len(said) > 1 else words}" for name, words in said.items() if words)


def _of_one_layer(estimates: xr.Dataset, layer: int | None) -> xr.Dataset:
    """Return estimates of an allocation, of one layer where one is chosen."""
    if layer is None:
        return estimates
    return estimates.sel(layer=[layer]).assign(over_layers=estimates["over_heads"].sel(layer=layer, drop=True))
