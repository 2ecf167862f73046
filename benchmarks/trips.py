"""Count the functions that a prompt passes through on its way to a capture, to statistics, and to an answer under an edit.

python -m benchmarks.trips

A function counts once, however often it is called, and comprehensions count with the function that they are in. The model's own
code does not count. A trip is counted the second time it is made, when what is computed once for a model is there.
"""

from __future__ import annotations

import sys
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
from diffscope import edits

PACKAGE = Path(diffscope.__file__).parent
MODELS = str(PACKAGE / "models")
COMPREHENSIONS = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}
MODEL = "mini-diff"
TEXT = "The code is 7421. Return the code:"  # 15 tokens
SPANS = {"answer": "7421"}
STATISTICS = ["entropy", "span_mass"]
MEANING = (
    "*Functions* and *files* of `diffscope/` that ran, *calls* of them, *changes of file* from one call to the next, and the "
    "*deepest* stack of them."
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
        return [f"{self.calls[code]:5} {Path(code.co_filename).relative_to(PACKAGE)} {code.co_qualname}" for code in codes]


def counts(code: CodeType) -> bool:
    """Return whether some code is a function of the package, and not of its models."""
    file = code.co_filename
    return file.startswith(str(PACKAGE)) and not file.startswith(MODELS) and code.co_name not in COMPREHENSIONS


def depth(frame: FrameType | None) -> int:
    """Return how many functions of the package are on a stack."""
    count = 0
    while frame is not None:
        count += counts(frame.f_code)
        frame = frame.f_back
    return count


def trips() -> dict[str, Callable[[], object]]:
    """Return the trips of one model by name."""
    scope = diffscope.load(MODEL)
    capture = scope.capture(TEXT, spans=SPANS)

    def answered() -> None:
        with scope.edit(edits.set_lambda(1.0)):
            scope.answer(TEXT, " 7421", [" 1234"])

    def edited() -> None:
        with scope.edit(edits.zero_a2()):
            scope.capture(TEXT)

    return {
        "capture a text with a span": lambda: scope.capture(TEXT, spans=SPANS),
        "a map of the capture": lambda: capture.map("D", layer=2, head=1),
        "measure two statistics": lambda: scope.measure(TEXT, STATISTICS, spans=SPANS),
        "measure the capture": lambda: capture.measure(STATISTICS),
        "edit, and score an answer": answered,
        "edit, and capture": edited,
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
    made = {name: counted(run) for name, run in trips().items()}
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
