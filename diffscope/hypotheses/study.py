"""The study: every test on a trained cohort, with all of its seeds and with fresh ones alone, kept as one file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import xarray as xr
from scipy.stats import CensoredData, logrank
from statsmodels.api import SurvfuncRight

from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.files import plain, write_json
from diffscope.hypotheses.api import Gathered, gather, open_cohort
from diffscope.hypotheses.declared import TESTS
from diffscope.hypotheses.inference import Estimate
from diffscope.hypotheses.subjects import Progress
from diffscope.hypotheses.verdicts import Verdict
from diffscope.store import provenance

SHIPPED = Path(__file__).parent / "studies"
FILE = "study.json"
ALL, FRESH = "all seeds", "fresh seeds"


@dataclass(frozen=True)
class Study:
    """Boards of one cohort.

    Attributes
    ----------
    facts : dict
        Of the cohort, its seeds, what was asked and what it was made with.
    boards : dict of str to list of Verdict
        ``all seeds``, and ``fresh seeds``: those that were trained after the rules had been fixed.
    survival : list of dict
        One row an arm; see :func:`survival`.
    """

    facts: dict
    boards: dict[str, list[Verdict]]
    survival: list[dict]

    def save(self, folder: Path) -> Path:
        """Write it to a folder; the file appears when it is complete."""
        boards = {name: [one.as_dict() for one in board] for name, board in self.boards.items()}
        record = {"facts": self.facts, "boards": boards, "survival": self.survival}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, record, indent=1)
        return folder / FILE


def shipped() -> list[str]:
    """Names of the studies that came with the package."""
    return sorted(one.parent.name for one in SHIPPED.glob(f"*/{FILE}"))


def open_study(folder: str | Path | None = None) -> Study:
    """A study that was kept: in a folder, or the one of this name that is shipped; by default the laptop's.

    Raises
    ------
    DiffscopeError
        There is none, or its rules are no longer these.
    CorruptFile
        It cannot be read.
    """
    path = SHIPPED / "laptop" if folder is None else Path(folder)
    path = next((one / FILE for one in (path, SHIPPED / path) if (one / FILE).is_file()), None)
    if path is None:
        raise DiffscopeError(f"there is no study in {folder or SHIPPED}; shipped: {', '.join(shipped()) or 'none'}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        boards = {name: [Verdict.from_dict(one) for one in board] for name, board in record["boards"].items()}
        return Study(record["facts"], boards, record["survival"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, DiffscopeError):
            raise
        raise CorruptFile(f"{path} is damaged ({type(error).__name__}: {error}); run the study anew") from None


def run_study(
    cohort: Path, out: Path, fresh: Sequence[int] = (), ids: Sequence[str] = (), progress: Progress | None = None, **asked
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
    ids : sequence of str
        Tests, by default all.
    progress : callable, optional
    **asked
        Of :class:`diffscope.hypotheses.Asked`.
    """
    whole, boards, made = open_cohort(cohort), {}, None
    for name, seeds in ((ALL, None), (FRESH, fresh)):
        if seeds is None or len(seeds):
            gathered = gather(cohort=cohort, seeds=seeds, progress=progress, **asked)
            what = [gathered.names, asdict(gathered.asked), _digest(gathered), SOURCES]
            boards[name] = gathered.run(ids, kept=Kept(out / "parts", what))
            made = made or gathered
    facts = {
        "cohort": cohort.name,
        "arms": {str(arm): _finished(whole, arm) for arm in whole["arm"].values},
        "fresh": sorted(map(int, fresh)),
        "asked": asdict(made.asked),
        "made_with": provenance(False),
        "recipe": json.loads(whole.attrs["recipe"])["name"],
    }
    study = Study(facts, boards, survival(whole))
    study.save(out)
    return study


def _finished(cohort: xr.Dataset, arm: str) -> list[int]:
    return [int(seed) for seed in cohort["seed"].values[cohort["finished"].sel(arm=arm).values == 1]]


def _digest(gathered: Gathered) -> list:
    """What results depend on: all that was measured, and the weights of all models, by size and time."""
    cohort, folders = hashlib.sha256(), [Path(one) for one in gathered.names]
    for name in sorted({*gathered.cohort.variables}):
        cohort.update(f"{name} {gathered.cohort[name].values.tolist()}".encode())
    files = sorted(path for folder in folders if folder.is_dir() for path in folder.rglob("*.safetensors"))
    return [cohort.hexdigest(), [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]]


def _sources() -> str:
    """Of the code that results depend on."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


SOURCES = _sources()


class Kept(MutableMapping):
    """Estimates of tests that are finished, one file each, found again by what they were made of; needs are not kept."""

    def __init__(self, folder: Path, what: Sequence):
        self.folder, self.what = folder, json.dumps(what, sort_keys=True, default=str)
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}-{hashlib.sha256(f'{self.what} {id}'.encode()).hexdigest()[:16]}.json"

    def __getitem__(self, id: str) -> dict[str, Estimate]:
        try:
            kept = json.loads(self._path(id).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise KeyError(id) from None
        return {name: Estimate.from_json(row) for name, row in kept.items()}

    def __setitem__(self, id: str, found: dict[str, Estimate] | str) -> None:
        if isinstance(found, str):
            return
        write_json(self._path(id), {name: asdict(one) for name, one in found.items()})

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
        By arm: ``runs``, ``formed``, ``median`` step (Kaplan–Meier; None where fewer than half form), ``restricted_mean``
        step up to the last one, and ``p`` of the log-rank test against DIFF (asymptotic, not corrected; None for DIFF itself).
    """
    last, rows, events = float(cohort["step"].max()), [], {}
    for arm in cohort["arm"].values:
        steps = cohort["formation"].sel(arm=arm).values[cohort["finished"].sel(arm=arm).values == 1]
        events[str(arm)] = np.where(np.isnan(steps), last, steps), ~np.isnan(steps)
    for arm, (steps, formed) in events.items():
        median = float(SurvfuncRight(steps, formed.astype(int)).quantile(0.5)) if formed.any() else math.nan
        p = math.nan
        if arm != "diff" and "diff" in events and (formed.any() or events["diff"][1].any()):
            both = [CensoredData(uncensored=s[f], right=s[~f]) for s, f in (events["diff"], (steps, formed))]
            p = float(logrank(*both).pvalue)
        mean = float(steps.mean())  # nobody is lost before the last step, so this is the area under the curve
        rows.append(
            {"arm": arm, "runs": len(steps), "formed": int(formed.sum()), "median": median, "restricted_mean": mean, "p": p}
        )
    return plain(rows)
