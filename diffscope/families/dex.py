"""DEX: standard attention whose heads' outputs are corrected, O − λ·O·W_D, before their projection."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.foreign import REGISTER, ForeignModule, parts_of
from diffscope.families.standard import Standard


def _is_adapter(module: ForeignModule) -> bool:
    """Return whether a module is a DEX adapter: W_D as its `weight` or its `proj`, and a learned λ."""
    return isinstance(getattr(module, "lambda_learn", None), Tensor) and (hasattr(module, "weight") or hasattr(module, "proj"))


def adapter_of(attention: ForeignModule) -> nn.Module | None:
    """Return the DEX adapter of an attention module, or None."""
    return next((part for part in attention.modules() if _is_adapter(part)), None)


def correction_of(adapter: ForeignModule, heads: int, dtype: torch.dtype) -> Tensor:
    """Return λ·W_D of every head, (head, width, width), zero for heads that are not selected.

    A `weight` is multiplied from the right; a `proj` is a linear layer, whose weight is W_D transposed, and has a `sign`.
    """
    projection = getattr(adapter, "proj", None)
    weight = adapter.weight if projection is None else projection.weight.T
    if weight.dim() != 2 or weight.shape[0] != weight.shape[1] or getattr(projection, "bias", None) is not None:
        raise UnsupportedModel(
            f"{type(adapter).__name__} is not DEX as published, one matrix W_D (width, width) a layer without bias; {REGISTER}"
        )
    lam = adapter.current_lambda() if hasattr(adapter, "current_lambda") else adapter.lambda_learn
    mask = getattr(adapter, "head_mask", None)
    mask = torch.ones(heads, device=weight.device) if mask is None else mask.detach()
    if mask.shape != (heads,):
        raise UnsupportedModel(f"{type(adapter).__name__} selects among {mask.numel()} heads, but the attention has {heads}")
    wide = torch.promote_types(dtype, torch.float32)
    used = [x.detach().to(dtype).to(wide) for x in (lam, mask[:, None, None], weight)]
    return -getattr(adapter, "sign", -1.0) * used[0] * used[1] * used[2]


class Dex(Standard):
    """Standard attention with DEX: D = A1, and `correction` is subtracted from D·V; there is no second map.

    The adapter is a submodule of the attention module, before the output projection, or of a wrapper of that projection.
    """

    name = "dex"
    tried_on = "documented layout"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        if not any(_is_adapter(part) for part in parts_of(model)):
            return []
        return super().modules(model)

    def output_projection(self, module: ForeignModule) -> nn.Module:
        projection = super().output_projection(module)
        adapter = adapter_of(module)
        if adapter is None or adapter not in list(projection.modules()):
            return projection
        others = [part for part in projection.children() if part is not adapter]
        if len(others) != 1:
            raise UnsupportedModel(
                f"{type(projection).__name__} wraps {len(others)} parts besides DEX, where one is expected, the output projection"
            )
        return others[0]

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        layer = super().read(attention_pass)
        adapter = adapter_of(attention_pass.module)
        if adapter is None:
            return layer
        return replace(layer, correction=correction_of(adapter, layer.n_heads, layer.q.dtype))

    def warnings(self, layer: LayerAttention) -> list[str]:
        if layer.correction is None:
            return []
        selected = int((layer.correction != 0).flatten(1).any(1).sum())
        return [f"DEX corrects the outputs of {selected} of {layer.n_heads} heads: its λ weighs no second map, and D = A"]
