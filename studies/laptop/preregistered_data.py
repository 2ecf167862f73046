"""Check that the runs are those that were written down before they were read: ``python -m studies.laptop.preregistered_data``.

``preregistered.json`` has a digest of the data. It holds for the files as they lay at the revision below, which the history of
the repository has; since then they have been renamed, relabelled and packed, and lost two variables that nothing reads. This
computes that digest again, and compares every file of ``runs.zip`` in value with those of then.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import xarray as xr

from studies.laptop.preregister import FILE
from studies.laptop.runs import COHORTS, unpack

REVISION = "9a502b5"
ROOT = Path(__file__).parents[2]
RESULTS = "benchmarks/results"
EVIDENCE = "*/seed-*/evidence.nc"
UNREAD = ["error", "outcome_error"]  # variables of then


def fetch(target: Path) -> Path:
    """Put the files of then, from the history, into a folder, and return the one that has the cohorts."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", REVISION, *(f"{RESULTS}/{cohort}" for cohort in COHORTS)]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        sys.exit(f"error: the history here has no revision {REVISION}; take a whole clone of the repository")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(target, filter="data")
    return target / RESULTS


def digest(run: Path) -> str:
    """Digest of the data of a cohort as they lay then."""
    whole = hashlib.sha256()
    for path in sorted([*run.glob("shards/*.nc"), *run.glob(EVIDENCE)]):
        whole.update(path.relative_to(run).as_posix().encode() + path.read_bytes())
    return whole.hexdigest()


def values(path: Path) -> xr.Dataset:
    """Return what a file holds, its attributes too."""
    return xr.open_dataset(path, engine="scipy").load()


def others(then: Path, now: Path) -> list[Path]:
    """Files of a cohort of today that no file of then equals in value."""
    scores: dict[tuple, list[xr.Dataset]] = {}
    for path in then.glob("shards/*.nc"):
        scores.setdefault(which(values(path)), []).append(values(path))
    changed = [path for path in now.rglob("scores.nc") if not any(map(values(path).equals, scores.get(which(values(path)), [])))]
    evidence = [(path, then / path.relative_to(now)) for path in now.glob(EVIDENCE)]
    return changed + [path for path, old in evidence if not (old.is_file() and _same(path, old))]


def _same(evidence: Path, old: Path) -> bool:
    return values(evidence).equals(values(old).drop_vars(UNREAD, errors="ignore"))


def which(scores: xr.Dataset) -> tuple:
    """Return the run that scores are of."""
    return scores.attrs["arm"], int(scores.attrs["seed"]), float(scores.attrs["rate"])


def main() -> None:
    """Compare, and fail if something is not as it was."""
    written = json.loads(FILE.read_text(encoding="utf-8"))["data"]
    with tempfile.TemporaryDirectory() as folder:
        then, now = fetch(Path(folder)), Path(folder, "now")
        unpack(now)
        found = digest(then / COHORTS[0])
        changed = [path.relative_to(now) for cohort in COHORTS for path in others(then / cohort, now / cohort)]
        count = sum(len([*now.rglob(name)]) for name in ("scores.nc", "evidence.nc"))
    print(f"digest of the data at {REVISION}: {found}, in {FILE.name}: {written}")
    print(f"files of today that differ in value from those of then: {len(changed)} of {count}")
    for path in changed:
        print(f"  {path}")
    sys.exit(int(found != written or bool(changed)))


if __name__ == "__main__":
    main()
