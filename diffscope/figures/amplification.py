"""Figures of a model as an amplifier: its gains, what noise it rejects, what its maps are made of, what they add to logits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias, Unpack

import numpy as np
import xarray as xr

from diffscope.capture.captions import edits_of
from diffscope.capture.capture import Capture
from diffscope.capture.comparison import Comparison
from diffscope.errors import DiffscopeError, check_choice
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.inputs import Readings, captures_of, check_labels, estimates_of
from diffscope.figures.values import panels_beside
from diffscope.numbers import head_name
from diffscope.stats.averaging import rule

Subject: TypeAlias = "Capture | Comparison | Mapping[str, Capture] | Readings"


@figure()
def amplifier(
    subject: Subject,
    *,
    quantity: str = "best_lambda",
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw one quantity of every head as a differential amplifier, beside its controls.

    "best_lambda" is λ* against λ, on irrelevant keys and on the answer; "lambda" λ beside its initial value; "cmrr" what equal
    maps would be rejected by; "residual" what the subtraction leaves on irrelevant keys over its floor, "floor" that floor;
    "noise_gain" and "signal_gain" the weight that comes out over what went in, on irrelevant keys and on the answer. The control
    of all but λ and cmrr is the same with the A2 of other heads: their median, of "floor" their mean, and but for "best_lambda",
    whose points stand against λ, a range from the least to the largest.

    Parameters
    ----------
    subject : Capture, Comparison, Reading, its estimates, or mapping of str to one of these
        Of one prompt, or of :func:`diffscope.readings.amplifier`; several models are panels.
    quantity : {"best_lambda", "lambda", "cmrr", "residual", "floor", "noise_gain", "signal_gain"}

    Returns
    -------
    Figure
        ``value`` (panel, series, x), x being heads such as L1H0, and ``low`` and ``high`` where there is a range.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such quantity, or it is undefined everywhere, as of standard attention.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures
    >>> cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
    >>> figures.amplifier(cap, quantity="noise_gain")
    <diffscope figure 'amplifier' of value, low, high (panel: 1, series: 2, x: 6)>
    """
    from diffscope.figures import amplifier_charts as charts
    from diffscope.readings.gains import amplifier as read

    check_choice("quantity", quantity, charts.QUANTITIES)
    variable, _, _, control = charts.QUANTITIES[quantity]
    estimates = _read(subject, partial(read, ranks=False), variable, "diffscope.readings.amplifier(cap)")
    drawn_of, lacking = _where_defined(estimates, variable)
    drawing = panels_beside({name: charts.by_quantity(table, quantity, drawn_of.values()) for name, table in drawn_of.items()})
    first = next(iter(drawn_of.values()))
    ends = " and range" if "low" in drawing.data else ""
    averaged = f" ({rule(first[variable])}{ends})" if "control" in first[variable].dims else ""
    controls = f", beside {control}{averaged}" if control else ""
    caption = f"{first[variable].attrs['long_name']} of every head{controls}.{_undefined(lacking)}"
    return drawing.described(caption, edits=edits_of(estimates), model=", ".join(estimates), quantity=quantity)


@figure()
def rejection(
    subject: Subject,
    *,
    layer: int | None = None,
    head: int | None = None,
    sigma: float | None = None,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw common-mode rejection by injection, in dB: along the strength of the noise, or of every head at one strength.

    Along σ it is the median over heads with every head as a point behind it, or one head with its standard error over draws. The
    control is the same with the A2 of other heads of the layer, the ceiling the same with an A2 of A1's shape there. 0 dB: what
    both maps get passes as opposite noise does.

    Parameters
    ----------
    subject : Capture, Comparison, Reading, its estimates, or mapping of str to one of these
        Of one prompt, or of :func:`diffscope.readings.rejection`; several models are panels.
    layer, head : int, optional
        One head along σ; both, or none for all heads.
    sigma : float, optional
        In nats: all heads at this strength, instead of along it.

    Returns
    -------
    Figure
        ``value`` (panel, series, x) and its range or ``points``; x is σ in nats, or heads such as L1H0.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such layer, head or strength, or all is undefined, as of standard attention.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings
    >>> cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
    >>> figures.rejection(readings.rejection(cap, sigmas=(0.5, 1.0), draws=2))
    <diffscope figure 'rejection' of value, points (panel: 1, series: 3, x: 2, point: 6)>
    """
    from diffscope.figures import amplifier_charts as charts
    from diffscope.readings.noise import rejection as read

    if (layer is None) != (head is None) or (layer is not None and sigma is not None):
        raise DiffscopeError("choose one head along σ (layer= and head=), all heads at one strength (sigma=), or neither")
    estimates = _read(subject, read, "cmrr_injected", "diffscope.readings.rejection(cap)")
    drawn_of, lacking = _where_defined(estimates, "cmrr_injected")
    for table in drawn_of.values():
        check_labels(table, layer=layer, head=head, sigma=sigma)
    if sigma is not None:
        parts = {name: charts.rejected(table, sigma) for name, table in drawn_of.items()}
        what = f"every head at σ = {sigma:g} nats, ± standard error over draws"
    elif layer is not None and head is not None:
        parts = {name: charts.rejected_by_sigma(table, layer, head) for name, table in drawn_of.items()}
        what = f"{head_name(layer, head)}, ± standard error over draws"
    else:
        parts = {name: charts.rejected_by_all(table) for name, table in drawn_of.items()}
        what = "median over heads, points single heads"
    drawing = panels_beside(parts)
    without = any("cmrr_ceiling" not in table for table in drawn_of.values())
    most = "Ceiling not measured." if without else "Ceiling: A2 with A1's shape on those keys."
    caption = (
        f"Common-mode rejection by injection, {what}, beside the same with the A2 of other heads. {most}{_undefined(lacking)}"
    )
    facts = {"layer": layer, "head": head, "sigma": sigma}
    return drawing.described(caption, edits=edits_of(estimates), model=", ".join(estimates), **facts)


@figure()
def signal_to_noise(
    subject: Readings,
    *,
    quantity: str = "gain",
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what the subtraction gains in signal-to-noise ratio in every head, in dB, before and after the norm.

    "gain" is the ratio of D·V minus that of A1·V, beside the same with a uniform A2 and with that of the next head; "ratio" the
    ratios of A1·V, λA2·V and D·V themselves; "sides" what the subtraction does to the signal and to the noise. Signal is what
    another answer changes, noise what other text around it does.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.signal_to_noise` or :func:`diffscope.instruments.signal_to_noise`, by model.
    quantity : {"gain", "ratio", "sides"}

    Returns
    -------
    Figure
        ``value`` (panel, series, x), x being heads such as L1H0, and ``low`` and ``high``, a standard error from it.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such quantity, or it is undefined everywhere, as a gain of standard attention is.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> measured = diffscope.instruments.signal_to_noise(diffscope.load("mini-diff"), text, spans={"answer": "7421"}, draws=3)
    >>> figures.signal_to_noise(measured)
    <diffscope figure 'signal_to_noise' of value, low, high (panel: 2, series: 3, x: 6)>
    """
    from diffscope.figures import amplifier_charts as charts

    known = {
        "gain": (
            "snr_gain",
            charts.gained,
            "Signal-to-noise gain of the subtraction, ± standard error, beside other second maps",
        ),
        "ratio": ("snr", charts.heard, "Signal-to-noise ratio of what heads give out, ± standard error"),
        "sides": ("signal_change", charts.gained_by_side, "What the subtraction does to signal and noise of what heads give out"),
    }
    check_choice("quantity", quantity, known)
    variable, chart, what = known[quantity]
    estimates = estimates_of(subject, "snr", "diffscope.readings.signal_to_noise(scope, prompt)")
    drawn_of, lacking = _where_defined(estimates, variable)
    drawing = panels_beside({name: chart(table) for name, table in drawn_of.items()})
    about = next(iter(drawn_of.values())).attrs
    design = f"; {about['answers']} answers, each in {about['fillers']} other texts"
    caption = f"{what}{design}.{_undefined(lacking)}"
    return drawing.described(caption, edits=edits_of(estimates), model=", ".join(estimates), quantity=quantity)


@figure()
def anatomy(
    subject: Readings,
    *,
    way: str = "shapley",
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what A2 of every head is made of, beside A1 and, the control, the A2 of the next head in its place: stacked bars.

    The parts are a pedestal (uniform), a comb of positions (distance), sinks and keys that all look at (key), a copy of the other
    map, and what none of these explains (rest). Where the A2 of the next head is as much of a copy, being one says nothing.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.composition`, by model.
    way : {"shapley", "added", "alone"}
        What a part adds, mean over all orders; in the order of the legend; or what it explains by itself (need not sum to 1).

    Returns
    -------
    Figure
        ``value`` (panel, series, x): series are the parts, x heads such as L1H0.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such way, or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings
    >>> scope = diffscope.load("mini-diff")
    >>> cap = scope.capture("Magic numbers. Paris 7421. Rome 2174. Paris")
    >>> figures.anatomy(readings.composition(cap, readings.other_prompts(scope, cap, 2)))
    <diffscope figure 'anatomy' of value (panel: 3, series: 5, x: 6)>
    """
    from diffscope.figures import amplifier_charts as charts
    from diffscope.readings.map_structure import NEXT

    estimates = estimates_of(subject, "shapley", "diffscope.readings.composition(cap, others)")
    check_choice("way", way, ("shapley", "added", "alone"))
    parts = {name: charts.made_of_beside_next(table, way) for name, table in estimates.items()}
    drawing = panels_beside(parts)
    first = next(iter(estimates.values()))
    others = first.attrs["others"]
    having = [name for name, table in estimates.items() if table[way].sel(map="A2", control=NEXT).notnull().any()]
    of_those = "" if len(having) == len(estimates) else f" of {' and '.join(having)}"
    controls = f", beside A2 of the next head{of_those}" if having else ""
    caption = f"What each map is made of ({way} shares){controls}; profiles are of {others} other prompts."
    return drawing.described(caption, edits=edits_of(estimates), model=", ".join(estimates), way=way)


@figure()
def attribution(
    subject: Readings,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what A1 and −λ·A2 of every head add to the logits of the answer and of its distractors, directly, in nats.

    Panels are the answer, the mean of the distractors and their difference. The control is −λ·A2 with the A2 of other prompts,
    their mean with a range from the least to the largest; that of :func:`branch_attribution` has the A2 of one other
    prompt, or no control at all. Contributions of several prompts are means with their standard errors.

    Parameters
    ----------
    subject : Reading, its estimates, table of branch_attribution, or mapping of str to one of these
        Of :func:`diffscope.readings.branches` or :func:`diffscope.attribution.branch_attribution`, by model.

    Returns
    -------
    Figure
        ``value``, ``low`` and ``high`` (panel, series, x): series are the branches, x heads such as L1H0.

    Raises
    ------
    DiffscopeError
        It is of something else.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures
    >>> scope = diffscope.load("mini-diff")
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> figures.attribution(diffscope.attribution.branch_attribution(scope, text, " 7421", [" 2174"]))
    <diffscope figure 'attribution' of value, low, high (panel: 3, series: 2, x: 6)>
    """
    from diffscope.figures import amplifier_charts as charts

    estimates = estimates_of(subject, "contribution", "diffscope.readings.branches(scope, question)")
    parts = {}
    for name, table in estimates.items():
        parts[name] = charts.added_by_prompts(table) if "prompt" in table["contribution"].dims else charts.added(table)
    drawing = panels_beside(parts)
    caption = "What each branch of each head adds to logits, directly; the control, where there is one, has A2 of other prompts."
    return drawing.described(caption, edits=edits_of(estimates), model=", ".join(estimates))


def _read(subject: Any, read: Any, variable: str, reading: str) -> dict[str, xr.Dataset]:
    """Return estimates by name, of captures that are read first or of readings."""
    some = next(iter(subject.values()), None) if isinstance(subject, Mapping) and not isinstance(subject, xr.Dataset) else subject
    if isinstance(some, (list, tuple)):
        some = next(iter(some), None)
    if isinstance(some, (Capture, Comparison)):
        return {name: read(cap).estimates for name, cap in captures_of(subject).items()}
    return estimates_of(subject, variable, reading)


def _where_defined(estimates: Mapping[str, xr.Dataset], variable: str) -> tuple[dict[str, xr.Dataset], list[str]]:
    """Return those in which a variable is defined, and the names of the others."""
    defined = {name: table for name, table in estimates.items() if bool(np.isfinite(table[variable]).any())}
    if not defined:
        raise DiffscopeError(f"there is nothing to draw: {variable} is undefined everywhere, as it is of standard attention")
    return defined, [name for name in estimates if name not in defined]


def _undefined(names: list[str]) -> str:
    return f" Undefined: {', '.join(names)}." if names else ""
