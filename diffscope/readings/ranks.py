"""How simple the maps of heads are: effective ranks, beside a map that attends to nothing and beside permuted rows."""

from __future__ import annotations

from collections.abc import Callable

import xarray as xr

from diffscope.attention.maps import MAPS
from diffscope.capture.capture import Capture
from diffscope.numbers import between, counted, listed, two_figures
from diffscope.readings.captures import one_prompt
from diffscope.readings.reading import Reading

#: how each definition is made of the singular values σ of a map
DEFINED = {
    "erank": "exp of the entropy of σ/Σσ",
    "erank_energy": "exp of the entropy of σ²/Σσ²",
    "participation": "(Σσ²)²/Σσ⁴",
    "stable_rank": "Σσ²/max σ²",
    "r90": "how many σ² hold 90 % of their sum",
}
READS = (
    "The uniform map attends to nothing and has a rank too; a map whose rows are permuted has the same weights in other places. "
    "Only a rank below both is low for where the map attends."
)
BY_HEAD = "λ is one number a head and cancels: the rank of λ·A2 is that of A2."
BY_TOKEN = "λ differs from token to token, so the rank of λ·A2 is not that of A2."
ORDER = ("lambda_A2", "A1", "D")  # of the sentences: what is subtracted first


def ranks(cap: Capture, *, progress: Callable[[float, int], object] | None = None) -> Reading:
    """Effective ranks of λ·A2, A1 and D of every head, of whole maps.

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
        rank_control). The sentence is about the first definition, ``erank``.
    """
    cap = one_prompt(cap)
    measured = cap.measure(["effective_rank", "effective_rank_error"], progress=progress)
    estimates = measured.rename(control="rank_control")
    by_token = any(layer.lam.shape[-1] > 1 for layer in cap.layers if layer.differential)
    estimates["effective_rank"].attrs["reads"] = f"{READS} {BY_TOKEN if by_token else BY_HEAD}" if cap.differential else READS
    return Reading(ranks_sentence(estimates, "erank"), estimates)


def ranks_sentence(estimates: xr.Dataset, definition: str) -> str:
    """What the ranks of one definition come to, beside both controls; `estimates` as of :func:`ranks`."""
    parts = []
    for label in ORDER:
        values = estimates.sel(ranked_map=label, definition=definition)
        rank, uniform, permuted = (values["effective_rank"].sel(rank_control=name) for name in ("map", "uniform", "permuted"))
        count = int(rank.notnull().sum())
        if not count or (label == "A1" and _is_one_map(estimates)):
            continue
        error = values["effective_rank_error"].sel(rank_control="permuted")
        below = int((rank < uniform).sum()), int((rank < permuted - error).sum())
        spread = between(rank.values[rank.notnull().values], two_figures)
        shown = "A" if _is_one_map(estimates) else MAPS[label].text
        parts.append(f"{spread} of {shown} ({below[0]} and {below[1]} of {counted(count, 'head')})")
    if not parts:
        return f"{definition} is known of no head."
    return f"{definition} by head, and how many are below the uniform map and below their permuted rows: {listed(parts)}."


def _is_one_map(estimates: xr.Dataset) -> bool:
    """Whether attention is standard, so that A1 and D are the one map."""
    return not estimates["effective_rank"].sel(ranked_map="lambda_A2").notnull().any()
