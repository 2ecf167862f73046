"""What a reading is: numbers with their labels, and one sentence that says no more than they do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import xarray as xr

from diffscope import render as display
from diffscope.stats.averaging import mean_over_prompts, standard_error

CLEARLY = 2.0  # standard errors by which a mean has to be off to be said


class Part(NamedTuple):
    """A piece of a sentence.

    Attributes
    ----------
    text : str
    help : str
        What the text is, in plain words, if it is a number; else empty.
    """

    text: str
    help: str = ""


def joined(pieces: Iterable[str | Part]) -> tuple[Part, ...]:
    """Return texts and parts as parts; texts that follow each other are one part."""
    parts: list[Part] = []
    for piece in pieces:
        part = Part(piece) if isinstance(piece, str) else piece
        if parts and not (parts[-1].help or part.help):
            part = Part(parts.pop().text + part.text)
        parts.append(part)
    return tuple(parts)


def plain(parts: Iterable[Part]) -> str:
    """Return a sentence without the help of its numbers."""
    return "".join(part.text for part in parts)


@dataclass(frozen=True, eq=False)
class Reading:
    """Something said of a capture, and the numbers that it is said by.

    Attributes
    ----------
    sentence : str
        One line of plain text. It holds names of models that a caller gave. Text of the prompt is only in what is said of a head:
        tokens between backticks, of printable characters alone.
    estimates : xarray.Dataset
        Every number of the sentence and its controls; variables carry ``long_name``, ``units`` and ``definition``.
    parts : tuple of Part
        The sentence in parts, of which the numbers say what they are; empty if the reading does not explain its numbers.
    """

    sentence: str
    estimates: xr.Dataset
    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        variables = ", ".join(f"{name} ({', '.join(map(str, values.dims))})" for name, values in self.estimates.items())
        return f"<Reading>\n{display.lines(self.sentence)}\n{display.lines(f'estimates: {variables}')}"

    def _repr_html_(self) -> str:
        rows = (
            (
                str(name),
                ", ".join(f"{dim} {size}" for dim, size in values.sizes.items()),
                str(values.attrs.get("long_name", "")),
                str(values.attrs.get("definition", "")),
            )
            for name, values in self.estimates.items()
        )
        columns = ("estimates", "dimensions", "what it is", "definition")
        return display.paragraph(self.sentence) + display.folded("the numbers", display.table(columns, rows))


def described(values: xr.DataArray, long_name: str, definition: str, units: str = "1", **more: str | int) -> xr.DataArray:
    """Return an array with these attributes in place of those that it had."""
    array = values.copy(deep=False)
    array.attrs = attributes_of(long_name, definition, units, **more)
    return array


def attributes_of(long_name: str, definition: str, units: str = "1", **more: str | int) -> dict[str, str | int]:
    """Return the attributes that say what values are."""
    return {"long_name": long_name, "units": units, "definition": definition, **more}


def with_error(name: str, values: xr.DataArray, words: str, definition: str, units: str = "1") -> dict[str, xr.DataArray]:
    """Return a value's mean over ``prompt``, the standard error ``NAME_se`` and what it is averaged of, ``NAME_of_prompt``.

    `words`, `definition` and `units` say what a value of one prompt is.
    """
    error = "standard deviation over prompts / √prompts"
    return {
        name: described(mean_over_prompts(values), words, f"{definition}; mean over prompts", units),
        f"{name}_se": described(standard_error(values), f"standard error of the {words}", error, units),
        f"{name}_of_prompt": described(values, f"{words}, by prompt", definition, units),
    }
