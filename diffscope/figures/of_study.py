"""Figures of a study: what its arms came to, seed by seed, and how λ and what it rejects went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures.base import Figure
from diffscope.figures.of_values import curves
from diffscope.figures.subjects import drawn

MAIN = ("diff", "standard", "double-width", "signed")
ENDS = ("value", "low", "high")
REJECTION = "common-mode rejection on irrelevant tokens, σ = "
PAIRED = ", above that with another head's A2"
SEEDS = "small points are seeds"
INTERVALS = "Means over seeds with 95 % intervals (Student's t over seeds), not corrected"
OF_FORMED = "Of runs in which the lookup circuit formed."
Chosen = Sequence[str] | None  # arms
Drawn = tuple[Figure, str]  # and its caption


class Study(Protocol):
    """What ``diffscope.hypotheses.study.open_study`` opens."""

    facts: dict
    outcomes: list[dict[str, Any]]
    described: list[dict[str, Any]]


def study(
    subject: Study,
    *,
    quantity: str = "answers",
    arms: Sequence[str] | str | None = None,
    venue: str | None = None,
    wide: bool | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """What the arms of a study came to: every seed, means over seeds and their 95 % intervals.

    Parameters
    ----------
    subject : Study
        As ``diffscope.hypotheses.study.open_study`` opens it.
    quantity : {"answers", "formation", "log_odds", "exact", "lambda", "rejection"}
        ``answers``: log-odds of the answer among many distractors, in nats, of every arm. ``formation``: steps until the lookup
        circuit forms; a run in which it never does stands at the steps after which it was given up. ``log_odds``, ``exact``: by
        number of distractors, a panel a length. ``lambda``: along the training, by layer, a panel an arm. ``rejection``:
        common-mode rejection in dB, by the strength of the noise that is put into both maps.
    arms : str or sequence of str, optional
        By default all; of log_odds and exact diff, standard, double-width and signed; of rejection diff.
    venue, wide, width, title
        As of :func:`diffscope.figures.maps`.

    Returns
    -------
    Figure
        ``value``, ``low``, ``high`` (panel, series, x), of outcomes also ``points`` (panel, series, x, point), the seeds.

    Raises
    ------
    DiffscopeError
        It is no study, it has no such quantity, or nothing of these arms.
    """
    if not (hasattr(subject, "outcomes") and hasattr(subject, "described")):
        raise DiffscopeError("this figure is of a study: diffscope.hypotheses.study.open_study(FOLDER)")
    if quantity not in QUANTITIES:
        raise DiffscopeError(f"there is no quantity {quantity!r}; choose from {', '.join(QUANTITIES)}")
    if quantity not in quantities(subject):
        raise DiffscopeError(f"this study has no {quantity}; run it anew with: diffscope study run --cohort FOLDER")
    chosen = [arms] if isinstance(arms, str) else arms
    look = {"venue": venue, "wide": True if wide is None else wide, "width": width, "title": title}
    figure, caption = QUANTITIES[quantity](subject, chosen, look)
    name = str(subject.facts["recipe"])
    return drawn("study", figure, f"{caption} The {name} cohort.", cohort=name, quantity=quantity)


def _answers(subject: Study, arms: Chosen, look: dict[str, Any]) -> Drawn:
    words = {"long_name": "log-odds of the answer, 24 and 48 distractors", "units": "nats"}
    figure = _by_arm(_rows(subject.outcomes, arms, "answers"), words, look)
    return figure, f"Log-odds of the answer, mean over 24 and 48 distractors, by arm; {SEEDS}. {INTERVALS}. {OF_FORMED}"


def _formation(subject: Study, arms: Chosen, look: dict[str, Any]) -> Drawn:
    rows = _rows(subject.outcomes, arms, "formation")
    given_up = [row["each"][str(seed)] for row in rows for seed in row["never"]]
    references = {"given up": max(given_up)} if given_up else None
    words = {"long_name": "steps until the lookup circuit forms", "units": "1"}
    figure = _by_arm(rows, words, {**look, "log": "y", "references": references})
    never = "A run in which it never forms counts with the steps after which it was given up"
    return figure, f"Steps until the lookup circuit forms, by arm; {SEEDS}. {INTERVALS}, of their logarithm. {never}."


def _log_odds(subject: Study, arms: Chosen, look: dict[str, Any]) -> Drawn:
    words = {"long_name": "log-odds of the answer", "units": "nats"}
    figure = _by_distractors(_rows(subject.outcomes, arms or MAIN, "log_odds"), words, look)
    return figure, f"Log-odds of the answer by distractors and length of the prompt; {SEEDS}. {INTERVALS}. {OF_FORMED}"


def _exact(subject: Study, arms: Chosen, look: dict[str, Any]) -> Drawn:
    words = {"long_name": "share of exact answers", "units": "1"}
    figure = _by_distractors(_rows(subject.outcomes, arms or MAIN, "exact"), words, look)
    return figure, f"Share of exact answers by distractors and length of the prompt; {SEEDS}. {INTERVALS}. {OF_FORMED}"


def _lambda(subject: Study, arms: Chosen, look: dict[str, Any]) -> Drawn:
    rows = [row for row in _rows(subject.described, arms, "λ") if isinstance(row["step"], int)]
    values, _ = _labelled([row | {"layer": f"layer {row['layer']}"} for row in rows], ("arm", "layer", "step"))
    figure = _curves(values, {"long_name": "λ", "units": "1"}, x="step", series="layer", panels="arm", **look)
    return figure, f"λ by step of the training and layer. {INTERVALS}. {OF_FORMED}"


def _rejection(subject: Study, arms: Chosen, look: dict[str, Any]) -> Drawn:
    rows = []
    for row in subject.described:
        if row["quantity"].startswith(REJECTION) and row["arm"] in (arms or MAIN[:1]):
            strength = float(row["quantity"].removeprefix(REJECTION).partition(" ")[0].rstrip(","))
            of = "above that with another head's A2" if PAIRED in row["quantity"] else "with its own A2"
            rows.append(row | {"of": of, "σ": strength})
    if not rows:
        raise DiffscopeError(f"this study has no rejection of {', '.join(arms or MAIN[:1])}")
    values, _ = _labelled(rows, ("arm", "of", "σ"))
    words = {"long_name": "common-mode rejection", "units": "dB"}
    axes = {"x": "σ", "series": "of", "panels": "arm", "log": "x", "references": {"no rejection": 0.0}}
    figure = _curves(values, words, **axes, **look)
    caption = "Common-mode rejection on irrelevant tokens by the strength σ of the noise in the scores of both maps"
    return figure, f"{caption}. {INTERVALS}. {OF_FORMED}"


QUANTITIES: dict[str, Callable[[Study, Chosen, dict[str, Any]], Drawn]] = {
    "answers": _answers,
    "formation": _formation,
    "log_odds": _log_odds,
    "exact": _exact,
    "lambda": _lambda,
    "rejection": _rejection,
}


def quantities(subject: Study) -> list[str]:
    """The quantities that a study has."""
    known = {row["quantity"] for row in subject.outcomes}
    described = {row["quantity"] for row in subject.described}
    known |= {"lambda" for name in described if name == "λ"}
    known |= {"rejection" for name in described if name.startswith(REJECTION)}
    return [name for name in QUANTITIES if name in known]


def _by_arm(rows: Sequence[dict[str, Any]], words: dict[str, str], look: dict[str, Any]) -> Figure:
    """One number of each arm, its seeds behind it."""
    values, seeds = _labelled(rows, ("arm",))
    return _curves(values, words, x="arm", style="points", points=seeds, **look)


def _by_distractors(rows: Sequence[dict[str, Any]], words: dict[str, str], look: dict[str, Any]) -> Figure:
    """One number by arm, length and number of distractors, its seeds behind it."""
    values, seeds = _labelled([row | {"length": f"{row['length']} tokens"} for row in rows], ("length", "arm", "distractors"))
    axes = {"x": "distractors", "series": "arm", "panels": "length", "log": "x"}
    return _curves(values, words, points=seeds, **axes, **look)


def _rows(rows: Sequence[dict[str, Any]], arms: Sequence[str] | None, quantity: str) -> list[dict[str, Any]]:
    """The rows of one quantity and some arms, in the order of the arms."""
    of = [row for row in rows if row["quantity"] == quantity]
    known = list(dict.fromkeys(row["arm"] for row in of))
    wanted = known if arms is None else [arm for arm in arms if arm in known]
    if not wanted:
        raise DiffscopeError(f"this study has no {quantity} of {', '.join(arms or ())}; it has it of {', '.join(known)}")
    return [row for arm in wanted for row in of if row["arm"] == arm]


def _labelled(rows: Sequence[dict[str, Any]], dims: Sequence[str]) -> tuple[xr.Dataset, xr.DataArray]:
    """Rows as ``value``, ``low`` and ``high`` over these dimensions, and each seed of them where they have it."""
    coords: dict[str, list] = {dim: list(dict.fromkeys(row[dim] for row in rows)) for dim in dims}
    seeds = sorted({seed for row in rows for seed in row.get("each", ())}, key=int)
    shape = tuple(map(len, coords.values()))
    numbers = {name: np.full(shape, np.nan) for name in ENDS}
    single = np.full((*shape, len(seeds)), np.nan)
    for row in rows:
        place = tuple(coords[dim].index(row[dim]) for dim in dims)
        for name in ENDS:
            numbers[name][place] = np.nan if row[name] is None else row[name]
        for seed, value in row.get("each", {}).items():
            single[(*place, seeds.index(seed))] = np.nan if value is None else value
    table = xr.Dataset({name: (dims, array) for name, array in numbers.items()}, coords)
    each = xr.DataArray(single, {**coords, "seed": [f"seed {seed}" for seed in seeds]}, (*dims, "seed"))
    return table, each


def _curves(table: xr.Dataset, words: dict[str, str], **choices: Any) -> Figure:
    return curves(table["value"].assign_attrs(words), low=table["low"], high=table["high"], **choices)
