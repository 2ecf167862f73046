"""Attention with a planted truth: what a test must find, and what it must not, is known because it was put there.

The answering query's scores are drawn key by key; maps follow from them as in any layer.

- NC, cancellation: both maps of a head give the irrelevant tokens the same noise, drawn for each head and prompt; the answer
  stands out in the first map alone.
- SP, sparsification: the second map is a flat pedestal, the same for all heads, that is subtracted from under the first.
- both: noise that both maps share, half as strong.
- own: the answer stands out in the first map, and each map has noise of its own, so that neither account holds.
- neither: noise of their own in both maps, as alike as chance makes a head's maps for all prompts; the answer does not stand out.
- standard: one map, as the first of "own".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Pairing
from diffscope.capture import CaptureBatch
from diffscope.hypotheses.evidence.flows import flows_of_rows, masks
from diffscope.hypotheses.evidence.gradients import LastRow
from diffscope.hypotheses.evidence.last_query import LastQuery, last_query_of, sized_spans
from diffscope.prompts import Encoded
from diffscope.proof.fidelity import Fidelity
from diffscope.tasks.retrieval import Prompt

TRUTHS = ("NC", "SP", "both", "own", "neither", "standard")
CHANCE = 0.3  # largest correlation of a head's two maps that is there by chance


@dataclass(frozen=True)
class Planted:
    """One model with a planted truth.

    Attributes
    ----------
    truth : {"NC", "SP", "both", "own", "neither", "standard"}
    noise : float
        Standard deviation of the scores on irrelevant tokens.
    signal : float
        How much higher the answer's scores are, in the first map.
    lam : float
    layers, heads : int
    sink : float
        How much higher the first token's scores are, in both maps.
    """

    truth: str
    noise: float = 1.5
    signal: float = 3.0
    lam: float = 0.8
    layers: int = 3
    heads: int = 2
    sink: float = 0.0

    def scores(self, prompt: Prompt, alike: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Scores of the last query, (head, map, key); `alike` (head,) correlates the two maps where nothing else does."""
        answer = prompt.spans["answer"]
        scores = rng.normal(size=(self.heads, 2, len(prompt.ids))) * self.noise
        if self.truth in ("neither", "own", "standard"):
            scores[:, 1] = alike[:, None] * scores[:, 0] + np.sqrt(1 - alike[:, None] ** 2) * scores[:, 1]
            if self.truth != "neither":
                scores[:, 0, answer] += self.signal
        else:
            scores *= {"NC": 1, "both": 0.5, "SP": 0.25}[self.truth]
            scores[:, 1] = 0 if self.truth == "SP" else scores[:, 0]
            scores[:, 0, answer] += self.signal
        scores[:, :, 0] += self.sink
        return scores

    def flows(self, prompts: Sequence[Prompt], pull: float, seed: int) -> xr.Dataset:
        """The same as :func:`diffscope.hypotheses.evidence.flows.flows`: a gradient at random, of which `pull` goes along ρ.

        With `pull` above 0 descent makes the maps more alike on irrelevant tokens, below 0 less.
        """
        rng = np.random.default_rng([seed, TRUTHS.index(self.truth), 1])
        keys = [masks(self._encoded(prompt, prompt.spans).key_sets(), len(prompt.ids)) for prompt in prompts]
        irrelevant = torch.stack([sets["irrelevant"] for sets in keys])[:, None]  # (prompt, 1, key)
        rows = []
        for number in range(self.layers):
            layer = self._layer(number, prompts, rng)
            last = [layer.prompt(index).rows([len(prompt.ids) - 1]) for index, prompt in enumerate(prompts)]
            a1, a2, d = (torch.cat([getattr(maps, name).transpose(0, 1) for maps in last]) for name in ("a1", "a2", "d"))
            along = (a1 - a2).sign() * irrelevant
            gradient = pull * along + torch.from_numpy(rng.normal(size=along.shape)).float()
            lam = torch.full(d.shape[:2], self.lam)
            rows.append(LastRow(number, a1, a2, d, gradient, lam, torch.ones_like(lam)))
        return flows_of_rows(rows, keys)

    def read(self, prompts: Sequence[Prompt], seed: int) -> LastQuery:
        """The same as :func:`diffscope.hypotheses.evidence.last_query.read` gives of a model."""
        rng = np.random.default_rng([seed, TRUTHS.index(self.truth)])
        encoded = []
        for index, prompt in enumerate(prompts):
            controls = sized_spans(prompt, np.random.default_rng([seed, index]))
            encoded.append(self._encoded(prompt, {**prompt.spans, **controls}))
        layers = [self._layer(number, prompts, rng) for number in range(self.layers)]
        proofs = [Fidelity(0.0, 1.0, 0, True) for _ in layers]
        outliers = np.zeros((len(layers), len(prompts), 6))
        facts = {"model": f"planted {self.truth}", "family": "planted"}
        return last_query_of(CaptureBatch(encoded, layers, proofs, [[] for _ in prompts], outliers, facts))

    @staticmethod
    def _encoded(prompt: Prompt, spans: dict[str, list[int]]) -> Encoded:
        length = len(prompt.ids)
        named = {name: tuple(positions) for name, positions in spans.items() if name != "sink" and positions}
        return Encoded(None, tuple(prompt.ids), ("",) * length, ((0, 0),) * length, named)

    def _layer(self, number: int, prompts: Sequence[Prompt], rng: np.random.Generator) -> LayerAttention:
        alike = rng.uniform(-CHANCE, CHANCE, self.heads)
        scores = np.stack([self.scores(prompt, alike, rng) for prompt in prompts])  # (batch, head, map, key)
        batch = len(prompts)
        keys = scores.shape[-1]
        pairing = Pairing.stripes(self.heads, 1, shared_keys=True)
        q = torch.zeros(batch, 2 * self.heads, keys, keys)
        q[:, :, -1] = torch.from_numpy(scores.reshape(batch, -1, keys)).float()  # keys are one-hot: a query is its scores
        lam = torch.full((1, self.heads, 1), self.lam)
        return LayerAttention(
            layer=number,
            family="planted",
            q=q,
            k=torch.eye(keys).expand(batch, 1, -1, -1),
            v=torch.zeros(batch, 1, keys, 1),
            scale=1.0,
            pairing=replace(pairing, a2=None) if self.truth == "standard" else pairing,
            lengths=(keys,) * batch,
            lam=torch.zeros_like(lam) if self.truth == "standard" else lam,
            lam_fp32=lam,
        )


@dataclass
class PlantedModels:
    """Models with one truth, and models of scores at random in place of untrained ones: tests take them as they take Models."""

    planted: Planted
    prompts: Sequence[Prompt]
    seeds: Sequence[int] = (0,)
    count: int = 24
    scopes: Sequence = ()

    @cached_property
    def last_queries(self) -> list[LastQuery]:
        return [self.planted.read(self.prompts, seed) for seed in self.seeds]

    @cached_property
    def untrained(self) -> list[LastQuery]:
        return [self.at_random.read(self.prompts, 10_000 + 100 * self.seeds[0] + index) for index in range(self.count)]

    @property
    def at_random(self) -> Planted:
        truth = "standard" if self.planted.truth == "standard" else "neither"
        return replace(self.planted, truth=truth, signal=0.0)
