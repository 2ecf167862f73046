"""LayerAttention: what one layer attended with, and the only place that turns q, k and λ into A1, A2 and D.

    A1 = softmax(scale·Q1·K1ᵀ),  A2 = softmax(scale·Q2·K2ᵀ),  D = gain·A1 − λ·A2
    O = norm(D·V)·post_scale,  output = (O − O·correction)·gate

Where a model caps its scores or has sink logits, the softmax is of the capped scores, with the sink logit in its denominator.

Standard attention is the case without A2: D = A1, λ = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from diffscope.attention.blocks import Block, gather
from diffscope.attention.changes import Change, RowContext
from diffscope.attention.components import Mask, Norm, Pairing, Rows
from diffscope.attention.memory import NO_REUSE, Workspace
from diffscope.attention.precision import without_autocast
from diffscope.attention.scores import products, scaled, softmax, softmax_with_sink

Queries = slice | Sequence[int] | Tensor | None  # positions; None stands for all
Heads = Sequence[int] | Tensor | None  # numbers; None stands for all
_BY_DEFAULT = cast(Tensor, None)  # a field that only the other fields can tell: see __post_init__


@dataclass(frozen=True)
class LayerAttention:
    """The attention inputs of one layer for a batch of prompts: O(N) memory.

    Attributes
    ----------
    layer : int
        Index of the layer in the model, from 0.
    family : str
        Name of the family that read it.
    q : Tensor, (batch, map, query, d)
        Queries as they were multiplied with the keys: after RoPE and any query norm.
    k : Tensor, (batch, key map, key, d)
    v : Tensor, (batch, value head, key, width)
    scale : float
        What the scores q·k are multiplied with.
    pairing : Pairing
    lengths : tuple of int
        Queries of each prompt; what is to the right of them is padding.
    kind : {"self", "cross", "encoder"}
        ``self``: the prompt's tokens look at one another. ``cross``: they look at tokens of another side, such as the text that
        a decoder translates. ``encoder``: the tokens of that side look at one another.
    key_lengths : tuple of int, optional
        Keys of each prompt in cross-attention; otherwise keys are the queries' own tokens, and cached ones before them.
    mask : Mask
        By default causal.
    lam : Tensor, broadcastable to (batch, head, query)
        λ as the model used it, after any cast; by default 0 in standard attention; with a second map it has to be given.
    gain : Tensor, broadcastable to (batch, head, query)
        Factor of A1; by default 1.
    lam_fp32 : Tensor, same shape as `lam`
        λ before the cast to the activations' dtype; by default `lam`, in float32 or wider. Whoever replaces `lam` replaces both.
    lam_init : float, optional
        λ_init of the layer, where the mechanism has one.
    norm : Norm, optional
        Of D·V, head by head.
    post_scale : float
        Factor after the norm, 1 − λ_init in V1.
    score_dtype : torch.dtype, optional
        What the model rounded its scores to before the softmax, if to less than float32 (eager attention in half precision);
        its maps are those of the rounded scores.
    soft_cap : float, optional
        A score s counts as soft_cap·tanh(s/soft_cap), after scaling and before the mask.
    sink_logit : Tensor, optional, (map,) or broadcastable to (batch, map, query)
        A logit of every query map that joins the denominator of its softmax and has no key: its rows sum to less than 1.
    position_bias : Tensor, optional, (1, map, distance)
        What is added to each score, by the key's position less the query's, after the cap; of an odd number of distances the
        middle one is 0 (T5).
    correction : Tensor, optional, (head, width, width)
        What is taken from a head's output after the norm: O − O·correction (DEX). It is not a map.
    gate : Tensor, optional, broadcastable to (batch, head, query, width)
        What the output is multiplied with before its projection.
    changes : tuple of Change
        What was changed mid-forward that no other field can say, in order.
    """

    layer: int
    family: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    pairing: Pairing
    lengths: tuple[int, ...]
    kind: str = "self"
    key_lengths: tuple[int, ...] | None = None
    mask: Mask = Mask()  # noqa: RUF009 (nothing can change it)
    lam: Tensor = _BY_DEFAULT
    gain: Tensor = _BY_DEFAULT
    lam_fp32: Tensor = _BY_DEFAULT
    lam_init: float | None = None
    norm: Norm | None = None
    post_scale: float = 1.0
    score_dtype: torch.dtype | None = None
    soft_cap: float | None = None
    sink_logit: Tensor | None = None
    position_bias: Tensor | None = None
    correction: Tensor | None = None
    gate: Tensor | None = None
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind == "cross") != (self.key_lengths is not None):
            raise ValueError(f"key_lengths go with cross-attention, and not with kind {self.kind!r}")
        if self.key_lengths is not None and self.mask.kind not in ("full", "given"):
            raise ValueError(f"in cross-attention queries have no place among the keys, so no mask is {self.mask.kind!r}")
        if self.sink_logit is not None and self.sink_logit.dim() == 1:
            object.__setattr__(
                self, "sink_logit", self.sink_logit.reshape(1, -1, 1)
            )  # as the dataclass itself does, being frozen
        if self.lam is not None and self.gain is not None and self.lam_fp32 is not None:
            return
        if self.lam is None and self.differential:
            raise ValueError("a layer with a second map has a λ: without it D would be A1")
        ones = torch.ones(1, 1, 1, dtype=self.dtype, device=self.q.device)
        lam = 0 * ones if self.lam is None else self.lam
        wide = lam.detach().to(torch.promote_types(lam.dtype, torch.float32))
        for name, default in (("lam", lam), ("gain", ones), ("lam_fp32", wide)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)

    @property
    def n_heads(self) -> int:
        return len(self.pairing.a1)

    @property
    def n_queries(self) -> int:
        return self.q.shape[2]

    @property
    def n_keys(self) -> int:
        return self.k.shape[2]

    @property
    def offset(self) -> int:
        """Return the position of query 0 among the keys; in cross-attention there is none, and this is 0."""
        return self.n_keys - self.n_queries if self.key_lengths is None else 0

    @property
    def d_is_a1(self) -> bool:
        """Return whether D is A1: there is no second map and nothing changes the rows."""
        return not self.differential and not self.changes

    @property
    def d_is_changed(self) -> bool:
        """Return whether D is changed after the subtraction, so that it need not be gain·A1 − λ·A2."""
        return any(change.of_difference for change in self.changes)

    @property
    def differential(self) -> bool:
        """Return whether there is a second map."""
        return self.pairing.a2 is not None

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of maps: float64 for a float64 model, else float32."""
        return torch.promote_types(self.q.dtype, torch.float32)

    def prompt(self, index: int) -> LayerAttention:
        """Return one prompt of the batch, its padding cut away."""
        if not 0 <= index < len(self.lengths):
            raise IndexError(f"prompt {index} is outside the batch of {len(self.lengths)}")
        return self._cut(index, self.lengths[index])

    def _cut(self, index: int, n: int, start: int = 0) -> LayerAttention:
        """Cut one prompt to its first n queries, without the keys before `start`; the layer itself if that is all of it."""
        last = n + self.offset if self.key_lengths is None else self.key_lengths[index]  # with a cache keys come before query 0
        if self.lengths == (n,) and n == self.n_queries and not start and last == self.n_keys:
            return self
        keys = slice(start, last)
        cut: dict[str, Any] = {}
        for name in ("q", "k", "v", "lam", "gain", "lam_fp32", "sink_logit", "gate"):  # (batch or 1, head or 1, token or 1, ...)
            if (x := getattr(self, name)) is not None:
                cut[name] = (x[index : index + 1] if len(x) > 1 else x)[:, :, keys if name in ("k", "v") else slice(n)]
        if (visible := self.mask.visible) is not None:
            of_prompt = visible[index : index + 1] if len(visible) > 1 else visible
            cut["mask"] = replace(self.mask, visible=of_prompt[:, :n, keys])
        if self.changes:
            cut["changes"] = tuple(change.prompt(index) for change in self.changes)
        if self.key_lengths is not None:
            cut["key_lengths"] = (last,)
        return replace(self, **cut, lengths=(n,))

    def query_positions(self, queries: Queries = None) -> Tensor:
        """Return positions of queries, by default of all, int64 (query,)."""
        positions = torch.arange(self.n_queries, device=self.q.device)
        if queries is None:
            return positions
        if isinstance(queries, slice):
            return positions[queries]
        return torch.as_tensor(queries, dtype=torch.int64, device=self.q.device)

    def head_numbers(self, heads: Heads = None) -> Tensor:
        """Return numbers of heads, by default of all, int64 (head,); IndexError for a head that the layer has not."""
        index = torch.arange(self.n_heads, device=self.q.device)
        return index if heads is None else index[torch.as_tensor(heads, dtype=torch.int64, device=index.device)]

    def _one_prompt(self) -> None:
        if len(self.lengths) != 1:
            raise ValueError(f"this layer holds {len(self.lengths)} prompts; take one with .prompt(i)")

    def visible(self, queries: Queries = None) -> Tensor:
        """Return which keys some queries can see, bool (query, key)."""
        self._one_prompt()
        return self.mask.rows(self.query_positions(queries), self.n_keys, self.offset)

    def logits(self, queries: Queries = None, maps: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return scaled (and capped) scores of some query maps, −∞ at keys that are not visible.

        Parameters
        ----------
        queries : slice, sequence of int or int64 Tensor, optional
        maps : int64 Tensor, optional
        out : Tensor, optional, (map, query, key)
            Where to put the products, and perhaps the scores. Give none if a gradient is to flow.

        Returns
        -------
        Tensor, (map, query, key)
        """
        self._one_prompt()
        queries = self.query_positions(queries)
        maps = torch.arange(self.q.shape[1], device=self.q.device) if maps is None else maps
        q = self.q[0][maps[:, None], queries].to(self.dtype)  # (map, query, d)
        scores = products(q, self.k[0], self.pairing.key_of_map[maps], out)
        scores = scaled(scores, self.scale, self.soft_cap, self.score_dtype, self._needs_grad)
        offset = self.offset
        if self.position_bias is not None:
            distance = torch.arange(self.n_keys, device=queries.device) - (queries + offset)[:, None]  # (query, key)
            bias = self.position_bias[0, maps][:, distance + self.position_bias.shape[-1] // 2]  # (map, query, key)
            rounded = self.score_dtype or self.dtype
            scores = (scores.to(rounded) + bias.to(rounded)).to(self.dtype)
        first, last = self.mask.certain(queries, self.n_keys, offset)
        for keys in (slice(0, first), slice(last, self.n_keys)):  # all see what is in between
            if keys.stop > keys.start:
                scores[..., keys].masked_fill_(~self.mask.rows(queries, self.n_keys, offset, keys), -torch.inf)
        return scores

    @property
    def _needs_grad(self) -> bool:
        """Return whether a gradient is to flow, which it does not through memory that is used again."""
        inputs = (self.q, self.k, self.lam, self.sink_logit, self.position_bias)
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)

    def changed_logits(self, branch: int, context: RowContext) -> Tensor:
        """Return scaled scores of one branch of some heads with all changes made, (head, query, key)."""
        logits = self.logits(context.queries, self.pairing.of_branch(branch)[context.heads])
        for change in self.changes:
            logits = change.logits(context, branch, logits)
        return logits

    def changed_difference(self, context: RowContext, d: Tensor) -> Tensor:
        """Return D with all changes made, from gain·A1 − λ·A2, both (head, query, key)."""
        for change in self.changes:
            d = change.difference(context, d)
        return d

    def _softmax(self, branch: int, context: RowContext, workspace: Workspace, out: Tensor | None) -> Tensor:
        """Compute A1 or A2 of some heads and queries, (head, query, key), in `out` if that is possible."""
        maps = of_head = self.pairing.of_branch(branch)[context.heads]
        # Heads may share a map (grouped differential attention): each distinct one is computed once.
        shared = not self.changes and len(set(maps.tolist())) < len(maps)
        room = out
        if shared:
            maps, of_head = maps.unique(return_inverse=True)
            if out is not None:
                room = workspace.take("scores", (len(maps), *out.shape[1:]), self.dtype, self.q.device)
        logits = self.changed_logits(branch, context) if self.changes else self.logits(context.queries, maps, room)
        if self.sink_logit is None:
            weights = softmax(logits, room, may_be_blind=bool(self.changes) or self.mask.kind == "given")
        else:
            at = maps[:, None], context.queries, None
            sink = self.sink_logit[0].expand(self.q.shape[1], self.n_queries)[at].to(self.dtype)
            rounded = self.score_dtype and torch.promote_types(self.score_dtype, self.sink_logit.dtype)
            weights = softmax_with_sink(logits, sink, rounded, room)
        return torch.index_select(weights, 0, of_head, out=out) if shared else weights

    def rows(self, queries: Queries = None, heads: Heads = None, workspace: Workspace = NO_REUSE) -> Rows:
        """Compute A1, A2 and D of some queries and heads of one prompt.

        Parameters
        ----------
        queries : slice, sequence of int or int64 Tensor, optional
        heads : sequence of int, optional
        workspace : Workspace, optional
            Where the maps are put, until the next rows are put there; by default into new memory.

        Returns
        -------
        Rows
        """
        self._one_prompt()
        if heads is not None and any(change.of_all_heads for change in self.changes):
            return self.rows(queries, None, workspace).of_heads(self.head_numbers(heads))
        context = RowContext(self, self.head_numbers(heads), self.query_positions(queries))
        at = context.heads[:, None], context.queries
        lam, gain = (x[0].expand(self.n_heads, self.n_queries)[at].to(self.dtype) for x in (self.lam, self.gain))
        room: Sequence[Tensor | None] = [None] * 4
        buffer = None
        if not self.changes and not self._needs_grad:
            shape = (4 if self.differential else 2, len(context.heads), len(context.queries), self.n_keys)
            memory = workspace.take("maps", shape, self.dtype, self.q.device)  # A1, A2, room for |D|, D; or A1, D
            room = list(memory)
            buffer = memory[:3] if self.differential else None
        a1 = self._softmax(1, context, workspace, room[0])
        a2 = self._softmax(2, context, workspace, room[1]) if self.differential else None
        for change in self.changes:
            a1, a2 = change.maps(context, a1, a2)
        amplified = a1 if (gain == 1).all() else torch.mul(gain[..., None], a1, out=room[-1])
        d = amplified if a2 is None else torch.addcmul(amplified, lam[..., None], a2, value=-1, out=room[-1])
        d = self.changed_difference(context, d) if self.changes else d
        n = self.mask.counts(context.queries, self.n_keys, self.offset)
        return Rows(a1, a2, d, lam, gain, n, context.queries, bool(self.changes), buffer, workspace=workspace)

    def visible_rows(self, queries: Tensor, heads: Heads = None, workspace: Workspace = NO_REUSE) -> Rows:
        """Compute :meth:`rows` without the keys before the first and after the last that any of the queries sees.

        Over a whole causal map those are half of all keys. Only where the mask is a rule and nothing changes the rows.
        """
        if self.mask.kind not in ("causal", "window") or self.changes or not len(queries):
            return self.rows(queries, heads, workspace)
        self._one_prompt()
        offset = self.offset
        start = 0
        if self.mask.window is not None:
            start = max(0, int(queries.min()) + offset - self.mask.window + 1)
        rows = self._cut(0, int(queries.max()) + 1, start).rows(queries, heads, workspace)
        return replace(rows, start=start) if start else rows

    @without_autocast()
    def head_outputs(self, queries: Queries = None, heads: Heads = None) -> Tensor:
        """Return D·V before the norm, (head, query, width)."""
        values = self.v[0][self.pairing.value_of_head[self.head_numbers(heads)]].to(self.dtype)  # (head, key, width)

        def product(block: Block, rows: Rows) -> Tensor:
            keys = slice(rows.start, rows.start + rows.d.shape[-1])
            return torch.matmul(rows.d, values[block.heads.start : block.heads.stop, keys])

        return gather(self, queries, product, heads=heads, all_heads=bool(self.changes))

    @without_autocast()
    def head_postprocess(self, out: Tensor, queries: Queries = None) -> Tensor:
        """Turn D·V of all heads at some queries into what enters the output projection, both (head, query, width)."""
        queries = self.query_positions(queries)
        out = (out if self.norm is None else self.norm(out)) * self.post_scale
        if self.correction is not None:
            out = out - out @ self.correction.to(out.dtype)
        if self.gate is not None:
            out = out * self.gate[0].expand(-1, self.n_queries, -1)[:, queries].to(out.dtype)
        for change in self.changes:
            out = change.output(RowContext(self, self.head_numbers(None), queries), out)
        return out

    def output(self, queries: Queries = None) -> Tensor:
        """Rebuild what enters the output projection, (head, query, width)."""
        return self.head_postprocess(self.head_outputs(queries), queries)
