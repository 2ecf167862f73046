"""Attribute random cells of A1 and A2 to upstream parts, and compare their sums with the models' own scores.

python -m benchmarks.score_attribution
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import diffscope
from benchmarks import results
from benchmarks.random_models import VOCABULARY, random_model
from benchmarks.results import Section, table
from diffscope.attribution import score_attribution
from diffscope.scope import Scope
from diffscope.tasks import examples

CELLS, MODELS = 50, 10
BUNDLED = ("mini-diff", "mini-standard", "mini-text")
TOKENS = 24
QUANTILES = (0, 0.25, 0.5, 0.75, 0.9, 1)
AGAINST = (None, "row", 0)  # the score itself; less the mean of its row; less the first key's


def cells(scope: Scope, ids: list[int], count: int, seed: int) -> Iterator[tuple[dict[str, Any], float, float]]:
    """Yield random cells, what the model's own queries and keys give there, and the largest score of the row."""
    random = np.random.default_rng(seed)
    layers = scope.capture(ids).layers
    for _ in range(count):
        layer = layers[random.integers(len(layers))]
        branch = int(random.integers(2 if layer.differential else 1))
        head, query = int(random.integers(layer.n_heads)), int(random.integers(2, len(ids)))
        key = int(random.integers(1, query + 1))
        against = AGAINST[random.integers(len(AGAINST))]
        own = layer.logits([query], layer.pairing.of_branch(1 + branch)[[head]])[0, 0].double().numpy()[: query + 1]
        compared = {None: 0.0, "row": own.mean(), 0: own[0]}[against]
        cell = {"layer": layer.layer, "head": head, "query": query, "key": key, "map": ("A1", "A2")[branch], "against": against}
        yield cell, float(own[key] - compared), float(abs(own).max())


def of_model(scope: Scope, ids: list[int], count: int, seed: int) -> dict[str, list[float]]:
    """Return quantiles over cells: how far the sum is from the score, that by the largest score of the row, and Σ|parts|."""
    errors = []
    for cell, wanted, largest in cells(scope, ids, count, seed):
        parts = score_attribution(scope, ids, **cell)["score"]
        error = abs(float(parts.sum()) - wanted)
        errors.append([error, error / largest, float(abs(parts).sum())])
    return dict(zip(("error", "relative", "parts"), np.quantile(errors, QUANTILES, axis=0).T.tolist()))


def bundled(name: str) -> tuple[Scope, list[int]]:
    """Return a bundled model with an example prompt of its own."""
    scope = diffscope.load(name)
    text = examples()[0]
    return scope, list(scope.encode(getattr(text, "text", text)).ids)[-96:]


def random(seed: int) -> tuple[Scope, list[int]]:
    """Return a random DiffLlama, and random tokens."""
    return diffscope.load(random_model(seed)), np.random.default_rng(seed).integers(2, VOCABULARY, TOKENS).tolist()


def main() -> None:
    """Attribute the cells of random and bundled models."""
    options = results.parser(__doc__).parse_args()
    count, models = (2, 1) if options.quick else (CELLS, MODELS)
    subjects: dict[str, Callable[[], tuple[Scope, list[int]]]] = {
        f"random DiffLlama {n}": lambda n=n: random(n) for n in range(models)
    }
    subjects |= {name: lambda name=name: bundled(name) for name in BUNDLED[: 1 if options.quick else None]}
    numbers = {name: of_model(*make(), count, seed) for seed, (name, make) in enumerate(subjects.items())}
    rows = []
    for name, of in numbers.items():
        rows.append([name, count, f"{of['error'][-1]:.1e}", f"{of['relative'][-1]:.1e}", f"{of['parts'][-1]:.1f}"])
    header = ("model", "cells", "largest error of the sum", "by the largest score of its row", "largest Σ|parts|")
    text = (
        "Random cells of random layers, heads and maps: the score, the score less the mean of its row, or less the first key's. "
        "The error is of the sum over all pairs of parts, against the product of the query and key that the model itself used, "
        "in float32."
    )
    section = Section(
        "sums",
        "Parts of attention scores add up to the scores",
        "python -m benchmarks.score_attribution",
        "random DiffLlamas of benchmarks/random_models.py, and the models as they are bundled",
        [table("", header, rows)],
        text,
        {"quantiles": QUANTILES, "errors": numbers},
    )
    results.keep("score_attribution", [section], options)


if __name__ == "__main__":
    main()
