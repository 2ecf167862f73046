"""A capture proves itself: rebuild each layer's attention output and compare it with what the model produced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from diffscope.attention import LayerAttention
from diffscope.errors import FidelityError

# Largest deviation over a head's rows, in units of the root mean square of that head's output. Float64 is no tighter than
# float32's rounding because the eager attention of Hugging Face models takes its softmax in float32 even there. The
# half-precision bounds are wide because such a model rounds both maps before it subtracts them, and a norm after a small
# difference enlarges that; a wrong pairing is off by more than 1.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 5e-5, torch.float16: 0.05, torch.bfloat16: 0.25}
ALL_ROWS_UP_TO = 2048
SAMPLED_ROWS = 512


@dataclass(frozen=True)
class Fidelity:
    """How well one layer was rebuilt.

    Attributes
    ----------
    error : float
        max over prompts, heads and rows of |rebuilt − observed|, over the root mean square of the head's observed output.
    tolerance : float
        What rounding in the model's dtype explains.
    rows : int
        Query rows compared, over all prompts.
    """

    error: float
    tolerance: float
    rows: int


def rows_to_check(n: int, device) -> Tensor:
    """All rows of short prompts; of long ones 512 rows spread evenly, first and last included."""
    if n <= ALL_ROWS_UP_TO:
        return torch.arange(n, device=device)
    return torch.linspace(0, n - 1, SAMPLED_ROWS, device=device).round().long()


def _deviation(rebuilt: Tensor, seen: Tensor) -> float:
    """Largest deviation over rows in units of the head's root mean square; (head, query, width) both."""
    return float(((rebuilt - seen).abs().amax((1, 2)) / seen.pow(2).mean((1, 2)).sqrt().clamp_min(1e-30)).max())


def _seen(layer: LayerAttention, observed: Tensor, index: int) -> tuple[Tensor, Tensor]:
    """The query rows to compare for one prompt, and what the model produced there, (head, query, width)."""
    checked = rows_to_check(layer.lengths[index], layer.q.device)
    seen = observed[index, checked].to(layer.dtype).reshape(len(checked), layer.n_heads, -1)
    return checked, seen.transpose(0, 1)


def fidelity(layer: LayerAttention, observed: Tensor) -> Fidelity:
    """Compare a layer with the tensor that entered its output projection.

    Parameters
    ----------
    layer : LayerAttention
    observed : Tensor, (batch, query, head·width) or (batch, query, head, width)
    """
    errors, rows = [], 0
    for index in range(len(layer.lengths)):
        checked, seen = _seen(layer, observed, index)
        rebuilt = layer.prompt(index).output(checked)
        if rebuilt.shape != seen.shape:
            raise FidelityError(
                f"layer {layer.layer}: family {layer.family!r} gives heads of width {rebuilt.shape[-1]} where the model has "
                f"{seen.shape[-1]}; the pairing of values is wrong"
            )
        errors.append(_deviation(rebuilt, seen))
        rows += len(checked)
    return Fidelity(float(np.max(errors)), TOLERANCE[observed.dtype], rows)  # a NaN stays a NaN


def _alternatives(layer: LayerAttention) -> Iterator[tuple[str, LayerAttention]]:
    """Other readings of the same tensors, each with what it would mean if it fitted."""
    pairing, head = layer.pairing, torch.arange(layer.n_heads, device=layer.q.device)

    def paired(a1: Tensor, a2: Tensor) -> LayerAttention:
        return replace(layer, pairing=replace(pairing, a1=a1, a2=a2))

    yield "the two maps of each head are swapped", paired(pairing.a2, pairing.a1)
    yield "the two maps are paired wrongly: head h owns maps h and h + H", paired(head, head + layer.n_heads)
    yield "the two maps are paired wrongly: head h owns maps 2h and 2h + 1", paired(2 * head, 2 * head + 1)
    yield "the norm and the factor after it do not belong here", replace(layer, norm=None, post_scale=1.0)
    yield "the factor after the norm is missing in the model", replace(layer, post_scale=1.0)


def _refitted(layer: LayerAttention, checked: Tensor, seen: Tensor) -> float:
    """Deviation that is left with the one λ that fits best."""

    def deviation(lam: float) -> float:
        fitted = replace(layer, lam=torch.full_like(layer.lam, lam))
        return _deviation(fitted.output(checked), seen)

    return float(minimize_scalar(deviation, bounds=(-2.0, 2.0), method="bounded", options={"xatol": 1e-9}).fun)


def likely_cause(layer: LayerAttention, observed: Tensor) -> str:
    """Why a layer is not rebuilt, found by trying other readings of the same tensors on the first prompt."""
    checked, seen = _seen(layer, observed, 0)
    if not seen.isfinite().all():
        return "the model itself produced values that are not finite"
    if not layer.differential:
        return "the scores are changed after q·k (soft cap, attention sink) or the output before its projection (gate)"
    prompt = layer.prompt(0)
    tried = {cause: _deviation(reading.output(checked), seen) for cause, reading in _alternatives(prompt)}
    tried["λ is not the value that the model used"] = _refitted(prompt, checked, seen)
    cause = min(tried, key=tried.get)
    if tried[cause] <= TOLERANCE[observed.dtype]:
        return cause
    return "the two maps are paired wrongly, or the values or the norm follow another layout"


def require(layer: LayerAttention, observed: Tensor) -> Fidelity:
    """The fidelity of a layer, if it is within tolerance.

    Raises
    ------
    FidelityError
        Names layer, family and likely cause.
    """
    result = fidelity(layer, observed)
    if not result.error <= result.tolerance:
        raise FidelityError(
            f"layer {layer.layer}: the maps that family {layer.family!r} reads do not rebuild the model's attention output "
            f"(error {result.error:.2g}, tolerance {result.tolerance:.0e}); likely cause: {likely_cause(layer, observed)}"
        )
    return result
