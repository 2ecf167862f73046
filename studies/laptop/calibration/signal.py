"""Models with a planted truth for the signal-to-noise gain: tokens have scores and values, so that they can be exchanged.

One query looks at an answer among filler. A token's scores, one for each map of each head, and its value are drawn once.

- amplifier: both maps give filler the same scores but for a little of their own; the answer stands out in the first map alone.
- sparsifier: the second map is a flat pedestal; the first gives filler weak scores, and the answer stands out in it.
- signed: the answer stands out in the second map alone, and filler has scores of its own in each.
- nothing: the answer stands out in the first map, and filler has scores of its own in each.

With values of mean 0 and any weights w, the mean signal over values is E[w_a²], the mean noise E[Σ w_f²] + Var[w_a], with a the
answer and f the filler: what an instrument has to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr

from diffscope.attention.components import Norm, Pairing
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.instruments.snr import mean_gain, signal_to_noise
from diffscope.prompts.encoded import Encoded

TRUTHS = ("amplifier", "sparsifier", "signed", "nothing")
WORDS = ("amplifier", "pedestal", "signed heads", "nothing", "open")
EXPECTED = dict(zip(TRUTHS, WORDS))
VOCABULARY = 4096
WEAK = 0.25  # strength of a sparsifier's scores on filler
OWN = 0.15  # of the noise that an amplifier's second map does not share
GAINS, NO_GAIN = 3.0, 1.0  # dB: from here on there is a gain; up to here there is none
ABOVE_UNIFORM = 1.0  # dB by which a gain is more than that of a flat pedestal
MANY = 20_000  # draws of scores that the truth is computed from


@dataclass(frozen=True)
class PlantedSignal:
    """What a model of one layer does, in the place of a scope.

    Attributes
    ----------
    truth : {"amplifier", "sparsifier", "signed", "nothing"}
    seed : int
    keys : int
        Tokens of a prompt.
    width : int
        Of the values.
    heads : int
    noise : float
        Standard deviation of the scores on filler.
    signal : float
        How much higher the answer's scores are.
    lam : float
    """

    truth: str
    seed: int = 0
    keys: int = 64
    width: int = 16
    heads: int = 2
    noise: float = 1.5
    signal: float = 4.0
    lam: float = 0.8

    tokenizer = None
    name = "planted"

    @property
    def answer_at(self) -> int:
        return self.keys // 2

    def scores(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Scores of filler tokens, (token, head, map)."""
        scores = rng.normal(size=(count, self.heads, 2)) * self.noise
        if self.truth == "amplifier":
            scores[..., 1] = scores[..., 0] + OWN * scores[..., 1]
        elif self.truth == "sparsifier":
            scores *= WEAK
            scores[..., 1] = 0
        return scores

    def weights(self, scores: np.ndarray) -> np.ndarray:
        """A1 and A2 of rows of filler scores (row, token, head, map), the answer's in its place: (row, token, head, map)."""
        scores = scores.copy()
        scores[:, self.answer_at] = 0
        scores[:, self.answer_at, :, 1 if self.truth == "signed" else 0] = self.signal
        a = np.exp(scores)
        return a / a.sum(1, keepdims=True)

    def true_gain(self) -> float:
        """Return the true gain in dB, from means over many draws of scores."""
        rng = np.random.default_rng(12_345)
        powers: dict[str, list[np.ndarray]] = {"A1": [], "D": []}
        for _ in range(max(1, MANY * 64 // (self.keys * 1000))):
            scores = self.scores(rng, 1000 * self.keys).reshape(1000, self.keys, self.heads, 2)
            a = self.weights(scores)
            for name, w in (("A1", a[..., 0]), ("D", a[..., 0] - self.lam * a[..., 1])):
                answer = w[:, self.answer_at]  # (row, head)
                filler = np.delete(w, [0, self.answer_at, self.keys - 1], 1)
                powers[name].append(np.stack([(answer**2).mean(), (filler**2).sum(1).mean() + answer.var(0).mean()]))
        ratio = {name: np.mean(values, 0) for name, values in powers.items()}
        return float(10 * np.log10(ratio["D"][0] / ratio["D"][1] * ratio["A1"][1] / ratio["A1"][0]))

    def encode(self, prompt: Any, spans: Any = None) -> Encoded:
        """As :meth:`diffscope.scope.Scope.encode`, of token ids."""
        ids = tuple(prompt)
        return Encoded(None, ids, tuple(map(str, ids)), ((0, 0),) * len(ids), {name: tuple(at) for name, at in spans.items()})

    def capture(self, prompts: Sequence[Sequence[int]], spans: Any = None) -> Capture:
        """As :meth:`diffscope.scope.Scope.capture`, of a batch of token ids."""
        rng = np.random.default_rng([self.seed, TRUTHS.index(self.truth)])
        scores = self.scores(rng, VOCABULARY)
        values = torch.from_numpy(rng.normal(size=(VOCABULARY, self.width)))
        ids = np.array(prompts)
        rows = np.log(self.weights(scores[ids]))  # (prompt, key, head, map): the softmax of logarithms is the same map
        batch, keys = ids.shape
        q = torch.zeros(batch, 2 * self.heads, keys, keys, dtype=torch.float64)
        q[:, :, -1] = torch.from_numpy(rows).permute(0, 2, 3, 1).flatten(1, 2)  # keys are one-hot: a query is its scores
        layer = LayerAttention(
            layer=0,
            family="planted",
            q=q,
            k=torch.eye(keys, dtype=torch.float64).expand(batch, 1, -1, -1),
            v=values[torch.from_numpy(ids)][:, None],
            scale=1.0,
            pairing=Pairing.stripes(self.heads, 1, shared_keys=True),
            lengths=(keys,) * batch,
            lam=torch.full((1, self.heads, 1), self.lam, dtype=torch.float64),
            norm=Norm("rms", 1e-5),
        )
        encoded = [self.encode(each, spans) for each in prompts]
        proof = Fidelity(0.0, 1.0, 0, True)
        return Capture(encoded, [layer], [proof], [[]] * batch, np.zeros((1, batch, 6)), {"model": f"planted {self.truth}"}, True)

    def measured(self, draws: int) -> xr.Dataset:
        """Return what the instrument measures of it, with `draws` answers and fillers."""
        rng = np.random.default_rng([self.seed, 7])
        rows = rng.integers(VOCABULARY, size=(draws + 1, self.keys)).tolist()
        spans = {"sink": [0], "answer": [self.answer_at], "query": [self.keys - 1]}
        answers = [[int(token)] for token in rng.choice(VOCABULARY, draws, replace=False)]
        scope: Any = replace(self)
        return signal_to_noise(scope, rows[0], spans=spans, answers=answers, fillers=rows[1:], draws=draws, seed=self.seed)


def account_of(measured: xr.Dataset, weights: xr.DataArray | None = None, least: float = -np.inf) -> str:
    """Return what the numbers of a model say together, one of ``WORDS``; `weights` and `least` as of :func:`mean_gain`.

    A gain of 3 dB is there, one of 1 dB is not. If A2·V tells the answer better than A1·V, the heads are signed; if a uniform A2
    gains nearly as much, a pedestal is subtracted; otherwise noise is cancelled.
    """
    means = mean_gain(measured, weights, least).sel(stage="before")
    gain = float(means["snr_gain"].sel(a2="own"))
    if not gain > NO_GAIN:
        return "nothing"
    if gain < GAINS:
        return "open"
    snr = measured["snr"].sel(stage="before")
    if float((snr.sel(output="lambda_A2") - snr.sel(output="A1")).mean()) > 0:
        return "signed heads"
    return "amplifier" if gain - float(means["snr_gain"].sel(a2="uniform")) > ABOVE_UNIFORM else "pedestal"
