"""Attention with a planted truth: what a test must find, and what it must not, is known because it was put there.

The answering query's scores are drawn key by key; maps follow from them as in any layer.

- NC, cancellation: both maps of a head give the irrelevant tokens the same noise, drawn for each head and prompt, but for a
  little of their own; the answer stands out in the first map alone.
- SP, sparsification: the second map is a flat pedestal, the same for all heads, that is subtracted from under the first.
- SH, signed heads: the answer stands out in the first map, another sentence's number in the second, so that D marks it with a
  minus sign; each map has noise of its own.
- both: noise that both maps share, half as strong.
- own: the answer stands out in the first map, and each map has noise of its own, so that no account holds.
- number: as own, but every number of the prompt stands out, the answer no more than others.
- neither: noise of their own in both maps, as alike as chance makes a head's maps for all prompts; the answer does not stand out.
- standard: one map, as the first of "own".

Whatever the truth, λ was trained to `lam`, away from the `lam_init` of untrained models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import xarray as xr

from diffscope.attention.components import Pairing
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.evidence.branches import rejection
from diffscope.evidence.gradients import LastRow, flows_of_rows
from diffscope.evidence.key_sets import as_spans, key_sets, number_spans
from diffscope.evidence.last_query import BATCH, LastQuery, last_query_of
from diffscope.evidence.noise import SIGMA, injection_of
from diffscope.evidence.quantities import OF_ATTRIBUTION, OF_INJECTION, named
from diffscope.evidence.take import LAST_QUERY, as_untrained, dataset_of, evidence_of
from diffscope.evidence.untrained import Match, matched
from diffscope.hypotheses.rules import ANSWER
from diffscope.hypotheses.subjects import Models
from diffscope.instruments.injection import DRAWS
from diffscope.prompts.encoded import Encoded
from diffscope.tasks.prompt import Prompt

TRUTHS = ("NC", "SP", "both", "own", "number", "neither", "SH", "standard")
SHARED = {"NC": 1.0, "both": 0.5, "SP": 0.25}  # strength of the noise that the second map does not differ in
CHANCE = 0.3  # largest correlation of a head's two maps that is there by chance
FEW = 5  # prompts of what takes long
WIDTH = 8  # of the values, which are at random
OWN = 0.15  # of the noise that a map does not share, where noise is shared


@dataclass(frozen=True)
class Planted:
    """One model with a planted truth.

    Attributes
    ----------
    truth : {"NC", "SP", "SH", "both", "own", "number", "neither", "standard"}
    noise : float
        Standard deviation of the scores on irrelevant tokens.
    signal : float
        How much higher the answer's scores are, in the first map.
    lam, lam_init : float
        λ that was trained, and that it began with.
    layers, heads : int
    sink : float
        How much higher the first token's scores are, in both maps.
    """

    truth: str
    noise: float = 1.5
    signal: float = 3.0
    lam: float = 0.8
    lam_init: float = 0.2
    layers: int = 3
    heads: int = 2
    sink: float = 0.0

    def scores(self, prompt: Prompt, alike: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Scores of the last query, (head, map, key); `alike` (head,) correlates the two maps where nothing else does."""
        scores = rng.normal(size=(self.heads, 2, len(prompt.ids))) * self.noise
        own = OWN * scores[:, 1]
        if self.truth in SHARED:
            scores *= SHARED[self.truth]
            scores[:, 1] = 0 if self.truth == "SP" else scores[:, 0] + own
        else:
            scores[:, 1] = alike[:, None] * scores[:, 0] + np.sqrt(1 - alike[:, None] ** 2) * scores[:, 1]
        if self.truth != "neither":
            numbers = [prompt.spans["answer"], *(number_spans(prompt) if self.truth == "number" else [])]
            scores[:, 0, np.concatenate(numbers)] += self.signal
        if self.truth == "SH":
            scores[:, 1, number_spans(prompt)[0]] += self.signal
        scores[:, :, 0] += self.sink
        return scores

    def flows(self, prompts: Sequence[Prompt], pull: float, seed: int, match: Sequence[Match] | None = None) -> xr.Dataset:
        """Return what :func:`diffscope.evidence.gradients.flows` would: a gradient at random, and `pull`.

        The pull is along 1 − overlap: above 0 descent makes the maps more alike on irrelevant tokens, below 0 less.
        """
        rng = np.random.default_rng([seed, TRUTHS.index(self.truth), 1])
        keys = [key_sets(prompt) for prompt in prompts]
        irrelevant = torch.stack([sets["irrelevant"] for sets in keys])[:, None]  # (prompt, 1, key)
        rows = []
        for number in range(self.layers):
            layer = matched(self.layer(number, prompts, rng), match[number] if match else None)
            last = [layer.prompt(index).rows([len(prompt.ids) - 1]) for index, prompt in enumerate(prompts)]
            a1, a2, d = (torch.cat([getattr(maps, name).transpose(0, 1) for maps in last]) for name in ("a1", "a2", "d"))
            along = (a1 - a2).sign() * irrelevant
            gradient = pull * along + torch.from_numpy(rng.normal(size=along.shape)).float()
            lam = torch.stack([maps.lam[:, 0] for maps in last])
            rows.append(LastRow(number, a1, a2, d, gradient, lam, torch.ones_like(lam), gradient))
        return flows_of_rows(rows, keys)

    def read(self, prompts: Sequence[Prompt], seed: int, match: Sequence[Match] | None = None) -> LastQuery:
        """Return what :func:`diffscope.evidence.last_query.read` gives of a model."""
        rng = np.random.default_rng([seed, TRUTHS.index(self.truth)])
        alike = rng.uniform(-CHANCE, CHANCE, (self.layers, self.heads))
        starts = range(0, len(prompts), BATCH)
        batches = [
            [self.layer(number, prompts[first : first + BATCH], rng, alike[number]) for number in range(self.layers)]
            for first in starts
        ]
        return last_query_of(batches, prompts, match, seed)

    def injected(self, prompts: Sequence[Prompt], seed: int, match: Sequence[Match] | None = None) -> xr.Dataset:
        """Return what :func:`diffscope.evidence.noise.injected` would."""
        tables = []
        for index, prompt in enumerate(prompts):
            rng = np.random.default_rng([seed, TRUTHS.index(self.truth), 2, index])
            layers = [self.layer(number, [prompt], rng) for number in range(self.layers)]
            layers = [matched(layer, match[layer.layer]) if match else layer for layer in layers]
            length = len(prompt.ids)
            encoded = Encoded(None, tuple(prompt.ids), ("",) * length, ((0, 0),) * length, as_spans(prompt))
            proofs = [Fidelity(0.0, 1.0, 0, True) for _ in layers]
            facts = {"model": f"planted {self.truth}", "family": "planted"}
            cap = Capture([encoded], layers, proofs, [[]], np.zeros((len(layers), 1, 6)), facts)
            tables.append(injection_of(cap, (SIGMA,), seed=index * DRAWS))
        return xr.concat(tables, "prompt", join="outer", combine_attrs="drop_conflicts")

    def attributed(self, prompts: Sequence[Prompt], seed: int) -> xr.Dataset:
        """Return what :func:`diffscope.evidence.branches.rejection` says if a number's mass is what its logit gains."""
        rng = np.random.default_rng([seed, TRUTHS.index(self.truth), 3])
        places = [number_spans(prompt) for prompt in prompts]
        tables = []
        for number in range(self.layers):
            layer = self.layer(number, prompts, rng)
            rows = [layer.prompt(index).rows([len(prompt.ids) - 1]) for index, prompt in enumerate(prompts)]
            first, second = (_on_numbers([getattr(row, name)[:, 0] for row in rows], places) for name in ("a1", "a2"))
            taken = {"": -self.lam * second, "_control": -self.lam * second.roll(prompt=1, roll_coords=False)}
            values = [
                {f"{name}{end}": array for name, array in rejection(first, branch).items()} for end, branch in taken.items()
            ]
            tables.append(xr.Dataset(values[0] | values[1]))
        return xr.concat(tables, "layer").transpose("prompt", "layer", "head")

    def layer(
        self, number: int, prompts: Sequence[Prompt], rng: np.random.Generator, alike: np.ndarray | None = None
    ) -> LayerAttention:
        """One layer, whose maps are by chance as much alike as `alike` (head,) says."""
        alike = rng.uniform(-CHANCE, CHANCE, self.heads) if alike is None else alike
        scores = np.stack([self.scores(prompt, alike, rng) for prompt in prompts])  # (batch, head, map, key)
        batch = len(prompts)
        keys = scores.shape[-1]
        pairing = Pairing.stripes(self.heads, 1, shared_keys=True)
        q = torch.zeros(batch, 2 * self.heads, keys, keys)
        q[:, :, -1] = torch.from_numpy(scores.reshape(batch, -1, keys)).float()  # keys are one-hot: a query is its scores
        lam = torch.full((1, self.heads, 1), 0.0 if self.truth == "standard" else self.lam)
        return LayerAttention(
            layer=number,
            family="planted",
            q=q,
            k=torch.eye(keys).expand(batch, 1, -1, -1),
            v=torch.from_numpy(rng.normal(size=(batch, 1, keys, WIDTH))).float(),
            scale=1.0,
            pairing=replace(pairing, a2=None) if self.truth == "standard" else pairing,
            lengths=(keys,) * batch,
            lam=lam,
            lam_fp32=lam,
            lam_init=None if self.truth == "standard" else self.lam_init,
        )

    @property
    def at_random(self) -> Planted:
        """What stands for an untrained model: scores at random, λ as it begins."""
        truth = "standard" if self.truth == "standard" else "neither"
        return replace(self, truth=truth, signal=0.0, lam=self.lam_init)


def _on_numbers(maps: Sequence[torch.Tensor], places: Sequence[Sequence[Sequence[int]]]) -> xr.DataArray:
    """Mass of maps (head, key), one a prompt, on the numbers of the other sentences: (prompt, head, candidate)."""
    most = max(map(len, places))
    masses = np.full((len(maps), len(maps[0]), most), np.nan)
    for table, a, spans in zip(masses, maps, places):
        for candidate, span in enumerate(spans):
            table[:, candidate] = a[:, span].sum(-1).numpy()
    return xr.DataArray(masses, dims=("prompt", "head", "candidate"))


@dataclass
class PlantedSource:
    """The evidence of models with one truth, beside models of scores at random in place of untrained ones."""

    planted: Planted
    prompts: Sequence[Prompt]
    seeds: Sequence[int] = (0,)
    count: int = 24
    _read: dict[int, LastQuery] = field(default_factory=dict, repr=False)

    parts = frozenset({LAST_QUERY, "noise", "branches"})

    def take(self, part: str, number: int) -> xr.Dataset:
        """Return a part of one model's evidence; see :class:`diffscope.evidence.take.OpenModels`."""
        seed = self.seeds[number]
        if part == LAST_QUERY:
            self._read[number] = self.planted.read(self.prompts, seed)
            return evidence_of(self._read[number], self.prompts).assign_attrs(seed=seed)
        return self._table(part, self.planted, seed, None)

    def take_untrained(self, part: str, number: int) -> xr.Dataset:
        """Return a part of the evidence of the models of scores at random that are made like one model."""
        first = 10_000 + 100 * self.seeds[0]
        seeds = [first + index for index in range(number, self.count, len(self.seeds))]
        match = self._read[number].matches
        at_random = self.planted.at_random
        if part == LAST_QUERY:
            return as_untrained([evidence_of(at_random.read(self.prompts, seed, match), self.prompts) for seed in seeds])
        return as_untrained([self._table(part, at_random, seed, match) for seed in seeds])

    def _table(self, part: str, planted: Planted, seed: int, match: Sequence[Match] | None) -> xr.Dataset:
        if part == "noise":
            return dataset_of(named(OF_INJECTION, planted.injected(self.prompts[:FEW], seed, match)), "few")
        return dataset_of(named(OF_ATTRIBUTION, planted.attributed(self.prompts, seed)), "prompt")


def planted_models(
    planted: Planted, prompts: Sequence[Prompt], seeds: Sequence[int] = (0,), count: int = 24, steps: Sequence[int] | None = None
) -> Models:
    """Return models with one truth, seeds of one or with `steps` the checkpoints of one training, beside `count` at random."""
    source = PlantedSource(planted, prompts, seeds, count)
    return Models(names=[f"planted {seed}" for seed in seeds], steps=steps, weights=ANSWER, source=source)


def simulated_models(
    evidence: Sequence[xr.Dataset], untrained: Sequence[xr.Dataset], steps: Sequence[int] | None = None
) -> Models:
    """Return models by evidence that was simulated, beside untrained ones made like them in turn."""
    own = [of.assign(as_untrained(untrained[number :: len(evidence)]).data_vars) for number, of in enumerate(evidence)]
    return Models(own, [f"simulated {number}" for number in range(len(own))], steps=steps, weights=ANSWER)
