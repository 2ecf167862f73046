"""How long a check, a capture or tests of an opened model will take, and in what memory, judged by a few short captures."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.capture.capture import Capture
from diffscope.conformance.checks import planned_runs
from diffscope.conformance.prompts import Prompts
from diffscope.evidence.take import FEW, FEWER
from diffscope.hypotheses.settings import Settings
from diffscope.numbers import duration
from diffscope.render import size_in_words
from diffscope.scope import Scope
from diffscope.scope.images import ImageModel

SHORTEST = 16  # tokens of the first capture that is timed
LONGEST = 1024
GROWTH = 4
PATIENCE = 5.0  # seconds: a capture that takes longer is timed once
ENOUGH = 0.5  # seconds: a capture that takes as long says how long others take
# In captures of one prompt, as they were timed on the bundled models: what a test does with each prompt it reads, and what all
# tests together do with each of the few prompts that are changed, noised and differentiated.
READING = 1.0
CHANGING = 16.0


@dataclass(frozen=True)
class Forecast:
    """What something will take.

    Attributes
    ----------
    seconds : float
    nbytes : float
        Besides the model.
    """

    seconds: float
    nbytes: float

    @property
    def words(self) -> str:
        """Return both as a person reads them."""
        return f"about {duration(max(self.seconds, 1))}, {size_in_words(self.nbytes)} of memory"

    @property
    def fits(self) -> bool:
        """Return whether so much memory is free."""
        return self.nbytes <= free_memory(torch.device("cpu"))


@dataclass(frozen=True)
class Speed:
    """How fast a model is captured: seconds = overhead + pace · work(tokens).

    Attributes
    ----------
    overhead : float
        Seconds of a capture, however short.
    pace : float
        Seconds of a multiplication and addition, on average.
    weights : int
        Multiplications of a token with weights.
    pairs : int
        Multiplications of a query with a key, in all maps of all layers.
    token_bytes : float
        What a capture keeps of a token.
    """

    overhead: float
    pace: float
    weights: int
    pairs: int
    token_bytes: float

    def work(self, tokens: int) -> float:
        """Return the multiplications of a run and of its proof, which makes the maps once more."""
        return float(tokens) * (self.weights + tokens * self.pairs)

    def capture(self, tokens: int) -> Forecast:
        """Return what a prompt of so many tokens takes."""
        return Forecast(self.overhead + self.pace * self.work(tokens), tokens * self.token_bytes)


def measured_speed(scope: Scope) -> Speed:
    """Time captures of random prompts, each longer than the one before, until one takes long enough to tell.

    Each is timed twice and the shorter time counts, as other work may hold one up; one that takes PATIENCE is not repeated.
    """
    prompts = Prompts(scope, 0, SHORTEST)
    shortest = min(SHORTEST, scope.max_length or SHORTEST)
    longest = min(LONGEST, scope.max_length or LONGEST)
    scope.capture(prompts.of_length(shortest))  # whatever is done once is done now
    times: dict[int, float] = {}
    n = shortest
    while True:
        prompt = prompts.of_length(n)
        cap, seconds = _timed(scope, prompt)
        if seconds < PATIENCE:
            del cap  # there may not be memory for two
            cap, again = _timed(scope, prompt)
            seconds = min(seconds, again)
        times[cap.n_tokens] = seconds
        if seconds > ENOUGH or GROWTH * n > longest or isinstance(scope.runner, ImageModel):
            break
        n *= GROWTH
    return _speed(scope, cap.layers, times)


def _timed(scope: Scope, prompt: Any) -> tuple[Capture, float]:
    """Return a capture of a prompt, and the seconds that it took."""
    start = time.perf_counter()
    cap = scope.capture(prompt)
    return cap, time.perf_counter() - start


def _speed(scope: Scope, layers: list[LayerAttention], times: dict[int, float]) -> Speed:
    """Return the line through the shortest and the longest capture."""
    kept = sum(tensor.nbytes for layer in layers for tensor in (layer.q, layer.k, layer.v))
    weights = sum(parameter.numel() for parameter in scope.model.parameters())
    pairs = sum(layer.q.shape[1] * (layer.q.shape[-1] + layer.v.shape[-1]) for layer in layers)
    least, most = min(times), max(times)
    unit = Speed(0.0, 1.0, weights, pairs, kept / most)
    more = unit.work(most) - unit.work(least)
    pace = max(times[most] - times[least], 0.0) / more if more else times[most] / unit.work(most)
    overhead = max(times[least] - pace * unit.work(least), 0.0)
    return Speed(overhead, pace, weights, pairs, kept / most)


def of_check(scope: Scope, speed: Speed) -> Forecast:
    """Return what :func:`diffscope.check` takes."""
    runs = planned_runs(scope)
    return Forecast(sum(speed.capture(tokens).seconds for tokens in runs), speed.capture(max(runs)).nbytes)


def of_tests(speed: Speed, needs: Collection[str], settings: Settings) -> Forecast:
    """Return what the tests of one model (`model`) take, and those with a standard model beside it (`pair`)."""
    models = 1 + settings.untrained
    few = min(FEW, settings.prompts)
    read = settings.prompts * models
    changed = few + min(FEWER, settings.prompts) * settings.untrained
    one = speed.capture(settings.length)
    seconds = one.seconds * (READING * read + CHANGING * changed)
    return Forecast(seconds * len({"model", "pair"} & set(needs)), settings.prompts * one.nbytes)
