"""What each branch of a head gives to the output projection, with the norm of the head frozen."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Norm
from diffscope.attention.precision import exactly
from diffscope.errors import UnsupportedModel

BRANCHES = ("A1", "A2")
ENOUGH = 1e-4  # of the size of the branches, that their sum may be off: an edit changes more


def second_row(layer: LayerAttention) -> Tensor | None:
    """A2 of the last query of one prompt, (head, key); None in standard attention."""
    a2 = layer.rows([layer.n_queries - 1]).a2
    return None if a2 is None else a2[:, 0]


@exactly
def branch_outputs(layer: LayerAttention, other_a2: Tensor | None = None) -> Tensor:
    """What enters the output projection from each branch of each head at the last query of one prompt.

    A head's output is linear in D but for its norm. With the norm's factor held at that of the head's own output, g·A1·V and
    −λ·A2·V go through the norm's weight, post-scale, correction and gate each by itself, and add up to the head's output.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    other_a2 : Tensor (head, key), optional
        Another row in place of A2: a third branch, with the λ, the values and the frozen norm of this prompt.

    Returns
    -------
    Tensor (branch, head, width)
        NaN for the second branch of standard attention.

    Raises
    ------
    UnsupportedModel
        The branches do not add up to the output: an edit changed what follows from them.
    """
    query = [layer.n_queries - 1]
    rows = layer.rows(query)
    values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)  # (head, key, width)
    whole = rows.d @ values  # (head, 1, width)
    frozen = replace(layer, norm=_frozen(layer.norm, whole))
    minus_lam = -rows.lam[..., None]
    weights = [rows.d] if rows.a2 is None else [rows.gain[..., None] * rows.a1, minus_lam * rows.a2]
    parts = [frozen.finish(weight @ values, query) for weight in weights]
    output = layer.finish(whole, query)
    together = torch.stack(parts)
    if not (together.sum(0) - output).abs().max() <= ENOUGH * together.abs().sum(0).max():
        raise UnsupportedModel(
            f"layer {layer.layer}: an edit changes D or the output of heads, so that they are no sum of two branches; attribute "
            "without it"
        )
    if rows.a2 is None:
        parts.append(torch.full_like(output, torch.nan))
    if other_a2 is not None:
        parts.append(frozen.finish(minus_lam * other_a2[:, None].to(layer.dtype) @ values, query))
    return torch.stack(parts)[:, :, 0]


def _frozen(norm: Norm | None, whole: Tensor) -> Norm | None:
    """A norm as the multiplication that it is of `whole` (head, 1, width)."""
    if norm is None or norm.kind == "scalar":
        return norm
    factor = torch.rsqrt(whole[:, 0].square().mean(-1, keepdim=True) + norm.eps)  # (head, 1)
    weight = torch.ones_like(whole[:, 0]) if norm.weight is None else norm.weight.to(whole.dtype)
    return Norm("scalar", 0.0, factor * weight)
