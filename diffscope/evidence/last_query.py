"""What the query that answers does in one model: statistics of the last query of retrieval prompts, with their controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import MEASURED_MAPS
from diffscope.evidence.key_sets import SETS, key_sets, number_spans, sized_spans
from diffscope.evidence.untrained import Match, matched, mean_match
from diffscope.scope import Scope
from diffscope.stats import branches, rows
from diffscope.stats.ragged import stack_layers
from diffscope.stats.spans import NORMALISATIONS, denominators, fixed_by_construction
from diffscope.tasks.prompt import Prompt

BATCH = 10  # prompts that run together
ROWS = ("gini", "entropy_normalised", "hoyer", "pseudo_norm")
BRANCHES = {  # bounded, so that means of their controls say something
    "rho": lambda a1, a2, seen: branches.rho(a1, a2),
    "cosine": branches.cosine,
    "js": branches.js,
    "floor": branches.residual_floor,
}
FARTHEST = 6.0  # octaves between λ and the coefficient that fits
DIMS = ("prompt", "layer", "head")
COORDS = {"map": list(MEASURED_MAPS), "span": list(SETS), "normalisation": list(NORMALISATIONS)}


@dataclass(frozen=True)
class LastQuery:
    """Statistics of the last query of each prompt, in one model.

    Attributes
    ----------
    heads : Dataset (prompt, layer, head, …)
        Of each head. On the key sets of ``span``: ``mass`` (map, span, normalisation), ``absolute`` (span), which is sum |D|, and
        of the two branches ``rho``, ``cosine``, ``js``, ``floor`` (of the residual) and ``residual`` (span). With another head's
        second map in place of its own, mean over the layer's other heads: ``paired_rho``, … (span); NaN where a layer has a
        single head. On spans of the answer's length in the text, and on numbers of the other sentences: ``sized_rho``, …,
        ``number_rho``, …, means over them. Of the row: ``gini``, … (map), ``lam``, ``gain``. Without a second map what is of two
        branches is NaN.
    by_prompt : Dataset (prompt,)
        ``lambda_distance``: how far λ is from the coefficient that fits the mean map over prompts, by jackknife.
    layers : Dataset (layer,)
        ``lam``, ``lam_init`` and ``lambda_star`` of the mean map.
    matches : list of Match, one a layer
    differential : bool
        Whether there is a second map.
    extras : str
        What the attention has that standard attention has not, besides a second map; empty if nothing.
    """

    heads: xr.Dataset
    by_prompt: xr.Dataset
    layers: xr.Dataset
    matches: list[Match]
    differential: bool
    extras: str = ""

    @property
    def answering(self) -> xr.DataArray:
        """How much heads answer: A1's mass on the answer, mean over prompts, (layer, head)."""
        return self.heads["mass"].sel(map="A1", span="answer", normalisation="raw", drop=True).mean("prompt")


def read(
    scope: Scope,
    prompts: Sequence[Prompt],
    match: Sequence[Match] | None = None,
    progress: Callable[[int, int], None] | None = None,
    seed: int = 0,
) -> LastQuery:
    """Measure the last query of every prompt, batch by batch.

    Parameters
    ----------
    match : list of Match, optional
        Of another model's layers, which each layer is made like: :func:`~diffscope.evidence.untrained.matched`.
    progress : callable, optional
        Called with (prompts done, prompts in all).
    seed : int
        Of the spans that are drawn for the size control.
    """
    return last_query_of(layers_in_batches(scope, prompts, progress), prompts, match, seed)


def layers_in_batches(
    scope: Scope, prompts: Sequence[Prompt], progress: Callable[[int, int], None] | None = None
) -> list[list[LayerAttention]]:
    """Capture prompts in batches, and return the layers of each batch."""
    batches = []
    for first in range(0, len(prompts), BATCH):
        batch = prompts[first : first + BATCH]
        batches.append(scope.capture([prompt.ids for prompt in batch]).layers)
        if progress:
            progress(min(first + BATCH, len(prompts)), len(prompts))
    return batches


def last_query_of(
    batches: Sequence[Sequence[LayerAttention]], prompts: Sequence[Prompt], match: Sequence[Match] | None = None, seed: int = 0
) -> LastQuery:
    """Measure the same of layers that were captured, of prompts in batches of ``BATCH``."""
    sets = [_Sets.of(prompt, np.random.default_rng([seed, index])) for index, prompt in enumerate(prompts)]
    numbers = range(len(batches[0]))
    if match is not None:
        batches = [[matched(layers[number], match[number]) for number in numbers] for layers in batches]
    rows = [[_Rows.of(layers[number]) for layers in batches] for number in numbers]
    tables = []
    for of_layer in rows:
        parts = [part.table(sets[first : first + BATCH]) for first, part in zip(range(0, len(prompts), BATCH), of_layer)]
        tables.append({name: torch.cat([part[name] for part in parts]).cpu().double().numpy() for name in parts[0]})
    layers = batches[0]
    irrelevant = [own.named[SETS.index("irrelevant")] for own in sets]
    lams = [torch.cat([part.lam / part.gain for part in of_layer]) for of_layer in rows]
    second = any(layer.differential for layer in layers)
    stars, distances = np.full(len(layers), np.nan), np.full(len(prompts), np.nan)
    if second:
        pairs = [(_joined([part.a1 for part in of_layer]), _joined([part.a2 for part in of_layer])) for of_layer in rows]
        stars, distances = lambda_distance(pairs, lams, irrelevant)
    by_layer = {
        "lam": ("layer", [float(lam.mean()) for lam in lams]),
        "lam_init": ("layer", [np.nan if layer.lam_init is None else float(layer.lam_init) for layer in layers]),
        "lambda_star": ("layer", stars),
    }
    return LastQuery(
        heads=_dataset(tables),
        by_prompt=xr.Dataset({"lambda_distance": ("prompt", distances)}),
        layers=xr.Dataset(by_layer),
        matches=[mean_match([layers[number] for layers in batches]) for number in numbers],
        differential=second,
        extras=_extras(layers),
    )


@dataclass(frozen=True)
class _Sets:
    """Key sets of one prompt as bool (set, key): the named ones of ``SETS``, places of the answer's size, other numbers."""

    named: Tensor
    sized: Tensor
    number: Tensor

    @classmethod
    def of(cls, prompt: Prompt, rng: np.random.Generator) -> _Sets:
        length = len(prompt.ids)

        def masks(spans: Sequence[Sequence[int]]) -> Tensor:
            table = torch.zeros(len(spans), length, dtype=torch.bool)
            for row, span in zip(table, spans):
                row[list(span)] = True
            return table

        named = key_sets(prompt)
        return cls(
            torch.stack([named[name] for name in SETS]),
            masks(list(sized_spans(prompt, rng).values())),
            masks(number_spans(prompt)),
        )


@dataclass(frozen=True)
class _Rows:
    """The last query's rows of a layer for some prompts: maps (prompt, head, key) with zeros where a row does not see."""

    a1: Tensor
    a2: Tensor
    d: Tensor
    lam: Tensor  # (prompt, head)
    gain: Tensor
    visible: Tensor  # (prompt, key)
    alike: Tensor  # (move, head): whether another head's second map is a head's own, which several may share

    @classmethod
    def of(cls, layer: LayerAttention) -> _Rows:
        rows = []
        visible = []
        for index, length in enumerate(layer.lengths):
            prompt = layer.prompt(index)
            rows.append(prompt.rows([length - 1]))
            visible.append(prompt.visible([length - 1])[0])
        a1, d = (_padded([getattr(row, name)[:, 0] for row in rows]) for name in ("a1", "d"))
        a2 = torch.full_like(a1, torch.nan) if rows[0].a2 is None else _padded([row.a2[:, 0] for row in rows])
        lam, gain = (torch.stack([getattr(row, name)[:, 0] for row in rows]) for name in ("lam", "gain"))
        second = layer.pairing.of_branch(2) if layer.differential else torch.zeros(layer.n_heads, dtype=torch.int64)
        moves = range(1, layer.n_heads)
        alike = [torch.roll(second, by) == second for by in moves]
        same = torch.stack(alike) if alike else torch.zeros(0, layer.n_heads, dtype=torch.bool)
        return cls(a1, a2, d, lam, gain, _padded(visible), same.to(a1.device))

    @cached_property
    def n(self) -> Tensor:
        """(prompt, 1)"""
        return self.visible.sum(-1, keepdim=True)

    def table(self, sets: Sequence[_Sets]) -> dict[str, Tensor]:
        """Return every statistic by name, (prompt, head, …)."""
        named = self._masks([own.named for own in sets])
        table: dict[str, Tensor] = {"lam": self.lam, "gain": self.gain, **self._shapes(), **self._masses(named)}
        a1, a2 = (self._on(a, named) for a in (self.a1, self.a2))
        seen = (named & self.visible[:, None]).sum(-1)[:, None]  # (prompt, 1, span)
        d = self._on(self.d, named)
        table["absolute"] = d.abs().sum(-1)
        table["residual"] = branches.residual_noise(a1, d, self.gain[..., None])
        for name, statistic in BRANCHES.items():
            table[name] = statistic(a1, a2, seen)
            table[f"paired_{name}"] = self._paired(statistic, a1, a2, seen)
        for kind in ("sized", "number"):
            masks = self._masks([getattr(own, kind) for own in sets])
            pair = [self._on(a, masks) for a in (self.a1, self.a2)]
            seen = (masks & self.visible[:, None]).sum(-1)[:, None]
            for name, statistic in BRANCHES.items():
                table[f"{kind}_{name}"] = statistic(*pair, seen).nanmean(-1)  # what a prompt has fewer of is empty, and NaN
        return table

    def _masks(self, masks: Sequence[Tensor]) -> Tensor:
        """Return key sets of several prompts, bool (prompt, set, key), with empty ones where a prompt has fewer."""
        most = max(map(len, masks))
        table = torch.zeros(len(masks), most, self.a1.shape[-1], dtype=torch.bool)
        for row, own in zip(table, masks):
            row[: len(own), : own.shape[-1]] = own
        return table.to(self.a1.device)

    @staticmethod
    def _on(a: Tensor, masks: Tensor) -> Tensor:
        """Return maps (prompt, head, key) restricted to sets (prompt, set, key): (prompt, head, set, key)."""
        return a[:, :, None] * masks[:, None]

    def _paired(self, statistic: Callable[..., Tensor], a1: Tensor, a2: Tensor, seen: Tensor) -> Tensor:
        """Return a branch statistic with the second maps moved on by one head, by two, …: the mean over all moves."""
        moves = [
            statistic(a1, torch.roll(a2, by, dims=1), seen).masked_fill(alike[None, :, None], torch.nan)
            for by, alike in enumerate(self.alike, start=1)
        ]
        return torch.stack(moves).nanmean(0) if moves else torch.full_like(a1[..., 0], torch.nan)

    def _shapes(self) -> dict[str, Tensor]:
        """Return statistics of whole rows, (prompt, head, map)."""
        maps = torch.stack([self.a1, self.a2.nan_to_num(), self.d], dim=2)
        n = self.n[..., None].expand(maps.shape[:-1])
        values = {name: rows.of(name, maps, n) for name in ROWS}
        return {name: torch.where(self._defined, value, torch.nan) for name, value in values.items()}

    @cached_property
    def _defined(self) -> Tensor:
        """Which of the maps there are, (prompt, head, map)."""
        return torch.stack([~a[..., 0].isnan() for a in (self.a1, self.a2, self.d)], dim=-1)

    def _masses(self, masks: Tensor) -> dict[str, Tensor]:
        """``mass`` (prompt, head, map, span, normalisation), as :func:`diffscope.stats.spans.mass` has it."""
        values = []
        for a in (self.a1, self.a2, self.d):
            below = denominators(a.abs().sum(-1), a.clamp_min(0).sum(-1), a.sum(-1))  # (prompt, head, normalisation)
            on = self._on(a, masks)
            raw = on.sum(-1)
            sums = torch.stack([raw, on.abs().sum(-1), raw, on.clamp_min(0).sum(-1)], dim=-1)
            values.append(sums / below[:, :, None])
        seen = (masks & self.visible[:, None]).sum(-1)  # (prompt, span)
        fixed = fixed_by_construction(self.n[:, 0], seen)
        return {"mass": torch.stack(values, dim=2).masked_fill(fixed[:, None, None, :, None], torch.nan)}


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors (…, key) of several lengths as one, (prompt, …, key), with zeros behind."""
    longest = max(tensor.shape[-1] for tensor in tensors)
    return torch.stack([torch.nn.functional.pad(tensor, (0, longest - tensor.shape[-1])) for tensor in tensors])


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return maps (prompt, head, key) of several batches, (prompt, head, key)."""
    return _padded([row for tensor in tensors for row in tensor])


def _dataset(tables: Sequence[dict[str, np.ndarray]]) -> xr.Dataset:
    """Return statistics by layer, each (prompt, head, …), as one Dataset; NaN where a layer has fewer heads."""
    variables = {}
    for name in tables[0]:
        variables[name] = (*DIMS, *_dims_of(name)), stack_layers([table[name] for table in tables], axis=1)
    return xr.Dataset(variables, COORDS)


def _dims_of(name: str) -> tuple[str, ...]:
    """Return the dimensions of a statistic beside prompt, layer and head."""
    if name == "mass":
        return "map", "span", "normalisation"
    if name in ROWS:
        return ("map",)
    return ("span",) if name in {"absolute", "residual", *BRANCHES} or name.startswith("paired") else ()


def _extras(layers: Sequence[LayerAttention]) -> str:
    """Return what the attention of some layers has that standard attention has not, besides a second map."""
    parts = {
        "a norm of each head's output": any(layer.norm is not None for layer in layers),
        "a gate of each head's output": any(layer.gate is not None for layer in layers),
        "a correction of each head's output": any(layer.correction is not None for layer in layers),
        "weights that are changed after the softmax": any(layer.changes for layer in layers),
    }
    return " and ".join(words for words, present in parts.items() if present)


def lambda_distance(
    pairs: Sequence[tuple[Tensor, Tensor]], lams: Sequence[Tensor], irrelevant: Sequence[Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far λ is from λ* on irrelevant tokens, of the maps of each layer averaged over prompts key by key.

    λ* is the coefficient that leaves least of the mean first maps of all heads of a layer, sum <Ā1, Ā2> / sum <Ā2, Ā2>.

    Parameters
    ----------
    pairs : sequence of (Tensor, Tensor), one a layer
        A1 and A2 of the last query, (prompt, head, key).
    lams : sequence of Tensor (prompt, head), one a layer
        λ over the gain of A1.
    irrelevant : sequence of bool Tensor (key,), one a prompt

    Returns
    -------
    ndarray (layer,)
        λ*.
    ndarray (prompt,)
        |log2(λ/λ*)|, at most 6, mean over layers with a second map: its mean over prompts is that of all prompts together, and
        their spread is what leaving out each in turn changes, as the jackknife has it.
    """
    fits = [_fits(*pair, irrelevant) for pair in pairs]  # (1 + prompt,) each: of all prompts, and without each
    known = [_octaves(lam, fit) for lam, fit in zip(lams, fits) if np.isfinite(fit).any()]
    distances = np.mean(known, 0) if known else np.full(1 + len(irrelevant), np.nan)
    count = len(irrelevant)
    return np.array([fit[0] for fit in fits]), distances[0] - (count - 1) * (distances[1:] - distances[1:].mean())


def _fits(a1: Tensor, a2: Tensor, irrelevant: Sequence[Tensor]) -> np.ndarray:
    """Return λ* of the mean map, of all prompts and then without each in turn."""
    on = torch.zeros(len(a1), 1, a1.shape[-1], dtype=torch.bool, device=a1.device)
    for row, keys in zip(on, irrelevant):
        row[0, : len(keys)] = keys.to(a1.device)
    a1, a2 = (a.double() * on for a in (a1, a2))
    first, second = (torch.cat([a.sum(0)[None], a.sum(0) - a]) for a in (a1, a2))  # (1 + prompt, head, key)
    return ((first * second).sum((1, 2)) / (second * second).sum((1, 2))).cpu().numpy()


def _octaves(lam: Tensor, fits: np.ndarray) -> np.ndarray:
    lam = lam.double().mean(1).cpu().numpy()  # (prompt,)
    count = len(lam)
    lams = np.concatenate([[lam.mean()], (lam.sum() - lam) / max(count - 1, 1)])
    ratio = np.clip(lams / fits, 2.0**-FARTHEST, 2.0**FARTHEST)  # λ at or below 0 is as far as can be
    return np.abs(np.log2(ratio))
