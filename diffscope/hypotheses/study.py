"""A study: every test on a trained cohort, kept as one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from diffscope.errors import CorruptFile, DiffscopeError, first_line
from diffscope.hypotheses.shipped import STUDY, find_study
from diffscope.hypotheses.statistics import LeaveOneOut
from diffscope.hypotheses.tests import TESTS
from diffscope.hypotheses.verdict import Board, Verdict
from diffscope.storage.atomic import plain
from diffscope.storage.checksum import carries_digest, read_proven_json, write_proven_json

ALL = "all seeds"
WEIGHTS = "seeds with weights"
REMEDY = "run the study anew"
DIGITS = 14  # of a number in the file: what differs between machines is beyond them
#: what a verdict says of itself, so that the file need not
DERIVED = ("question", "source", "controls", "of", "needs", "limits", "answer", "shown", "reasons")
LEAVE_ONE_OUT = "leave_one_out"


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
        One row an arm; see :func:`diffscope.hypotheses.study_tables.survival`.
    described : list of dict
        What else the evidence of runs holds; see :func:`diffscope.hypotheses.study_tables.descriptives`.
    outcomes : list of dict
        The results of every arm, seed by seed; see :func:`diffscope.hypotheses.study_tables.arm_results`.
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

    Raises DiffscopeError if there is none, or its rules are no longer these, and CorruptFile if it cannot be read.
    """
    path = find_study(folder)
    if not carries_digest(path):  # every study does, and what shows one relies on how it is made
        raise CorruptFile(f"{path} carries no digest: it is damaged, was changed or was not written by diffscope; {REMEDY}")
    record = read_proven_json(path, REMEDY)
    try:
        boards = {name: open_board(rows) for name, rows in record["boards"].items()}
        return Study(record["facts"], boards, *(_rows(record[name]) for name in TABLES), record["notes"])
    except DiffscopeError:
        raise
    except Exception as error:  # what a record of other code may hold
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
        name: {**of, LEAVE_ONE_OUT: [dict(zip(names, values, strict=True)) for values in of[LEAVE_ONE_OUT]]}
        for name, of in row["estimates"].items()
    }
    return {**row, "estimates": estimates}


def _columns(rows: Sequence[Mapping]) -> dict:
    """Return rows of the same names as those names and the values of each row."""
    names = list(rows[0]) if rows else []
    return {"columns": names, "rows": [[row[name] for name in names] for row in rows]}


def _rows(table: Mapping) -> list[dict]:
    return [dict(zip(table["columns"], values, strict=True)) for values in table["rows"]]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
