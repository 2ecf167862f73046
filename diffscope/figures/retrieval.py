"""Figures of retrieval by depth of the answer and length of the prompt."""

from __future__ import annotations

from typing import Any, Unpack

import xarray as xr

from diffscope.capture.captions import count_of_prompts, edits_of
from diffscope.errors import check_choice
from diffscope.figures import theme
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.inputs import Readings, estimates_of, select, together
from diffscope.figures.values import cells, curves
from diffscope.stats.labels import UNIFORM, called

NEEDED = ("mass_of_prompt", "negative")
READING = "diffscope.readings.depths(scope)"
DASHES = {"answer": "solid", "irrelevant": "dash"}
QUANTITIES = {"exact": "share of exact answers", "log_odds": "log-odds of the answer"}


@figure()
def by_depth(
    subject: Readings,
    *,
    length: int | None = None,
    map: str = "D",
    span: str | None = None,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what the last query gives to the answer and to irrelevant tokens by depth of the answer, in all four normalisations.

    The form of Table 3 of "Differential Transformer" (Ye et al., 2024), of any number of models. Lines are means over heads, then
    layers, then prompts, with one standard error over prompts; which normalisation the paper used was not published. Beside them,
    the share of keys that the query sees: what uniform attention would give, once where that is the same for all models, else
    for each. Nothing is averaged over models.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.depths`, by model.
    length : int, optional
        Of the prompts in tokens; by default the longest that all were measured on.
    map : {"D", "A1", "A2"}
    span : str, optional
        The only one that lines are of; by default both the answer and irrelevant tokens.

    Returns
    -------
    Figure
        ``value``, ``low`` and ``high`` (panel, series, x): a panel a normalisation, x the depth from 0 to 1.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such length, map or span, models were measured on other prompts, or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings
    >>> reading = readings.depths(diffscope.load("mini-diff"), [64], prompts=1, distractors=1)
    >>> figures.by_depth(reading)
    <diffscope figure 'by_depth' of value, low, high (panel: 4, series: 4, x: 5)>
    """
    from diffscope.readings import signs  # which loads code of models
    from diffscope.readings.captures import shared_or_each
    from diffscope.readings.retrieval import common_lengths

    estimates = estimates_of(subject, NEEDED, READING)
    common = common_lengths(estimates)
    tokens = common[-1] if length is None else length
    lines = list(DASHES) if span is None else [span]
    chosen = {name: select(table, length=tokens, map=map, span=lines) for name, table in estimates.items()}
    colours, greys = theme.model_colours(chosen), theme.control_colours(chosen)
    rows: dict[str, xr.DataArray] = {}
    errors: dict[str, xr.DataArray] = {}
    looks = {}
    for name, table in chosen.items():
        for line in lines:
            label = _line(name, line, lines)
            rows[label] = table["mass"].sel(span=line, drop=True)
            errors[label] = table["mass_se"].sel(span=line, drop=True)
            looks[label] = (colours[name], DASHES.get(line, "solid"))
    shape = next(iter(rows.values()))
    for name, uniform in shared_or_each({name: table["uniform"] for name, table in chosen.items()}).items():
        for line in lines:
            label = _line(_uniform(name), line, lines)
            rows[label] = uniform.sel(span=line, drop=True).broadcast_like(shape)
            errors[label] = rows[label].where(False)
            looks[label] = (greys.get(name, theme.MUTED), DASHES.get(line, "solid"))
    about = "attention" if span is None else f"attention on {called(span)}"
    values = together(rows, "series").assign_attrs(long_name=about, units="1")
    error = xr.concat(list(errors.values()), values["series"], coords="minimal", compat="override")
    drawing = curves.drawing(
        values,
        x="depth",
        series="series",
        panels="normalisation",
        low=values - error,
        high=values + error,
        looks=looks,
        scale="own",
    )
    first = next(iter(chosen.values()))
    within = ", ± standard error over prompts" if any(table["mass_se"].notnull().any() for table in chosen.values()) else ""
    keys = " and on ".join(called(line) for line in lines)
    caption = (
        f"{map} of the last query on {keys} by depth of the answer, prompts of {tokens} tokens; "
        f"mean over {first.attrs['averaged_over']}{within}."
    )
    if map == "D":
        tables = {name: table.sel(length=[tokens]) for name, table in estimates.items()}
        caption = f"{caption} {signs.of_depths(tables, lines)}".rstrip()
    facts = {"length": int(tokens), "map": map, "span": span, "prompts": int(first.attrs["prompts"])}
    return drawing.described(caption, edits=edits_of(chosen), model=", ".join(chosen), **facts)


@figure()
def depth_by_length(
    subject: Readings,
    *,
    quantity: str = "exact",
    map: str = "D",
    normalisation: str = "share",
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw whether a model answers, or where it looks, by depth of the answer and length of the prompt, as cells.

    Every cell is a mean over prompts; below it stands one standard error over prompts, or for exact answers half the width of
    their 95 % interval (Wilson). Of attention, a panel has what uniform attention would give: one where that is the same for all
    models, else one each; nothing is averaged over models. Of several models these are the lengths that all were measured on.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.depths`, by model; each is a panel.
    quantity : {"exact", "log_odds"} or str
        The share of exact answers; log-odds of the answer against all distractors, in nats; or the attention on a span such as
        "answer", mean over heads, then layers.
    map, normalisation : str
        Of the attention.

    Returns
    -------
    Figure
        ``value`` and ``error`` (panel, y, x): y the length in tokens, x the depth from 0 to 1.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such quantity, map or normalisation, models were measured on other prompts, or all
        is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings
    >>> reading = readings.depths(diffscope.load("mini-diff"), [64, 96], prompts=1, distractors=1)
    >>> figures.depth_by_length(reading, quantity="log_odds")
    <diffscope figure 'depth_by_length' of value, error (panel: 1, y: 2, x: 5)>
    """
    from diffscope.readings import signs  # which loads code of models
    from diffscope.readings.captures import shared_or_each
    from diffscope.readings.retrieval import common_lengths

    estimates = estimates_of(subject, NEEDED, READING)
    known = [*QUANTITIES, *next(iter(estimates.values()))["span"].values.tolist()]
    check_choice("quantity", quantity, known)
    lengths = common_lengths(estimates)
    estimates = {name: table.sel(length=lengths) for name, table in estimates.items()}
    values: dict[str, xr.DataArray] = {}
    errors: dict[str, xr.DataArray] = {}
    counts: list[int] = []
    for name, table in estimates.items():
        if quantity == "exact":
            values[name], errors[name] = table["exact"], (table["exact_high"] - table["exact_low"]) / 2
            of_prompt = table["exact_of_prompt"]
        elif quantity == "log_odds":
            values[name], errors[name] = table["log_odds"], table["log_odds_se"]
            of_prompt = table["log_odds_of_prompt"]
        else:
            mass = select(table, map=map, normalisation=normalisation, span=quantity)
            values[name], errors[name] = mass["mass"], mass["mass_se"]
            of_prompt = mass["mass_of_prompt"]
        counts += of_prompt.notnull().sum("prompt").values.ravel().tolist()
    facts: dict[str, Any] = {}
    words = QUANTITIES.get(quantity, f"attention on {called(quantity)} ({signs.amount(map, normalisation)})")
    if quantity not in QUANTITIES:
        controls = {name: table["uniform"].sel(span=quantity, drop=True) for name, table in estimates.items()}
        for name, uniform in shared_or_each(controls).items():
            values[_uniform(name)] = uniform
            errors[_uniform(name)] = uniform.where(False)
        facts = {"map": map, "normalisation": normalisation}
    panels = together(values).assign_attrs(long_name=words, units="nats" if quantity == "log_odds" else "1")
    error = xr.concat(list(errors.values()), panels["model"], coords="minimal", compat="override", join="outer")
    drawing = cells.drawing(panels, x="depth", y="length", panels="model", error=error)
    first = next(iter(estimates.values()))
    below = "half their 95 % interval (Wilson)" if quantity == "exact" else "its standard error over prompts"
    within = f", ± {below}" if error.notnull().any() else ""
    caption = f"{words}: mean over {count_of_prompts(counts)} a cell{within}."
    if quantity not in QUANTITIES and (map, normalisation) == ("D", "share"):
        caption = f"{caption} {signs.of_depths(estimates, [quantity])}".rstrip()
    facts |= {"edits": edits_of(estimates), "prompts": int(first.attrs["prompts"])}
    return drawing.described(caption, model=", ".join(estimates), **facts)


def _uniform(model: str) -> str:
    """Return what uniform attention over a model's keys is called; of all models without a name."""
    return f"{UNIFORM} ({model})" if model else UNIFORM


def _line(name: str, span: str, spans: list[str]) -> str:
    """Return what a line is called: by its span too where lines are of several."""
    return name if len(spans) == 1 else f"{name}: {called(span).removeprefix('the ')}"
