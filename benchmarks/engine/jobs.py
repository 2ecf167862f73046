"""What one process does: a method, or the reference, on one model and one length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

import diffscope
from benchmarks.engine import oracle, subjects
from benchmarks.engine.methods import METHODS, values_of
from benchmarks.engine.script import Values, stacked
from diffscope.stats.definitions import ROW

Prepared = tuple[Callable[[], Values | None], Callable[[Values], Values]]


class Job(Protocol):
    """Prepares, in a process of its own, a run and what picks from its result the part that is sent back."""

    def prepare(self) -> Prepared: ...


def _at(rows: np.ndarray) -> Callable[[Values], Values]:
    """Takes from values (layer, map, head, query, ...) those of some rows."""
    return lambda values: {name: x[:, :, :, rows] for name, x in values.items()}


@dataclass(frozen=True)
class Measured:
    """All row statistics of all queries by one method, of which the reference's rows are shown."""

    method: str
    subject: str
    tokens: int
    device: str

    def prepare(self) -> Prepared:
        model = subjects.SUBJECTS[self.subject](self.tokens, self.device)
        return METHODS[self.method](model, subjects.prompt(model, self.tokens)), _at(oracle.spread(self.tokens))


@dataclass(frozen=True)
class Reference:
    """The same rows in float64, (layer, map, head, row, ...)."""

    subject: str
    tokens: int
    device: str

    def prepare(self) -> Prepared:
        model = subjects.SUBJECTS[self.subject](self.tokens, self.device)
        return lambda: reference_of(model, subjects.prompt(model, self.tokens), oracle.spread(self.tokens)), lambda result: result


def reference_of(model: torch.nn.Module, ids: torch.Tensor, rows: np.ndarray) -> oracle.Reference:
    layers = []
    for module, qk in zip(subjects.attentions(model), subjects.projected(model, ids, dtype=torch.float64)):
        layers.append(oracle.of_layer(*(x.cpu().numpy() for x in qk), subjects.lambda_of(module), rows))
    return stacked(layers)


@dataclass(frozen=True)
class Sampled:
    """diffscope on a sample of the queries: of a layer's inputs at hand, or through the whole model."""

    through_model: bool
    tokens: int
    rows: int
    device: str

    def prepare(self) -> Prepared:
        pick = _at(_picked(self.rows, self.tokens))
        sample = diffscope.Sample(self.rows)
        if self.through_model:
            model = subjects.random_model(self.tokens, self.device)
            ids = subjects.prompt(model, self.tokens)[0].tolist()
            return lambda: values_of(diffscope.load(model).measure(ids, list(ROW), queries=sample)), pick
        layer = subjects.random_layer(self.tokens, self.device)
        queries = _queries(self.rows, self.tokens)
        return lambda: values_of(diffscope.stats.measure(layer, list(ROW), queries=queries).expand_dims("layer")), pick


@dataclass(frozen=True)
class SampledReference:
    """Some rows of the same sample in float64."""

    through_model: bool
    tokens: int
    rows: int
    device: str

    def prepare(self) -> Prepared:
        rows = _queries(self.rows, self.tokens)[_picked(self.rows, self.tokens)]
        return lambda: self._of(rows), lambda result: result

    def _of(self, rows: np.ndarray) -> oracle.Reference:
        if self.through_model:
            model = subjects.random_model(self.tokens, self.device)
            return reference_of(model, subjects.prompt(model, self.tokens), rows)
        layer = subjects.random_layer(self.tokens, self.device)
        return stacked([oracle.of_layer(*(x[0].double().cpu().numpy() for x in (layer.q, layer.k)), float(layer.lam), rows)])


def _queries(rows: int, tokens: int) -> np.ndarray:
    drawn = diffscope.Sample(rows).draw(tokens)
    return np.arange(tokens) if drawn is None else drawn.queries.numpy()


def _picked(rows: int, tokens: int) -> np.ndarray:
    """Which of the sampled queries are compared."""
    return oracle.spread(min(rows, tokens))
