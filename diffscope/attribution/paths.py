"""Patch one path: what a branch of an earlier head wrote on another prompt, for one of a later head's queries or keys alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attention.layer import LayerAttention
from diffscope.attribution.heads import project
from diffscope.attribution.runs import record_modules
from diffscope.attribution.scores import ELSEWHERE, nth, proved_reading, read_alone
from diffscope.attribution.stream import UNSUPPORTED, Frozen, attention_modules, check_decoder, frozen_norm, read_blocks, read_by
from diffscope.edits import Edit, apply, patch
from diffscope.edits.patching import OUTPUTS
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel, check_several
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.hooks import Replay, attention_passes
from diffscope.scope import Scope

RECEIVERS = ("q1", "k1", "q2", "k2")
ROUNDING = 1e-3  # of the mean square, in what is found of a norm's epsilon


def path_patches(
    scope: Scope, prompt: Any, source: Any, receiver: tuple[int, int, str], senders: Sequence[tuple[int, int, str]]
) -> list[Edit]:
    """Patch paths from branches of earlier heads to the queries or keys of one map of a later head.

    What a sender wrote on the prompt is replaced by what it writes on `source` in what the receiver's projection reads, and
    nowhere else: other heads, the MLPs and the receiver's other inputs get what the model wrote. The norm in front of the
    receiver acts on the changed stream. What the receiver then gives out runs through the rest of the model. The module itself
    projects, so RoPE, grouped keys and norms of q and k are included.

    Parameters
    ----------
    scope : Scope
        Of a decoder that :func:`diffscope.attribution.score_attribution` takes; norms and caps of scores are no obstacle here.
    prompt, source
        One prompt each, of as many tokens, in any form that :meth:`diffscope.Scope.capture` takes.
    receiver : (layer, head, {"q1", "k1", "q2", "k2"})
        Queries or keys of its A1 or A2.
    senders : sequence of (layer, head, {"A1 output", "A2 output", "output"})
        Heads of earlier layers.

    Returns
    -------
    list of Edit
        One a sender, for ``scope.edit`` on this very prompt.

    Raises
    ------
    UnsupportedModel
        The model is no such decoder, or takes the keys of the layer from elsewhere.
    PromptError
        The prompts are of several lengths; the receiver or a sender is not of that form; there is no such layer, head or branch;
        a sender is not before the receiver.
    DiffscopeError
        The model is under edits; the senders are no list.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope.attribution import path_patches
    >>> scope = diffscope.load("mini-diff")
    >>> text, source = (f"Magic numbers. Paris {number}. Rome 2174. Paris" for number in (7421, 9053))
    >>> print(path_patches(scope, text, source, (1, 0, "k1"), [(0, 0, "A2 output")])[0])
    k1 of L1H0 by A2 output of L0H0 (layer 1; head 0)

    """
    check_decoder(scope)
    if scope.edits:
        raise DiffscopeError("paths are patched in the model as it is; leave the edits that are on")
    check_several("senders", senders, [(0, 0, "output")])
    receiver = _part_of_head("the receiver", receiver, (1, 0, "k1"))
    senders = [_part_of_head("a sender", each, (0, 0, "output")) for each in senders]
    ids, of_source = (list(scope.encode(each).ids) for each in (prompt, source))
    if len(ids) != len(of_source):
        raise PromptError(f"the prompt has {len(ids)} tokens and the source {len(of_source)}; give prompts of one length")
    with scope.exclusively():
        own = {layer.layer: layer for layer in scope.capture(ids).layers}
        other = scope.capture(of_source)
        _check(own, receiver, senders)
        number = receiver[0]
        modules = attention_modules(scope, [each for each in own if each <= number])
        with record_modules(scope.model, 1, range(len(ids))) as runs:
            scope.logits(torch.tensor([ids]))
        blocks = read_blocks(scope, list(modules.values()), runs)
        entered = read_by(scope, runs, modules[number])
        stream = blocks[-1].input.double()
        frozen = frozen_norm(scope, runs, blocks[-1].input, entered, f"the stream and layer {number}")
        norm = _Norm.of(frozen, stream, number)
        wrote = [_difference(scope, modules[layer], own[layer], other, layer, head, what) for layer, head, what in senders]
        read = torch.stack([norm(stream + change) for change in (torch.zeros_like(stream), *wrote)])  # (part, token, hidden)
        projected = _projected(scope, modules[number], ids, read, own[number], receiver)
    unchanged, *patched = projected
    return [
        _edit(receiver, sender, own[number], projection - unchanged, bool(change.any()))
        for sender, projection, change in zip(senders, patched, wrote)
    ]


def _part_of_head(what: str, named: Any, example: tuple[int, int, str]) -> tuple[int, int, str]:
    """Return a layer, a head and the name of a part of it; PromptError if they are given otherwise than in the example."""
    try:
        layer, head, part = named
        if isinstance(part, str):
            return index(layer), index(head), part
    except (TypeError, ValueError):  # not three, or no whole numbers
        pass
    raise PromptError(f"{what} is given as (layer, head, part), such as {example!r}, and not as {named!r}")


def _check(layers: dict[int, LayerAttention], receiver: tuple[int, int, str], senders: Sequence[tuple[int, int, str]]) -> None:
    """Raise PromptError unless the receiver and the senders are there, and these come first."""
    number, head, what = receiver
    for layer, each in ((number, head), *((layer, each) for layer, each, _ in senders)):
        if layer not in layers or each not in range(layers[layer].n_heads):
            raise PromptError(f"there is no head L{layer}H{each}; choose layers from {', '.join(map(str, layers))}")
    if what not in RECEIVERS or (what[1] == "2" and not layers[number].differential):
        known = RECEIVERS if layers[number].differential else RECEIVERS[:2]
        raise PromptError(f"there is no {what!r} of L{number}H{head}; choose from {', '.join(known)}")
    for layer, each, branch in senders:
        if branch not in OUTPUTS or (branch == "A2 output" and not layers[layer].differential):
            raise PromptError(f"L{layer}H{each} has no {branch!r}; choose from {', '.join(OUTPUTS)}")
        if layer >= number:
            raise PromptError(f"L{layer}H{each} is not before layer {number}, and writes nothing that it reads")


@dataclass(frozen=True)
class _Norm:
    """The norm in front of a layer, with the factor that other streams have.

    Attributes
    ----------
    frozen : Frozen
    epsilon : Tensor (token, 1), or None where there is no norm
        What is added to the mean square.
    """

    frozen: Frozen
    epsilon: Tensor | None

    @classmethod
    def of(cls, frozen: Frozen, stream: Tensor, number: int) -> _Norm:
        """Find the epsilon of a norm from its factor on a stream (token, hidden)."""
        plain = bool((frozen.factor == 1).all()) and bool((frozen.weight == 1).all()) and not frozen.centred
        if plain:
            return cls(frozen, None)
        square = _mean_square(frozen.centre(stream))
        epsilon = frozen.factor[:, None] ** -2 - square
        if not ((epsilon - epsilon.median()).abs() <= ROUNDING * square + ROUNDING * epsilon.median().abs()).all():
            raise UnsupportedModel(f"the norm in front of layer {number} does not divide by a root mean square; {UNSUPPORTED}")
        return cls(frozen, epsilon)

    def __call__(self, stream: Tensor) -> Tensor:
        """Return what the layer reads of a stream (token, hidden)."""
        centred = self.frozen.centre(stream)
        if self.epsilon is None:
            return centred
        factor = torch.rsqrt(_mean_square(centred) + self.epsilon)
        return centred * factor * self.frozen.weight + self.frozen.bias


def _mean_square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)  # (token, 1)


def _difference(scope: Scope, module: nn.Module, layer: LayerAttention, source: Any, number: int, head: int, what: str) -> Tensor:
    """Return what a head's branch writes on the source minus what it writes on the prompt, (token, hidden)."""
    patched = apply([patch(what, source, layers=number, heads=head)], layer)
    change = (patched.output() - layer.output()).transpose(0, 1).flatten(1)  # (token, head·width)
    return project(scope.family.output_projection(module), change)[0].double()


def _projected(
    scope: Scope, module: nn.Module, ids: list[int], read: Tensor, layer: LayerAttention, receiver: tuple[int, int, str]
) -> Tensor:
    """Return the receiver's queries, scaled, or keys for what is read in its place, (part, token, d).

    The first part is the stream as it is, whose queries or keys have to be those of the captured layer.
    """
    found: list[Tensor] = []

    def before_forward(attention_pass: AttentionPass, replay: Replay) -> None:
        if attention_pass.module is not module:
            return
        unchanged = read_alone(scope, attention_pass, replay, read[:1])
        proved = proved_reading(unchanged, layer, lambda alone: [_of_receiver(alone, receiver)])
        for part in read:  # one by one, as their length asks for
            alone = nth(read_alone(scope, attention_pass, replay, part[None]), proved)
            found.append(_of_receiver(alone, receiver))

    with attention_passes(scope.model, scope.family, (len(ids),), before_forward=before_forward):
        scope.logits(torch.tensor([ids]))
    moved = any(not torch.equal(projection, found[0]) for projection in found)
    if len(found) != len(read) or (not moved and bool((read != read[0]).any())):
        raise UnsupportedModel(f"layer {layer.layer} {ELSEWHERE}; {UNSUPPORTED}")
    return torch.stack(found)


def _of_receiver(layer: LayerAttention, receiver: tuple[int, int, str]) -> Tensor:
    """Return the receiver's queries, scaled, or keys, (token, d) in float64: a module may scale its queries by itself."""
    _, head, what = receiver
    index = int(layer.pairing.of_branch(int(what[1]))[head])
    if what[0] == "q":
        return layer.q[0, index].double().cpu() * layer.scale
    return layer.k[0, int(layer.pairing.key_of_map[index])].double().cpu()


def _edit(
    receiver: tuple[int, int, str], sender: tuple[int, int, str], of_prompt: LayerAttention, change: Tensor, differs: bool
) -> Edit:
    """Return the edit that adds a change (token, d) to the receiver's queries, scaled, or keys, of that head alone."""
    number, head, what = receiver
    branch = int(what[1])

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        if layer.lengths != of_prompt.lengths or layer.n_queries != of_prompt.n_queries:
            raise PromptError(f"{label}: made for one prompt of {of_prompt.n_queries} tokens; run that, without a cache")
        if not differs:
            return layer
        own = int(layer.pairing.of_branch(branch)[head])
        key = int(layer.pairing.key_of_map[own])
        q, k = layer.q[:, own : own + 1], layer.k[:, key : key + 1]
        moved = change.to(layer.q.device)
        if what[0] == "q":
            q = (q.double() + moved / layer.scale).to(q.dtype)
        else:
            k = (k.double() + moved).to(k.dtype)
        return _with_own_map(layer, branch, head, q, k)

    label = f"{what} of L{number}H{head} by {sender[2]} of L{sender[0]}H{sender[1]}"
    return Edit(label, make, layers=number, heads=head, needs_a2=branch == 2, needs_full_map=True, needs_positions=True)


def _with_own_map(layer: LayerAttention, branch: int, head: int, q: Tensor, k: Tensor) -> LayerAttention:
    """Give a head a query map and a key map of its own, which other heads do not share, (batch, 1, token, d) each."""
    pairing = layer.pairing
    maps, keys = layer.q.shape[1], layer.k.shape[1]
    of_branch = pairing.of_branch(branch).clone()
    own = int(of_branch[head])
    of_branch[head] = maps
    paired = replace(
        pairing,
        **{"a1" if branch == 1 else "a2": of_branch},
        key_of_map=torch.cat([pairing.key_of_map, pairing.key_of_map.new_tensor([keys])]),
    )
    sink = layer.sink_logit
    if sink is not None:
        sink = sink.expand(-1, maps, -1)
        sink = torch.cat([sink, sink[:, own : own + 1]], 1)
    return replace(layer, q=torch.cat([layer.q, q], 1), k=torch.cat([layer.k, k], 1), pairing=paired, sink_logit=sink)
