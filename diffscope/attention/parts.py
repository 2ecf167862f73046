"""What a LayerAttention is made of: mask, pairing of maps and norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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

    def rows(self, queries: Tensor, keys: int, offset: int, some: slice = slice(None)) -> Tensor:
        """Which of the keys, or of some of them, some queries see, bool (query, key); `offset` is the position of query 0."""
        if self.kind == "given":
            return self.visible[0, queries][:, some]
        position = torch.arange(keys, device=queries.device)[some]  # (key,)
        if self.kind == "full":
            return torch.ones(len(queries), len(position), dtype=torch.bool, device=queries.device)
        behind = (queries + offset)[:, None] - position  # (query, key)
        seen = behind >= 0
        return seen & (behind < self.window) if self.kind == "window" else seen

    def counts(self, queries: Tensor, keys: int, offset: int) -> Tensor:
        """How many keys each of some queries sees, int64 (query,)."""
        if self.kind == "given":
            return self.visible[0, queries].sum(-1)
        if self.kind == "full":
            return torch.full_like(queries, keys)
        last = (queries + offset + 1).clamp(0, keys)
        first = (queries + offset + 1 - self.window).clamp(0) if self.kind == "window" else 0
        return (last - first).clamp(0)

    def certain(self, queries: Tensor, keys: int, offset: int) -> tuple[int, int]:
        """The range of keys, from and up to, that every one of some queries sees for sure."""
        if self.kind == "full":
            return 0, keys
        if self.kind == "given" or not len(queries):
            return keys, keys
        last = min(keys, max(0, int(queries.min()) + offset + 1))
        first = max(0, int(queries.max()) + offset + 1 - self.window) if self.kind == "window" else 0
        return min(first, last), last


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
    """The normalisation of a head's output.

    Attributes
    ----------
    kind : {"rms", "scalar"}
        ``rms`` over the head's width, with `weight` or without; ``scalar`` multiplies with `weight` alone.
    eps : float
    weight : Tensor, optional, (width,) or (head, width)
    """

    kind: str
    eps: float
    weight: Tensor | None = None

    def _weight(self, x: Tensor) -> Tensor | None:
        """As it multiplies x (..., head, query, width)."""
        if self.weight is None:
            return None
        weight = self.weight.to(x.dtype)
        return weight if weight.dim() == 1 else weight[:, None, :]

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., head, query, width) → the same shape."""
        weight = self._weight(x)
        if self.kind == "rms":
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        elif self.kind != "scalar":
            raise ValueError(f"norm kind {self.kind!r} is unknown; 'rms' and 'scalar' are known")
        return x if weight is None else x * weight

    def factor(self, x: Tensor) -> Tensor:
        """By how much each row of x (..., head, query, width) is scaled, (..., head, query)."""
        size = torch.rsqrt(x.pow(2).mean(-1) + self.eps) if self.kind == "rms" else x.new_ones(x.shape[:-1])
        weight = self._weight(x)
        return size if weight is None else size * weight.pow(2).mean(-1).sqrt()
