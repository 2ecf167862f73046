"""All tests side by side: run what a subject supports, name what the others need, correct for how many there are."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, Missing, PromptError
from diffscope.hypotheses.declared import NEEDED, TESTS, chosen
from diffscope.hypotheses.intervals import students_t
from diffscope.hypotheses.rules import MEASURED, Cost, Declared, Measure, Test, state
from diffscope.hypotheses.statistics import Estimate, Sample, as_estimate
from diffscope.hypotheses.subjects import Models, Pair, Progress
from diffscope.hypotheses.verdict import Board, Verdict, corrected

PARTS = ("values", "untrained", "heads", "weights", "answering", "by_answer")  # of what is observed, by seed
A2_COST = "a2_cost"  # what a subject calls the cost of its second maps, and a cohort's dataset, (arm, seed), in nats
Subject = Models | Pair | Sequence[Models] | xr.Dataset


class Estimates(dict[str, Estimate]):
    """Estimates by quantity, and what the second map costs in the heads that they are of, where that is known.

    Attributes
    ----------
    a2_cost : Cost or None
    """

    def __init__(self, estimates: Mapping[str, Estimate], a2_cost: Cost | None = None):
        super().__init__(estimates)
        self.a2_cost = a2_cost


Result = Mapping[str, Estimate] | str  # estimates by quantity, or what is needed


def run(
    tests: str | Sequence[str] | None = None,
    *,
    model: Models | None = None,
    pair: Pair | None = None,
    checkpoints: Sequence[Models] = (),
    cohort: xr.Dataset | None = None,
    progress: Progress | None = None,
    finished: MutableMapping[str, Result] | None = None,
) -> Board:
    """Run tests and judge them by the rules they declared.

    Parameters
    ----------
    tests : str or sequence of str, optional
        Their ids; by default all.
    model : Models, optional
        A DIFF model, or several seeds of one.
    pair : Pair, optional
    checkpoints : sequence of Models
        Of each training its checkpoints, ``NAME@STEP``, in order; several trainings are seeds.
    cohort : Dataset, optional
        What ``diffscope train`` measured of a cohort, ``cohort.nc``.
    progress : callable, optional
        Called with (tests done, tests in all, id).
    finished : mutable mapping, optional
        Results by id that are taken from it instead of being computed, and put into it as they are finished.

    Returns
    -------
    Board
        A list of Verdict, in the order of `tests`; a test that cannot be run says what it needs.
    """
    subjects = {"model": model, "pair": pair, "checkpoints": list(checkpoints) or None, "cohort": cohort}
    declared = chosen(tests)
    finished = {} if finished is None else finished
    results: dict[str, Result] = {}
    for number, test in enumerate(declared):
        if progress:
            progress(number, len(declared), test.id)
        results[test.id] = finished[test.id] if test.id in finished else result_of(test, subjects[test.needs])
        finished[test.id] = results[test.id]
    p = corrected({id: estimates for id, estimates in results.items() if not isinstance(estimates, str)}, TESTS)
    return Board(_verdict(test, results[test.id], p) for test in declared)


def result_of(test: Declared, subject: Subject | None) -> Result:
    """The estimates of a test, or what it needs.

    Raises
    ------
    DiffscopeError
        What was observed is not what the test declares. Other mistakes of a measure are raised as they are, with a note that
        names the test.
    """
    if subject is None:
        return NEEDED[test.needs]
    try:
        observed = over_trainings(test.measure, subject) if test.needs == "checkpoints" else test.measure(subject)
    except Missing as error:
        return str(error)
    except PromptError as error:
        return f"other prompts: {error}"
    except DiffscopeError as error:
        return f"a model and prompts that allow it: {error}"
    except Exception as error:
        error.add_note(f"raised by {test.measure.__qualname__}, which measures the test {test.id!r}")
        raise
    if not set(test.judged) <= set(observed) <= set(test.quantities):
        raise DiffscopeError(
            f"the test {test.id!r} declares the quantities {', '.join(test.quantities)}, and {test.measure.__qualname__} "
            f"observed {', '.join(observed) or 'none'}"
        )
    estimates = {name: as_estimate(values) for name, values in observed.items()}
    return Estimates(estimates, _cost_there(test, estimates, subject))


def _cost_there(test: Declared, estimates: Mapping[str, Estimate], subject: Subject) -> Cost | None:
    """What the second maps cost where a test looks: by its own quantity, if it takes them out, or in the heads as they count."""
    if not test.inside or not test.without_a2:
        return cost_of(subject) if test.inside else None
    without = estimates.get(test.without_a2)
    return None if without is None or without.why else Cost(without.value, without.low, without.high)


def cost_of(subject: Subject) -> Cost | None:
    """What the second maps of a subject's heads cost the answer; None where that was not measured.

    Of a pair it is DIFF's; of several trainings, and of a cohort's runs of DIFF, the mean over seeds with Student's t.
    """
    if isinstance(subject, xr.Dataset):
        return _of_runs(subject)
    if isinstance(subject, Pair):
        return cost_of(subject.diff)
    if not isinstance(subject, Sequence):
        cost = getattr(subject, A2_COST, None)
        return None if cost is None else Cost(cost.value, cost.low, cost.high, cost.of)
    costs = [cost_of(training) for training in subject]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs) or len({cost.of for cost in known}) > 1:
        return None
    return known[0] if len(known) == 1 else _mean_cost([cost.value for cost in known], known[0].of)


def _of_runs(cohort: xr.Dataset) -> Cost | None:
    """What the second maps of a cohort's runs of DIFF cost, by what was kept of them."""
    if A2_COST not in cohort:
        return None
    values = cohort[A2_COST].sel(arm="diff").values
    known = values[np.isfinite(values)]
    return _mean_cost(known, cohort[A2_COST].attrs["of"]) if len(known) > 1 else None


def _mean_cost(values: Sequence[float] | np.ndarray, of: str) -> Cost:
    means = np.asarray(values, dtype=float)
    (low, high), _, _ = students_t(means)
    return Cost(float(means.mean()), low, high, of)


def over_trainings(measure: Measure, trainings: Sequence[Models]) -> dict[str, Sample]:
    """What is observed of each training, as seeds; one that lacks what others have is left out."""
    observed = []
    lacking = []
    for series in trainings:
        try:
            observed.append(measure(series))
        except Missing as error:
            lacking.append(error)
    if not observed:
        raise lacking[0]
    note = f"{len(lacking)} of {len(trainings)} trainings are left out, for want of {lacking[0]}" if lacking else ""
    joined = {}
    for name in observed[0]:
        parts = [quantities[name] for quantities in observed]
        arrays = {part: [getattr(of, part) for of in parts] for part in PARTS}
        whole = {part: None if any(of is None for of in each) else np.concatenate(each) for part, each in arrays.items()}
        seeds = [seed for of in parts for seed in of.seeds]
        notes = dict.fromkeys(filter(None, (note, *(of.note for of in parts))))
        joined[name] = replace(parts[0], **whole, layers=None, seeds=tuple(seeds), note="; ".join(notes))
    return joined


def _verdict(test: Declared, result: Result, p: Mapping[tuple[str, str], float]) -> Verdict:
    if isinstance(result, str):
        return Verdict(test, {}, {}, {}, {}, lacks=result)
    judged = {name: p[test.id, name] for name in test.judged}
    states = {}
    for name, estimate in result.items():
        quantity = test.quantities[name]
        states[name] = state(estimate, judged[name], quantity.margin, quantity.no_effect) if name in judged else MEASURED
    cost = getattr(result, A2_COST, None)
    words = test.judge(result, states, cost) if isinstance(test, Test) else {}
    return Verdict(test, words, result, judged, states, a2_cost=cost)
