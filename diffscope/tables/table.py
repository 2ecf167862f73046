"""A table: numbers with their labels, and the same as a paper prints them."""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diffscope.errors import DiffscopeError
from diffscope.numbers import ABSENT
from diffscope.render import as_latex, pipe_table
from diffscope.storage.atomic import replacing, write_text

if TYPE_CHECKING:
    import pandas as pd

NUMBER = re.compile(r"−?\d[\d.]*(·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?([ –].*)?")  # with whatever stands behind it as its interval
LONG = 36  # letters of a cell that is set in several lines
# Sizes of type by how many letters the widest row has, so that it fits a page of 5.5 inches and more.
SIZES = ((72, r"\small"), (84, r"\footnotesize"), (math.inf, r"\scriptsize"))
COLUMN = 44  # letters that fit one column of two
SUFFIXES = (".tex", ".md", ".parquet", ".csv")
STYLE = "border-collapse:collapse;font-size:90%"


class Column(NamedTuple):
    """A column of a table: its title, and the text of its cell for one record."""

    title: str
    text: Callable[[Mapping[str, Any]], str]
    once: bool = False  # only in the first row of a group


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a paper.

    Attributes
    ----------
    name : str
        What it is of: ``statistic``, ``statistics``, ``depths``, ``head_types``, ``conformance``, ``board`` or
        ``claims``.
    header : tuple of str
    rows : tuple of tuple of str
        As printed; a dash stands for what is not there.
    caption : str
        What is shown, of what, and what stands behind a value.
    data : pandas.DataFrame
        The numbers behind it, unrounded, one row a value: labels, ``value``, ``low``, ``high`` and what the interval is.
    notes : tuple of str
        What stands below: definitions.
    """

    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    data: pd.DataFrame
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def of(
        cls,
        name: str,
        records: Sequence[Mapping[str, Any]],
        columns: Sequence[Column],
        caption: str,
        notes: Sequence[str] = (),
        *,
        group: str = "",
    ) -> Table:
        """Return a table with one row for each record, and the records as its data.

        Parameters
        ----------
        name, caption
            Of the table.
        records : sequence of mapping
            With the same keys.
        columns : sequence of Column
        notes : sequence of str
            Empty ones are left out.
        group : str, optional
            A key of the records. Neighbours with the same value are a group, whose later rows leave columns that are given once
            empty.
        """
        import pandas as pd

        rows = []
        for before, record in zip([None, *records], records):
            again = bool(group) and before is not None and before[group] == record[group]
            rows.append(tuple("" if again and column.once else column.text(record) for column in columns))
        header = tuple(column.title for column in columns)
        return cls(name, header, tuple(rows), caption, pd.DataFrame(records), tuple(filter(None, notes)))

    @classmethod
    def of_cells(
        cls,
        name: str,
        titles: Sequence[str],
        columns: Mapping[Any, str],
        cells: Iterable[tuple[tuple[str, ...], Any, str]],
        caption: str,
        data: pd.DataFrame,
        notes: Sequence[str] = (),
    ) -> Table:
        """Return a table of cells that stand in rows and columns.

        Parameters
        ----------
        name, caption, data
            Of the table.
        titles : sequence of str
            Of the columns that name a row.
        columns : mapping of key to str
            The other columns, each by its key with its title.
        cells : iterable of (row, column, text)
            What names the row, the key of the column, and what stands there; a dash where there is none.
        notes : sequence of str
            Empty ones are left out.
        """
        rows: dict[tuple[str, ...], dict[Any, str]] = {}
        for row, column, text in cells:
            rows.setdefault(row, {})[column] = text
        printed = tuple((*row, *(texts.get(column, ABSENT) for column in columns)) for row, texts in rows.items())
        return cls(name, (*titles, *columns.values()), printed, caption, data, tuple(filter(None, notes)))

    def __repr__(self) -> str:
        return f"<Table {self.name}: {len(self.rows)} × {len(self.header)}>"

    def __str__(self) -> str:
        return self.to_markdown()

    def to_latex(self) -> str:
        r"""Return a ``table`` environment with booktabs' rules, for pdfLaTeX and LuaLaTeX.

        Text is escaped, symbols are in math mode. The preamble needs ``\usepackage{booktabs}``; that is all. A wide table spans
        both columns of a page, in smaller type.
        """
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows)]
        letters = sum(min(width, LONG) + 2 for width in widths)
        environment = "table*" if letters > COLUMN else "table"
        lines = [
            f"\\begin{{{environment}}}% needs \\usepackage{{booktabs}}",
            r"  \centering",
            f"  \\caption{{{as_latex(self.caption)}}}",
            f"  \\label{{tab:{self.name}}}",
            f"  {{{next(size for most, size in SIZES if letters <= most)}\\setlength{{\\tabcolsep}}{{3pt}}",
            f"  \\begin{{tabular}}{{{''.join(map(self._latex_column, range(len(widths)), widths))}}}",
            r"    \toprule",
            f"    {_latex_row(self.header)}",
            r"    \midrule",
            *(f"    {_latex_row(row)}" for row in self.rows),
            r"    \bottomrule",
            r"  \end{tabular}\par}",
            *(f"  \\par\\smallskip{{\\footnotesize {as_latex(note)}\\par}}" for note in self.notes),
            f"\\end{{{environment}}}",
        ]
        return "\n".join(lines) + "\n"

    def to_markdown(self) -> str:
        """Return a pipe table, with its caption above and its notes below."""
        rule = ["---:" if self._is_of_numbers(column) else "---" for column in range(len(self.header))]
        header, *rows = ([_markdown_text(cell) for cell in row] for row in (self.header, *self.rows))
        notes = "".join(f"\n{_markdown_text(note)}\n" for note in self.notes)
        return f"{_markdown_text(self.caption)}\n\n{pipe_table(header, rows, rule)}{notes}"

    def to_parquet(self, path: str | os.PathLike) -> Path:
        """Write the numbers, unrounded, one row a value; caption and notes stand in the file's metadata. Returns the path."""
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.Table.from_pandas(self.data, preserve_index=False)
        about = {"caption": self.caption, "notes": list(self.notes), "table": self.name}
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), "diffscope": json.dumps(about)})
        with replacing(path) as unfinished:
            parquet.write_table(table, unfinished)
        return Path(path)

    def save(self, path: str | os.PathLike) -> Path:
        """Write the table, whole or not at all, as the name's end says.

        Parameters
        ----------
        path : path-like
            Ends in .tex or .md, as printed; in .parquet or .csv, the unrounded numbers.

        Raises
        ------
        DiffscopeError
            The name ends in something else, or there is no such folder.
        """
        path = Path(path)
        check_suffix(path)
        writers: dict[str, Callable[[], object]] = {
            ".tex": lambda: write_text(path, self.to_latex()),
            ".md": lambda: write_text(path, self.to_markdown()),
            ".parquet": lambda: self.to_parquet(path),
            ".csv": lambda: write_text(path, self.data.to_csv(index=False)),
        }
        writers[path.suffix.lower()]()
        return path

    def _is_of_numbers(self, column: int) -> bool:
        """Return whether all cells of a column, dashes left out, are numbers."""
        cells = [row[column] for row in self.rows if row[column] != "–"]
        return bool(cells) and all(NUMBER.fullmatch(cell) for cell in cells)

    def _latex_column(self, column: int, width: int) -> str:
        if width > LONG:
            return r"p{0.28\linewidth}"
        return "r" if self._is_of_numbers(column) else "l"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        notes = "".join(f"<p><small>{html.escape(note)}</small></p>" for note in self.notes)
        caption = f"<caption>{html.escape(self.caption)}</caption>"
        return f'<table style="{STYLE}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}'


def check_suffix(path: str | os.PathLike) -> None:
    """Refuse a name that no form of a table is kept under."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise DiffscopeError(f"a table cannot be kept as {Path(path).name!r}; end the name in {', '.join(SUFFIXES)}")


def _latex_row(cells: Sequence[str]) -> str:
    texts = [as_latex(_one_line(cell)) for cell in cells]
    # An empty cell in front keeps LaTeX from reading a bracket as an option of the line before.
    first = f"{{}}{texts[0]}" if texts[0].startswith(("[", "*")) else texts[0]
    return " & ".join([first, *texts[1:]]) + r" \\"


def _markdown_text(text: str) -> str:
    """Escape what Markdown would read as emphasis or a tag in a cell, a caption or a note; :func:`pipe_table` escapes rules."""
    text = _one_line(text)
    for sign in "\\`*_<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text


def _one_line(text: str) -> str:
    return " ".join(text.split())
