"""The gradient of a loss on the attention of the query that answers: on its row of every head's map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffscope.attention.changes import At
from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Rows
from diffscope.errors import PromptError, UnsupportedModel
from diffscope.families import Passage
from diffscope.proof.prove import prove
from diffscope.scope import Scope


@dataclass(frozen=True)
class LastRow:
    """The last query's row of every head of a layer, with the gradient of the loss.

    Attributes
    ----------
    layer : int
    a1, d : Tensor (prompt, head, key)
    a2 : Tensor (prompt, head, key), or None
    gradient : Tensor (prompt, head, key)
        ∂L/∂D, in nats; all other queries as they are.
    lam, gain : Tensor (prompt, head)
    pull : Tensor (prompt, head, key)
        ∂L/∂(g·A1 − λ·A2), which is ∂L/∂D unless the layer changes D after the subtraction. On A1 it is g times that, on A2 −λ
        times.
    """

    layer: int
    a1: Tensor
    a2: Tensor | None
    d: Tensor
    gradient: Tensor
    lam: Tensor
    gain: Tensor
    pull: Tensor


def last_rows(
    scope: Scope,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[int],
    sharpen: Callable[[int, LayerAttention], LayerAttention] | None = None,
) -> list[LastRow]:
    """Run prompts of one length and take the gradient of the loss of the token that comes next.

    Parameters
    ----------
    scope : Scope
    prompts : sequence of token ids
        All of one length.
    targets : sequence of int
        The token that each is to be continued with; L is its cross-entropy in nats.
    sharpen : callable, optional
        (number of the layer from 0, LayerAttention) → LayerAttention, whose maps are taken in place of the model's. The gradient
        is that on the output of the model as it is.

    Returns
    -------
    list of LastRow
        One a layer.

    Raises
    ------
    PromptError
        Prompts of several lengths.
    UnsupportedModel
        Its weights take no gradient.
    """
    lengths = tuple(map(len, prompts))
    if len(set(lengths)) != 1:
        raise PromptError("gradients are taken of prompts of one length")
    layers: list[LayerAttention] = []
    outputs: list[Tensor] = []

    def take(passage: Passage) -> Tensor:
        with torch.no_grad():
            layers.append(prove(scope.family, passage)[0])
        outputs.append(passage.observed)
        return passage.observed  # so that the model goes on with the very tensor that the gradient is asked of

    device = scope.runner.device
    ids = torch.tensor(list(map(list, prompts)), device=device)
    last = lengths[0] - 1
    with scope.running(lengths), torch.enable_grad(), scope.passages(lengths, change=take):
        logits = scope.runner.logits(ids, torch.ones_like(ids), columns=[last])[:, 0].float()
        if not logits.requires_grad:
            raise UnsupportedModel(f"{scope.name} takes no gradient: all of its weights are frozen")
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(list(targets), device=device), reduction="sum")
        received = torch.autograd.grad(loss, outputs)
    with torch.no_grad():
        layers = [sharpen(number, layer) if sharpen else layer for number, layer in enumerate(layers)]
        return [_last_row(layer, gradients[:, last]) for layer, gradients in zip(layers, received)]


def _last_row(layer: LayerAttention, received: Tensor) -> LastRow:
    """`received` is ∂L on what enters the output projection at the last query, (prompt, width) or (prompt, head, width)."""
    parts: dict[str, list[Tensor]] = {}
    for index, length in enumerate(layer.lengths):
        prompt = layer.prompt(index)
        query = [length - 1]
        rows = prompt.rows(query)
        values = prompt.v[0][prompt.pairing.value_of_head].to(prompt.dtype)  # (head, key, width)
        with torch.enable_grad():
            before = _before_changes(prompt, rows).clone().requires_grad_()  # (head, 1, key)
            d = prompt.changed_difference(At(prompt, torch.arange(prompt.n_heads, device=before.device), rows.queries), before)
            out = prompt.finish(d @ values, query).transpose(0, 1).reshape(-1)
            gradient, pull = torch.autograd.grad((out * received[index].reshape(-1).to(out.dtype)).sum(), (d, before))
        fields = {name: getattr(rows, name) for name in ("a1", "a2", "d", "lam", "gain")} | {"gradient": gradient, "pull": pull}
        for name, tensor in fields.items():
            if tensor is not None:
                parts.setdefault(name, []).append(tensor[:, 0])
    return LastRow(layer.layer, **{"a2": None} | {name: torch.stack(tensors) for name, tensors in parts.items()})


def _before_changes(layer: LayerAttention, rows: Rows) -> Tensor:
    """g·A1 − λ·A2 of some rows, (head, query, key)."""
    if not layer.d_is_changed:
        return rows.d
    first = rows.gain[..., None] * rows.a1
    return first if rows.a2 is None else first - rows.lam[..., None] * rows.a2
