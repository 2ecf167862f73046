"""Finished runs of the study in one file, so that they are there where their weights are not; and their weights.

    python -m studies.subtraction.runs pack FOLDER            # adds to runs.zip what has been finished in FOLDER
    python -m studies.subtraction.runs unpack FOLDER          # puts into FOLDER what is not finished there
    python -m studies.subtraction.runs weights FOLDER OUT     # writes OUT/diffscope-PART-weights.zip of each part trained there

A run is packed with its scores, its evidence and what it was made with, once ``studies.subtraction.evidence`` has taken its
evidence; a run that chose a learning rate, or diverged, as soon as it is finished. Nothing of them is printed.

Weights are files of a release and not of this repository. They are packed as training keeps them, in half precision, with the
checkpoints along the way; unpacked anywhere, ``diffscope.load("PART/weights/ARM/seed-N")`` opens them.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path, PurePosixPath

from diffscope.errors import DiffscopeError
from diffscope.lab.training.kept_weights import KEPT
from diffscope.lab.training.run import WEIGHTS
from diffscope.lab.training.runs import SCORES
from diffscope.models.folders import checkpoints
from diffscope.storage.checksum import check_sums
from studies import packed_runs
from studies.subtraction.evidence import FILE as EVIDENCE
from studies.subtraction.train import PARTS, recipe_of

RUNS = Path(__file__).with_name("runs.zip")


def pack(folder: Path, archive: Path = RUNS) -> int:
    """Pack the finished runs of a folder beside those of the archive, and return how many it has then."""
    unpack(folder, archive)
    files = [path for part in PARTS for path in packed_runs.files_of_runs(folder / part) if _is_complete(path.parent)]
    return sum(name.endswith(f"/{SCORES}") for name in packed_runs.pack(files, folder, archive))


def _is_complete(run: Path) -> bool:
    """Return whether all that is read of a run is there: its evidence too, if it has a model and is not for choosing a rate."""
    needs_evidence = (run / WEIGHTS).is_file() and "tuning" not in run.parts
    return (run / SCORES).is_file() and ((run / EVIDENCE).is_file() or not needs_evidence)


def unpack(folder: Path, archive: Path = RUNS) -> int:
    """Put the runs of the archive that are not finished in a folder into it, and return how many these are."""
    if not archive.is_file():
        return 0
    with zipfile.ZipFile(archive) as packed:
        names = [PurePosixPath(name) for name in packed.namelist()]
        missing = {name.parent for name in names if name.name == SCORES and not (folder / name).is_file()}
        for name in sorted(names, key=lambda name: name.name == SCORES):  # a run is finished once its scores are there
            if name.parent in missing:
                packed.extract(str(name), folder)
    return len(missing)


def weights_of(part: str, out: Path) -> Path:
    """Return the archive of a part's weights."""
    return out / f"diffscope-{part}-weights.zip"


def kept_models(part: str, folder: Path) -> list[Path]:
    """Return the folders of a part's runs of whose models the weights are kept."""
    recipe = recipe_of(part)
    homes = (folder / part / KEPT / arm / f"seed-{seed}" for arm in recipe.arms for seed in recipe.seeds)
    return [home for home in homes if (home / WEIGHTS).is_file()]


def pack_weights(folder: Path, out: Path) -> dict[str, int]:
    """Write an archive of the weights of each part that was trained in a folder, and return how many models each has.

    Raises
    ------
    DiffscopeError
        There are none, or files are damaged.
    """
    found = {part: models for part in PARTS if (models := kept_models(part, folder))}
    if not found:
        raise DiffscopeError(f"{folder} has no weights of finished runs; give one that studies.subtraction.train trained into")
    out.mkdir(parents=True, exist_ok=True)
    for part, models in found.items():
        kept = folder / part / KEPT
        for place in (kept, *models, *(step for model in models for step in checkpoints(model).values())):
            check_sums(place)
        files = [*kept.glob("*"), *(path for model in models for path in model.rglob("*"))]
        packed_runs.pack(sorted(path for path in files if path.is_file()), folder, weights_of(part, out))
    return {part: len(models) for part, models in found.items()}


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("pack", "unpack", "weights"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("dist"), help="where archives of weights go; by default dist")
    options = parser.parse_args()
    if options.action == "weights":
        try:
            packed = pack_weights(options.folder, options.out)
        except DiffscopeError as error:
            sys.exit(f"error: {error}")
        for part, count in packed.items():
            recipe = recipe_of(part)
            print(f"{weights_of(part, options.out)}: {count} of {len(recipe.arms) * len(recipe.seeds)} models")
    elif options.action == "pack":
        print(f"{RUNS.name} has {pack(options.folder)} finished runs")
    else:
        print(f"{unpack(options.folder)} finished runs were put into {options.folder}")


if __name__ == "__main__":
    main()
