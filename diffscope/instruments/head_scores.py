"""Score heads by what their maps look at: the token before, the same token, what followed it, the first token, a needle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import without_autocast
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError
from diffscope.instruments.labelled import labelled_dataset, with_attributes
from diffscope.instruments.profiles import blocks

MAPS = ("A1", "A2", "D")
RETRIEVAL = "retrieval"
Pairs = Sequence[tuple[int, int]]


def previous_token(same: Tensor) -> Tensor:
    """Return the key before each query, bool (query, key)."""
    return torch.ones_like(same).tril(-1).triu(-1)


def duplicate_token(same: Tensor) -> Tensor:
    """Return earlier keys that hold the query's own token; `same` is where two tokens are alike, bool (query, key)."""
    return same.tril(-1)


def induction(same: Tensor) -> Tensor:
    """Return the keys right after an earlier occurrence of the query's token: what came next last time."""
    after = torch.zeros_like(same)
    after[:, 1:] = same.tril(-1)[:, :-1]
    return after


def sink(same: Tensor) -> Tensor:
    """Return the first key, of all queries but its own."""
    first = torch.zeros_like(same)
    first[1:, 0] = True
    return first


#: which keys make a head one of a type, of where two tokens of a prompt are alike
TYPES: dict[str, Callable[[Tensor], Tensor]] = {
    "previous_token": previous_token,
    "duplicate_token": duplicate_token,
    "induction": induction,
    "sink": sink,
}
NAMES = (*TYPES, RETRIEVAL)


def head_types(cap: Capture, shuffled: Capture | None = None, *, copied: Sequence[Pairs] | None = None) -> xr.Dataset:
    """Score every head as a previous-token, duplicate-token, induction, sink or retrieval head, for A1, A2 and D.

    The score of a type is the mean, over the queries that have such keys, of what a map gives to them: Σ a on these keys over
    Σ|a| of the row. It is 1 if the map gives them all, and negative of D where the subtraction takes weight from them. For
    retrieval it is the share of copied tokens whose own place gets the largest weight of the row.

    Parameters
    ----------
    cap : Capture
        Such as of random tokens that are repeated.
    shuffled : Capture, optional
        Of the same tokens in another order, prompt by prompt: the control. The same pairs of positions are scored there, so what
        position alone gives is in it, and what tokens give is not.
    copied : for each prompt a sequence of (query, key), optional
        Which token a query should copy, for the retrieval score: the query whose next token it is, and where it stands.

    Returns
    -------
    xarray.Dataset (prompt of a batch, layer, head, map, type)
        ``score``, ``shuffled``, the score on the shuffled prompt, and ``uniform``, what equal weights on all visible keys would
        score; ``queries`` (prompt of a batch, type), how many queries have such keys
        among all tokens before them (of a layer with a window fewer are scored). NaN where no query has such keys, and for A2
        of standard attention.

    Raises
    ------
    DiffscopeError
        The shuffled prompts are of other lengths or of another model; keys are not the tokens of the prompt; there are not as
        many lists of copied tokens as prompts, or one is outside of its prompt.

    Notes
    -----
    The sums of Σ a over the queries of the whole prompt, divided by the number of its tokens, are the scores of TransformerLens'
    ``detect_head`` (with its measure "mul"): it counts queries without such keys too.

    Examples
    --------
    >>> import diffscope
    >>> cap = diffscope.load("mini-diff").capture([0, *range(20, 40), *range(20, 40)])
    >>> diffscope.instruments.head_types(cap)["score"].dims
    ('layer', 'head', 'map', 'type')
    """
    _check_tokens(cap)
    prompts = [list(prompt.ids) for prompt in cap.prompts]
    pairs = [[] for _ in prompts] if copied is None else [[(int(q), int(k)) for q, k in each] for each in copied]
    _check(cap, shuffled, pairs)
    masks = [_masks(torch.tensor(ids), each) for ids, each in zip(prompts, pairs)]
    tables = []
    for number, mask in enumerate(masks):
        layers = []
        for index, layer in enumerate(cap.layers):
            table = _of_layer(layer.prompt(number), mask)
            control = None if shuffled is None else _of_layer(shuffled.layers[index].prompt(number), mask)["score"]
            table["shuffled"] = torch.full_like(table["score"], torch.nan) if control is None else control
            layers.append(table)
        tables.append(layers)
    counts = xr.DataArray(
        [[int(mask[name].any(-1).sum()) for name in NAMES] for mask in masks], {"type": list(NAMES)}, ("prompt", "type")
    )
    dataset = labelled_dataset("head_types", cap, tables, ("head", "map", "type"), {"map": list(MAPS), "type": list(NAMES)})
    counts = counts if cap.batch else counts.isel(prompt=0, drop=True)
    return with_attributes("head_types", dataset.assign(queries=counts)).assign_attrs(dataset.attrs)


def _check_tokens(cap: Capture) -> None:
    """Raise DiffscopeError unless queries and keys of a capture are the tokens of its prompts."""
    if not isinstance(cap, Capture):
        raise DiffscopeError(f"types of heads are of a capture, such as scope.capture(prompt), not of a {type(cap).__name__}")
    cap.check_one_side("a type of head")
    for layer in cap.layers:
        if layer.n_keys != layer.n_queries or layer.n_keys < max(len(prompt.ids) for prompt in cap.prompts):
            raise DiffscopeError(
                f"layer {layer.layer} has keys that are not the tokens of the prompt; types are of self-attention"
            )


def _check(cap: Capture, shuffled: Capture | None, pairs: Sequence[Pairs]) -> None:
    """Raise DiffscopeError unless the control and the copied tokens are of these prompts."""
    shape = [(layer.layer, layer.n_heads, layer.lengths) for layer in cap.layers]
    if shuffled is not None and shape != [(layer.layer, layer.n_heads, layer.lengths) for layer in shuffled.layers]:
        raise DiffscopeError("the shuffled prompts have other lengths, layers or heads; capture the same tokens in another order")
    if len(pairs) != len(cap.prompts):
        raise DiffscopeError(f"copied tokens are of {len(pairs)} prompts, and the capture has {len(cap.prompts)}")
    for number, (prompt, each) in enumerate(zip(cap.prompts, pairs)):
        if any(not 0 <= key <= query < len(prompt.ids) for query, key in each):
            raise DiffscopeError(f"a copied token of prompt {number} is outside of it or after its query; give (query, key)")


def _masks(ids: Tensor, pairs: Pairs) -> dict[str, Tensor]:
    """Return the keys of each type, bool (query, key); those of retrieval are the places of copied tokens."""
    same = ids[:, None] == ids[None]
    masks = {name: keys(same) for name, keys in TYPES.items()}
    masks[RETRIEVAL] = torch.zeros_like(same)
    for query, key in pairs:
        masks[RETRIEVAL][query, key] = True
    return masks


@torch.no_grad()
@without_autocast()
def _of_layer(layer: LayerAttention, masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the scores of one layer and prompt, and those of uniform attention, each (head, map, type)."""
    device = layer.q.device
    table = {
        name: torch.full((layer.n_heads, len(MAPS), len(NAMES)), torch.nan, dtype=torch.float64) for name in ("score", "uniform")
    }
    sums = torch.zeros(len(NAMES), 2, layer.n_heads, len(MAPS), dtype=torch.float64)  # (type, score and rows, head, map)
    uniform = torch.zeros(len(NAMES), 2, dtype=torch.float64)
    for queries, visible in blocks(layer, torch.arange(layer.n_queries, device=device)):
        rows = layer.rows(queries)
        maps = torch.stack([torch.full_like(rows.a1, torch.nan) if a is None else a for a in (rows.a1, rows.a2, rows.d)], 1)
        maps = maps[..., : visible.shape[1]]  # (head, map, query, key)
        counts = visible.sum(-1)
        for number, name in enumerate(NAMES):
            keys = masks[name].to(device)[queries, : visible.shape[1]] & visible
            chosen = keys.any(-1) & (counts > 1)
            if not chosen.any():
                continue
            some = maps[:, :, chosen]
            shares, scored = _top(some, keys[chosen], visible[chosen]) if name == RETRIEVAL else _share(some, keys[chosen])
            sums[number, 0] += (shares * scored).sum(-1).double().cpu()
            sums[number, 1] += scored.sum(-1).double().cpu()
            expected = keys[chosen].sum(-1) / counts[chosen]
            uniform[number] += torch.stack([expected.sum(), expected.new_tensor(len(expected))]).double().cpu()
    table["score"] = (sums[:, 0] / sums[:, 1]).permute(1, 2, 0)
    table["uniform"][:] = uniform[:, 0] / uniform[:, 1]
    if not layer.differential:
        for values in table.values():
            values[:, MAPS.index("A2")] = torch.nan
    return table


def _share(maps: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each row gives to its keys, of all that it gives, and which rows give anything, (head, map, query) each."""
    size = maps.abs().sum(-1)
    return (maps * keys).sum(-1) / torch.where(size == 0, 1.0, size), ~(size == 0)


def _top(maps: Tensor, keys: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether the largest weight of each row is on one of its keys, and which rows give anything.

    Keys that a row does not see have 0, which is more than any weight of a row of D that is negative throughout.
    """
    largest = maps.nan_to_num().masked_fill(~visible, -torch.inf).argmax(-1)  # (head, map, query)
    hit = torch.take_along_dim(keys.expand_as(maps), largest[..., None], -1)[..., 0]
    return hit.to(maps.dtype), ~(maps.abs().sum(-1) == 0)
