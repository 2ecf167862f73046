"""Take packs apart: several sequences in one row of a model's input, each of which attends to itself alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask
from diffscope.attention.layer import LayerAttention
from diffscope.attention.stored import to_tensors
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import compact
from diffscope.families.coverage import unread_layers

ACROSS = "attends across the sequences of the pack; give them as a batch"


def apart(x: Tensor, lengths: Sequence[int], dim: int) -> Tensor:
    """Split a pack along `dim` into a batch of its sequences, padded on the right: (1, ...) → (sequence, ...)."""
    longest = max(lengths)
    batch = x.new_zeros([len(lengths), *(longest if i == dim else size for i, size in enumerate(x.shape) if i > 0)])
    for row, part in zip(batch, x.split(list(lengths), dim)):
        row.narrow(dim - 1, 0, part.shape[dim]).copy_(part[0])
    return batch


def together(batch: Tensor, lengths: Sequence[int]) -> Tensor:
    """Join a batch of sequences into a pack along dimension 1, the inverse of :func:`apart`."""
    return torch.cat([row[:length] for row, length in zip(batch, lengths)])[None]


def hides_others(mask: Mask, lengths: Sequence[int]) -> bool:
    """Return whether an explicit mask shows every sequence of a pack no keys but its own."""
    if mask.visible is None:
        return False
    rows = mask.visible[0].split(list(lengths))
    own = [block.split(list(lengths), 1)[index] for index, block in enumerate(rows)]
    return all(int(block.sum()) == int(part.sum()) for block, part in zip(rows, own))


def refuse_other_mixing(model: nn.Module, numbers: dict[nn.Module, int], name: str) -> None:
    """Raise UnsupportedModel if something beside the attention that is read may mix the sequences of a pack.

    Parameters
    ----------
    model : nn.Module
    numbers : dict of nn.Module to int
        The attention modules that are read, as ``Family.layers`` gives them.
    name : str
        The model's name.
    """
    names = {module: path for path, module in model.named_modules()}
    holders = (model.get_submodule(names[module].rpartition(".")[0]) for module in numbers)
    convolves = any(isinstance(part, nn.Conv1d) and part.kernel_size != (1,) for each in holders for part in each.modules())
    if convolves or unread_layers(model, numbers):
        other = "convolutions" if convolves else "layers without attention that is read"
        raise UnsupportedModel(f"{name} has {other}, which may mix the sequences of a pack; give its sequences as a batch")


def unpacked(layer: LayerAttention, lengths: tuple[int, ...], window: int | None = None) -> LayerAttention:
    """Return the layer of a pack as the layer of a batch of its sequences.

    If its mask is a rule, the same rule is applied to each sequence; the fidelity of the capture shows whether that is right.

    Parameters
    ----------
    layer : LayerAttention
        A layer of one prompt, the pack.
    lengths : tuple of int
        Tokens of each sequence.
    window : int, optional
        The width of a window if it is known.

    Raises
    ------
    UnsupportedModel
        The mask shows a sequence keys of another, or the rows were changed in a way that cannot be split by sequence.
    """
    if layer.mask.kind == "full" or (layer.mask.visible is not None and not hides_others(layer.mask, lengths)):
        raise UnsupportedModel(f"layer {layer.layer} {ACROSS}")
    if any(to_tensors(change)[0] for change in layer.changes):
        raise UnsupportedModel(f"layer {layer.layer} cannot be read in a pack; give its sequences as a batch")

    def by_token(x: Tensor) -> Tensor:  # (1, head, token or 1, ...)
        return apart(x, lengths, 2) if x.shape[2] > 1 else x

    mask = layer.mask
    if mask.visible is not None:
        blocks = zip(lengths, mask.visible[0].split(list(lengths)))
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        visible = mask.visible.new_zeros(len(lengths), 1, max(lengths), max(lengths))
        for index, (length, rows) in enumerate(blocks):
            visible[index, 0, :length, :length] = rows[:, starts[index] : starts[index] + length]
        mask = compact(visible, lengths, window)
    return replace(
        layer,
        q=by_token(layer.q),
        k=by_token(layer.k),
        v=by_token(layer.v),
        lam=by_token(layer.lam),
        gain=by_token(layer.gain),
        lam_fp32=by_token(layer.lam_fp32),
        sink_logit=None if layer.sink_logit is None else by_token(layer.sink_logit),
        gate=None if layer.gate is None else by_token(layer.gate),
        mask=mask,
        lengths=lengths,
    )
