"""How objects show themselves: facts in a small table, texts with their spans marked, sentences in lines that fit a terminal.

All text is escaped. Nothing has a colour but marks, and these let the page's own letters and paper through, light or dark.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

COLUMNS = 100  # characters a line
LONGEST = 600  # tokens of a text that is shown whole
TINTS = ("86, 180, 233", "230, 159, 0", "0, 158, 115", "204, 121, 167", "213, 94, 0", "0, 114, 178")  # told apart by everybody
CELL = 'style="text-align: left; vertical-align: top"'


def lines(text: str) -> str:
    """A sentence in lines for a terminal, indented below the line that says what it is of."""
    return textwrap.fill(text, COLUMNS, initial_indent="  ", subsequent_indent="  ")


def card(title: str, *parts: str) -> str:
    """A heading with parts of HTML below it."""
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def facts(rows: Mapping[str, str]) -> str:
    """Names and what they come to, as a table without lines."""
    cells = (f"<tr><th {CELL}>{escape(name)}</th><td {CELL}>{escape(text)}</td></tr>" for name, text in rows.items() if text)
    return f"<table>{''.join(cells)}</table>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of text below a row of names."""
    head = "".join(f"<th {CELL}>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td {CELL}>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def pipe_table(columns: Sequence[str], rows: Iterable[Sequence[str]], rules: Sequence[str] = ()) -> str:
    """Return rows of text below a row of names as a pipe table of Markdown; `rules` align the columns, by default to the left."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (columns, *rows)]
    lines.insert(1, list(rules) or ["---"] * len(columns))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def folded(summary: str, inside: str) -> str:
    """What is opened by a click on its summary; `inside` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def marked(pieces: Sequence[str], spans: Mapping[str, Collection[int]]) -> str:
    """A text with its spans marked, each in a tint of its own, and below it which span has which tint and tokens.

    Parameters
    ----------
    pieces : sequence of str
        The text of each token; together they are the text.
    spans : mapping of str to token positions
        A token of several spans is marked as that of the smallest. Of a text of more than `LONGEST` tokens its ends are shown.
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
    legend = [f"{_mark(name, name, tints)} {escape(stretches(spans[name]))}" for name in names]
    below = f"<p>{' · '.join(legend)}</p>" if legend else ""
    return f'<div style="white-space: pre-wrap">{text}</div>{below}'


def _run(pieces: Sequence[str], tokens: Sequence[int], of_token: Mapping[int, str], tints: Mapping[str, str]) -> str:
    """Neighbouring tokens, those of one span in one mark."""
    runs = groupby(tokens, key=of_token.get)
    return "".join(_mark("".join(pieces[at] for at in run), name, tints) for name, run in runs)


def _mark(text: str, name: str | None, tints: Mapping[str, str]) -> str:
    if name is None:
        return escape(text)
    style = f"background: rgba({tints[name]}, 0.35); color: inherit; border-bottom: 2px solid rgb({tints[name]})"
    return f'<mark title="{escape(name)}" style="{style}">{escape(text)}</mark>'


def stretches(positions: Collection[int], most: int = 4) -> str:
    """Token positions as stretches of neighbours: 44–46, 70."""
    ordered = sorted(positions)
    runs = [[at for _, at in run] for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])]
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ", ".join(words) if len(words) <= most else f"{len(ordered)} tokens from {ordered[0]} to {ordered[-1]}"


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
    """Write text for LaTeX: what it would read as a command becomes text, and symbols of the field become mathematics.

    Letters of other scripts stay as they are: they need LuaLaTeX or XeLaTeX, and a font that has them.
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
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
