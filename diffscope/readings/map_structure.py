"""Say what maps are made of, and how simple they are: their parts and their effective ranks, each beside controls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from diffscope.attention.maps import MAPS
from diffscope.capture.capture import Capture
from diffscope.instruments.injection import with_a2_moved
from diffscope.instruments.map_parts import anatomy
from diffscope.numbers import between, counted, listed, percent, two_figures
from diffscope.readings.captures import any_capture
from diffscope.readings.reading import Reading, described

OWN, NEXT = "as it is", "A2 of the next head"
PART_READS = (
    "Each bar is one map: a pedestal (uniform), a comb of positions (distance), sinks and keys that all look at (key), a copy "
    "of the other map, and what none of these explains (rest): content of its own, or noise of its own."
)


def composition(cap: Capture, others: Capture, *, progress: Callable[[int, int], object] | None = None) -> Reading:
    """Decompose A2 and A1 of every head into parts, beside the same with A2 of the next head as control.

    Parameters
    ----------
    cap : Capture
        Of one prompt.
    others : Capture
        Of other prompts, as :func:`diffscope.instruments.anatomy` takes them.
    progress : callable, optional
        Called with (done, total), counted in layers of either run.

    Returns
    -------
    Reading
        ``estimates``: ``alone``, ``added`` and ``shapley`` (layer, head, map, part, control). The control is NaN where a head has
        the A2 of the next one. The attribute ``others`` is how many prompts profiles were fitted to.

    Raises
    ------
    PromptError, DiffscopeError
        As of :func:`diffscope.instruments.anatomy`.
    """
    cap = any_capture(cap).only()
    moved = _moved(cap)
    runs = 2 if moved.any() else 1
    own = anatomy(cap, others, progress=_part_of(progress, 0, runs))
    following = own.where(False)
    if runs == 2:
        pair = with_a2_moved(cap), with_a2_moved(others)
        following = anatomy(*pair, progress=_part_of(progress, 1, runs)).where(moved)
    estimates = xr.concat([own, following], xr.DataArray([OWN, NEXT], dims="control", name="control"), combine_attrs="override")
    estimates = estimates.assign_attrs(own.attrs, others=len(others))
    for name in estimates.data_vars:
        estimates[name].attrs["reads"] = PART_READS
    return Reading(_sentence(estimates), estimates)


def _part_of(progress: Callable[[int, int], object] | None, before: int, runs: int) -> Callable[[int, int], object] | None:
    """Return a progress callback that counts one of several runs as a part of all."""
    return None if progress is None else lambda done, total: progress(before * total + done, runs * total)


def _moved(cap: Capture) -> xr.DataArray:
    """Return which heads get another second map than their own, bool (layer, head)."""
    table = np.zeros((cap.n_layers, cap.n_heads), dtype=bool)
    for row, layer in zip(table, cap.layers):
        if layer.differential:
            a2 = layer.pairing.of_branch(2)
            row[: layer.n_heads] = (a2 != a2.roll(-1)).tolist()
    return xr.DataArray(table, {"layer": cap.layer_numbers, "head": range(cap.n_heads)}, ("layer", "head"))


def _sentence(estimates: xr.Dataset) -> str:
    shares = estimates["shapley"]

    def spread(name: str, part: str, control: str = OWN) -> str:
        values = shares.sel(map=name, part=part, control=control).values.ravel()
        values = values[np.isfinite(values)]
        return between(values, percent) if len(values) else ""

    if not spread("A1", "rest"):
        return "No query sees two tokens: there is nothing to explain."
    if not spread("A2", "rest"):
        of = "A1" if spread("A1", "other") else "A"  # of a differential model A2 may be edited away
        return f"Of {of}, {spread('A1', 'rest')} by head is neither uniform nor a matter of distance or key."
    copy = spread("A2", "other", NEXT)
    control = f" (of the next head's A2 {copy})" if copy else ""
    return (
        f"By head, A1 explains {spread('A2', 'other')} of A2{control}, and {spread('A2', 'rest')} of A2 is explained by nothing, "
        f"of A1 {spread('A1', 'rest')}."
    )


#: how each definition is made of the singular values σ of a map
RANK_DEFINITIONS = {
    "erank": "exp of the entropy of σ/Σσ",
    "erank_energy": "exp of the entropy of σ²/Σσ²",
    "participation": "(Σσ²)²/Σσ⁴",
    "stable_rank": "Σσ²/max σ²",
    "r90": "how many σ² hold 90 % of their sum",
}
RANK_READS = (
    "The uniform map attends to nothing and has a rank too; a map whose rows are permuted has the same weights in other places. "
    "Only a rank below both is low for where the map attends."
)
BY_HEAD = "λ is one number a head and cancels: the rank of λ·A2 is that of A2."
BY_TOKEN = "λ differs from token to token, so the rank of λ·A2 is not that of A2."
RANKED = ("lambda_A2", "A1", "D")  # of the sentences: what is subtracted first


def ranks(cap: Capture, *, progress: Callable[[float, int], object] | None = None) -> Reading:
    """Measure effective ranks of λ·A2, A1 and D of every head, of whole maps.

    Parameters
    ----------
    cap : Capture
        Of one prompt.
    progress : callable, optional
        Called with (done, total), counted in layers.

    Returns
    -------
    Reading
        ``estimates``: ``effective_rank`` and its half-widths ``effective_rank_error`` (layer, head, ranked_map, definition,
        rank_control); ``below_both`` (layer, head, ranked_map, definition), 1 where the rank is below that of the uniform map
        and, by more than its half-width, below that of the permuted rows. The sentence is about the first definition, ``erank``,
        and says whether the definitions agree.
    """
    cap = any_capture(cap).only()
    measured = cap.measure(["effective_rank", "effective_rank_error"], progress=progress)
    estimates = measured.rename(control="rank_control")
    by_token = any(layer.lam.shape[-1] > 1 for layer in cap.layers if layer.differential)
    estimates["effective_rank"].attrs["reads"] = (
        f"{RANK_READS} {BY_TOKEN if by_token else BY_HEAD}" if cap.differential else RANK_READS
    )
    below = _below(estimates)
    both = below["uniform"] & below["permuted"]
    known = estimates["effective_rank"].sel(rank_control="map", drop=True).notnull()
    about = "rank < that of the uniform map, and < that of permuted rows less its half-width"
    estimates["below_both"] = described(both.astype(float).where(known), "whether the rank is below both controls", about)
    return Reading(f"{ranks_sentence(estimates, 'erank')}{_agreement(estimates)}", estimates)


def ranks_sentence(estimates: xr.Dataset, definition: str) -> str:
    """Say how ranks by one definition compare with both controls; `estimates` as of :func:`ranks`."""
    parts = []
    for label in RANKED:
        values = estimates.sel(ranked_map=label, definition=definition)
        rank = values["effective_rank"].sel(rank_control="map")
        count = int(rank.notnull().sum())
        if not count or (label == "A1" and _is_one_map(estimates)):
            continue
        below = [int(under.sum()) for under in _below(values).values()]
        spread = between(rank.values[rank.notnull().values], two_figures)
        shown = _shown(estimates, label)
        parts.append(f"{spread} of {shown} ({below[0]} and {below[1]} of {counted(count, 'head')})")
    if not parts:
        return f"{definition} is known of no head."
    return f"{definition} by head, and how many are below the uniform map and below their permuted rows: {listed(parts)}."


def _below(estimates: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return where ranks are below those of each control, in its order."""
    rank, uniform, permuted = (
        estimates["effective_rank"].sel(rank_control=name, drop=True) for name in ("map", "uniform", "permuted")
    )
    error = estimates["effective_rank_error"].sel(rank_control="permuted", drop=True)
    return {"uniform": rank < uniform, "permuted": rank < permuted - error}


def _agreement(estimates: xr.Dataset) -> str:
    """Say of the map that is subtracted, or the only one, how many heads are below both controls by each definition."""
    label = "A1" if _is_one_map(estimates) else RANKED[0]
    both = estimates["below_both"].sel(ranked_map=label)
    heads = counted(int(both.notnull().any("definition").sum()), "head")
    if not both.notnull().any():
        return ""
    counts = both.sum(["layer", "head"]).values
    apart = int(((both == 1).any("definition") & (both == 0).any("definition")).sum())
    found = f"{between(counts, '{:.0f}'.format)} of {heads} are below both with {_shown(estimates, label)}"
    if not apart:
        return f" By every definition {found}."
    return f" Depending on the definition, {found}; on {apart} the definitions disagree."


def _shown(estimates: xr.Dataset, label: str) -> str:
    """Return how the name of a map is written."""
    return "A" if _is_one_map(estimates) else MAPS[label].text


def _is_one_map(estimates: xr.Dataset) -> bool:
    """Return whether attention is standard, so that A1 and D are the one map."""
    return not estimates["effective_rank"].sel(ranked_map="lambda_A2").notnull().any()
