"""The pairing control: what a statistic of two maps is where each head has the second map of another head of its layer.

Two softmax maps of one model share position and sinks anyhow. Only what is beyond every such pair is a head's own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError, check_choice
from diffscope.instruments.injection import with_a2_moved
from diffscope.numbers import counted
from diffscope.readings.captures import any_capture, query_position
from diffscope.stats import STATISTICS
from diffscope.stats.averaging import finite_mean, finite_median, rule
from diffscope.stats.statistic import Averaged

OWN, MIDDLE, LEAST, LARGEST = CONTROLS = ("as it is", "other heads", "other heads, least", "other heads, largest")
COUNT = "controls"
HEADS = ("layer", "head")


def beside_controls(cap: Capture, measure: Callable[[Capture], xr.Dataset], head: int | None = None) -> xr.Dataset:
    """Measure a capture, and measure it again with every other second map of the layer in place of a head's own.

    `measure` gives variables of a capture, each by layer and head; they get a dimension ``control``: "as it is"; "other heads",
    the mean over the controls or, of a ratio without a bound, their median; the least and the largest of them. A control is a
    second map of the layer that is not the head's own, each counted once; ``controls`` (layer, head) is their number. Without any
    they are NaN. If controls are asked for of one `head`, those of others may be missing.
    """
    own = measure(cap)
    brings = _others(cap)  # (shift, layer, head)
    asked = slice(None) if head is None else slice(head, head + 1)
    shifts = [by for by in range(len(brings)) if brings[by, :, asked].any()]
    moved = [measure(with_a2_moved(cap, by)) for by in shifts]
    variables = {
        str(name): _beside(values.variable, [dataset.variables[name] for dataset in moved], brings[shifts], rule(values))
        for name, values in own.data_vars.items()
    }
    about = {
        "long_name": "controls of the pairing",
        "units": "1",
        "definition": "distinct second maps of the layer other than the head's own",
    }
    counts = xr.Variable(HEADS, brings.sum(0), about)
    coords: dict[Hashable, Any] = {name: own.coords[name] for name in own.dims if name in own.coords}
    coords["control"] = list(CONTROLS)
    # Of variables, which are not aligned: that would take most of the time.
    return xr.Dataset({**variables, COUNT: counts}, coords, own.attrs)


def controls_of_each(estimates: xr.Dataset) -> str:
    """Say how many controls each head has that has any: 1 control a head, 2 to 3 controls a head."""
    counts = sorted({int(count) for count in estimates[COUNT].values.ravel() if count})
    return f"{counted(counts[0], 'control') if len(counts) == 1 else f'{counts[0]} to {counts[-1]} controls'} a head"


def compares_maps(statistic: str) -> bool:
    """Return whether a statistic compares A1 and A2 at a query on a span, so that A2 of other heads is its control."""
    return {"head", "query", "span"} == set(STATISTICS[statistic].dims)


def paired_statistic(cap: Capture, statistic: str, span: str, query: int | str = -1) -> xr.DataArray:
    """Measure a statistic of A1 and A2 at a query on a span, and the same with A2 of other heads, (layer, head, control).

    Raises DiffscopeError if the statistic is none of those, there is no such span or token, or the capture is of several prompts.
    """
    pairs = [name for name in STATISTICS if compares_maps(name)]
    if statistic not in pairs:
        raise DiffscopeError(f"{statistic!r} is none of the statistics that compare A1 and A2 on a span: {', '.join(pairs)}")
    cap = any_capture(cap).only()
    check_choice("span", span, cap.key_sets)
    at = query_position(cap, query)

    def measure(moved: Capture) -> xr.Dataset:
        return moved.measure([statistic], queries=[at]).isel(query=0, drop=True).sel(span=span, drop=True)

    return beside_controls(cap, measure)[statistic].assign_attrs(selection=span)


def _others(cap: Capture) -> np.ndarray:
    """Return whether a shift brings a head a second map that is new to it, bool (shift, layer, head)."""
    table = np.zeros((cap.n_heads, cap.n_layers, cap.n_heads), dtype=bool)
    for number, layer in enumerate(cap.layers):
        if layer.differential:
            table[1 : layer.n_heads, number, : layer.n_heads] = _brings(layer.pairing.of_branch(2).cpu().numpy())
    return table


def _brings(a2: np.ndarray) -> np.ndarray:
    """Return the same for one layer from its second maps (head,), for shifts from 1: bool (shift - 1, head)."""
    maps = np.stack([np.roll(a2, -by) for by in range(len(a2))])  # (shift, head)
    same = maps[:, None] == maps  # (shift, other shift, head)
    smaller = np.tri(len(a2), k=-1, dtype=bool)[..., None]
    return ~(same & smaller).any(1)[1:]


def _beside(own: xr.Variable, moved: list[xr.Variable], brings: np.ndarray, by: Averaged) -> xr.Variable:
    """Join one variable along ``control``, from its values under each shift and whether they count (shift, layer, head)."""
    own = own.transpose(*HEADS, ...)
    shape = (len(moved), *own.shape)  # (shift, layer, head, ...)
    shifts = np.stack([values.transpose(*own.dims).values for values in moved]) if moved else np.empty(shape, own.dtype)
    shifts = np.where(brings.reshape(*brings.shape, *[1] * (own.ndim - 2)), shifts, np.nan)
    middle = finite_median if by == "median" else finite_mean
    least, largest = (bound.reduce(shifts, 0, initial=np.nan) for bound in (np.fmin, np.fmax))  # NaN only where all are
    values = np.stack([own.values, middle(shifts, 0), least, largest], -1)
    about = {**own.attrs, "control": f"the second maps of the layer's other heads; in the middle their {by}"}
    return xr.Variable((*own.dims, "control"), values, about)
