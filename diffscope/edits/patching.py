"""Patch maps, differences and outputs of heads: what a model computes on another prompt, in place of what it computes here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffscope.attention.blocks import Block, gather
from diffscope.attention.changes import Change, RowContext, chosen
from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import map_of
from diffscope.attention.precision import without_autocast
from diffscope.edits.base import Edit, Stage, check_a2, check_tokens
from diffscope.edits.declared import declare
from diffscope.edits.from_captures import HasLayers
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel, check_choice
from diffscope.fields import one_of
from diffscope.prompts.selection import Indices, as_indices, from_zero

OUTPUTS = {"A1 output": 1, "A2 output": 2, "output": None}
STAGES = {"A1": Stage.MAPS, "A2": Stage.MAPS, "D": Stage.DIFFERENCE, **dict.fromkeys(OUTPUTS, Stage.OUTPUT)}


@dataclass(frozen=True)
class PatchMap(Change):
    """A1, A2 or D of another prompt, in some rows, or in some cells of them."""

    takes = {"which": one_of("A1", "A2", "D")}

    heads: tuple[int, ...]
    which: str
    map: Tensor  # (1, head, query, key)
    queries: tuple[int, ...] | None
    keys: tuple[int, ...] | None

    def maps(self, context: RowContext, a1: Tensor, a2: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.which == "A1":
            return self.patched(context, a1), a2
        return (a1, self.patched(context, a2)) if self.which == "A2" and a2 is not None else (a1, a2)

    def difference(self, context: RowContext, d: Tensor) -> Tensor:
        return self.patched(context, d) if self.which == "D" else d

    @property
    def of_difference(self) -> bool:
        """Return whether it acts on D after the subtraction."""
        return self.which == "D"

    def patched(self, context: RowContext, a: Tensor) -> Tensor:
        """Return rows (head, query, key) with the other prompt's in their place; tokens beyond that prompt keep their own."""
        size = self.map.shape[-1]
        rows = torch.arange(size) if self.queries is None else torch.tensor(self.queries)
        keys = torch.arange(a.shape[-1]) if self.keys is None else torch.tensor(self.keys)
        place = torch.isin(context.positions, rows.to(a.device))[:, None]
        place = place & torch.isin(torch.arange(a.shape[-1], device=a.device), keys.to(a.device))
        other = torch.zeros_like(a)
        known = min(size, a.shape[-1])
        at = context.positions.clamp_max(size - 1)
        other[..., :known] = self.map[0][context.heads[:, None], at, :known].to(a.dtype)
        return torch.where(chosen(self.heads, context) & place, other * context.visible, a)


@dataclass(frozen=True)
class PatchOutput(Change):
    """Other outputs of heads at some queries, as they enter the output projection."""

    heads: tuple[int, ...]
    value: Tensor  # (batch, head, query, width)
    queries: tuple[int, ...]

    def output(self, context: RowContext, out: Tensor) -> Tensor:
        place = torch.isin(context.positions, torch.tensor(self.queries, device=out.device))[:, None]
        other = self.value[0][context.heads[:, None], context.positions.clamp_max(self.value.shape[2] - 1)]
        return torch.where(chosen(self.heads, context) & place, other.to(out.dtype), out)


@declare(
    'A1, A2 or D of another prompt, `source`, in rows `queries` (by default all) and on `keys` of them (by default all); `"A1 '
    'output"` and `"A2 output"`: what g·A1·V or −λ·A2·V gives there in place of what it gives here, before the norm; `"output"`: '
    "all that the head gives to the output projection",
    stage=Stage.MAPS,
)
def patch(
    what: str,
    source: HasLayers,
    *,
    queries: Sequence[int] | int | None = None,
    keys: Sequence[int] | int | None = None,
    layers: Indices = None,
    heads: Indices = None,
) -> Edit:
    """Put what heads compute on another prompt in place of what they compute here: a whole map, some of its rows, or cells.

    Tokens are counted from the start, so the two prompts should say the same at the same places but for what is to be compared.
    Patched cells are put in as they are, and rows are not scaled afterwards. Tokens beyond the end of `source`, such as those
    that are generated, keep their own rows. A patch that changes nothing leaves the model's own numbers, to the last bit.

    Parameters
    ----------
    what : {"A1", "A2", "D", "A1 output", "A2 output", "output"}
        A map or the difference; g·A1·V or −λ·A2·V, with the values of the other prompt; or all that a head gives out.
    source : Capture
        Of one prompt, at most as long as those that run under the edit, and of the same model.
    queries, keys : int or sequence of int, optional
        Token positions; by default all. Only maps have keys.
    layers, heads : int or sequence of int, optional

    Raises
    ------
    PromptError
        The source is of several prompts, a position is outside of it, or a prompt is shorter than it.
    DiffscopeError
        There is no such thing to patch, or an output is patched key by key.
    InsufficientMemory
        The source is longer than 4,096 tokens.
    """
    check_choice("part to patch", what, STAGES)
    if keys is not None and what in OUTPUTS:
        raise DiffscopeError(f"the {what} of a head has no keys; patch a map, or leave keys out")
    of_source = _single(source)
    patched = as_indices(layers) or of_source
    counts = {number: layer.n_queries for number, layer in of_source.items()}
    tokens = min([counts[number] for number in patched if number in counts] or counts.values())
    at = _positions(queries, tokens, "queries")
    on = _positions(keys, tokens, "keys")
    where = "".join(f", {name} {_some(some)}" for name, some in (("queries", at), ("keys", on)) if some is not None)
    label = f"{what} of another prompt{where}"

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention | Change:
        other = _of_layer(label, of_source, layer)
        if what in OUTPUTS:
            return _patched_output(layer, other, heads, OUTPUTS[what], at)
        return _patched_map(layer, other, heads, what, at, on)

    return Edit(
        label,
        make,
        stage=STAGES[what],
        layers=layers,
        heads=heads,
        needs_a2=what.startswith("A2"),
        needs_full_map=True,
        needs_positions=True,
    )


def _single(source: HasLayers) -> dict[int, LayerAttention]:
    """Return the layers of a capture of one prompt by number."""
    layers = getattr(source, "layers", None)
    if not layers or not all(isinstance(layer, LayerAttention) for layer in layers):
        raise DiffscopeError(f"patch takes a capture, such as scope.capture(prompt), and not a {type(source).__name__}")
    if len(layers[0].lengths) > 1:
        raise PromptError(f"a patch is from one prompt, and the capture has {len(layers[0].lengths)}; choose one, such as cap[0]")
    check_tokens("patch", layers[0].n_keys)
    return {layer.layer: layer.prompt(0) for layer in layers}


def _positions(positions: Sequence[int] | int | None, tokens: int, name: str) -> tuple[int, ...] | None:
    if positions is None:
        return None
    at = from_zero(positions, f"patch takes token positions from 0 as {name}, such as capture.spans['answer']")
    if max(at) >= tokens:
        raise PromptError(f"{name} has token {max(at)}, and the source has {tokens} tokens")
    return at


def _some(positions: Sequence[int]) -> str:
    return ", ".join(map(str, positions)) if len(positions) < 9 else f"{len(positions)} tokens"


def _of_layer(label: str, source: dict[int, LayerAttention], layer: LayerAttention) -> LayerAttention:
    """Return the layer of the source that is put in a layer's place; an error if it does not fit."""
    other = source.get(layer.layer)
    if other is None or other.n_heads != layer.n_heads or other.differential != layer.differential:
        raise DiffscopeError(f"{label}: the source has no layer {layer.layer} of such heads; capture it with the same model")
    if min(layer.lengths) < other.n_queries:
        raise PromptError(
            f"{label}: the source has {other.n_queries} tokens and the prompt {min(layer.lengths)}; give a source with at most "
            "as many, or better with as many"
        )
    if other.n_keys != other.n_queries:
        raise UnsupportedModel(f"{label}: layer {layer.layer} looks at keys that are not the tokens of the prompt")
    return other


@torch.no_grad()
@without_autocast()
def _patched_map(
    layer: LayerAttention,
    other: LayerAttention,
    heads: tuple[int, ...],
    which: str,
    queries: tuple[int, ...] | None,
    keys: tuple[int, ...] | None,
) -> LayerAttention | Change:
    """Return the change that puts a map in its place; the layer itself if that is the map that it has."""
    change = PatchMap(heads, which, map_of(other.rows(), which)[None], queries, keys)
    for prompt in map(layer.prompt, range(len(layer.lengths))):
        own = map_of(prompt.rows(heads=heads), which)  # (head, query, key)
        context = RowContext(prompt, prompt.head_numbers(heads), prompt.query_positions(None))
        if not torch.equal(change.patched(context, own), own):
            return change
    return layer


@torch.no_grad()
@without_autocast()
def _patched_output(
    layer: LayerAttention, other: LayerAttention, heads: tuple[int, ...], branch: int | None, queries: tuple[int, ...] | None
) -> LayerAttention | Change:
    """Return the change that puts outputs in their place; the layer itself if they are those that it has."""
    at = tuple(range(other.n_queries)) if queries is None else queries
    if branch is not None:
        _check_branches(layer, other, heads, branch)
    places = torch.tensor(at, device=layer.q.device)
    size = max(layer.lengths)
    value = torch.zeros(len(layer.lengths), layer.n_heads, size, layer.v.shape[-1], dtype=layer.dtype, device=layer.q.device)
    same = True
    for index in range(len(layer.lengths)):
        prompt = layer.prompt(index)
        own = prompt.output(places)
        if branch is None:
            patched = other.output(places)
        else:
            mixed = prompt.head_outputs(places) + (branch_output(other, branch, places) - branch_output(prompt, branch, places))
            patched = prompt.head_postprocess(mixed, places)
        same = same and torch.equal(patched[list(heads)], own[list(heads)])
        value[index, :, places] = patched.to(value.dtype)
    return layer if same else PatchOutput(heads, value, at)


def _check_branches(layer: LayerAttention, other: LayerAttention, heads: tuple[int, ...], branch: int) -> None:
    """Raise an error unless heads give out the sum of two branches, which no edit has replaced."""
    if branch == 2:
        check_a2("A2 output", other)
    if layer.differential and (layer.d_is_changed or other.d_is_changed):
        raise UnsupportedModel(
            f"A{branch} output: layer {layer.layer} changes D after the subtraction, so it is no sum of branches"
        )
    for changed, where, instead in (
        (layer, "", 'patch one branch of a head at a time, or "output"'),
        (other, " of the source", 'patch "output", or capture the source without that edit'),
    ):
        replaced = [change for change in changed.changes if type(change).output is not Change.output]
        if any(set(heads) & set(getattr(change, "heads", heads)) for change in replaced):
            raise DiffscopeError(
                f"A{branch} output: an edit has replaced the output of such a head in layer {layer.layer}{where} already; "
                f"{instead}"
            )


def branch_output(layer: LayerAttention, branch: int, queries: Tensor | None = None) -> Tensor:
    """Return g·A1·V (branch 1) or −λ·A2·V (branch 2) of a layer of one prompt, before the norm, (head, query, width).

    Without a second map branch 1 is D·V.
    """
    values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)  # (head, key, width)

    def product(block: Block, rows: Rows) -> Tensor:
        if rows.a2 is None:
            weights = rows.d
        else:
            weights = rows.gain[..., None] * rows.a1 if branch == 1 else -rows.lam[..., None] * rows.a2
        keys = slice(rows.start, rows.start + weights.shape[-1])
        return weights @ values[block.heads.start : block.heads.stop, keys]

    return gather(layer, queries, product, all_heads=bool(layer.changes))
