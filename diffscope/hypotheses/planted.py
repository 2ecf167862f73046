"""Attention with a planted truth: what a test must find, and what it must not, is known because it was put there.

The answering query's scores are drawn key by key; maps follow from them as in any layer. *Cancellation*: both maps of a head give
the irrelevant tokens the same noise, of its own for each head and prompt, and only the first one's answer stands out.
*Sparsification*: the second map is a flat pedestal, alike under all heads, that the subtraction takes from under the first.
*Both*: noise that both maps share, half as strong. *Own*: the answer stands out in the first, and each has noise of its own, so
that neither account holds. *Neither*: noise of their own in both maps, as alike or unlike as chance makes a head's maps for all
prompts, and nothing that differs on the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import xarray as xr
from scipy.stats import norm

from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Pairing
from diffscope.capture import CaptureBatch
from diffscope.hypotheses.evidence.flows import masks, of_rows
from diffscope.hypotheses.evidence.gradients import LastRow
from diffscope.hypotheses.evidence.last_query import Reading, of_capture, sized_spans
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
        keys, answer = len(prompt.ids), prompt.spans["answer"]
        noise = rng.normal(size=(self.heads, 2, keys)) * self.noise
        if self.truth in ("neither", "own", "standard"):
            noise[:, 1] = alike[:, None] * noise[:, 0] + np.sqrt(1 - alike[:, None] ** 2) * noise[:, 1]
            noise[:, 0, answer] += self.signal * (self.truth != "neither")
        else:
            noise *= {"NC": 1, "both": 0.5, "SP": 0.25}[self.truth]
            noise[:, 1] = 0 if self.truth == "SP" else noise[:, 0]
            noise[:, 0, answer] += self.signal
        noise[:, :, 0] += self.sink
        return noise

    def flows(self, prompts: Sequence[Prompt], pull: float, seed: int) -> xr.Dataset:
        """The same as :func:`diffscope.hypotheses.evidence.flows.flows`: a gradient at random, of which `pull` goes along ρ.

        With `pull` above 0 descent makes the maps more alike on irrelevant tokens, below 0 less.
        """
        rng = np.random.default_rng([seed, TRUTHS.index(self.truth), 1])
        keys = [masks(self._encoded(prompt, prompt.spans).key_sets(), len(prompt.ids)) for prompt in prompts]
        rows = []
        for number in range(self.layers):
            layer = self._layer(number, prompts, rng)
            found = [layer.prompt(i).rows([len(prompt.ids) - 1]) for i, prompt in enumerate(prompts)]
            a1, a2, d = (torch.cat([getattr(one, name).transpose(0, 1) for one in found]) for name in ("a1", "a2", "d"))
            along = (a1 - a2).sign() * torch.stack([one["irrelevant"] for one in keys])[:, None]
            gradient = pull * along + torch.from_numpy(rng.normal(size=along.shape)).float()
            lam, gain = torch.full(d.shape[:2], self.lam), torch.ones(d.shape[:2])
            rows.append(LastRow(number, a1, a2, d, gradient, lam, gain))
        return of_rows(rows, keys)

    def read(self, prompts: Sequence[Prompt], seed: int) -> Reading:
        """The same as :func:`diffscope.hypotheses.evidence.last_query.read` gives of a model."""
        rng = np.random.default_rng([seed, TRUTHS.index(self.truth)])
        sized = [sized_spans(prompt, np.random.default_rng([seed, i])) for i, prompt in enumerate(prompts)]
        spans = [{**prompt.spans, **more} for prompt, more in zip(prompts, sized)]
        encoded = [self._encoded(prompt, one) for prompt, one in zip(prompts, spans)]
        layers = [self._layer(number, prompts, rng) for number in range(self.layers)]
        proofs = [Fidelity(0.0, 1.0, 0, True) for _ in layers]
        facts = {"model": f"planted {self.truth}", "family": "planted"}
        cap = CaptureBatch(encoded, layers, proofs, [[] for _ in prompts], np.zeros((len(layers), len(prompts), 6)), facts)
        own, sized, paired, there = of_capture(cap)
        return Reading(own, sized, paired, there)

    @staticmethod
    def _encoded(prompt: Prompt, spans: dict[str, list[int]]) -> Encoded:
        length, there = len(prompt.ids), {name: tuple(at) for name, at in spans.items() if name != "sink" and at}
        return Encoded(None, tuple(prompt.ids), ("",) * length, ((0, 0),) * length, there)

    def _layer(self, number: int, prompts: Sequence[Prompt], rng: np.random.Generator) -> LayerAttention:
        alike = rng.uniform(-CHANCE, CHANCE, self.heads)
        scores = np.stack([self.scores(prompt, alike, rng) for prompt in prompts])  # (batch, head, map, key)
        batch, keys = len(prompts), scores.shape[-1]
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
            lam=lam * (self.truth != "standard"),
            lam_fp32=lam,
        )


@dataclass
class PlantedSubject:
    """Models with one truth, and models of scores at random that stand for untrained ones: as a subject of the tests."""

    planted: Planted
    prompts: Sequence[Prompt]
    seeds: Sequence[int] = (0,)
    count: int = 24
    scopes: Sequence = ()

    @property
    def readings(self) -> list[Reading]:
        return [self.planted.read(self.prompts, seed) for seed in self.seeds]

    @property
    def untrained(self) -> list[Reading]:
        return [self.at_random.read(self.prompts, 10_000 + 100 * self.seeds[0] + i) for i in range(self.count)]

    @property
    def at_random(self) -> Planted:
        truth = "standard" if self.planted.truth == "standard" else "neither"
        return replace(self.planted, truth=truth, signal=0.0)


# A trained cohort: rates of exact answers by arm, seed, length and distractors that follow one account. *NC*: DIFF and its variants
# with λ gain with distractors at any length, λ = 1 most; nothing else does. *SP*: DIFF gains with length at any number of distractors,
# and finer heads, a signed mask and top-k gain as much. *Neither*: no arm gains anything.

LENGTHS, DISTRACTORS, PROMPTS = (128, 256, 512), (0, 4, 8, 16), 100
DIFF = ("diff", "no-norm", "scalar", "lambda-1")
SPARSE = ("half-width", "signed", "top-2", "top-8", "top-32")
ARMS = ("standard", "standard-norm", "double-width", "lambda-0", "gated", *SPARSE, *DIFF)
LEVEL = 1.2  # logit of an exact answer where nothing helps


def planted_cohort(truth: str, seeds: int, effect: float, spread: float = 0.3, seed: int = 0) -> xr.Dataset:
    """What ``diffscope train`` would measure of such a cohort.

    Parameters
    ----------
    truth : {"NC", "SP", "neither"}
    seeds : int
    effect : float
        The mean gain over all but no distractors, in logits.
    spread : float
        Standard deviation over seeds of an arm's level, in logits.
    seed : int
    """
    rng = np.random.default_rng([seed, seeds])
    distractors, length = np.meshgrid(np.array(DISTRACTORS) / 16, np.log2(np.array(LENGTHS) / 256))  # (length, distractors)
    gain = {"NC": distractors / distractors[:, 1:].mean(), "SP": 1 + length, "neither": 0 * distractors}[truth] * effect
    who = {"NC": DIFF, "SP": (*DIFF, *SPARSE), "neither": ()}[truth]
    gains = np.stack([gain * (arm in who) * (1.5 if (truth, arm) == ("NC", "lambda-1") else 1) for arm in ARMS])
    levels = LEVEL + spread * rng.normal(size=(len(ARMS), seeds, 1, 1)) - distractors - 0.3 * length
    rates = 1 / (1 + np.exp(-(levels + gains[:, None])))  # (arm, seed, length, distractors)
    shown = rng.random((*rates.shape, PROMPTS)) < rates[..., None]
    coords = {
        "arm": list(ARMS),
        "seed": range(seeds),
        "length": list(LENGTHS),
        "distractors": list(DISTRACTORS),
        "step": [25, 850],
    }
    cohort = xr.Dataset({"exact_match": (("arm", "seed", "length", "distractors", "prompt"), shown.astype(float))}, coords)
    earlier = np.array([200.0 * (truth == "NC" and arm in DIFF) for arm in ARMS])[:, None]
    formed = (500 - earlier + 75 * rng.normal(size=(len(ARMS), seeds))).clip(25, 850) // 25 * 25
    cohort["formation"] = ("arm", "seed"), formed
    cohort["finished"] = ("arm", "seed"), np.ones((len(ARMS), seeds), dtype=int)
    apart = np.array([1.5 + effect * (truth == "NC" and arm in DIFF) for arm in ARMS])[:, None]  # d′ of saying "unknown"
    z = 0.5 * apart[..., None] * np.array([-1, 1]) - 0.4 + 0.15 * rng.normal(size=(len(ARMS), seeds, 2))
    said = rng.random((len(ARMS), seeds, 2, len(DISTRACTORS), PROMPTS)) < norm.cdf(z)[..., None, None]
    cohort["says_unknown"] = ("arm", "seed", "question", "distractors", "prompt"), said.astype(float)
    losses = 2 + 0.02 * rng.normal(size=(len(ARMS), seeds, 2))
    cohort["text"] = ("arm", "seed", "token"), losses
    return cohort.assign_coords(question=["answerable", "unanswerable"], token=["hit", "other"])
