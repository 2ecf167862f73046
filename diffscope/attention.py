"""LayerAttention: what one layer attended with, and the only place that turns q, k and λ into A1, A2 and D.

    A1 = softmax(scale·Q1·K1ᵀ),  A2 = softmax(scale·Q2·K2ᵀ),  D = gain·A1 − λ·A2,  output = norm(D·V)·post_scale

Standard attention is the case without A2: D = A1, λ = 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

# Elements of one (head, query, key) temporary: 4 MiB in float32, which stay in a processor's cache and so are twice as fast
# as 32 MiB that do not; on a GPU 64 MiB, which keep it busy.
BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": 2**24}
BLOCKS_BETWEEN_TRIMS = 16


@cache
def _malloc_trim():
    """glibc's function of that name; None under another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def give_back_memory() -> None:
    """Return freed memory to the system.

    glibc keeps freed blocks of a few MiB for itself and scatters small results among them: at 8,192 tokens it had grown
    by 2 GiB of which a few MiB were in use. Trimming every few blocks costs some milliseconds.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@dataclass(frozen=True)
class Mask:
    """Which keys a query may see.

    Attributes
    ----------
    kind : {"causal", "window", "full", "given"}
        ``causal``: keys up to the query. ``window``: the last `window` of those. ``full``: all keys.
        ``given``: the rows of `visible`.
    window : int, optional
        Width of the window, the query itself included.
    visible : bool Tensor, optional, (batch or 1, query, key)
        Held only for ``given``, whose size no rule can bring below N².
    """

    kind: str = "causal"
    window: int | None = None
    visible: Tensor | None = None

    def rows(self, queries: Tensor, keys: int, offset: int) -> Tensor:
        """Visible keys of some queries, bool (query, key); `offset` is the key position of query 0."""
        if self.kind == "given":
            return self.visible[0, queries]
        position = torch.arange(keys, device=queries.device)  # (key,)
        if self.kind == "full":
            return torch.ones(len(queries), keys, dtype=torch.bool, device=queries.device)
        behind = (queries + offset)[:, None] - position  # (query, key)
        seen = behind >= 0
        return seen & (behind < self.window) if self.kind == "window" else seen


@dataclass(frozen=True)
class Pairing:
    """Which maps, keys and values a head uses.

    Attributes
    ----------
    a1 : int64 Tensor, (head,)
        Index of the head's first map among the query maps.
    a2 : int64 Tensor, (head,), or None
        Index of its second map; several heads may share one. None without a second map.
    key_of_map : int64 Tensor, (map,)
        Index of the key map that a query map looks at (grouped-query attention shares them).
    value_of_head : int64 Tensor, (head,)
    """

    a1: Tensor
    a2: Tensor | None
    key_of_map: Tensor
    value_of_head: Tensor


@dataclass(frozen=True)
class Norm:
    """The normalisation of a head's output: ``rms`` over the head's width, with `weight` or without."""

    kind: str
    eps: float
    weight: Tensor | None = None  # (width,), or (head, width)

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., head, query, width) → the same shape."""
        if self.kind != "rms":
            raise ValueError(f"norm kind {self.kind!r} is unknown; only 'rms' is")
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weight is None:
            return x
        weight = self.weight.to(x.dtype)
        return x * (weight if weight.dim() == 1 else weight[:, None, :])

    def factor(self, x: Tensor) -> Tensor:
        """By how much each row of x (..., head, query, width) is scaled, (..., head, query)."""
        size = torch.rsqrt(x.pow(2).mean(-1) + self.eps)
        if self.weight is None:
            return size
        weight = self.weight.to(x.dtype).pow(2).mean(-1).sqrt()  # () or (head,)
        return size * (weight if weight.dim() == 0 else weight[:, None])


@dataclass(frozen=True)
class Rows:
    """A block of rows of one layer and one prompt, in float32 (float64 if the model is).

    Attributes
    ----------
    a1, d : Tensor, (head, query, key)
        Exact zeros on keys that the query cannot see.
    a2 : Tensor, (head, query, key), or None
    lam, gain : Tensor, (head, query)
    n : int64 Tensor, (query,)
        Number of keys each row can see.
    queries : int64 Tensor, (query,)
    """

    a1: Tensor
    a2: Tensor | None
    d: Tensor
    lam: Tensor
    gain: Tensor
    n: Tensor
    queries: Tensor


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
    mask : Mask
    pairing : Pairing
    lam, gain : Tensor, broadcastable to (batch, head, query)
        The values the model used, after any cast.
    lam_fp32 : Tensor, same shape as `lam`
        λ before the cast to the activations' dtype.
    lam_init : float or None
    norm : Norm or None
    post_scale : float
        Factor after the norm, 1 − λ_init in V1.
    lengths : tuple of int
        Tokens of each prompt; what is to the right of them is padding.
    score_dtype : torch.dtype, optional
        What the model rounded its scores to before the softmax, if to less than float32 (eager attention in half precision);
        its maps are those of the rounded scores.
    """

    layer: int
    family: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    mask: Mask
    pairing: Pairing
    lam: Tensor
    gain: Tensor
    lam_fp32: Tensor
    lam_init: float | None
    norm: Norm | None
    post_scale: float
    lengths: tuple[int, ...]
    score_dtype: torch.dtype | None = None

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
    def differential(self) -> bool:
        """Whether there is a second map."""
        return self.pairing.a2 is not None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype maps are computed in: float64 for a float64 model, else float32."""
        return torch.promote_types(self.q.dtype, torch.float32)

    def prompt(self, index: int) -> LayerAttention:
        """One prompt of the batch, its padding cut away."""
        if not 0 <= index < len(self.lengths):
            raise IndexError(f"prompt {index} is outside the batch of {len(self.lengths)}")
        n, visible = self.lengths[index], self.mask.visible

        def of_batch(x: Tensor) -> Tensor:  # (batch or 1, ...) → (1, ...)
            return x[index : index + 1] if len(x) > 1 else x

        def per_query(x: Tensor) -> Tensor:  # (batch or 1, head or 1, query or 1)
            return of_batch(x)[:, :, :n]

        if visible is not None:
            visible = of_batch(visible)[:, :n, :n]
        return replace(
            self,
            q=of_batch(self.q)[:, :, :n],
            k=of_batch(self.k)[:, :, :n],
            v=of_batch(self.v)[:, :, :n],
            lam=per_query(self.lam),
            gain=per_query(self.gain),
            lam_fp32=per_query(self.lam_fp32),
            mask=replace(self.mask, visible=visible),
            lengths=(n,),
        )

    def _queries(self, queries) -> Tensor:
        everything = torch.arange(self.n_queries, device=self.q.device)
        if queries is None:
            return everything
        if isinstance(queries, slice):
            return everything[queries]
        return torch.as_tensor(queries, dtype=torch.int64, device=self.q.device)

    def _heads(self, heads) -> Tensor:
        index = torch.arange(self.n_heads, device=self.q.device)
        return index if heads is None else index[torch.as_tensor(heads, dtype=torch.int64, device=index.device)]

    def _one_prompt(self) -> None:
        if len(self.lengths) != 1:
            raise ValueError(f"this layer holds {len(self.lengths)} prompts; take one with .prompt(i)")

    def visible(self, queries=None) -> Tensor:
        """Which keys some queries can see, bool (query, key)."""
        self._one_prompt()
        return self.mask.rows(self._queries(queries), self.n_keys, self.n_keys - self.n_queries)

    def logits(self, queries=None, maps=None) -> Tensor:
        """Scaled scores of some query maps, −∞ where a key is not visible.

        Parameters
        ----------
        queries : slice or int64 Tensor, optional
            Query positions, by default all.
        maps : int64 Tensor, optional
            Query maps, by default all.

        Returns
        -------
        Tensor, (map, query, key)
        """
        self._one_prompt()
        queries = self._queries(queries)
        maps = torch.arange(self.q.shape[1], device=self.q.device) if maps is None else maps
        q = self.q[0][maps][:, queries].to(self.dtype)  # (map, query, d)
        k = self.k[0][self.pairing.key_of_map[maps]].to(self.dtype)  # (map, key, d)
        scores = torch.matmul(q, k.transpose(1, 2))
        if self.score_dtype is not None:  # the product, then the scaled product, is rounded
            scores = (scores.to(self.score_dtype) * self.scale).to(self.dtype)
        else:
            scores.mul_(self.scale)
        return scores.masked_fill_(~self.visible(queries), -torch.inf)

    def _softmax(self, queries: Tensor, maps: Tensor) -> Tensor:
        # Heads may share a map (grouped differential attention): each distinct one is computed once.
        distinct, of_head = maps.unique(return_inverse=True)
        weights = self.logits(queries, distinct).softmax(-1)
        # A row that sees nothing is 0/0; the model gives it no meaning either.
        weights = weights.nan_to_num_(0.0)
        return weights if len(distinct) == len(maps) and torch.equal(distinct, maps) else weights[of_head]

    def rows(self, queries=None, heads=None) -> Rows:
        """A1, A2 and D of some queries and heads of one prompt.

        Parameters
        ----------
        queries : slice, sequence of int or int64 Tensor, optional
        heads : sequence of int, optional

        Returns
        -------
        Rows
        """
        queries, heads = self._queries(queries), self._heads(heads)
        shape = (len(heads), len(queries))

        def per_row(x: Tensor) -> Tensor:
            return x[0].expand(self.n_heads, self.n_queries)[heads][:, queries].to(self.dtype).reshape(shape)

        lam, gain = per_row(self.lam), per_row(self.gain)
        a1 = self._softmax(queries, self.pairing.a1[heads])
        a2 = self._softmax(queries, self.pairing.a2[heads]) if self.differential else None
        d = a1 if a2 is None else gain[..., None] * a1 - lam[..., None] * a2
        return Rows(a1, a2, d, lam, gain, self.visible(queries).sum(-1), queries)

    def blocks(self, queries=None, heads=None, elements: int | None = None) -> Iterator[Rows]:
        """The same rows in blocks, so that no temporary exceeds `elements` (head, query, key) values.

        It always has one row of each head. By default what is fastest on the device: ``BLOCK_ELEMENTS``.
        """
        queries, heads = self._queries(queries), self._heads(heads)
        elements = elements or BLOCK_ELEMENTS.get(self.q.device.type, BLOCK_ELEMENTS["cpu"])
        size = max(1, elements // (len(heads) * self.n_keys))
        for number, block in enumerate(queries.split(size)):
            yield self.rows(block, heads)
            if number % BLOCKS_BETWEEN_TRIMS == BLOCKS_BETWEEN_TRIMS - 1:
                give_back_memory()

    def head_outputs(self, queries=None, heads=None) -> Tensor:
        """D·V before the norm, (head, query, width), computed in row blocks."""
        heads = self._heads(heads)
        v = self.v[0][self.pairing.value_of_head[heads]].to(self.dtype)  # (head, key, width)
        return torch.cat([torch.matmul(rows.d, v) for rows in self.blocks(queries, heads)], dim=1)

    def output(self, queries=None) -> Tensor:
        """What enters the output projection, rebuilt: norm(D·V)·post_scale, (head, query, width)."""
        out = self.head_outputs(queries)
        return out if self.norm is None else self.norm(out) * self.post_scale

    def dismantle(self) -> tuple[dict[str, Tensor], dict]:
        """Tensors by name, and everything else ready for JSON; what :meth:`assemble` puts together again."""
        tensors = {name: getattr(self, name) for name in ("q", "k", "v", "lam", "gain", "lam_fp32")}
        tensors |= {f"pairing.{name}": value for name, value in vars(self.pairing).items() if value is not None}
        if self.mask.visible is not None:
            tensors["mask.visible"] = self.mask.visible
        if self.norm is not None and self.norm.weight is not None:
            tensors["norm.weight"] = self.norm.weight
        record = {name: getattr(self, name) for name in ("layer", "family", "scale", "lam_init", "post_scale", "lengths")}
        record["score_dtype"] = None if self.score_dtype is None else str(self.score_dtype).removeprefix("torch.")
        record["mask"] = [self.mask.kind, self.mask.window]
        record["norm"] = None if self.norm is None else [self.norm.kind, self.norm.eps]
        return tensors, record

    @classmethod
    def assemble(cls, tensors: dict[str, Tensor], record: dict) -> LayerAttention:
        """The inverse of :meth:`dismantle`."""
        fields = dict(record)
        kind, window = fields.pop("mask")
        rounded = fields.pop("score_dtype")
        norm = fields.pop("norm")
        pairing = Pairing(*(tensors.get(f"pairing.{name}") for name in ("a1", "a2", "key_of_map", "value_of_head")))
        return cls(
            **{**fields, "lengths": tuple(fields["lengths"])},
            **{name: tensor for name, tensor in tensors.items() if "." not in name},
            score_dtype=None if rounded is None else getattr(torch, rounded),
            mask=Mask(kind, window, tensors.get("mask.visible")),
            norm=None if norm is None else Norm(*norm, tensors.get("norm.weight")),
            pairing=pairing,
        )
