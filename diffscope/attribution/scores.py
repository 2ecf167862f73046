"""Attribute one attention score to pairs of upstream parts: what the query is made of, and what the key is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any, Literal

import torch
import xarray as xr
from torch import Tensor, nn

from diffscope.attention.layer import LayerAttention
from diffscope.attribution.heads import BRANCHES, FrozenHeads
from diffscope.attribution.inner_norms import InnerNorms
from diffscope.attribution.runs import Runs, record_modules
from diffscope.attribution.stream import UNSUPPORTED, attention_modules, check_decoder, frozen_norm, read_blocks, read_by
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel, first_line
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.hooks import Replay, attention_passes
from diffscope.prompts.selection import whole_number
from diffscope.proof.float32_copy import run_in_float32
from diffscope.proof.readings import readings
from diffscope.proof.tolerance import TOLERANCE
from diffscope.scope import Scope

Branch = Literal["A1", "A2"]
EMBEDDING, BIASES = "embedding", "biases"
ELSEWHERE = "does not make its queries and keys of what it reads"
RUN_TOKENS = 8192  # tokens of parts that run together
SUM_TOLERANCE = 1e-4  # error of the sum, relative to the sum of sizes

WORDS = {
    "score": "what a part of the query times a part of the key adds to the score",
    "of_query": "what a part of the query adds to the score, with all parts of the key",
    "of_key": "what a part of the key adds to the score, with all parts of the query",
    "total": "the score, before the softmax",
    "unexplained": "the model's own score minus the sum of all parts: rounding",
}


def score_attribution(
    scope: Scope,
    prompt: Any,
    layer: int,
    head: int,
    query: int,
    key: int,
    *,
    map: Branch = "A1",
    against: int | Literal["row"] | None = None,
) -> xr.Dataset:
    """Attribute the score of one cell of A1 or A2 to pairs of upstream parts.

    The score of a query and a key is a product of two vectors. Both are linear in what the attention module reads, and that is
    the sum of all that earlier parts wrote into the residual stream, times the factor of a norm. With that factor held at what
    it is, the score is a sum over pairs: what each part wrote at the query's token, times what each part wrote at the key's.
    RoPE, grouped keys and the norms of heads are included, since the module itself projects each part. Norms of queries and keys
    are held at their factors too, and so is a soft cap: it multiplies a score with cap·tanh(s/cap)/s.

    Parts are the embedding, A1 and −λ·A2 of each earlier head, each earlier MLP, the biases of output projections, and last
    what does not depend on the stream: the biases of the norm and of the projections.

    Parameters
    ----------
    scope : Scope
        Of a decoder whose blocks add what attention and one other module wrote to the residual stream, as it is.
    prompt
        One prompt, in any form that :meth:`diffscope.Scope.capture` takes.
    layer, head : int
    query, key : int
        Token positions; −1 is the last token.
    map : {"A1", "A2"}
    against : int or "row", optional
        Attribute the difference from another key's score, or from the mean over all keys that the query sees. The softmax knows
        only such differences. By default the score itself is attributed.

    Returns
    -------
    xarray.Dataset
        ``score`` (query_part, key_part), in float64; ``of_query`` (query_part,) and ``of_key`` (key_part,), its sums; ``total``,
        the model's own score or difference, and ``unexplained``, what the parts leave of it. The labels of parts are
        "embedding", "L0H1 A1", "L0H1 A2", "L0 MLP", "L0 biases" and "biases". Attributes name the cell, and what it is compared
        with in ``against``: "nothing", "row" or "key 7".

    Raises
    ------
    UnsupportedModel
        The model is no such decoder, changes its queries or keys otherwise than by a norm, takes its keys from elsewhere, or
        adds a bias by position to its scores.
    PromptError
        The layer, head or token is not there; the query does not see a key; the map is A2 in standard attention.
    DiffscopeError
        The model is under edits; the layer or head is not a whole number from 0.

    Examples
    --------
    >>> import diffscope
    >>> scope = diffscope.load("mini-diff")
    >>> parts = diffscope.attribution.score_attribution(scope, "Paris 7421. Rome 2174. Paris", 1, 1, -1, 2, map="A2")
    >>> parts["score"].dims
    ('query_part', 'key_part')
    """
    check_decoder(scope)
    if scope.edits:
        raise DiffscopeError("scores are attributed in the model as it is; leave the edits that are on")
    layer, head = (
        whole_number(number, 0, math.inf, f"a {what} is a whole number from 0")
        for what, number in (("layer", layer), ("head", head))
    )
    ids = list(scope.encode(prompt).ids)
    with scope.exclusively():
        layers = {each.layer: each for each in scope.capture(ids).layers}
        if layer not in layers:
            raise PromptError(
                f"there is no layer {layer} in {scope.name}; choose from {', '.join(str(number) for number in layers)}"
            )
        cell = _Cell.of(layers[layer], head, query, key, map, against)
        modules = attention_modules(scope, [number for number in layers if number <= layer])
        with record_modules(scope.model, 1, cell.tokens) as runs:
            scope.logits(torch.tensor([ids]))
        names, read = _read(scope, modules, layers, runs, cell)
        q, k = _project(scope, modules[layer], ids, read, cell)
    return _table(scope, cell, names, q, k)


@dataclass(frozen=True)
class _Cell:
    """One cell of a map, and the keys that it is compared with.

    Attributes
    ----------
    layer : LayerAttention
        Of the prompt.
    map : int
        Index of the query map.
    query, key : int
    others : list of int
        Keys whose mean score is subtracted; empty for none.
    names : dict
        The cell in words, for whoever reads the table.
    """

    layer: LayerAttention
    map: int
    query: int
    key: int
    others: list[int]
    names: dict[str, str | int]

    @classmethod
    def of(cls, layer: LayerAttention, head: int, query: int, key: int, map: Branch, against: int | str | None) -> _Cell:
        """Return the cell that is asked for."""
        tokens, branches = layer.n_keys, _branches(layer)
        if head not in range(layer.n_heads):
            raise PromptError(f"layer {layer.layer} has no head {head}; choose from 0 to {layer.n_heads - 1}")
        if layer.position_bias is not None:
            raise UnsupportedModel(f"layer {layer.layer} adds a bias by position to its scores; {UNSUPPORTED}")
        if map not in branches:
            raise PromptError(f"layer {layer.layer} has no map {map!r}; choose from {', '.join(branches)}")
        query, key = _position(query, tokens, "query"), _position(key, tokens, "key")
        seen = layer.visible([query])[0]  # (key,)
        others = seen.nonzero().flatten().tolist() if against == "row" else []
        if isinstance(against, Integral):
            others = [_position(against, tokens, "key to compare with")]
            if others == [key]:
                raise PromptError(f"key {key} is compared with itself; give another key, 'row' or None as against")
        elif against not in (None, "row"):
            raise PromptError(f"against is a token position, 'row' or None, not {against!r}")
        if not seen[[key, *others]].all():
            raise PromptError(f"token {query} does not see key {key if not seen[key] else others[0]}; choose a key that it sees")
        compared = "nothing" if against is None else "row" if against == "row" else f"key {others[0]}"
        names: dict[str, str | int] = {"layer": layer.layer, "head": head, "map": map, "query": query, "key": key}
        names["against"] = compared
        return cls(layer, int(layer.pairing.of_branch(1 + BRANCHES.index(map))[head]), query, key, others, names)

    @property
    def tokens(self) -> list[int]:
        """Return the positions whose parts are needed, in order."""
        return sorted({self.query, self.key, *self.others})

    def vectors(self, layer: LayerAttention, prompt: int = 0) -> tuple[Tensor, Tensor]:
        """Return q of the query (d,), scaled, and k of every key (key, d), in float64."""
        key_map = layer.pairing.key_of_map[self.map]
        return layer.q[prompt, self.map, self.query].double().cpu() * layer.scale, layer.k[prompt, key_map].double().cpu()

    def needed(self, layer: LayerAttention) -> tuple[Tensor, Tensor]:
        """Return q of the query (d,), scaled, and k of the tokens that are needed (token, d), in float64."""
        q, k = self.vectors(layer)
        return q, k[self.tokens]

    @property
    def cap(self) -> Tensor:
        """Return what the soft cap of the scores multiplies each with, (key, 1): cap·tanh(s/cap)/s, 1 without a cap."""
        q, k = self.vectors(self.layer)
        scores = k @ q
        if self.layer.soft_cap is None:
            return torch.ones_like(scores)[:, None]
        capped = self.layer.soft_cap * torch.tanh(scores / self.layer.soft_cap)
        return torch.where(scores == 0, 1.0, capped / torch.where(scores == 0, 1.0, scores))[:, None]

    def compared(self, keys: Tensor) -> Tensor:
        """Return the key's row of (…, key, d) minus the mean of the others' rows, (…, d); each as its score is capped."""
        keys = keys * self.cap
        at_key = keys[..., self.key, :]
        return at_key - keys[..., self.others, :].mean(-2) if self.others else at_key


def _position(position: int, tokens: int, what: str) -> int:
    """Return a position counted from the start; PromptError if the prompt has no such token."""
    if not isinstance(position, Integral) or not -tokens <= position < tokens:
        raise PromptError(f"the {what} {position} is outside of the prompt, which has {tokens} tokens")
    return int(position) % tokens


def _read(
    scope: Scope, modules: Mapping[int, nn.Module], layers: Mapping[int, LayerAttention], runs: Runs, cell: _Cell
) -> tuple[list[str], Tensor]:
    """Return the names of all parts, and what the layer reads of each, (part, token, hidden) in float64.

    The norm of the layer is frozen; its bias is the last part. Tokens that the cell does not need are 0.
    """
    *before, module = modules.values()
    blocks = read_blocks(scope, [*before, module], runs)
    entered = read_by(scope, runs, module)
    norm = frozen_norm(scope, runs, blocks[-1].input, entered, f"the residual stream and layer {cell.layer.layer}")
    names = [EMBEDDING]
    for number in list(modules)[:-1]:
        of_heads = [
            f"L{number}H{head} {branch}" for head in range(layers[number].n_heads) for branch in _branches(layers[number])
        ]
        names += [*of_heads, f"L{number} {BIASES}", f"L{number} MLP"]
    names.append(BIASES)
    read = torch.zeros(len(names), cell.layer.n_queries, entered.shape[-1], dtype=torch.float64)
    for row, token in enumerate(cell.tokens):
        column = [blocks[0].input[row].double()[None]]
        for number, block in zip(modules, blocks[:-1]):
            own = FrozenHeads.of(layers[number], token)
            wrote, bias = own.write(scope.family.output_projection(modules[number]), block.attention[row].double())
            heads = wrote[: len(_branches(layers[number]))].transpose(0, 1).flatten(0, 1)  # (head·branch, hidden)
            column += [heads, bias[None], block.mlp[row].double()[None]]
        read[:, token] = torch.cat([norm(torch.cat(column), row), norm.bias[None]])
    return names, read


def _branches(layer: LayerAttention) -> tuple[str, ...]:
    return BRANCHES if layer.differential else BRANCHES[:1]


def _project(scope: Scope, module: nn.Module, ids: list[int], read: Tensor, cell: _Cell) -> tuple[Tensor, Tensor]:
    """Return q of the query and the compared k of all parts, (part, d) each; the last has the biases of the projections too.

    The module itself projects them, in float32 if the model is in half precision: each part (token, hidden) stands in the place
    of the hidden states, and all else that the module is given stays.
    """
    queries: list[Tensor] = []
    keys: list[Tensor] = []
    together = max(1, RUN_TOKENS // len(ids))

    def before_forward(attention_pass: AttentionPass, replay: Replay) -> None:
        if attention_pass.module is not module:
            return
        norms = InnerNorms()
        whole = read.sum(0, keepdim=True)
        proved = proved_reading(read_alone(scope, attention_pass, replay, whole, norms.record), cell.layer, cell.needed)
        for some in torch.cat([read, whole, 0 * read[:1]]).split(together):
            layer = nth(read_alone(scope, attention_pass, replay, some, norms.freeze), proved)
            if not len(layer.q) == len(layer.k) == len(some):
                raise UnsupportedModel(f"layer {cell.layer.layer} {ELSEWHERE}; {UNSUPPORTED}")
            for part in range(len(some)):
                q, k = cell.vectors(layer, part)
                queries.append(q)
                keys.append(k)

    with attention_passes(scope.model, scope.family, (len(ids),), before_forward=before_forward):
        scope.logits(torch.tensor([ids]))
    *_, whole_q, no_q = queries
    *_, whole_k, no_k = keys
    q, k = torch.stack(queries[:-2]), torch.stack(keys[:-2])  # (part, d); (part, key, d)
    if torch.equal(q, no_q.expand_as(q)) or torch.equal(k, no_k.expand_as(k)):
        raise UnsupportedModel(f"layer {cell.layer.layer} {ELSEWHERE}; {UNSUPPORTED}")
    biases = torch.zeros(len(read), 1, dtype=torch.float64)
    biases[-1] = 1
    size = (whole_k @ whole_q).abs().max()  # of scores, whose difference may be next to nothing
    k, no_k, whole_k = (cell.compared(each) for each in (k, no_k, whole_k))
    q, k = q - no_q + biases * no_q, k - no_k + biases * no_k
    score = q @ k.T  # (query part, key part)
    if not abs(score.sum() - whole_q @ whole_k) <= SUM_TOLERANCE * (size + score.abs().sum()):
        raise UnsupportedModel(
            f"layer {cell.layer.layer}: its scores are no sum over what earlier parts wrote (it may norm its queries or keys "
            "outside of a module, or scale them by themselves); "
            f"{UNSUPPORTED}"
        )
    return q, k


def read_alone(
    scope: Scope,
    attention_pass: AttentionPass,
    replay: Replay,
    parts: Tensor,
    prepare: Callable[[nn.Module], object] = lambda copied: None,
) -> Iterator[LayerAttention]:
    """Yield each reading of what the module of a pass attends with if parts (part, token, hidden) are its hidden states.

    Raises UnsupportedModel if the module cannot be run on them.
    """
    hidden = attention_pass.hidden
    parts = parts.to(hidden.device, torch.promote_types(hidden.dtype, torch.float32))
    if replay.args:
        replay = replay._replace(args=(parts, *replay.args[1:]))
    else:
        replay = replay._replace(kwargs={**replay.kwargs, next(iter(attention_pass.arguments)): parts})
    try:
        run = run_in_float32(attention_pass, replay, nullcontext(), prepare)
        run.lengths = (parts.shape[1],) * len(parts)
        yield from readings(scope.family, run)
    except DiffscopeError:
        raise
    except Exception as error:  # foreign code, given more prompts than the masks and positions beside them are of
        raise UnsupportedModel(
            f"layer {attention_pass.number}: its module cannot be run on parts of what it reads: {first_line(error)}"
        ) from None


def nth(layers: Iterator[LayerAttention], number: int) -> LayerAttention:
    """Return one of the readings of a module; UnsupportedModel if there are fewer."""
    if (layer := next(islice(layers, number, None), None)) is None:
        raise UnsupportedModel(f"a module cannot be read on parts of what it reads as it was on all of it; {UNSUPPORTED}")
    return layer


def proved_reading(
    layers: Iterable[LayerAttention], captured: LayerAttention, vectors: Callable[[LayerAttention], Iterable[Tensor]]
) -> int:
    """Return the number of the reading of a module's whole input whose vectors are nearest to those of the captured layer.

    A family may allow several readings of a module, such as RoPE by θ and by −θ, and the capture has the one that was proved.
    In half precision several may be near.

    Parameters
    ----------
    layers : iterable of LayerAttention
        The readings.
    captured : LayerAttention
    vectors : callable
        Queries or keys of a layer, each (d,) or (token, d).

    Raises
    ------
    UnsupportedModel
        None has them, up to the rounding of the model's dtype.
    """
    wanted = list(vectors(captured))
    off: list[float] = []
    try:
        for layer in layers:
            off.append(max(map(_off, vectors(layer), wanted)))
    except UnsupportedModel:  # which a family may raise in place of a further reading
        if not off:
            raise
    if not off or not min(off) <= max(SUM_TOLERANCE, TOLERANCE[captured.q.dtype]):
        raise UnsupportedModel(
            f"layer {captured.layer}: its queries or keys are not made of what earlier parts wrote; {UNSUPPORTED}"
        )
    return off.index(min(off))


def _off(own: Tensor, proved: Tensor) -> float:
    """Return the size of the difference of two vectors, relative to that of the second; infinite where it is undefined."""
    if own.shape != proved.shape:
        return math.inf
    difference, size = float((own - proved).norm()), float(proved.norm())
    return 0.0 if difference == 0 else difference / size if size and math.isfinite(difference) else math.inf


def _table(scope: Scope, cell: _Cell, names: list[str], q: Tensor, k: Tensor) -> xr.Dataset:
    """Multiply the parts, and compare their sum with the model's own score.

    Raises UnsupportedModel if they do not add up to it.
    """
    own_q, own_k = cell.vectors(cell.layer)
    total = float(own_q @ cell.compared(own_k))
    score = q @ k.T  # (query part, key part)
    sums = score.sum()
    precision = max(SUM_TOLERANCE, TOLERANCE[cell.layer.q.dtype])
    size = (own_k @ own_q).abs().max() + score.abs().sum()  # the difference of scores may be next to nothing
    if not abs(sums - total) <= precision * size:
        raise UnsupportedModel(f"layer {cell.layer.layer}: its scores are not those of its parts; {UNSUPPORTED}")
    variables: dict[str, tuple] = {
        "score": (("query_part", "key_part"), score.numpy()),
        "of_query": (("query_part",), score.sum(1).numpy()),
        "of_key": (("key_part",), score.sum(0).numpy()),
        "total": ((), total),
        "unexplained": ((), total - float(sums)),
    }
    table = xr.Dataset(variables, {"query_part": names, "key_part": names})
    for name, variable in table.data_vars.items():
        variable.attrs["long_name"] = WORDS[str(name)]
    return table.assign_attrs(model=scope.name, family=scope.family.name, **cell.names)
