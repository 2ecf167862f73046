"""The heads of a layer at the last query of a prompt: what each branch weighs keys with, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Norm
from diffscope.attention.precision import exactly
from diffscope.errors import UnsupportedModel

BRANCHES = ("A1", "A2")
ENOUGH = 1e-4  # of the size of the branches, that their sum may be off: an edit changes more


@dataclass(frozen=True)
class LastQuery:
    """The heads of one prompt at its last query, with their norms frozen.

    A head's output is linear in D but for its norm. With the norm's factor held at that of the head's own output, g·A1·V and
    −λ·A2·V go through the norm's weight, post-scale, correction and gate each by itself, and add up to the head's output.

    Attributes
    ----------
    frozen : LayerAttention
        Of the prompt, its norm the multiplication that it is at the last query.
    values : Tensor (head, key, width)
    weights : Tensor (branch, head, key)
        g·A1 and −λ·A2; of standard attention the second is NaN.
    a2 : Tensor (head, key), or None in standard attention
    lam : Tensor (head, 1)
    """

    frozen: LayerAttention
    values: Tensor
    weights: Tensor
    a2: Tensor | None
    lam: Tensor

    @classmethod
    @exactly
    def of(cls, layer: LayerAttention) -> LastQuery:
        """Of a layer of one prompt.

        Raises
        ------
        UnsupportedModel
            The branches do not add up to the head's output: an edit, or the model itself, changes what follows from them.
        """
        query = [layer.n_queries - 1]
        rows = layer.rows(query)
        d, a1 = rows.d[:, 0], rows.gain * rows.a1[:, 0]
        a2 = None if rows.a2 is None else rows.a2[:, 0]
        weights = torch.stack([d, torch.full_like(d, torch.nan)] if a2 is None else [a1, -rows.lam * a2])
        values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)
        whole = d[:, None] @ values  # (head, 1, width)
        last = cls(replace(layer, norm=_frozen(layer.norm, whole)), values, weights, a2, rows.lam)
        parts = last.outputs(weights).nan_to_num()
        off = parts.sum(0) - layer.finish(whole, query)[:, 0]
        if not off.abs().max() <= ENOUGH * parts.abs().sum(0).max():
            raise UnsupportedModel(
                f"layer {layer.layer}: D or the output of heads is changed after the subtraction, so heads are no sum of two "
                "branches; leave out the edit that does so, or take a model that does not"
            )
        return last

    @exactly
    def outputs(self, weights: Tensor, keys: Tensor | slice = slice(None)) -> Tensor:
        """What enters the output projection where some keys are weighed so, (row, head, key) → (row, head, width)."""
        mixed = weights.transpose(0, 1) @ self.values[:, keys]  # (head, row, width)
        queries = [self.frozen.n_queries - 1] * len(weights)
        return self.frozen.finish(mixed, queries).transpose(0, 1)


def _frozen(norm: Norm | None, whole: Tensor) -> Norm | None:
    """A norm as the multiplication that it is of `whole` (head, 1, width)."""
    if norm is None or norm.kind == "scalar":
        return norm
    factor = torch.rsqrt(whole[:, 0].square().mean(-1, keepdim=True) + norm.eps)  # (head, 1)
    weight = torch.ones_like(whole[:, 0]) if norm.weight is None else norm.weight.to(whole.dtype)
    return Norm("scalar", 0.0, factor * weight)
