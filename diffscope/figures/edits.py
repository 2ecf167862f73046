"""Figures of what edits cost an answer: along an edit's value, and head by head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Unpack

import xarray as xr

from diffscope.errors import DiffscopeError, check_choice
from diffscope.figures import theme
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.inputs import Readings, estimates_of, together
from diffscope.figures.values import cells, curves
from diffscope.numbers import ABSENT, minus

SCORES = {"log_odds": "log-odds of the answer", "loss": "loss of the text", "exact": "share of exact answers"}
TAKEN = {"head": "the output of one head", "A2": "the second map of one head (λ = 0)"}
ALL = "all"  # heads of a layer
UNEDITED = ", unedited"  # behind the name of a model


@figure()
def interventions(
    subject: Readings,
    *,
    quantity: str | Sequence[str] = ("log_odds", "loss"),
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what edits cost: log-odds of the answer and loss of the text along an edit's value, or by its label.

    Lines or points are means over prompts with one standard error, each prompt is a point behind them, and grey broken lines are
    the unedited models. Values of an edit that are numbers stand in ascending order.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.interventions`, by model or whatever else differs.
    quantity : str, or sequence of str
        Of log_odds and loss, in nats, and exact, the share of exact answers; each is a panel with its own scale.

    Returns
    -------
    Figure
        ``value``, ``low``, ``high`` (panel, series, x) and ``points`` (panel, series, x, point), x the edit's value or label.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such quantity, or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import edits, figures, readings, tasks
    >>> tried = {factor: edits.scale_lambda(factor) for factor in (0, 0.5, 1)}
    >>> reading = readings.interventions(diffscope.load("mini-diff"), tasks.examples()[0], tried, along="factor of λ")
    >>> figures.interventions(reading)
    <diffscope figure 'interventions' of value, low, high, points (panel: 2, series: 2, x: 3, point: 1)>
    """
    estimates = estimates_of(subject, "log_odds_change", "diffscope.readings.interventions(scope, prompts, edits)")
    names = [quantity] if isinstance(quantity, str) else list(quantity)
    for name in names:
        check_choice("quantity", name, SCORES)
    first = next(iter(estimates.values()))
    titles = [SCORES[name] + ("" if name == "exact" else ", nats") for name in names]
    tables = {title: _of_score(estimates, name) for name, title in zip(names, titles)}
    panels = xr.DataArray(titles, dims="panel", name="panel")
    table = xr.concat(list(tables.values()), panels, join="outer", combine_attrs="override")
    if not table["value"].notnull().any():
        raise DiffscopeError(f"there is nothing to draw: {' and '.join(names)} are undefined under all edits")
    colours, greys = theme.model_colours(estimates), theme.control_colours(estimates)
    numbers = table["edit"].dtype.kind in "if"
    table = table.sortby("edit") if numbers else table
    looks = {name: (colours[name], "solid") for name in estimates}
    looks |= {f"{name}{UNEDITED}": (greys[name], "dash") for name in estimates}
    drawing = curves.drawing(
        table["value"].assign_attrs(long_name="", units="1"),
        x="edit",
        series="series",
        panels="panel",
        low=table["value"] - table["error"],
        high=table["value"] + table["error"],
        points=table["points"],
        looks=looks,
        style="lines" if numbers else "points",
        scale="own",
    )
    counts = {SCORES[name]: _scored(estimates, f"unedited_{name}_of_prompt") for name in names}
    same = len(set(counts.values())) == 1
    prompts = next(iter(counts.values())) if same else "; ".join(f"{words}: {count}" for words, count in counts.items())
    along = first["edit"].attrs.get("long_name", "edit")
    within = " ± standard error" if _has_errors(estimates, [f"{name}_se" for name in names]) else ""
    caption = f"Mean over prompts (n = {prompts}){within} by {along}; points are prompts."
    return drawing.described(caption, model=", ".join(estimates), prompts=prompts)


@figure()
def ablation(
    subject: Readings,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what each head is worth: how the answer's log-odds change when it alone is taken away, as cells by layer and head.

    Every cell is a mean over prompts, in nats, with one standard error below it; the last of a layer is of all its heads at once.
    Panels are named by the model, with the change that taking all heads of these layers away makes. Heads that stand in for each
    other cost little one by one.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.ablations`, by model or by what is taken away; each is a panel.

    Returns
    -------
    Figure
        ``value`` and ``error`` (panel, y, x): y layers, x heads, and all of the layer.

    Raises
    ------
    DiffscopeError
        It is of something else, or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings, tasks
    >>> reading = readings.ablations(diffscope.load("mini-diff"), tasks.examples()[:2], layers=[0, 1])
    >>> figures.ablation(reading)
    <diffscope figure 'ablation' of value, error (panel: 1, y: 2, x: 3)>
    """
    estimates = estimates_of(subject, "everything", "diffscope.readings.ablations(scope, prompts)")
    named = {f"{name} ({_everything(table)})": table for name, table in estimates.items()}
    most = max(table.sizes["head"] for table in named.values())
    values = together({name: _with_layers(table, "", most) for name, table in named.items()})
    errors = [_with_layers(table, "_se", most) for table in named.values()]
    error = xr.concat(errors, values["model"], coords="minimal", compat="override", join="outer")
    values = values.assign_attrs(long_name="change of log-odds", units="nats")
    drawing = cells.drawing(values, panels="model", error=error)
    whats = " or ".join(dict.fromkeys(TAKEN[table.attrs["what"]] for table in estimates.values()))
    prompts = _scored(estimates, "log_odds_of_prompt")
    within = " ± standard error" if _has_errors(estimates, ["change_se"]) else ""
    caption = (
        f"Change of the answer's log-odds against its distractors without {whats}, mean over prompts (n = {prompts}){within}."
    )
    return drawing.described(caption, model=", ".join(estimates), what=whats, prompts=prompts)


def _with_layers(estimates: xr.Dataset, end: str, most: int) -> xr.DataArray:
    """Return changes of each of so many heads, or their errors, and after them those of all heads of the layer, (layer, head)."""
    heads = estimates[f"change{end}"].transpose("layer", "head").reindex(head=range(most))
    heads = heads.assign_coords(head=[str(head) for head in heads["head"].values])
    return xr.concat([heads, estimates[f"layer_change{end}"].expand_dims(head=[ALL])], "head").transpose("layer", "head")


def _of_score(estimates: Mapping[str, xr.Dataset], name: str) -> xr.Dataset:
    """Return one score of all readings and of the unedited models, (series, edit): its mean, its error and its prompts."""
    parts: dict[str, xr.Dataset] = {}
    for label, table in estimates.items():
        edited = {"value": table[name], "error": table[f"{name}_se"], "points": table[f"{name}_of_prompt"]}
        parts[label] = xr.Dataset(edited)
        flat = table[f"unedited_{name}"].broadcast_like(table[name])
        parts[f"{label}{UNEDITED}"] = xr.Dataset(
            {"value": flat, "error": flat.where(False), "points": edited["points"].where(False)}
        )
    series = xr.DataArray(list(parts), dims="series", name="series")
    return xr.concat(list(parts.values()), series, join="outer", combine_attrs="override")


def _scored(estimates: Mapping[str, xr.Dataset], name: str) -> str:
    """Return of how many prompts a score is defined: without distractors a prompt has no log-odds."""
    return ", ".join(dict.fromkeys(str(int(table[name].notnull().sum())) for table in estimates.values()))


def _has_errors(estimates: Mapping[str, xr.Dataset], names: Sequence[str]) -> bool:
    """Return whether any of some standard errors is defined."""
    return any(bool(table[name].notnull().any()) for table in estimates.values() for name in names)


def _everything(estimates: xr.Dataset) -> str:
    """Return what taking all heads away at once changes, and of which layers these are."""
    return f"{estimates.attrs['everything_of']}: {_signed(float(estimates['everything']))}"


def _signed(value: float) -> str:
    return minus(f"{value:+z.1f}") if math.isfinite(value) else ABSENT
