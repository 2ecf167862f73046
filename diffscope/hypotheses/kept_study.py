"""A kept study as it is shown: where studies lie, and the words of their boards, read without what measures or judges."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffscope import __version__
from diffscope.digests import read_proven_json
from diffscope.errors import DiffscopeError
from diffscope.lab.training.revision import revision

SHIPPED = Path(__file__).parent / "studies"
FILE = "study.json"
DEFAULT = "laptop"  # the shipped study that is meant where none is named
WORDS = "words"
REMEDY = "run the study anew"
NONE_SHIPPED = (
    "no study is shipped with this package; make one of your own with: diffscope train laptop "
    "--out runs/laptop, then: diffscope study run --cohort runs/laptop"
)
#: by shipped study, what a second, independent reading of it found that its boards do not say: what it is, then point by point
READ_AGAIN = {
    "laptop": (
        "A second, independent reading found what the tests do not say:",
        "Where the second map works, in the one DIFF model of eight whose weights are shipped: in the first layer only. There "
        "it looks from the number at the token before (0.97 of A2) and is subtracted: signal with a minus sign. Without it the "
        "answer's loss rises by 10.1 nats, without A2 of another layer by less than 0.05.",
        "Which heads count, in all eight: the first layer has 1 % of A1's mass on the answer, and on average 95 % of what "
        "heads cost.",
        "Whether DIFF learns sooner: it reaches 50, 80 and 90 % before both controls (0.27 to 0.75 octaves); by the rule "
        "fixed before, 95 % twice in a row, one control run decides. DIFF trained at twice their rate.",
    ),
}


@dataclass(frozen=True)
class BoardWords:
    """A board in words.

    Attributes
    ----------
    rows : list of (kind, test, question, answer, verdict, dict of account to word)
        Primary tests, then mechanism tests, then measurements; of a measurement and of what could not be run there is no word.
    sentences : list of str
        One a test, in the same order.
    summary : str
        What they say together.
    """

    rows: list[tuple[str, str, str, str, str, dict[str, str]]]
    sentences: list[str]
    summary: str


@dataclass(frozen=True)
class StudyWords:
    """A study in words: its facts, its boards by name, and when its arms formed; as of ``diffscope.hypotheses.study.Study``."""

    facts: dict[str, Any]
    boards: dict[str, BoardWords]
    survival: list[dict[str, Any]]


def shipped() -> list[str]:
    """Names of the studies that came with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{FILE}"))


def find(folder: str | Path | None = None) -> Path:
    """The file of a study that was kept: in a folder, or the one of this name that is shipped; by default the laptop's.

    Raises
    ------
    DiffscopeError
        There is none.
    """
    named = SHIPPED / DEFAULT if folder is None else Path(folder)
    path = next((place / FILE for place in (named, SHIPPED / named) if (place / FILE).is_file()), None)
    if path is None:
        known = f"shipped: {', '.join(shipped())}" if shipped() else NONE_SHIPPED
        raise DiffscopeError(known if folder is None else f"there is no study in {folder}; {known}")
    return path


def read_words(path: Path) -> StudyWords | None:
    """Read the words kept in a study's file; None if another version or revision wrote them, whose rules may have been others.

    A study that is shipped has the words of the version that it is shipped with.

    Raises
    ------
    CorruptFile
        The file is damaged.
    """
    record = read_proven_json(path, REMEDY)
    with suppress(
        KeyError, IndexError, TypeError, AttributeError
    ):  # of an older form, or made by hand: the whole of it is looked at then
        kept = record[WORDS]
        if path.is_relative_to(SHIPPED) or (kept["diffscope"], kept["revision"]) == (__version__, revision()):
            boards = {name: _board(board) for name, board in kept["boards"].items()}
            return StudyWords(record["facts"], boards, record["survival"])
    return None


def _board(kept: dict[str, Any]) -> BoardWords:
    rows = [(row[0], row[1], row[2], row[3], row[4], dict(row[5])) for row in kept["rows"]]
    return BoardWords(rows, list(kept["sentences"]), kept["summary"])
