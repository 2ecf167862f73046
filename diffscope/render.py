"""Render objects: facts in a small table, texts with marked spans, sentences in lines that fit a terminal, and LaTeX.

All text is escaped. Only marks have a colour, which is transparent, so that pages may be light or dark.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

from diffscope.numbers import ranges, stretches

COLUMNS = 100  # characters of a line
LONGEST = 600  # the most tokens of a text that is shown in full
# safe for colour-blind readers (Okabe and Ito)
TINTS = ("86, 180, 233", "230, 159, 0", "0, 158, 115", "204, 121, 167", "213, 94, 0", "0, 114, 178")
CELL = 'style="text-align: left; vertical-align: top"'


def lines(text: str) -> str:
    """Wrap a sentence for a terminal, indented below its heading."""
    return textwrap.fill(text, COLUMNS, initial_indent="  ", subsequent_indent="  ")


def card(title: str, *parts: str) -> str:
    """Return a heading with parts of HTML below it."""
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def facts(rows: Mapping[str, str]) -> str:
    """Return names and their values as a table without lines; empty values are left out."""
    cells = (f"<tr><th {CELL}>{escape(name)}</th><td {CELL}>{escape(text)}</td></tr>" for name, text in rows.items() if text)
    return f"<table>{''.join(cells)}</table>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text below a row of names as an HTML table."""
    head = "".join(f"<th {CELL}>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td {CELL}>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def pipe_table(columns: Sequence[str], rows: Iterable[Sequence[str]], rules: Sequence[str] = ()) -> str:
    """Return rows of text below a row of names as a pipe table of Markdown; `rules` align the columns, by default to the left."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (columns, *rows)]
    lines.insert(1, list(rules) or ["---"] * len(columns))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def paragraph(text: str) -> str:
    """Return a paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def folded(summary: str, inside: str) -> str:
    """Return HTML that opens by a click on its summary."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def marked(pieces: Sequence[str], spans: Mapping[str, Collection[int]]) -> str:
    """Return a text with each span marked in its own tint, and below it a legend of spans, tints and tokens.

    Parameters
    ----------
    pieces : sequence of str
        The text of each token; together they are the text.
    spans : mapping of str to token positions
        A token of several spans has the tint of the smallest. Of a text of more than `LONGEST` tokens, the ends are shown.
    """
    names = [name for name in sorted(spans, key=lambda name: len(spans[name])) if spans[name]]
    tints = {name: TINTS[number % len(TINTS)] for number, name in enumerate(names)}
    of_token = {at: name for name in reversed(names) for at in spans[name]}
    every = range(len(pieces))
    half = LONGEST // 2
    if len(pieces) > LONGEST:
        ends = (_run(pieces, tokens, of_token, tints) for tokens in (every[:half], every[-half:]))
        text = f"<em> … {len(pieces) - 2 * half} more tokens … </em>".join(ends)
    else:
        text = _run(pieces, every, of_token, tints)
    legend = [f"{_mark(name, name, tints)} {escape(places(spans[name]))}" for name in names]
    below = f"<p>{' · '.join(legend)}</p>" if legend else ""
    return f'<div style="white-space: pre-wrap">{text}</div>{below}'


def _run(pieces: Sequence[str], tokens: Sequence[int], of_token: Mapping[int, str], tints: Mapping[str, str]) -> str:
    """Join neighbouring tokens, with one mark for each run of tokens of one span."""
    runs = groupby(tokens, key=of_token.get)
    return "".join(_mark("".join(pieces[token] for token in run), name, tints) for name, run in runs)


def _mark(text: str, name: str | None, tints: Mapping[str, str]) -> str:
    if name is None:
        return escape(text)
    style = f"background: rgba({tints[name]}, 0.35); color: inherit; border-bottom: 2px solid rgb({tints[name]})"
    return f'<mark title="{escape(name)}" style="{style}">{escape(text)}</mark>'


def places(positions: Collection[int], most: int = 4) -> str:
    """Write token positions as ranges, 44–46, 70; of more than `most` ranges only the ends."""
    if len(stretches(positions)) <= most:
        return ranges(positions)
    return f"{len(positions)} tokens from {min(positions)} to {max(positions)}"


# LaTeX

LATEX_COMMANDS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
}
GREEK = {
    **dict(
        zip(
            "αβγδζηθκλμνξπρστφχψω",
            "alpha beta gamma delta zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega".split(),
        )
    ),
    **dict(zip("ΓΔΘΛΞΠΣΦΨΩ", "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega".split())),
}
LATEX_SYMBOLS = {
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "≈": r"$\approx$",
    "·": r"$\cdot$",
    "→": r"$\rightarrow$",
    "↵": r"$\hookleftarrow$",
    "⇥": r"$\mapsto$",
    "∅": r"$\emptyset$",
    "□": r"\rule{0.6em}{0.6em}",
    "‖": r"$\|$",
    "√": r"$\surd$",
    "∞": r"$\infty$",
    **{letter: f"$\\{name}$" for letter, name in GREEK.items()},
    "ε": r"$\varepsilon$",
    "′": r"$'$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "’": "'",
    "‹": r"$\langle$",
    "›": r"$\rangle$",
    "\u00a0": "~",
}
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-"))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789"))
RUNS = re.compile(f"([{''.join(RAISED)}]+)|([{''.join(LOWERED)}]+)")


def as_latex(text: str) -> str:
    """Escape text for LaTeX, and write symbols of the field as mathematics.

    Letters of other scripts are not changed: they need LuaLaTeX or XeLaTeX, and a font that has them.
    """
    pieces = []
    end = 0
    for run in RUNS.finditer(text):
        pieces += [LATEX_COMMANDS.get(c) or LATEX_SYMBOLS.get(c, c) for c in text[end : run.start()]]
        raised, lowered = run.groups()
        pieces.append(f"$^{{{_digits(raised, RAISED)}}}$" if raised else f"$_{{{_digits(lowered, LOWERED)}}}$")
        end = run.end()
    return "".join([*pieces, *(LATEX_COMMANDS.get(c) or LATEX_SYMBOLS.get(c, c) for c in text[end:])])


def _digits(digits: str, table: dict[str, str]) -> str:
    return "".join(table[digit] for digit in digits)


def size_in_words(nbytes: float) -> str:
    """Write a number of bytes as a person reads it."""
    if nbytes < 2**20:
        return f"{nbytes / 2**10:.0f} KiB"
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
