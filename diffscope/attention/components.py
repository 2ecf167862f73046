"""Parts of a LayerAttention: mask, pairing of maps, norm, and the rows that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from diffscope.attention.memory import NO_REUSE, Workspace

Device = torch.device | str | None


@dataclass(frozen=True)
class Mask:
    """A rule, or a table, of the keys that a query may see.

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

    def __post_init__(self) -> None:
        needs = {"causal": (False, False), "full": (False, False), "window": (True, False), "given": (False, True)}
        if needs.get(self.kind) != (self.window is not None, self.visible is not None):
            raise ValueError(f"no mask is {self.kind!r} with window {self.window} and visible {self.visible is not None}")

    def rows(self, queries: Tensor, keys: int, offset: int, some: slice = slice(None)) -> Tensor:
        """Return which keys some queries see, bool (query, key); `some` chooses keys, `offset` is the position of query 0."""
        if self.visible is not None:
            return self.visible[0, queries][:, some]
        position = torch.arange(keys, device=queries.device)[some]  # (key,)
        if self.kind == "full":
            return torch.ones(len(queries), len(position), dtype=torch.bool, device=queries.device)
        behind = (queries + offset)[:, None] - position  # (query, key)
        seen = behind >= 0
        return seen if self.window is None else seen & (behind < self.window)

    def bins(self, width: int, queries: int, keys: int) -> Tensor:
        """Return whether any query of a bin of `width` sees any key of another, bool (query bin, key bin)."""
        if self.visible is not None:
            rows = torch.stack([some.any(0) for some in self.visible[0].split(width)])
            return torch.stack([some.any(1) for some in rows.split(width, 1)], 1)
        first_query, first_key = torch.arange(0, queries, width), torch.arange(0, keys, width)
        if self.kind == "full":
            return torch.ones(len(first_query), len(first_key), dtype=torch.bool)
        offset = keys - queries
        last_query, last_key = ((first + width).clamp_max(n) - 1 for first, n in ((first_query, queries), (first_key, keys)))
        seen = (last_query + offset)[:, None] - first_key >= 0
        return seen if self.window is None else seen & ((first_query + offset)[:, None] - last_key < self.window)

    def counts(self, queries: Tensor, keys: int, offset: int) -> Tensor:
        """Count the keys that each of some queries sees, int64 (query,)."""
        if self.visible is not None:
            return self.visible[0, queries].sum(-1)
        if self.kind == "full":
            return torch.full_like(queries, keys)
        last = (queries + offset + 1).clamp(0, keys)
        first = 0 if self.window is None else (queries + offset + 1 - self.window).clamp(0)
        return (last - first).clamp(0)

    def seeing(self, queries: Tensor, prompt: int = 0) -> Tensor:
        """Return the queries of a prompt that see any key; padding on the left sees none."""
        return queries if self.visible is None else queries[self.visible[prompt % len(self.visible), queries].any(-1)]

    def certain(self, queries: Tensor, keys: int, offset: int) -> tuple[int, int]:
        """Return the range of keys, from and up to, that every one of some queries sees for sure."""
        if self.kind == "full":
            return 0, keys
        if self.kind == "given" or not len(queries):
            return keys, keys
        last = min(keys, max(0, int(queries.min()) + offset + 1))
        first = 0 if self.window is None else max(0, int(queries.max()) + offset + 1 - self.window)
        return min(first, last), last


@dataclass(frozen=True)
class Pairing:
    """Indices of the maps, keys and values that each head uses.

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

    def of_branch(self, branch: int) -> Tensor:
        """Return every head's first map (branch 1) or second map (branch 2), int64 (head,); ValueError without a second map."""
        maps = self.a1 if branch == 1 else self.a2
        if maps is None:
            raise ValueError("standard attention has no second map")
        return maps

    @classmethod
    def plain(cls, heads: int, groups: int | None = None, device: Device = None) -> Pairing:
        """Pair one map with a head and no second one: standard attention.

        Parameters
        ----------
        heads : int
        groups : int, optional
            How many key and value heads serve them, neighbouring heads the same one; by default one each.
        device : torch.device or str, optional
        """
        head, group, _ = _in_groups(heads, groups, device)
        return cls(head, None, group, group)

    @classmethod
    def halves(cls, heads: int, groups: int | None = None, device: Device = None) -> Pairing:
        """Pair head h with maps h and h + H; of 2·`groups` key heads the first half serves first maps, the others second ones.

        Parameters
        ----------
        heads, groups, device
            As of :meth:`plain`; there are `groups` value heads.
        """
        head, group, groups = _in_groups(heads, groups, device)
        return cls(head, head + heads, torch.cat([group, group + groups]), group)

    @classmethod
    def one_second(cls, heads: int, groups: int | None = None, device: Device = None) -> Pairing:
        """Pair head h with map h, and all heads with map H. Of `groups` + 1 key heads the last serves the second map.

        Parameters
        ----------
        heads, groups, device
            As of :meth:`plain`; there are `groups` value heads.
        """
        head, group, groups = _in_groups(heads, groups, device)
        return cls(head, torch.full_like(head, heads), torch.cat([group, group.new_tensor([groups])]), group)

    @classmethod
    def stripes(cls, heads: int, groups: int | None = None, *, shared_keys: bool = False, device: Device = None) -> Pairing:
        """Pair head h with maps 2h and 2h + 1; parameters as of :meth:`grouped`."""
        return cls.grouped(heads, heads, groups, shared_keys=shared_keys, device=device)

    @classmethod
    def grouped(
        cls, heads: int, seconds: int, groups: int | None = None, *, shared_keys: bool = False, device: Device = None
    ) -> Pairing:
        """Share a second map among heads: of every r + 1 query maps the last is that of the r heads before it.

        Parameters
        ----------
        heads : int
        seconds : int
            How many second maps there are; r = heads / seconds.
        groups : int, optional
            How many value heads there are, neighbouring heads having the same one; by default one a second map.
        shared_keys : bool
            Whether both maps of a head look at the key head of that group. Otherwise key heads come in pairs, 2g for the first
            maps of group g and 2g + 1 for the second ones.
        device : torch.device or str, optional
        """
        ratio = heads // _divides(seconds, heads)
        maps = heads + seconds
        groups = _divides(groups, seconds)  # heads that share a second map are of one group
        head = torch.arange(heads, device=device)
        first_of_ratio = head // ratio * (ratio + 1)
        a1 = first_of_ratio + head % ratio
        a2 = first_of_ratio + ratio
        if shared_keys:
            key_of_map = torch.arange(maps, device=device) * groups // maps
            return cls(a1, a2, key_of_map, key_of_map[a1])
        group = head * groups // heads
        key_of_map = torch.empty(maps, dtype=torch.int64, device=device)
        key_of_map[a1] = 2 * group
        key_of_map[a2] = 2 * group + 1
        return cls(a1, a2, key_of_map, group)


def _in_groups(heads: int, groups: int | None, device: Device) -> tuple[Tensor, Tensor, int]:
    """Return heads by number, the group of each if neighbours are in one, int64 (head,), and how many groups there are."""
    groups = _divides(groups, heads)
    head = torch.arange(heads, device=device)
    return head, head * groups // heads, groups


def _divides(part: int | None, whole: int) -> int:
    """Return `part`, by default `whole` itself; ValueError unless it divides `whole`."""
    part = whole if part is None else part
    if part < 1 or whole % part:
        raise ValueError(f"{part} does not divide {whole}")
    return part


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

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x (..., head, query, width)."""
        if self.kind == "rms":
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        elif self.kind != "scalar":
            raise ValueError(f"norm kind {self.kind!r} is unknown; 'rms' and 'scalar' are known")
        return x if self.weight is None else x * self.weight.to(x.dtype)[..., None, :]

    def factor(self, x: Tensor) -> Tensor:
        """Return the factor by which each row of x (..., head, query, width) is scaled, (..., head, query)."""
        size = torch.rsqrt(x.pow(2).mean(-1) + self.eps) if self.kind == "rms" else x.new_ones(x.shape[:-1])
        return size if self.weight is None else size * self.weight.to(x.dtype).pow(2).mean(-1).sqrt()[..., None]

    def derivative(self, x: Tensor, direction: Tensor) -> Tensor:
        """Return how fast the normalised x moves as x moves in a direction, all (..., head, query, width)."""
        if self.kind == "rms":
            factor = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
            direction = factor * (direction - x * factor.square() * (x * direction).mean(-1, keepdim=True))
        return direction if self.weight is None else direction * self.weight.to(x.dtype)[..., None, :]


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
    changed : bool
        Whether a change was made to them; then D need not be gain·A1 − λ·A2, nor its rows sum to gain − λ.
    buffer : Tensor, (map, head, query, key), optional
        The memory that A1 and A2 share, with room for |D| behind them.
    start : int
        Position of the first key, where keys that no query of the block sees were left out.
    workspace : Workspace
        Where temporaries of the same thread may lie until the next block.
    """

    a1: Tensor
    a2: Tensor | None
    d: Tensor
    lam: Tensor
    gain: Tensor
    n: Tensor
    queries: Tensor
    changed: bool = False
    buffer: Tensor | None = None
    start: int = 0
    workspace: Workspace = field(default=NO_REUSE, repr=False)

    def of_heads(self, heads: Tensor) -> Rows:
        """Return the rows of some heads, int64 (head,), of a block with the rows of all heads."""
        a2 = None if self.a2 is None else self.a2[heads]
        chosen = {name: getattr(self, name)[heads] for name in ("a1", "d", "lam", "gain")}
        return replace(self, a2=a2, buffer=None, **chosen)
