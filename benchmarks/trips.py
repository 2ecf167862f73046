"""Count the functions on the way from a prompt to a capture, statistics, an answer, a figure, and a click in the dashboard.

python -m benchmarks.trips

A function counts once, however often it is called, and comprehensions count with the function that they are in. The model's own
code does not count. A trip is counted the second time it is made, when what is computed once for a model is there.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import torch

import diffscope
from benchmarks import results
from benchmarks.results import Section, table
from diffscope import cli, edits

ROOT = Path(__file__).parents[1]
PACKAGE, APP = ROOT / "diffscope", ROOT / "app"
MODELS = str(PACKAGE / "models")
COMPREHENSIONS = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}
MODEL = "mini-diff"
TEXT = "The code is 7421. Return the code:"  # 15 tokens
SPANS = {"answer": "7421"}
STATISTICS = ["entropy", "span_mass"]
MEANING = (
    "*Functions* and *files* of `diffscope/` and `app/` that ran, *calls* of them, *changes of file* from one call to the next, "
    "and the *deepest* stack of them."
)


@dataclass
class Trip:
    """Functions of the package that ran, with the number of their calls, and their order in files."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    changes: int = 0
    deepest: int = 0
    file: str = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call, as ``sys.setprofile`` reports it."""
        if event == "call" and counts(frame.f_code):
            self.calls[frame.f_code] += 1
            self.changes += frame.f_code.co_filename != self.file
            self.file = frame.f_code.co_filename
            self.deepest = max(self.deepest, depth(frame))

    @property
    def numbers(self) -> dict[str, int]:
        """Return what was counted, by name."""
        files = {code.co_filename for code in self.calls}
        counts = {"functions": len(self.calls), "files": len(files), "calls": self.calls.total()}
        return counts | {"changes of file": self.changes, "deepest": self.deepest}

    @property
    def functions(self) -> list[str]:
        """Return the functions in words, those of a file together: calls, file and name."""
        codes = sorted(self.calls, key=lambda code: (code.co_filename, code.co_firstlineno))
        return [f"{self.calls[code]:5} {Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}" for code in codes]


def counts(code: CodeType) -> bool:
    """Return whether some code is a function of the package or the dashboard, and not of the package's models."""
    file = code.co_filename
    ours = file.startswith((str(PACKAGE), str(APP))) and not file.startswith(MODELS)
    return ours and code.co_name not in COMPREHENSIONS


def depth(frame: FrameType | None) -> int:
    """Return how many functions of the package are on a stack."""
    count = 0
    while frame is not None:
        count += counts(frame.f_code)
        frame = frame.f_back
    return count


def click() -> Callable[[], object]:
    """Return what chooses the other head of the layer on the page Explore, again and again."""
    from streamlit.testing.v1 import AppTest

    page = AppTest.from_file(str(APP / "main.py"), default_timeout=120).run()

    def choose() -> None:
        page.session_state["head"] = 1 - page.session_state["head"]
        if page.run().exception:
            raise RuntimeError(page.exception[0].message)

    return choose


def trips(folder: Path) -> dict[str, Callable[[], object]]:
    """Return the trips of one model by name; figures are written into a folder."""
    scope = diffscope.load(MODEL)
    capture = scope.capture(TEXT, spans=SPANS)

    def answered() -> None:
        with scope.edit(edits.set_lambda(1.0)):
            scope.answer(TEXT, " 7421", [" 1234"])

    def edited() -> None:
        with scope.edit(edits.zero_a2()):
            scope.capture(TEXT)

    def drawn() -> None:
        diffscope.figures.maps(capture, layer=2, head=1, venue="icml").save(folder / "maps.pdf")

    def commanded() -> None:
        where = ["--model", MODEL, "--prompt", TEXT, "--span", "answer=7421", "--out", str(folder / "allocation.pdf")]
        if cli.main(["figure", "--kind", "allocation", *where]):
            raise RuntimeError("the command failed")

    return {
        "capture a text with a span": lambda: scope.capture(TEXT, spans=SPANS),
        "a map of the capture": lambda: capture.map("D", layer=2, head=1),
        "measure two statistics": lambda: scope.measure(TEXT, STATISTICS, spans=SPANS),
        "measure the capture": lambda: capture.measure(STATISTICS),
        "edit, and score an answer": answered,
        "edit, and capture": edited,
        "maps of the capture as a PDF": drawn,
        "`diffscope figure --kind allocation`": commanded,
        "a click on a head of the dashboard": click(),
    }


def counted(run: Callable[[], object]) -> Trip:
    """Make a trip twice, and return what ran the second time."""
    run()
    trip = Trip()
    threading.setprofile(trip)
    sys.setprofile(trip)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return trip


def main(argv: Sequence[str] | None = None) -> None:
    """Count every trip."""
    parser = results.parser(__doc__)
    parser.add_argument("--functions", metavar="TRIP", help="print the functions of the trips whose name has this in it")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        made = {name: counted(run) for name, run in trips(Path(folder)).items()}
    if options.functions:
        for name, trip in made.items():
            if options.functions in name:
                print(name, *trip.functions, sep="\n")
        return
    numbers = {name: trip.numbers for name, trip in made.items()}
    header = ("trip", *next(iter(numbers.values())))
    counts = table("One prompt of 15 tokens.", header, [(name, *of.values()) for name, of in numbers.items()])
    section = Section(
        "trips", "What a prompt passes through", "python -m benchmarks.trips", f"{MODEL}, as it is bundled", [counts]
    )
    section.text, section.numbers = MEANING, numbers
    results.keep("trips", [section], options)


if __name__ == "__main__":
    main()
