"""Say where the numbers of a declared test are, and measure them there.

What takes evidence is imported when a test first measures something: tests are shown, and judged anew, without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.rules import Needs, Place
from diffscope.hypotheses.statistics import Estimate, Sample


@dataclass(frozen=True)
class Places:
    """Where the numbers of a test are; called with a subject, it measures them.

    Attributes
    ----------
    id : str
        Of the test.
    needs : {"model", "pair", "checkpoints", "cohort"}
    places : mapping of str to mapping
        The fields of :class:`~diffscope.hypotheses.rules.Place` that are given, by quantity; none if a function of that test
        measures it.
    judged : frozenset of str
        Quantities that rules judge.
    arms : tuple of str
        Of cohorts.
    over : str
        How checkpoints become one number.
    """

    id: str
    needs: Needs
    places: Mapping[str, Mapping[str, Any]]
    judged: frozenset[str]
    arms: tuple[str, ...]
    over: str = ""

    def __call__(self, subject: Any) -> dict[str, Sample | Estimate]:
        """Measure all quantities on a subject."""
        from diffscope.hypotheses.cohort import MEASURES, of_cohort
        from diffscope.hypotheses.measure import of_models

        self.check()
        places = {name: Place(**given) for name, given in self.places.items() if given}
        if self.needs != "cohort":
            return of_models(subject, places=places, judged=self.judged, needs=self.needs, over=self.over)
        return MEASURES[self.id](subject) if self.id in MEASURES else of_cohort(subject, places=places, judged=self.judged)

    def check(self) -> None:
        """Raise DiffscopeError unless there are the numbers that quantities are read from."""
        from diffscope.hypotheses.cohort import MEASURES
        from diffscope.hypotheses.measure import OVER

        if self.needs != "cohort" and (self.over in OVER) is not (self.needs == "checkpoints"):
            words = " or ".join(OVER)
            raise DiffscopeError(f"the test {self.id!r} is over {self.over!r}; of checkpoints give {words}, of others nothing")
        for name, given in self.places.items():
            whose = f"the quantity {name!r} of the test {self.id!r}"
            if self.needs != "cohort":
                _check_in_evidence(whose, given)
            elif self.id not in MEASURES:
                _check_in_cohort(whose, given, self.arms)


def _check_in_evidence(whose: str, given: Mapping[str, Any]) -> None:
    from diffscope.evidence.take import PART_OF_LABEL, part_of_outcome

    if len({"evidence", "outcome"} & set(given)) != 1 or not all(given.get("evidence", "LABEL.NAME").partition(".")):
        raise DiffscopeError(f'{whose} has to say where its number is: evidence = "LABEL.NAME", or outcome = "NAME"')
    names = [given[key] for key in ("evidence", "outcome", "minus") if key in given]
    for name in names:
        label, dot, _ = name.partition(".")
        if not (label in PART_OF_LABEL if dot else part_of_outcome(name)):
            raise DiffscopeError(f"{whose} is read from {name!r}; evidence has no such {'label' if dot else 'outcome'}")
    if given.get("heads", "others") not in ("answering", "others"):
        raise DiffscopeError(f"{whose} has heads = {given['heads']!r}; it is answering or others")


def _check_in_cohort(whose: str, given: Mapping[str, Any], arms: tuple[str, ...]) -> None:
    from diffscope.hypotheses.cohort import SCORES

    if set(given) != {"score", "arm", "other"} or given["score"] not in SCORES:
        raise DiffscopeError(f"{whose} has to name score, arm and other; scores are {', '.join(SCORES)}")
    others = [given["other"]] if isinstance(given["other"], str) else given["other"]
    if unknown := [arm for arm in (given["arm"], *others) if arm not in arms]:
        raise DiffscopeError(f"{whose} compares {unknown[0]!r}; arms are {', '.join(arms)}")
