"""A study: every test on a trained cohort, kept as one file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import CensoredData, logrank

from diffscope.digests import read_proven_json, write_proven_json
from diffscope.errors import CorruptFile, DiffscopeError, first_line
from diffscope.files import plain
from diffscope.hypotheses.cohort import formed as formed_runs
from diffscope.hypotheses.cohort import went_on
from diffscope.hypotheses.described import described
from diffscope.hypotheses.gathering import Subjects, gather
from diffscope.hypotheses.outcomes import outcomes
from diffscope.hypotheses.settings import Settings
from diffscope.hypotheses.shipped import STUDY, find_study
from diffscope.hypotheses.statistics import LeaveOneOut
from diffscope.hypotheses.stored import formed_models_of, open_cohort
from diffscope.hypotheses.subjects import Progress
from diffscope.hypotheses.tests import TESTS
from diffscope.hypotheses.verdict import Board, Verdict
from diffscope.scope import Scope, load

ALL = "all seeds"
WEIGHTS = "seeds with weights"
REMEDY = "run the study anew"
DIGITS = 14  # of a number in the file: what differs between machines is beyond them
#: what a verdict says of itself, so that the file need not
DERIVED = ("question", "source", "controls", "of", "needs", "limits", "answer", "shown", "reasons")
LEAVE_ONE_OUT = "leave_one_out"
VERSIONS = ("python", "torch", "transformers", "revision")


@dataclass(frozen=True)
class Study:
    """Boards of one cohort.

    Attributes
    ----------
    facts : dict
        The cohort, its arms with their seeds, the settings, and the versions that its runs were made with.
    boards : dict of str to list of Verdict
        ``all seeds``; ``seeds with weights``, what the evidence of runs does not hold, of the models that are at hand.
    survival : list of dict
        One row an arm; see :func:`survival`.
    described : list of dict
        What else the evidence of runs holds; see :func:`diffscope.hypotheses.described.described`.
    outcomes : list of dict
        The results of every arm, seed by seed; see :func:`diffscope.hypotheses.outcomes.outcomes`.
    notes : list of str
        What was found besides, by hand: a heading, then point by point.
    """

    facts: dict
    boards: dict[str, Board]
    survival: list[dict]
    described: list[dict] = field(default_factory=list)
    outcomes: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict:
        """Return it ready for JSON."""
        boards = {name: [verdict.as_dict() for verdict in board] for name, board in self.boards.items()}
        return {"facts": self.facts, "boards": boards, **{name: getattr(self, name) for name in TABLES}, "notes": self.notes}

    def save(self, folder: Path) -> Path:
        """Write it to a folder; the file appears when it is complete."""
        boards = {name: packed_board(board) for name, board in self.boards.items()}
        record = {**self.as_dict(), "boards": boards, **{name: _columns(getattr(self, name)) for name in TABLES}}
        folder.mkdir(parents=True, exist_ok=True)
        write_proven_json(folder / STUDY, _rounded(plain(record)))
        return folder / STUDY


TABLES = ("survival", "described", "outcomes")


def open_study(folder: str | Path | None = None) -> Study:
    """Open a study: in a folder, or the shipped one of this name; by default the laptop's.

    Raises
    ------
    DiffscopeError
        There is none, or its rules are no longer these.
    CorruptFile
        It cannot be read.
    """
    path = find_study(folder)
    record = read_proven_json(path, REMEDY)
    try:
        boards = {name: open_board(rows) for name, rows in record["boards"].items()}
        return Study(record["facts"], boards, *(_rows(record[name]) for name in TABLES), record["notes"])
    except DiffscopeError:
        raise
    except Exception as error:  # what a damaged record without a digest may hold
        raise CorruptFile(f"{path} is damaged ({type(error).__name__}: {first_line(error)}); {REMEDY}") from None


def packed_board(board: Sequence[Verdict]) -> list[dict]:
    """Return the verdicts of a board as a study's file has them."""
    return [_packed(verdict.as_dict()) for verdict in board]


def open_board(rows: Sequence[Mapping]) -> Board:
    """Return the board that :func:`packed_board` packed."""
    return Board(Verdict.from_dict(_unpacked(row), TESTS) for row in rows)


def _packed(verdict: Mapping) -> dict:
    """Return a verdict's record without what its test declares, and with leave-one-out results as rows of values."""
    estimates = {
        name: {**row, LEAVE_ONE_OUT: [list(left.values()) for left in row[LEAVE_ONE_OUT]]}
        for name, row in verdict["estimates"].items()
    }
    left_out = {*DERIVED, *(["sentence"] if estimates else [])}
    return {**{name: value for name, value in verdict.items() if name not in left_out}, "estimates": estimates}


def _unpacked(row: Mapping) -> dict:
    names = [each.name for each in fields(LeaveOneOut)]
    estimates = {
        name: {**of, LEAVE_ONE_OUT: [dict(zip(names, values)) for values in of[LEAVE_ONE_OUT]]}
        for name, of in row["estimates"].items()
    }
    return {**row, "estimates": estimates}


def _columns(rows: Sequence[Mapping]) -> dict:
    """Return rows of the same names as those names and the values of each row."""
    names = list(rows[0]) if rows else []
    return {"columns": names, "rows": [[row[name] for name in names] for row in rows]}


def _rows(table: Mapping) -> list[dict]:
    return [dict(zip(table["columns"], values)) for values in table["rows"]]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def run_study(
    cohort: Path,
    tests: str | Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    progress: Progress | None = None,
    opener: Callable[[str], Scope] = load,
) -> Study:
    """Run all tests on a cohort's DIFF models, pairs, checkpoints and arms.

    Parameters
    ----------
    cohort : path
        Folder of a trained cohort with the evidence of its runs, or with its models.
    tests : str or sequence of str, optional
        Their ids; by default all.
    settings : Settings, optional
        Prompts, and how much is spent on them.
    progress : callable, optional
        Called with (done, total, words).
    opener : callable
        Opens a model by its name.
    """
    dataset = open_cohort(cohort)
    options = {"settings": settings, "progress": progress, "opener": opener}
    subjects = gather(cohort=cohort, **options)
    boards = {ALL: subjects.run(tests)}
    if (live := _with_weights(boards[ALL], cohort, dataset, options)) is not None:
        boards[WEIGHTS] = live[0].run(live[1])
    facts = {
        "cohort": cohort.name,
        "arms": {str(arm): _finished(dataset, arm) for arm in dataset["arm"].values},
        "settings": asdict(subjects.settings),
        "made_with": _made_with(dataset),
        "recipe": json.loads(dataset.attrs["recipe"])["name"],
        "training": _training(dataset),
    }
    return Study(facts, boards, survival(dataset), described(cohort, dataset), outcomes(dataset))


def _with_weights(
    board: Board, cohort: Path, dataset: xr.Dataset, options: Mapping[str, Any]
) -> tuple[Subjects, list[str]] | None:
    """Return the formed pairs at hand, and the ids of measurements of models that no stored evidence answers whole.

    None if all are answered, or there are not two such pairs.
    """
    of_models = [verdict for verdict in board if verdict.test.needs in ("model", "pair") and not verdict.test.judged]
    left = [verdict.test.id for verdict in of_models if set(verdict.test.quantities) - set(verdict.estimates)]
    pairs = formed_models_of(cohort, dataset, "diff", "standard")
    if not left or len(pairs[0]) < 2:
        return None
    return gather(*pairs, cohort, needs={"model", "pair"}, **options), left


def _made_with(cohort: xr.Dataset) -> dict[str, str]:
    """Return the versions that runs were made with, several in a row."""
    made_by = json.loads(cohort.attrs.get("made_by", "{}"))
    facts = [facts for of_run in made_by.values() for facts in of_run or []]
    known = {name: sorted({str(of[name]) for of in facts if name in of}) for name in VERSIONS}
    return {name: ", ".join(values) for name, values in known.items() if values}


def _training(cohort: xr.Dataset) -> dict:
    """How the arms were trained: learning rates, what choosing them came to, parameters, and runs that failed."""
    arms = [str(arm) for arm in cohort["arm"].values]
    facts = {name: dict(zip(arms, cohort[name].values.tolist())) for name in ("rate", "parameters") if name in cohort}
    if "tuning_area" in cohort:
        facts["rates_tried"] = cohort["rate_tried"].values.tolist()
        for name in ("tuning_area", "tuning_formation"):
            facts[name] = dict(zip(arms, cohort[name].transpose("arm", "rate_tried", "tuning_seed").values.tolist()))
    return plain({**facts, "failed": cohort.attrs.get("failed", "")})


def _finished(cohort: xr.Dataset, arm: str) -> list[int]:
    return [int(seed) for seed in cohort["seed"].values[cohort["finished"].sel(arm=arm).values == 1]]


def survival(cohort: xr.Dataset) -> list[dict]:
    """When the lookup circuit of every arm forms, runs in which it never does counted as what they are.

    Returns
    -------
    list of dict
        By arm of which a run is finished: ``runs``, ``formed``, ``median`` step (Kaplan–Meier; None where fewer than half
        form), ``restricted_mean`` step up to the most that a run was given to form in, and ``p`` of the log-rank test against
        DIFF (asymptotic, not corrected; None for DIFF itself); all three None of an arm that continues another's formed model.
    """
    last = float(cohort["formation_limit"] if "formation_limit" in cohort else cohort["step"].max())
    runs = {}
    rows = []
    for arm in map(str, cohort["arm"].values):
        ended = cohort["finished"].sel(arm=arm).values == 1
        formed = formed_runs(cohort).sel(arm=arm).values[ended]
        if not ended.any():
            continue
        rows.append({"arm": arm, "runs": int(ended.sum()), "formed": int(formed.sum())})
        steps = cohort["formation"].sel(arm=arm).values[ended]
        if np.isfinite(steps[formed]).all() and arm not in went_on(cohort):
            runs[arm] = np.where(formed, steps, last), formed
    return plain([{**row, **_when(row["arm"], runs)} for row in rows])


def _when(arm: str, runs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """When the circuit of an arm forms, of runs (steps, formed) by arm; undefined of one that goes on from another's."""
    if arm not in runs:
        return dict.fromkeys(("median", "restricted_mean", "p"), math.nan)
    steps, formed = runs[arm]
    return {
        "median": _median(steps, formed),
        "restricted_mean": float(steps.mean()),  # nobody is lost before the last step: the area under the curve
        "p": math.nan if arm == "diff" or "diff" not in runs else _log_rank(runs["diff"], (steps, formed)),
    }


def _median(steps: np.ndarray, formed: np.ndarray) -> float:
    """Take the Kaplan–Meier median: an order statistic, since no run is lost before the last step; NaN if half never form."""
    ordered = np.sort(np.where(formed, steps, np.inf))
    middle = float(ordered[len(ordered) // 2])
    return middle if math.isfinite(middle) else math.nan


def _log_rank(*groups: tuple[np.ndarray, np.ndarray]) -> float:
    """p of two groups of runs, each (steps, formed); NaN where none formed."""
    if not any(formed.any() for _, formed in groups):
        return math.nan
    data = [CensoredData(uncensored=steps[formed], right=steps[~formed]) for steps, formed in groups]
    return float(logrank(*data).pvalue)
