"""The study: every test on a trained cohort, with all of its seeds and with fresh ones alone, kept as one file."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import xarray as xr
from scipy.stats import CensoredData, logrank

from diffscope import __version__
from diffscope.digests import carries_digest, read_proven_json, write_proven_json
from diffscope.errors import CorruptFile, DiffscopeError, first_line
from diffscope.evidence.runs import EVIDENCE_FORMAT
from diffscope.files import plain
from diffscope.hypotheses import report
from diffscope.hypotheses.board import Result
from diffscope.hypotheses.cohort import formed as formed_runs
from diffscope.hypotheses.cohort import went_on
from diffscope.hypotheses.described import described
from diffscope.hypotheses.gathering import Subjects, gather
from diffscope.hypotheses.kept_study import FILE, REMEDY, WORDS, StudyWords, find
from diffscope.hypotheses.outcomes import outcomes
from diffscope.hypotheses.settings import Settings
from diffscope.hypotheses.statistics import Estimate
from diffscope.hypotheses.stored import formed_models_of, open_cohort
from diffscope.hypotheses.subjects import Progress
from diffscope.hypotheses.tests import TESTS
from diffscope.hypotheses.verdict import Board, Verdict
from diffscope.lab.training.run import revision
from diffscope.scope import Scope, load
from diffscope.store import provenance

ALL = "all seeds"
FRESH = "fresh seeds"
WEIGHTS = "seeds with weights"
TAKEN_BACK = (
    "The first study, of arms of 0.2 M parameters, is taken back. A statistician's re-analysis of it found the measuring "
    "right (55 statistics computed anew, no error) and the conclusions not. Its only positive verdict, that the subtraction "
    "moves attention to the answer, came with each seed from one head of layer 0 that attends to itself and takes from the "
    "answer: over the heads that answer the gain is 0.05 octaves (95 % −0.27 to 0.37). That it leaned towards noise "
    "cancellation came from one standard run that never formed the circuit: without it the slope is 0.26 logits per 16 "
    "distractors (−0.91 to 1.43), and in log-odds, which have no ceiling, DIFF loses 0.5 to 0.8 nats more per 16 "
    "distractors than standard attention. Six tests asked for a gain that there is not where runs form (−3.7 points), and "
    "so could never speak. The largest effects were not told: λ of layer 0 rises from 0.2 to about 1 while the circuit "
    "forms, and DIFF's loss on text is 0.22 nats higher (0.13 to 0.31). Ranks stood without their uniform control (λA2 over "
    "it: 0.98 to 1.18), half-width heads were the wrong control of head geometry, one learning rate for all arms decided "
    "which of them formed, and trial runs of twice the width reversed two signs."
)


@dataclass(frozen=True)
class Study:
    """Boards of one cohort.

    Attributes
    ----------
    facts : dict
        The cohort, its arms with their seeds, the settings, and the versions it was made with.
    boards : dict of str to list of Verdict
        ``all seeds``; ``fresh seeds``, those that were trained after the rules had been fixed; ``seeds with weights``, what the
        kept evidence of runs does not hold, of the models that are at hand.
    survival : list of dict
        One row an arm; see :func:`survival`.
    described : list of dict
        What the evidence of runs holds besides; see :func:`diffscope.hypotheses.described.described`.
    outcomes : list of dict
        What every arm came to, seed by seed; see :func:`diffscope.hypotheses.outcomes.outcomes`.
    """

    facts: dict
    boards: dict[str, list[Verdict]]
    survival: list[dict]
    described: list[dict] = field(default_factory=list)
    outcomes: list[dict] = field(default_factory=list)

    def words(self) -> StudyWords:
        """What it says."""
        return StudyWords(self.facts, {name: report.words(board) for name, board in self.boards.items()}, self.survival)

    def save(self, folder: Path) -> Path:
        """Write it to a folder; the file appears when it is complete."""
        boards = {name: [verdict.as_dict() for verdict in board] for name, board in self.boards.items()}
        shown = {name: asdict(board) for name, board in self.words().boards.items()}
        words = {"diffscope": __version__, "revision": revision(), "boards": shown}
        numbers = {"survival": self.survival, "described": self.described, "outcomes": self.outcomes}
        record = {"facts": self.facts, "boards": boards, **numbers, WORDS: words}
        folder.mkdir(parents=True, exist_ok=True)
        write_proven_json(folder / FILE, record, indent=1)
        return folder / FILE


def open_study(folder: str | Path | None = None) -> Study:
    """A study that was kept: in a folder, or the one of this name that is shipped; by default the laptop's, once there is one.

    Raises
    ------
    DiffscopeError
        There is none, its rules are no longer these, or it is of an older form.
    CorruptFile
        It cannot be read.
    """
    path = find(folder)
    record = read_proven_json(path, REMEDY)
    try:
        if {"family", "asked"} & set(record["facts"]):
            raise DiffscopeError(f'{path} was written under old names (a "family" is called a "cohort" now); run the study anew')
        boards = {name: Board(Verdict.from_dict(row, TESTS) for row in board) for name, board in record["boards"].items()}
        return Study(record["facts"], boards, record["survival"], record.get("described", []), record.get("outcomes", []))
    except DiffscopeError:
        raise
    except Exception as error:  # what a damaged record without a digest may hold
        raise CorruptFile(f"{path} is damaged ({type(error).__name__}: {first_line(error)}); run the study anew") from None


def run_study(
    cohort: Path,
    out: Path,
    fresh: Sequence[int] = (),
    tests: str | Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    progress: Progress | None = None,
    opener: Callable[[str], Scope] = load,
) -> Study:
    """Run all tests on a cohort's DIFF models, pairs, checkpoints and arms; what was interrupted goes on where it stopped.

    Parameters
    ----------
    cohort : path
        Folder of a trained cohort with its models.
    out : path
        Folder for what is finished, test by test, and for the study.
    fresh : sequence of int
        Seeds that were trained after the rules had been fixed; they get a board of their own.
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
    seeds_of = {ALL: None} | ({FRESH: fresh} if len(fresh) else {})
    made_by = _made_by()
    boards = {}
    for name, seeds in seeds_of.items():
        subjects = gather(cohort=cohort, seeds=seeds, settings=settings, progress=progress, opener=opener)
        boards[name] = _run(subjects, tests, out, made_by)
    live = _with_weights(boards[ALL], cohort, settings, progress, opener)
    if live is not None:
        boards[WEIGHTS] = _run(*live, out, made_by)
    facts = {
        "cohort": cohort.name,
        "arms": {str(arm): _finished(dataset, arm) for arm in dataset["arm"].values},
        "fresh": sorted(map(int, fresh)),
        "settings": asdict(subjects.settings),
        "made_with": {**provenance(False), "revision": revision()},
        "recipe": json.loads(dataset.attrs["recipe"])["name"],
        "training": _training(dataset),
    }
    study = Study(facts, boards, survival(dataset), described(cohort, dataset), outcomes(dataset))
    study.save(out)
    return study


def _run(subjects: Subjects, tests: str | Sequence[str] | None, out: Path, made_by: Mapping[str, str | int]) -> Board:
    conditions = [subjects.names, asdict(subjects.settings), _digest(subjects), made_by]
    return subjects.run(tests, finished=FinishedTests(out / "parts", conditions))


def _with_weights(
    board: Board, cohort: Path, settings: Settings | None, progress: Progress | None, opener: Callable[[str], Scope]
) -> tuple[Subjects, list[str]] | None:
    """What measurements of models are made on that no kept evidence answers whole, and their ids: the pairs at hand that formed.

    None where all are answered, or there are not two such pairs.
    """
    of_models = [verdict for verdict in board if verdict.test.needs in ("model", "pair") and not verdict.test.judged]
    left = [verdict.test.id for verdict in of_models if set(verdict.test.quantities) - set(verdict.estimates)]
    dataset = open_cohort(cohort)
    pairs = formed_models_of(cohort, dataset, "diff", "standard")
    if not left or len(pairs[0]) < 2:
        return None
    return gather(*pairs, cohort, needs={"model", "pair"}, settings=settings, progress=progress, opener=opener), left


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


def _digest(subjects: Subjects) -> list:
    """What estimates depend on: all that was measured of the cohort, and the files of all models, by size and time."""
    cohort = hashlib.sha256()
    for name in sorted({*subjects.cohort.variables}):
        cohort.update(f"{name} {subjects.cohort[name].values.tolist()}".encode())
    folders = [folder for name in subjects.names if (folder := Path(name)).is_dir()]
    files = sorted(path for folder in folders for kind in ("*.safetensors", "*.json") for path in folder.rglob(kind))
    return [cohort.hexdigest(), [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]]


def _made_by() -> dict[str, str | int]:
    """Return what finished tests of an interrupted study are made by: only what the same made is taken up again.

    Code with uncommitted changes has no name. What it has finished is never taken up, since it may have been changed since.
    """
    at = revision()
    unnamed = {"began": time.time_ns()} if at.endswith("+") else {}
    return {**provenance(False), "revision": at, "evidence_format": EVIDENCE_FORMAT, **unnamed}


class FinishedTests(MutableMapping):
    """Estimates of tests that are finished, one file each, found again by the conditions they were made under.

    What a test needs is not kept.
    """

    def __init__(self, folder: Path, conditions: Sequence):
        self.folder = folder
        self.conditions = json.dumps(conditions, sort_keys=True, default=str)
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}-{hashlib.sha256(f'{self.conditions} {id}'.encode()).hexdigest()[:16]}.json"

    def __getitem__(self, id: str) -> dict[str, Estimate]:
        path = self._path(id)
        if not (path.is_file() and carries_digest(path)):
            raise KeyError(id)
        try:
            rows = read_proven_json(path, "run the study anew")
        except CorruptFile:  # then the test is run again
            raise KeyError(id) from None
        return {name: Estimate.from_json(row) for name, row in rows.items()}

    def __setitem__(self, id: str, result: Result) -> None:
        if isinstance(result, str):
            return
        write_proven_json(self._path(id), {name: asdict(estimate) for name, estimate in result.items()})

    def __delitem__(self, id: str) -> None:
        self._path(id).unlink()

    def __iter__(self) -> Iterator[str]:
        return (id for id in TESTS if self._path(id).is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
