"""How what heads do comes about: a few statistics of one prompt over the checkpoints of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError
from diffscope.numbers import NAMED, between, counted, decimal, listed, numbered, percent
from diffscope.readings import signs
from diffscope.readings.captures import (
    any_capture,
    irrelevant_in_words,
    place_of,
    query_position,
    visible_keys,
    with_fewest_spans,
)
from diffscope.readings.pairing_control import MIDDLE, OWN, beside_controls
from diffscope.readings.reading import Reading, described
from diffscope.stats.negative_mass import FORMULA, NEEDED, negative_mass
from diffscope.stats.uniform import uniform_share

Captures = Mapping[int, Capture] | Iterable[tuple[int, Capture]]

OF_D = (*NEEDED, "entropy", "gini")
PAIR = ("overlap", "cosine")
SWING = 0.05  # of λ, a share or an overlap: smaller rises and falls are not told


def along_training(opened: Captures, query: int | str = -1, *, level: float = 0.5) -> Reading:
    """Follow λ, the share of the answer and of sinks, overlap, entropy and Gini index of one query over checkpoints.

    Parameters
    ----------
    opened : mapping of int to Capture, or iterable of (int, Capture)
        Captures of one prompt by step of training, of one model's checkpoints. An iterable is read one after the other, so that
        no two captures need to be in memory.
    query : int or "last"
        Whose row is read; by default the last.
    level : float
        Of the answer's share: the sentence says at which checkpoint it is first exceeded, and which is the one before.

    Returns
    -------
    Reading
        ``estimates`` by step, layer and head: ``lambda``; of D ``answer`` and ``sink``, the shares of |D| on them, the parts of
        |D| that negative weights there have, ``answer_negative`` and ``sink_negative``, ``answer_net``, what D sums to on the
        answer, ``entropy`` and ``gini``; on irrelevant tokens ``overlap`` and ``cosine`` (control), and ``controls``
        (:func:`diffscope.readings.pairing_control.beside_controls`); and ``uniform`` (step, layer), what uniform attention gives
        the answer. The sentence follows the head that has most of |D| on the answer at the last step, and says whether it takes
        weight from the answer instead of giving it.

    Raises
    ------
    DiffscopeError
        There is no checkpoint, a step comes twice, or captures are of other prompts, layers or heads.
    """
    tables: dict[int, xr.Dataset] = {}
    about: Any = None
    for pair in opened.items() if isinstance(opened, Mapping) else opened:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DiffscopeError("captures are given by their step of training, such as {100: capture}")
        step, capture = pair
        cap = any_capture(capture).only()
        own = (cap.ids, cap.spans, cap.layer_numbers, [layer.n_heads for layer in cap.layers])
        about = about or own
        if own != about:
            raise DiffscopeError(f"the capture of step {step} is of another prompt or other heads than those before it")
        if int(step) in tables:
            raise DiffscopeError(f"step {step} comes twice; give each checkpoint once")
        at = query_position(cap, query)
        tables[int(step)] = _of_step(cap, at)
        place = place_of(at, cap.n_tokens)
    if not tables:
        raise DiffscopeError("there is no checkpoint; give captures by step, such as {0: …, 400: …}")
    steps = sorted(tables)
    index = xr.DataArray(steps, dims="step", name="step", attrs={"long_name": "step of training", "units": "steps"})
    estimates = xr.concat([tables[step] for step in steps], index, combine_attrs="drop_conflicts", join="exact")
    estimates.attrs["irrelevant"] = irrelevant_in_words(cap.spans)
    return Reading(" ".join([_answer(estimates, place, level), *_maps(estimates)]), estimates)


def _of_step(cap: Capture, query: int) -> xr.Dataset:
    """Measure one checkpoint, by layer and head."""
    measured = cap.measure([*OF_D, "lambda"], queries=[query]).isel(query=0, drop=True)
    row = measured[list(OF_D)].sel(map="D", drop=True)
    share, raw = (row["span_mass"].sel(normalisation=kind, drop=True) for kind in ("share", "raw"))
    negative = negative_mass(row)
    marked = "answer" in cap.spans
    answer, net, negative_answer = (
        mass.sel(span="answer", drop=True) if marked else mass.isel(span=0, drop=True).where(False)
        for mass in (share, raw, negative)
    )
    pair = beside_controls(with_fewest_spans(cap), lambda capture: _of_maps(capture, query))
    keys = cap.spans.get("answer", [])
    shares = uniform_share(visible_keys(cap.layers, [query]), {"answer": keys})  # (layer, query, set)
    uniform = xr.DataArray(shares[:, 0, 0], {"layer": cap.layer_numbers}, ("layer",))
    formula = "sum_X |D| / sum |D|"
    return pair.assign(
        {
            "lambda": measured["lambda"].sel(lambda_value="used", drop=True),
            "answer": described(answer, "share of |D| on the answer", formula, averaged="mean"),
            "answer_net": described(net, "what D sums to on the answer", "sum_X D", averaged="mean"),
            "answer_negative": described(negative_answer, "negative part of |D| on the answer", FORMULA, averaged="mean"),
            "sink_negative": negative.sel(span="sink", drop=True).assign_attrs(long_name="negative part of |D| on the sink"),
            "sink": described(share.sel(span="sink", drop=True), "share of |D| on the sink", formula, averaged="mean"),
            "entropy": row["entropy"],
            "gini": row["gini"],
            "uniform": described(uniform, "share of uniform attention on the answer", "visible keys of X / all visible keys"),
        }
    )


def _of_maps(cap: Capture, query: int) -> xr.Dataset:
    """Measure what two maps share on irrelevant tokens, (layer, head)."""
    return cap.measure(PAIR, queries=[query]).isel(query=0, drop=True).sel(span="irrelevant", drop=True)


def _answer(estimates: xr.Dataset, place: str, level: float) -> str:
    """Say what the head that ends with most of the answer gives it, and at which checkpoint that first exceeds the level."""
    steps = estimates["step"].values.tolist()
    share = estimates["answer"]
    last = share.isel(step=-1)
    if last.isnull().all():
        return f"{_checkpoints(steps)}: no answer is marked that can be seen {place}."
    best = last.isel(last.fillna(-1).argmax(("layer", "head")))
    layer, head = int(best["layer"]), int(best["head"])
    course = share.sel(layer=layer, head=head).values.tolist()
    weights = "A" if estimates["lambda"].isnull().all() else "|D|"
    uniform = percent(float(estimates["uniform"].isel(step=-1).sel(layer=layer)))
    net = float(estimates["answer_net"].isel(step=-1).sel(layer=layer, head=head))
    does = f"takes weight from the answer (D sums to {decimal(net)} there)" if net < 0 else "gives the answer most"
    negative = float(estimates["answer_negative"].isel(step=-1).sel(layer=layer, head=head))
    signed = "" if weights == "A" else f", {signs.of_it(course[-1], negative)},"
    most = f"{percent(course[-1])} of {weights}{signed} {place}"
    start = f"{_checkpoints(steps)}: at step {steps[-1]} L{layer}H{head} {does}, {most}"
    if len(steps) == 1 or np.isnan(course[0]):
        return f"{start}, where uniform attention would give {uniform}."
    start = f"{start}, and {percent(course[0])} at step {steps[0]}; uniform attention would give {uniform}"
    if turns := _turns(course):
        start = f"{start}. In between its share {_rises_and_falls(course, steps, turns, percent)}"
    above = [number for number, value in enumerate(course) if value > level]
    if not above:
        return f"{start}. It is above {percent(level)} at none of them."
    if not above[0]:
        return f"{start}. It is above {percent(level)} at the first of them already."
    first = above[0]
    return (
        f"{start}. It is first above {percent(level)} at step {steps[first]}; the checkpoint before is step {steps[first - 1]}."
    )


def _checkpoints(steps: list[int]) -> str:
    """Say how many checkpoints there are, and of which steps."""
    if len(steps) == 1:
        return f"One checkpoint, step {steps[0]}"
    return f"{len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}"


def _maps(estimates: xr.Dataset) -> list[str]:
    """Say what λ and the overlap of the maps are at the first and the last step; nothing for standard attention."""
    ends = [estimates.isel(step=at) for at in ((0, -1) if estimates.sizes["step"] > 1 else (0,))]
    lams = [end["lambda"].values[end["lambda"].notnull().values] for end in ends]
    if not all(map(len, lams)):
        return []
    at_steps = [f"{between(lam)} at step {int(end['step'])}" for lam, end in zip(lams, ends)]
    sentences = [f"λ is {' and '.join(at_steps)}, over heads.", *_turning_lambda(estimates)]
    overlaps = [_overlap(end) for end in ends]
    if all(overlaps):
        sentences.append(f"On {estimates.attrs['irrelevant']} A1 and A2 overlap by {' and '.join(overlaps)}, mean over heads.")
        own, control = (estimates["overlap"].sel(control=name, drop=True) for name in (OWN, MIDDLE))
        course = own.where(control.notnull()).mean(("layer", "head")).values.tolist()  # of the heads that both ends are of
        if turns := _turns(course):
            steps = estimates["step"].values.tolist()
            sentences.append(f"In between the overlap {_rises_and_falls(course, steps, turns, decimal)}.")
    return sentences


def _turning_lambda(estimates: xr.Dataset) -> list[str]:
    """Say where λ, mean over heads, rises and falls, of each layer in which it turns."""
    steps = estimates["step"].values.tolist()
    layers = estimates["lambda"].mean("head")
    courses = {int(layer): layers.sel(layer=layer).values.tolist() for layer in layers["layer"].values}
    turning = [
        f"in layer {layer} it {_rises_and_falls(course, steps, turns, decimal)}"
        for layer, course in courses.items()
        if (turns := _turns(course))
    ]
    others = [f"{counted(len(turning) - NAMED, 'other layer')} rise and fall too"] if len(turning) > NAMED else []
    return [f"In between, mean over heads: {'; '.join([*turning[:NAMED], *others])}."] if turning else []


def lambda_in_words(estimates: xr.Dataset) -> str:
    """Return how λ, mean over heads, moves over the steps, layers that move alike together; nothing for standard attention."""
    steps = estimates["step"].values.tolist()
    layers = estimates["lambda"].mean("head").dropna("layer")
    if not layers.sizes["layer"] or len(steps) < 2:
        return ""
    alike: dict[tuple[str, ...], list[int]] = {}
    turns = {}
    for layer in layers["layer"].values.tolist():
        course = layers.sel(layer=layer).values.tolist()
        turns[layer] = _turns(course)
        places = [0, *turns[layer], len(course) - 1]
        moves = tuple("rises" if course[after] > course[before] else "falls" for before, after in pairwise(places))
        still = len(moves) == 1 and abs(course[-1] - course[0]) < SWING
        alike.setdefault(("hardly moves",) if still else moves, []).append(layer)
    parts = []
    for moves, group in alike.items():
        until = [between((steps[turns[layer][number]] for layer in group), "{:.0f}".format) for number in range(len(moves) - 1)]
        words = [*(f"{verb} until step {step}" for verb, step in zip(moves, until)), moves[-1]]
        ends = between(layers.isel(step=-1).sel(layer=group).values)
        parts.append(f"{listed(words)} in {numbered('layer', group)} (at the end {ends})")
    return f"λ {'; it '.join(parts)}."


def _turns(course: Sequence[float]) -> list[int]:
    """Return where values turn from rising to falling or back, by `SWING` at least, as indices; none if one is undefined."""
    if any(map(math.isnan, course)):
        return []
    turns = []
    extreme = 0
    rising = None
    for number, value in enumerate(course):
        moved = value - course[extreme]
        if rising is None:
            rising, extreme = (moved > 0, number) if abs(moved) >= SWING else (None, 0)
        elif (moved > 0) == rising:
            extreme = number
        elif abs(moved) >= SWING:
            turns.append(extreme)
            rising, extreme = not rising, number
    return turns


def _rises_and_falls(course: Sequence[float], steps: Sequence[int], turns: Sequence[int], printed: Callable[[float], str]) -> str:
    """Write a course by its turns: rises from .21 to .87 at step 50, falls to .43 at step 200 and rises to 1.02."""
    places = [0, *turns, len(course) - 1]
    parts = []
    for before, after in pairwise(places):
        verb = "rises" if course[after] > course[before] else "falls"
        start = f" from {printed(course[before])}" if before == 0 else ""
        at = f" at step {steps[after]}" if after in turns else ""
        parts.append(f"{verb}{start} to {printed(course[after])}{at}")
    return listed(parts)


def _overlap(end: xr.Dataset) -> str:
    """Say what the overlap of one checkpoint is, by head and beside its control; nothing if it has none."""
    own, control = (end["overlap"].sel(control=name).values for name in (OWN, MIDDLE))
    both = ~np.isnan(own) & ~np.isnan(control)
    if not both.any():
        return ""
    at_step = f"{decimal(float(own[both].mean()))} at step {int(end['step'])}"
    return f"{at_step} ({between(own[both])} by head; control {decimal(float(control[both].mean()))})"
