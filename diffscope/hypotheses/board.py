"""Run tests on what a subject supports, name what the others need, correct for how many there are, and judge."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

import xarray as xr

from diffscope.errors import CorruptFile, DiffscopeError, Missing, PromptError
from diffscope.hypotheses.measure import A2_COST, cost_of, over_trainings
from diffscope.hypotheses.rules import MEASURED, Cost, Test, state
from diffscope.hypotheses.statistics import Estimate, as_estimate
from diffscope.hypotheses.subjects import Models, Pair, Progress
from diffscope.hypotheses.tests import NEEDED, TESTS, chosen
from diffscope.hypotheses.verdict import Board, Verdict, corrected

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


def result_of(test: Test, subject: Subject | None) -> Result:
    """Return the estimates of a test, or what it needs.

    Raises DiffscopeError if what was measured is not what the test declares. Other mistakes are raised as they are, with a note
    that names the test.
    """
    if subject is None:
        return NEEDED[test.needs]
    try:
        samples = over_trainings(test.measure, subject) if test.needs == "checkpoints" else test.measure(subject)
    except Missing as error:
        return str(error)
    except PromptError as error:
        return f"other prompts: {error}"
    except CorruptFile:
        raise
    except DiffscopeError as error:
        return f"a model and prompts that allow it: {error}"
    except Exception as error:
        error.add_note(f"raised while measuring the test {test.id!r}")
        raise
    if not set(test.judged) <= set(samples) <= set(test.quantities):
        raise DiffscopeError(
            f"the test {test.id!r} declares the quantities {', '.join(test.quantities)}, and "
            f"{', '.join(samples) or 'none'} came of measuring it"
        )
    estimates = {name: as_estimate(sample) for name, sample in samples.items()}
    return Estimates(estimates, _cost_there(test, estimates, subject))


def _cost_there(test: Test, estimates: Mapping[str, Estimate], subject: Subject) -> Cost | None:
    """Return what the second maps cost where a test looks: its own quantity of that, or the mean over heads as they count."""
    if not test.inside or not test.without_a2:
        return cost_of(subject) if test.inside else None
    without = estimates.get(test.without_a2)
    return None if without is None or without.why else Cost(without.value, without.low, without.high)


def _verdict(test: Test, result: Result, p: Mapping[tuple[str, str], float]) -> Verdict:
    if isinstance(result, str):
        return Verdict(test, {}, {}, {}, {}, lacks=result)
    judged = {name: p[test.id, name] for name in test.judged}
    states = {}
    for name, estimate in result.items():
        quantity = test.quantities[name]
        states[name] = state(estimate, judged[name], quantity.margin, quantity.no_effect) if name in judged else MEASURED
    cost = getattr(result, A2_COST, None)
    words = test.judge(result, states, cost) if test.judged else {}
    return Verdict(test, words, result, judged, states, a2_cost=cost)
