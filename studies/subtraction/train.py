"""Train the study, part after part, and go on where it stopped.

    python -m studies.subtraction.train FOLDER --text CORPUS
    python -m studies.subtraction.train FOLDER --text CORPUS --status

The parts come in the order in which they answer most an hour. Each is a recipe beside this file and trains into ``FOLDER/PART``.
A second call while one is at work changes nothing and says so. A part whose corpus is not given is left out and named.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from diffscope.errors import DiffscopeError
from diffscope.lab.training.cohort import Cohort, progress_by_arm, remaining_in_words
from diffscope.lab.training.initialisation import with_text
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.runs import run_label
from diffscope.lab.training.train_cohort import train_cohort

PARTS = ("sinks", "sinks-tied", "mechanism", "text", "lookup")
EVERY = 500  # steps, between two lines
#: Processor seconds a step of pilots on an AMD EPYC, mean over arms; forecasts use them until a run has logged its own.
PILOTS = {"sinks": 0.02, "sinks-tied": 0.02, "mechanism": 0.3, "text": 1.2, "lookup": 0.3}


def recipe_of(part: str) -> Recipe:
    """Return the recipe of a part of the study, without its corpus."""
    return Recipe.load(str(Path(__file__).with_name(f"{part}.toml")))


def cohort(part: str, folder: Path, text: Path | None) -> Cohort:
    """Return a part of the study as a cohort in a folder.

    Raises
    ------
    DiffscopeError
        Its corpus is not given, or another one is.
    """
    recipe = recipe_of(part)
    if recipe.corpus is not None and text is None:
        raise DiffscopeError(f"part {part!r} trains on a corpus; build it with studies.subtraction.corpus and give --text FOLDER")
    return Cohort(with_text(recipe, None if recipe.corpus is None else text), folder / part)


@contextmanager
def queue_of(folder: Path) -> Iterator[None]:
    """Lock the folder's queue for this process.

    Raises
    ------
    DiffscopeError
        Another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".queue", timeout=0):
            yield
    except Timeout:
        raise DiffscopeError(f"{folder} is being trained already; see how far it is with --status") from None


def come_last() -> None:
    """Give this process the lowest priority, and its session too if the process leads it.

    Linux may share the processor among sessions first (autogroup); then a priority counts within its session alone.
    """
    os.nice(19)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # no such file: not Linux, or a kernel that does not share so
            Path("/proc/self/autogroup").write_text("19", encoding="utf-8")


def train(parts: tuple[str, ...], folder: Path, text: Path | None, tell: Callable[[str], None]) -> int:
    """Train what is left of some parts, and return how many runs failed or parts could not begin."""
    failed = 0
    for part in parts:
        try:
            wanted = cohort(part, folder, text)
            tell(f"{part}: {remaining_in_words(progress_by_arm(wanted))}")
            outcome = train_cohort(wanted, progress=_lines(part, tell))
        except DiffscopeError as error:
            failed += 1
            tell(f"{part}: {error}")
            continue
        failed += len(outcome.failed)
        for cause in outcome.failed.values():
            tell(f"{part}: failed: {cause}")
    return failed


def _lines(part: str, tell: Callable[[str], None]) -> Callable[[int, int, str], None]:
    """Return a function of progress that prints one line every ``EVERY`` steps."""
    printed = -1

    def progress(done: int, total: int, note: str) -> None:
        nonlocal printed
        if done // EVERY != printed:
            printed = done // EVERY
            tell(f"{part}: {done} of {total} steps: {note}")

    return progress


def show(parts: tuple[str, ...], folder: Path, text: Path | None, processes: int) -> None:
    """Print how far each part is."""
    for part in parts:
        try:
            wanted = cohort(part, folder, text)
        except DiffscopeError as error:
            print(f"{part}: {error}")
            continue
        rows = progress_by_arm(wanted, PILOTS[part])
        begun = any(row.done or row.under_way for row in rows)
        hours = sum(row.seconds for row in rows) / processes / 3600
        print(f"{part}: at most {hours:.1f} hours of {processes} processes are left{'' if begun else '; not begun'}")
        for row in rows:
            kind = "choosing its rate" if row.tuning else "trained"
            step = f"{row.step:.2f} s a step, {row.seconds / 3600:.1f} h of one process"
            now = "".join(f"; {run_label(each.run)}: step {each.step} of {each.steps}" for each in row.under_way)
            print(f"  {row.arm:14} {kind:18} {row.done:3} done, {row.left:3} left; {step}{now}")


def main() -> int:
    """Train or show what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; repeatable")
    parser.add_argument("--text", type=Path, help="the folder of the corpus, for the part that trains on it")
    parser.add_argument("--status", action="store_true", help="train nothing, say how far it is")
    parser.add_argument("--processes", type=int, default=2, help="for how many the hours of --status are")
    options = parser.parse_args()
    parts = tuple(part for part in PARTS if part in (options.part or PARTS))
    if options.processes < 1:
        parser.error(f"--processes {options.processes} train nothing; give 1 or more")
    if options.status:
        show(parts, options.folder, options.text, options.processes)
        return 0
    try:
        with queue_of(options.folder):
            come_last()
            return min(1, train(parts, options.folder, options.text, lambda line: print(line, flush=True)))
    except DiffscopeError as error:
        print(error, file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
