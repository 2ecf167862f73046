"""Figures of a study: what its arms came to, seed by seed, and how λ and what it rejects went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Unpack

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, check_choice
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.values import curves

MAIN = ("diff", "standard", "double-width", "signed")
ENDS = ("value", "low", "high")
LAMBDA = "λ"
REJECTION = "common-mode rejection on irrelevant tokens, σ = "
PAIRED = ", above that with another head's A2"
SEEDS = "small points are seeds"
INTERVALS = "Means over seeds with 95 % intervals (Student's t over seeds), not corrected"
OF_FORMED = (
    "Of runs in which the lookup circuit formed, all of an arm's, so that arms may have other seeds; tests take differences "
    "seed by seed, and stand on the board."
)
DESCRIBED = "Of runs in which the lookup circuit formed."
PLACES = ("formed", "end")  # steps that are another one in every run
Chosen = Sequence[str] | None  # arms
Drawn = tuple[Drawing, str]  # and its caption


class Study(Protocol):
    """What ``diffscope.hypotheses.study.open_study`` opens."""

    facts: dict
    outcomes: list[dict[str, Any]]
    described: list[dict[str, Any]]


@figure()
def study(
    subject: Study,
    *,
    quantity: str = "answers",
    arms: Sequence[str] | str | None = None,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what the arms of a study came to: every seed, means over seeds and their 95 % intervals.

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
        By default all; of log_odds and exact diff, standard, double-width and signed; of rejection diff, if it has them. Behind
        the name of an arm stands in how many of its runs the circuit formed, where not in all.

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
    check_choice("quantity", quantity, QUANTITIES)
    if quantity not in quantities(subject):
        known = ", ".join(quantities(subject)) or "none; run it anew with: diffscope study run --cohort FOLDER"
        raise DiffscopeError(f"this study has no {quantity}; of these quantities it has {known}")
    chosen = [arms] if isinstance(arms, str) else arms
    drawing, caption = QUANTITIES[quantity](subject, chosen)
    name = str(subject.facts["recipe"])
    return drawing.described(f"{caption} The {name} cohort.", cohort=name, quantity=quantity)


def _answers(subject: Study, arms: Chosen) -> Drawn:
    words = {"long_name": "log-odds of the answer, 24 and 48 distractors", "units": "nats"}
    drawing = _by_arm(_rows(subject.outcomes, arms, "answers"), words)
    over = "mean over prompts, then the lengths that hold them, then 24 and 48 distractors"
    return drawing, f"Log-odds of the answer by arm, {over}; {SEEDS}. {INTERVALS}. {OF_FORMED}"


def _formation(subject: Study, arms: Chosen) -> Drawn:
    rows = _rows(subject.outcomes, arms, "formation")
    given_up = [row["each"][str(seed)] for row in rows for seed in row["never"] if str(seed) in row["each"]]
    references = {"given up": max(given_up)} if given_up else None
    words = {"long_name": "steps until the lookup circuit forms", "units": "1"}
    drawing = _by_arm(rows, words, log="y", references=references)
    never = (
        "A run in which it never forms stands, and counts, at the steps after which it was given up; such arms have no interval"
    )
    return drawing, f"Steps until the lookup circuit forms, by arm; {SEEDS}. {INTERVALS}, of their logarithm. {never}."


def _log_odds(subject: Study, arms: Chosen) -> Drawn:
    words = {"long_name": "log-odds of the answer", "units": "nats"}
    drawing = _by_distractors(_rows(subject.outcomes, arms, "log_odds", MAIN), words)
    return drawing, f"Log-odds of the answer by distractors and length, mean over prompts; {SEEDS}. {INTERVALS}. {OF_FORMED}"


def _exact(subject: Study, arms: Chosen) -> Drawn:
    words = {"long_name": "share of exact answers", "units": "1"}
    drawing = _by_distractors(_rows(subject.outcomes, arms, "exact", MAIN), words)
    cut = "cut at 0 and 1"
    return drawing, f"Share of exact answers by distractors and length; {SEEDS}. {INTERVALS}, {cut}. {OF_FORMED}"


def _lambda(subject: Study, arms: Chosen) -> Drawn:
    rows = [row | {"layer": f"layer {row['layer']}", "step": str(row["step"])} for row in _rows(subject.described, arms, LAMBDA)]
    values, _ = _labelled(rows, ("arm", "layer", "step"))
    steps = sorted(values["step"].values.tolist(), key=_in_order)
    axes = {"x": "step", "series": "layer", "panels": "arm"}
    drawing = _curves(values.sel(step=steps), {"long_name": "λ", "units": "1"}, **axes)
    over = "λ by step of the training (not to scale) and layer, mean over prompts' numbers of distractors"
    turned = "Formed: when a run turned to longer prompts, another step in each; steps beside it are of runs before and after"
    return drawing, f"{over}. {INTERVALS}. {turned}. {DESCRIBED}"


def _in_order(step: str) -> tuple[int, int]:
    """Return a key that sorts steps as numbers, before those that are another one in every run."""
    return (1, PLACES.index(step)) if step in PLACES else (0, int(step))


def _rejection(subject: Study, arms: Chosen) -> Drawn:
    rows = [
        row
        | {
            "quantity": "rejection",
            "of": "above that with another head's A2" if PAIRED in row["quantity"] else "with its own A2",
            "σ": float(row["quantity"].removeprefix(REJECTION).partition(" ")[0].rstrip(",")),
        }
        for row in subject.described
        if row["quantity"].startswith(REJECTION) and ";" not in row["quantity"]  # the second view stands in tables
    ]
    values, _ = _labelled(_rows(rows, arms, "rejection", MAIN[:1]), ("arm", "of", "σ"))
    words = {"long_name": "common-mode rejection", "units": "dB"}
    axes = {"x": "σ", "series": "of", "panels": "arm", "log": "x", "references": {"none, or none above": 0.0}}
    drawing = _curves(values.sortby("σ"), words, **axes)
    noise = "by the strength σ of the noise in the scores of both maps, heads weighted by what they cost the answer"
    return drawing, f"Common-mode rejection on irrelevant tokens {noise}; ceiling not measured. {INTERVALS}. {DESCRIBED}"


QUANTITIES: dict[str, Callable[[Study, Chosen], Drawn]] = {
    "answers": _answers,
    "formation": _formation,
    "log_odds": _log_odds,
    "exact": _exact,
    "lambda": _lambda,
    "rejection": _rejection,
}


def quantities(subject: Study) -> list[str]:
    """Return the quantities that a study has."""
    known = {row["quantity"] for row in subject.outcomes}
    described = {row["quantity"] for row in subject.described}
    known |= {"lambda" for name in described if name == LAMBDA}
    known |= {"rejection" for name in described if name.startswith(REJECTION)}
    return [name for name in QUANTITIES if name in known]


def _by_arm(rows: Sequence[dict[str, Any]], words: dict[str, str], **choices: Any) -> Drawing:
    """Draw one number of each arm, its seeds behind it."""
    values, seeds = _labelled([row | {"arm": _of_runs(row)} for row in rows], ("arm",))
    return _curves(values, words, x="arm", style="points", points=seeds, **choices)


def _by_distractors(rows: Sequence[dict[str, Any]], words: dict[str, str]) -> Drawing:
    """Draw one number by arm, length and number of distractors, its seeds behind it."""
    labelled = [row | {"arm": _of_runs(row), "length": f"{row['length']} tokens"} for row in rows]
    values, seeds = _labelled(labelled, ("length", "arm", "distractors"))
    axes = {"x": "distractors", "series": "arm", "panels": "length", "log": "x" if values["distractors"].min() > 0 else ""}
    return _curves(values.sortby("distractors"), words, points=seeds.sortby("distractors"), **axes)


def _of_runs(row: dict[str, Any]) -> str:
    """Return an arm, and in how many of its runs the circuit formed, where not in all."""
    return f"{row['arm']} ({row['runs'] - len(row['never'])} of {row['runs']})" if row["never"] else row["arm"]


def _rows(rows: Sequence[dict[str, Any]], arms: Chosen, quantity: str, usual: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of one quantity and some arms, in the order of the arms; by default the usual ones that there are, or all.

    Raises DiffscopeError if there is no such arm.
    """
    of_quantity = [row for row in rows if row["quantity"] == quantity]
    known = list(dict.fromkeys(row["arm"] for row in of_quantity))
    if absent := [arm for arm in arms or () if arm not in known]:
        why = "; an arm that continues another's model has none of its own" if quantity == "formation" else ""
        raise DiffscopeError(f"this study has no {quantity} of {', '.join(absent)}; it has it of {', '.join(known)}{why}")
    chosen = arms or [arm for arm in usual if arm in known] or known
    return [row for arm in chosen for row in of_quantity if row["arm"] == arm]


def _labelled(rows: Sequence[dict[str, Any]], dims: Sequence[str]) -> tuple[xr.Dataset, xr.DataArray]:
    """Return rows as ``value``, ``low`` and ``high`` over these dimensions, and each seed of them where they have it."""
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


def _curves(table: xr.Dataset, words: dict[str, str], **choices: Any) -> Drawing:
    return curves.drawing(table["value"].assign_attrs(words), low=table["low"], high=table["high"], **choices)
