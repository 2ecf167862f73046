"""All tests side by side: run what a subject supports, name what the others need, correct for how many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, PromptError
from diffscope.hypotheses.declared import NEEDED, OBSERVERS, TESTS, chosen
from diffscope.hypotheses.inference import Estimate, Observed, as_estimate, holm
from diffscope.hypotheses.rules import Missing, Test, judge, state
from diffscope.hypotheses.subjects import Pair, Subject
from diffscope.hypotheses.verdicts import Verdict, sentence


def run(
    ids: Sequence[str] = (),
    model: Subject | None = None,
    cohort: xr.Dataset | None = None,
    *,
    pair: Pair | None = None,
    checkpoints: Sequence[Subject] = (),
    progress: Callable[[int, int, str], None] | None = None,
    kept: MutableMapping[str, dict[str, Estimate] | str] | None = None,
) -> list[Verdict]:
    """Run tests and judge them by the rules they declared.

    Parameters
    ----------
    ids : sequence of str
        By default all.
    model : Subject, optional
    cohort : Dataset, optional
        What ``diffscope train`` measured of a cohort, ``cohort.nc``.
    pair : Pair, optional
    checkpoints : sequence of Subject
        Of each training its checkpoints, ``NAME@STEP``, in order; several trainings are seeds.
    progress : callable, optional
        Called with (tests done, tests in all, id).
    kept : mutable mapping, optional
        Estimates of tests by id, or what they need, that are taken from there or put there as they are finished.

    Returns
    -------
    list of Verdict
        In the order asked; a test that cannot be run says what it needs.
    """
    subjects = {"model": model, "pair": pair, "checkpoints": list(checkpoints) or None, "cohort": cohort}
    tests, kept, found = chosen(ids), {} if kept is None else kept, {}
    for number, test in enumerate(tests):
        if progress:
            progress(number, len(tests), test.id)
        found[test.id] = kept[test.id] if test.id in kept else _found(test, subjects[test.needs])
        kept[test.id] = found[test.id]
    adjusted = _adjusted([test for test in tests if not isinstance(found[test.id], str)], found)
    return [
        _needs(test, found[test.id]) if isinstance(found[test.id], str) else _verdict(test, found[test.id], adjusted)
        for test in tests
    ]


def _found(test: Test, subject) -> dict[str, Estimate] | str:
    """The estimates of a test, or what it needs."""
    if subject is None:
        return NEEDED[test.needs]
    observe = OBSERVERS[test.needs][test]
    try:
        observed = _of_trainings(observe, subject) if test.needs == "checkpoints" else observe(subject)
    except Missing as error:
        return str(error)
    except PromptError as error:
        return f"other prompts: {error}"
    except DiffscopeError as error:
        return f"a model and prompts that allow it: {error}"
    return {name: as_estimate(one) for name, one in observed.items()}


def _of_trainings(observe: Callable, trainings: Sequence[Subject]) -> dict[str, Observed]:
    """What is observed of each training, as seeds; one that lacks what others have is left out."""
    found, lacking = [], []
    for series in trainings:
        try:
            found.append(observe(series))
        except Missing as error:
            lacking.append(error)
    if not found:
        raise lacking[0]
    note = f"{len(lacking)} of {len(trainings)} trainings are left out, for want of {lacking[0]}" if lacking else ""
    return {
        name: Observed(
            *(np.concatenate([getattr(one[name], part) for one in found]) for part in ("values", "untrained")), note=note
        )
        for name in found[0]
    }


def _adjusted(tests: Sequence[Test], found: Mapping[str, Mapping[str, Estimate]]) -> dict[tuple[str, str], float]:
    """Holm's p of every quantity that a rule uses; what two tests ask alike counts once."""
    asked = {(test.id, name): found[test.id][name] for test in tests for wanted in test.predictions.values() for name in wanted}
    labels = {key: (TESTS[key[0]].quantities[key[1]].label, asked[key].p) for key in asked}
    distinct = list(dict.fromkeys(labels.values()))
    corrected = dict(zip(distinct, holm([p for _, p in distinct])))
    return {key: corrected[label] for key, label in labels.items()}


def _needs(test: Test, what: str) -> Verdict:
    return Verdict(test, f"needs {what}", {}, {}, {}, f"Not run: it needs {what}.")


def _verdict(test: Test, found: Mapping[str, Estimate], adjusted: Mapping[tuple[str, str], float]) -> Verdict:
    own = {name: p for (id, name), p in adjusted.items() if id == test.id}
    states = {name: state(one, own.get(name, one.p), test.quantities[name].margin) for name, one in found.items()}
    states = {name: is_ if name in own else f"{is_} (uncorrected)" for name, is_ in states.items()}
    verdict = judge(test, states)
    return Verdict(test, verdict, found, own, states, sentence(test, verdict, found, own, states))
