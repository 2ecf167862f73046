"""Trained models beside untrained ones: one comparison for every quantity that is read off models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from diffscope.errors import Missing
from diffscope.evidence.heads import ANSWERS, Table
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models, Pair

OverSteps = Callable[[np.ndarray], np.ndarray]


def contrast(
    subject: Models | Pair,
    label: str,
    over_steps: OverSteps | None = None,
    apart: Sequence[str] = (),
) -> dict[str, Sample]:
    """Quantities of trained models beside the same of untrained ones, heads weighted.

    Parameters
    ----------
    subject : Models or Pair
        One model, or several seeds of one; of pairs the means of DIFF minus those of standard; with `over_steps` the checkpoints
        of one training, which are compared with series of untrained models.
    label : str
        The quantities LABEL.NAME of the evidence.
    over_steps : callable, optional
        From values (step, …) to what they come to over the steps, (…).
    apart : sequence of str
        Quantities that are shown of the heads that answer and of the others too, as ``NAME_answering`` and ``NAME_others``; these
        are of trained models alone, since of untrained heads none answers.
    """
    trained, untrained = subject.tables(label, apart)
    if over_steps is None:
        observed = {name: beside(trained, untrained, name) for name in trained[0].values}
        return {name: replace(each, prompts=subject.prompts_are, seeds=subject.seeds) for name, each in observed.items()}
    steps = len(trained)
    rounds = [untrained[first : first + steps] for first in range(0, len(untrained) - steps + 1, steps)]
    observed = {}
    for name in trained[0].values:
        series = [_followed(tables) for tables in (trained, *rounds) if name in tables[0].values]
        values = [over_steps(np.stack([table.mean(name).values for table in tables])) for tables in series]
        heads = [table.by_head(name) for table in series[0]]
        moved = None if heads[0] is None else over_steps(np.stack(heads).reshape(steps, -1)).reshape(1, *heads[0].shape)
        second = [table.by_answer(name) for table in series[0]]
        observed[name] = Sample(
            values[0][None],
            np.array([value.mean() for value in values[1:]]) if values[1:] else None,
            seeds=subject.seeds if len(subject.seeds) == 1 else (),
            by_answer=None if second[0] is None else over_steps(np.stack([of.values for of in second]))[None],
            **_of_heads(series[0][-1:], name, moved),
        )
    return observed


def beside(trained: Sequence[Table], untrained: Sequence[Table], name: str) -> Sample:
    """One quantity of trained models, seeds of one, and of untrained ones where these have it."""
    values = np.stack([table.mean(name).values for table in trained])
    null = np.array([float(table.mean(name).mean()) for table in untrained if name in table.values]) if untrained else None
    null = None if null is None or not len(null) else null
    heads = [table.by_head(name) for table in trained]
    if heads[0] is None:
        return Sample(values, null)
    layers = np.mean([table.by_layer(name) for table in trained], 0)
    second = [table.by_answer(name) for table in trained]
    by_answer = None if second[0] is None else np.stack([of.values for of in second])
    return Sample(values, null, layers, by_answer=by_answer, **_of_heads(trained, name, np.stack(heads)))


def _of_heads(tables: Sequence[Table], name: str, heads: np.ndarray | None) -> dict[str, Any]:
    """What :class:`Sample` has of heads (seed, layer, head), and what they count with, if it is one mean of them."""
    counting = [table.counting(name) for table in tables]
    one_mean = heads is not None and (counting[0] is not None or tables[0].costs is None)
    return {
        "heads": heads if one_mean else None,
        "weights": _stacked(counting) if one_mean else None,
        "answering": _stacked([table.weights for table in tables]),
        "weighted_by": tables[0].weighted_by if heads is not None else "",
        "lacking": tables[0].lacks(name),
    }


def heads_in_words(observed: Sample, what: str) -> str:
    """What heads come to each for itself: their unweighted mean and spread, and those that answer apart from the others."""
    if observed.heads is None or observed.answering is None or not np.isfinite(observed.heads).any():
        return ""
    values = observed.heads.ravel()
    answers = (observed.answering > ANSWERS).ravel()
    parts = [f"unweighted mean {_mean(values):.3g}, heads {np.nanmin(values):.3g} to {np.nanmax(values):.3g}"]
    for words, chosen in (("that answer", answers), ("of the others", ~answers)):
        parts.append(f"{chosen.sum()} heads {words} {_mean(values[chosen]):.3g}")
    return f"{what} by heads: {'; '.join(parts)}"


def noted(observed: dict[str, Sample], names: dict[str, str]) -> dict[str, Sample]:
    """What was observed, with :func:`heads_in_words` said of some quantities, which `names` calls by words."""
    return observed | {name: replace(observed[name], note=heads_in_words(observed[name], what)) for name, what in names.items()}


def require_differential(models: Models, what: str = "a differential model") -> None:
    """Raise Missing, naming `what` is needed, if a model is standard attention."""
    if not models.differential:
        raise Missing(f"{what}: this one is standard attention")


def require_series(series: Models) -> None:
    """Raise Missing unless these are three or more checkpoints of a differential model."""
    if len(series.steps) < 3:
        raise Missing("three checkpoints of a training at least")
    require_differential(series, "checkpoints of a differential model")


def _followed(tables: Sequence[Table]) -> list[Table]:
    """The tables of a series, in which the heads that count at its end are followed from the first step on."""
    return [replace(table, weights=tables[-1].weights, costs=tables[-1].costs) for table in tables]


def _stacked(weights: Sequence) -> np.ndarray | None:
    return None if weights[0] is None else np.stack([of_model.transpose("layer", "head").values for of_model in weights])


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
