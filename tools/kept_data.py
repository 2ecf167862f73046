"""Check that the kept data of the study are those that were written down before it was read: ``python tools/kept_data.py``.

``reading.json`` has a digest of the data. It holds for the files as they lay at the revision below; since then they have been
renamed and relabelled. This computes that digest again, and compares every file of today in value with those of then.
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

REVISION = "9a502b5"
ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results"
COHORTS = ("laptop", "laptop-text")
EVIDENCE = "*/seed-*/evidence.nc"


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
    """What a file holds, its attributes too."""
    return xr.open_dataset(path, engine="scipy").load()


def others(then: Path, now: Path) -> list[Path]:
    """Files of a cohort of today that no file of then equals in value."""
    scores: dict[tuple, list[xr.Dataset]] = {}
    for path in then.glob("shards/*.nc"):
        scores.setdefault(which(values(path)), []).append(values(path))
    changed = [path for path in now.rglob("scores.nc") if not any(map(values(path).equals, scores.get(which(values(path)), [])))]
    evidence = [(path, then / path.relative_to(now)) for path in now.glob(EVIDENCE)]
    return changed + [path for path, old in evidence if not (old.is_file() and values(path).equals(values(old)))]


def which(scores: xr.Dataset) -> tuple:
    """The run that scores are of."""
    return scores.attrs["arm"], int(scores.attrs["seed"]), float(scores.attrs["rate"])


def main() -> None:
    """Compare, and fail if something is not as it was."""
    written = json.loads((ROOT / RESULTS / COHORTS[0] / "reading.json").read_text(encoding="utf-8"))["data"]
    with tempfile.TemporaryDirectory() as folder:
        then = fetch(Path(folder))
        found = digest(then / COHORTS[0])
        changed = [path for cohort in COHORTS for path in others(then / cohort, ROOT / RESULTS / cohort)]
    count = sum(len([*(ROOT / RESULTS / cohort).rglob(name)]) for cohort in COHORTS for name in ("scores.nc", "evidence.nc"))
    print(f"digest of the data at {REVISION}: {found}, in reading.json: {written}")
    print(f"files of today that differ in value from those of then: {len(changed)} of {count}")
    for path in changed:
        print(f"  {path.relative_to(ROOT)}")
    sys.exit(int(found != written or bool(changed)))


if __name__ == "__main__":
    main()
