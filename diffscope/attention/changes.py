"""Changes of a layer's rows: what an edit does that no field of the contract can say.

Each is a frozen dataclass whose `heads` are those it acts on; tensors are (batch or 1, …), or (batch or 1, head, …).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from diffscope.errors import DiffscopeError, PromptError
from diffscope.fields import Kind, listed, one_of, whole

if TYPE_CHECKING:
    from diffscope.attention.layer import LayerAttention

LEAST_SUM = 1e-3
SCATTERED = 1e4  # so many times a draw around the unit interval


@dataclass(frozen=True)
class RowContext:
    """The heads and queries that a change is applied to.

    Attributes
    ----------
    layer : LayerAttention
        Of one prompt.
    heads : int64 Tensor, (head,)
    queries : int64 Tensor, (query,)
    """

    layer: LayerAttention
    heads: Tensor
    queries: Tensor

    @property
    def visible(self) -> Tensor:
        """Return which keys the queries see, bool (query, key)."""
        return self.layer.visible(self.queries)

    @property
    def positions(self) -> Tensor:
        """Return the positions of the queries among the keys, (query,)."""
        return self.queries + self.layer.offset


@dataclass(frozen=True)
class Change:
    """A change of a layer's rows that no field of the contract can say.

    A subclass is a frozen dataclass of plain values and tensors, so that a changed capture can be saved; its tensors are
    (batch or 1, …), or (batch or 1, head, …) if heads differ. It overrides the methods of the stages at which it acts; the
    others give back what they get.
    """

    kinds: ClassVar[dict[str, type[Change]]] = {}
    of_all_heads: ClassVar[bool] = False  # whether the rows of a head depend on those of others, so that all are to be computed
    takes: ClassVar[dict[str, Kind]] = {}  # fields that may not hold whatever their type can

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Change.kinds[cls.__name__] = cls

    def logits(self, context: RowContext, branch: int, logits: Tensor) -> Tensor:
        """Change the scores of one branch as they enter the softmax, scaled and capped, (head, query, key).

        They are −∞ at keys that are not visible.

        A sink logit is not among them: it has no key, and stays as it is whatever becomes of the scores.
        """
        return logits

    def maps(self, context: RowContext, a1: Tensor, a2: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Change A1 and A2, (head, query, key)."""
        return a1, a2

    def difference(self, context: RowContext, d: Tensor) -> Tensor:
        """Change D, (head, query, key)."""
        return d

    def output(self, context: RowContext, out: Tensor) -> Tensor:
        """Change the heads' outputs as they enter the output projection, (head, query, width)."""
        return out

    @property
    def of_difference(self) -> bool:
        """Return whether it acts on D after the subtraction, so that D need not be gain·A1 − λ·A2."""
        return type(self).difference is not Change.difference

    def prompt(self, index: int) -> Change:
        """Return the change with its tensors cut to one prompt of the batch."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        of_batch = {name: x[index : index + 1] for name, x in values.items() if isinstance(x, Tensor) and len(x) > 1}
        return type(self)(**values | of_batch) if of_batch else self


def mass(context: RowContext, a: Tensor) -> Tensor | float:
    """Return the sum that a replaced row of A1 or A2 (head, query, key) must have.

    It is 1, or with sink logits the sum of the original row, (head, query, 1): the sink logit then decides how much goes to keys
    at all, and a change of where attention goes leaves that.
    """
    return 1.0 if context.layer.sink_logit is None else a.sum(-1, keepdim=True)


def uniform(context: RowContext, a: Tensor) -> Tensor:
    """Return the rows that have equal weight on every key that they see, and the :func:`mass` of those of `a`."""
    visible = context.visible.to(a.dtype)
    return visible / visible.sum(-1, keepdim=True).clamp_min(1) * mass(context, a)


def permuted(a: Tensor, visible: Tensor, draws: Tensor) -> Tensor:
    """Permute the weights of each row (..., query, key) among the keys that it sees, in the order of draws between 0 and 1."""
    source = draws.masked_fill(~visible, 2).argsort(-1)  # visible keys first, in random order
    place = (~visible).byte().argsort(dim=-1, stable=True)  # visible keys first, as they stand
    return torch.zeros_like(a).scatter(-1, place.expand_as(a), a.gather(-1, source.expand_as(a)))


def chosen(heads: tuple[int, ...], context: RowContext) -> Tensor:
    """Return which heads of a context a change acts on, bool (head, 1, 1)."""
    return torch.isin(context.heads, torch.tensor(heads, device=context.heads.device))[:, None, None]


@dataclass(frozen=True)
class ChangeOfA2(Change):
    """A change of the second map of some heads."""

    heads: tuple[int, ...]

    def maps(self, context: RowContext, a1: Tensor, a2: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if a2 is None:
            raise DiffscopeError(f"layer {context.layer.layer} has no second map to change")
        return a1, torch.where(chosen(self.heads, context), self.second(context, a2), a2)

    def second(self, context: RowContext, a2: Tensor) -> Tensor:
        """Return the changed second map of all heads of the context, broadcastable to (head, query, key)."""
        raise NotImplementedError


@dataclass(frozen=True)
class ScaleA2(ChangeOfA2):
    """A2 times a factor."""

    factor: float

    def second(self, context: RowContext, a2: Tensor) -> Tensor:
        return a2 * self.factor


@dataclass(frozen=True)
class UniformA2(ChangeOfA2):
    """Equal weight on every visible key, in place of A2, with its :func:`mass`."""

    def second(self, context: RowContext, a2: Tensor) -> Tensor:
        return uniform(context, a2)


@dataclass(frozen=True)
class SharedA2(ChangeOfA2):
    """The mean of the second maps of all heads of the layer, including heads that it does not act on."""

    of_all_heads = True

    def second(self, context: RowContext, a2: Tensor) -> Tensor:
        return a2.mean(0, keepdim=True)


@dataclass(frozen=True)
class FixA2(ChangeOfA2):
    """A2 is the same map for every prompt."""

    map: Tensor  # (1, head, position, key)

    def second(self, context: RowContext, a2: Tensor) -> Tensor:
        keys, size = context.layer.n_keys, self.map.shape[-1]
        if keys > size or (keys < size and context.layer.mask.kind == "full"):  # where all keys are seen a shorter row is no mean
            raise PromptError(f"the mean map is of {size} tokens and cannot serve {keys}; average prompts of the right length")
        rows = self.map[0][context.heads[:, None], context.positions, :keys]  # indexed at once: no copy of whole maps
        return rows * context.visible


@dataclass(frozen=True)
class PositionalA2(ChangeOfA2):
    """A2 by distance alone, the first key by itself, with its :func:`mass`."""

    profile: Tensor  # (1, head, 1 + distance): the first key's mass, then the weight at distance 0, 1, ...

    def second(self, context: RowContext, a2: Tensor) -> Tensor:
        keys = context.layer.n_keys
        if keys > self.profile.shape[-1]:
            raise PromptError(f"the positional mean is of {self.profile.shape[-1]} tokens and cannot serve {keys}")
        profile = self.profile[0][context.heads]  # (head, 1 + distance)
        distance = context.positions[:, None] - torch.arange(keys, device=profile.device)  # (query, key)
        if (distance < 0)[context.visible].any():
            raise DiffscopeError("the positional mean is of causal maps, and this layer sees later keys")
        others = context.visible & (torch.arange(keys, device=profile.device) > 0)
        row = profile[:, 1:][:, distance.clamp_min(0).clamp_max(profile.shape[1] - 2)] * others
        total = row.sum(-1, keepdim=True)
        first = context.visible[:, :1] * profile[:, :1, None]  # (head, query, 1)
        first = torch.where(total > 0, first, 1.0)  # a row that sees the first key alone
        row = row / total.clamp_min(1e-30) * (1 - first)
        row[..., :1] = first * context.visible[:, :1]
        return row * mass(context, a2)


@dataclass(frozen=True)
class LowRankA2(ChangeOfA2):
    """The visible part of a product of two narrow matrices in place of A2; with `normalise` its rows have the sums of A2's."""

    left: Tensor  # (batch, head, query, rank)
    right: Tensor  # (batch, head, key, rank)
    normalise: bool = False

    def second(self, context: RowContext, a2: Tensor) -> Tensor:
        left = self.left[0][context.heads[:, None], context.queries]  # (head, query, rank)
        right = self.right[0][context.heads, : context.layer.n_keys]  # (head, key, rank)
        rows = left @ right.transpose(1, 2) * context.visible
        total = rows.sum(-1, keepdim=True)
        return torch.where(total < LEAST_SUM, rows, rows / total * mass(context, a2)) if self.normalise else rows


@dataclass(frozen=True)
class TopKA1(Change):
    """The k largest weights of each row of A1; with `renormalise` they have the :func:`mass` of the row."""

    takes = {"k": whole(1)}

    heads: tuple[int, ...]
    k: int
    renormalise: bool

    def maps(self, context: RowContext, a1: Tensor, a2: Tensor | None) -> tuple[Tensor, Tensor | None]:
        top = a1.topk(min(self.k, a1.shape[-1]), dim=-1)
        sparse = torch.zeros_like(a1).scatter(-1, top.indices, top.values)
        if self.renormalise:
            sparse = sparse / sparse.sum(-1, keepdim=True).clamp_min(1e-30) * mass(context, a1)
        return torch.where(chosen(self.heads, context), sparse, a1), a2


@dataclass(frozen=True)
class UniformA1(Change):
    """Equal weight on every visible key, in place of A1, with its :func:`mass`."""

    heads: tuple[int, ...]

    def maps(self, context: RowContext, a1: Tensor, a2: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return torch.where(chosen(self.heads, context), uniform(context, a1), a1), a2


@dataclass(frozen=True)
class SignedMask(Change):
    """D is multiplied with tanh(u·w + b), between −1 and 1."""

    heads: tuple[int, ...]
    left: Tensor  # (batch, head, query, width): u
    right: Tensor  # (batch, head, key, width): w
    bias: Tensor  # (1, head)

    def difference(self, context: RowContext, d: Tensor) -> Tensor:
        left = self.left[0][context.heads[:, None], context.queries]
        right = self.right[0][context.heads, : context.layer.n_keys]
        mask = torch.tanh(left @ right.transpose(1, 2) + self.bias[0][context.heads][:, None, None])
        return torch.where(chosen(self.heads, context), d * mask.to(d.dtype), d)


@dataclass(frozen=True)
class Reshape(Change):
    """D as ``absolute``, ``positive``, ``by sum`` or ``by absolute``."""

    takes = {"kind": one_of("absolute", "positive", "by sum", "by absolute")}

    heads: tuple[int, ...]
    kind: str

    def difference(self, context: RowContext, d: Tensor) -> Tensor:
        acts = chosen(self.heads, context)
        if self.kind == "absolute":
            return torch.where(acts, d.abs(), d)
        if self.kind == "positive":
            return torch.where(acts, d.clamp_min(0), d)
        size = d.abs().sum(-1, keepdim=True)
        total = d.sum(-1, keepdim=True) if self.kind == "by sum" else size
        if self.kind == "by sum" and ((total.abs() < LEAST_SUM) & (size > 0) & acts).any():
            raise DiffscopeError(
                f"layer {context.layer.layer}: a row of D sums to less than {LEAST_SUM}, so dividing by it means nothing; "
                "choose normalise_d(by='absolute'), or other layers"
            )
        return torch.where(acts, d / torch.where(total == 0, 1.0, total), d)


@dataclass(frozen=True)
class ScatterNegatives(Change):
    """Each row gains what its negative weights lack to 0, but at keys drawn at random: the control of a positive D.

    The draw of a query is the same for all heads and whatever other rows there are.
    """

    takes = {"seed": whole(0)}

    heads: tuple[int, ...]
    seed: int

    def difference(self, context: RowContext, d: Tensor) -> Tensor:
        layer = context.layer
        sides = (self.seed, layer.n_keys), (self.seed + 1, max(layer.n_keys, layer.n_queries))
        of_keys, of_queries = (key_noise(seed, layer.layer, size).abs().to(d.device) for seed, size in sides)
        draws = (of_keys * (1 + of_queries[context.positions, None]) * SCATTERED).frac()  # (query, key), as good as independent
        lacking = permuted((-d).clamp_min(0), context.visible, draws)
        return torch.where(chosen(self.heads, context), d + lacking, d)


@dataclass(frozen=True)
class DropKeys(Change):
    """Scores of some keys are −∞; a row that sees no other key is ``kept`` as it is or sees ``nothing``."""

    takes = {"branches": listed(whole(1, 2)), "if_nothing_left": one_of("kept", "nothing")}

    heads: tuple[int, ...]
    keys: tuple[int, ...]
    queries: tuple[int, ...] | None
    branches: tuple[int, ...]
    if_nothing_left: str  # "kept" or "nothing"

    def logits(self, context: RowContext, branch: int, logits: Tensor) -> Tensor:
        if branch not in self.branches:
            return logits
        device = logits.device
        keys = torch.isin(torch.arange(logits.shape[-1], device=device), torch.tensor(self.keys, device=device))
        drop = keys[None].expand(len(context.queries), -1)  # (query, key)
        if self.queries is not None:
            drop = drop & torch.isin(context.positions, torch.tensor(self.queries, device=device))[:, None]
        dropped = logits.masked_fill(drop & chosen(self.heads, context), -torch.inf)
        if self.if_nothing_left == "kept":
            alone = (dropped == -torch.inf).all(-1, keepdim=True)
            dropped = torch.where(alone, logits, dropped)
        return dropped


@dataclass(frozen=True)
class Quantise(Change):
    """Scores rounded to so many bits, symmetric about 0."""

    takes = {"bits": whole(2, 16)}

    heads: tuple[int, ...]
    bits: int
    largest: Tensor | None  # (batch, head, branch), or None for each row's own

    def logits(self, context: RowContext, branch: int, logits: Tensor) -> Tensor:
        hidden = logits == -torch.inf
        seen = logits.masked_fill(hidden, 0)
        if self.largest is None:
            largest = seen.abs().amax(-1, keepdim=True)  # (head, query, 1)
        else:
            largest = self.largest[0][context.heads, branch - 1][:, None, None].to(logits.dtype)
        step = largest / (2 ** (self.bits - 1) - 1)
        rounded = (seen / step.clamp_min(1e-30)).round() * step
        return torch.where(chosen(self.heads, context), rounded.masked_fill(hidden, -torch.inf), logits)


@dataclass(frozen=True)
class ShapeOfA1(Change):
    """A2 spreads its mass on some keys as A1 does; that mass, and its weights on other keys, stay."""

    heads: tuple[int, ...]
    keys: tuple[int, ...]

    def logits(self, context: RowContext, branch: int, logits: Tensor) -> Tensor:
        if branch == 1:
            return logits
        before = next(number for number, change in enumerate(context.layer.changes) if change is self)
        unchanged = replace(context.layer, changes=context.layer.changes[:before])
        first = unchanged.changed_logits(1, RowContext(unchanged, context.heads, context.queries))
        keys = torch.tensor([key for key in self.keys if key < logits.shape[-1]], device=logits.device, dtype=torch.int64)
        mass = logits[..., keys].logsumexp(-1, keepdim=True) - first[..., keys].logsumexp(-1, keepdim=True)  # (head, query, 1)
        shaped = logits.index_copy(-1, keys, first[..., keys] + mass)
        return torch.where(chosen(self.heads, context) & mass.isfinite(), shaped, logits)


def key_noise(seed: int, layer: int, keys: int) -> Tensor:
    """Draws from the standard normal distribution, one a key of a layer, float64 (key,).

    That of a key depends on seed, layer and its position alone, not on how many keys there are.
    """
    return torch.from_numpy(np.random.default_rng([seed, layer]).standard_normal(keys))


@dataclass(frozen=True)
class AddNoise(Change):
    """Noise added to the scores of both maps, one value a key; with `opposite` it is subtracted from those of the second."""

    heads: tuple[int, ...]
    noise: Tensor  # (batch or 1, row or 1, key), its rows in the order of the queries that are asked about
    opposite: bool

    def logits(self, context: RowContext, branch: int, logits: Tensor) -> Tensor:
        noise = self.noise[0, :, : logits.shape[-1]]
        noisy = logits - noise if self.opposite and branch == 2 else logits + noise
        return torch.where(chosen(self.heads, context), noisy, logits)


@dataclass(frozen=True)
class ReplaceOutput(Change):
    """One vector a head in place of its output, at every query."""

    heads: tuple[int, ...]
    value: Tensor  # (1, head, width)

    def output(self, context: RowContext, out: Tensor) -> Tensor:
        return torch.where(chosen(self.heads, context), self.value[0][context.heads][:, None].to(out.dtype), out)
