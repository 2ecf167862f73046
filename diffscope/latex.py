"""Text as LaTeX sets it: what it would read as a command becomes text, and symbols of the field become mathematics."""

from __future__ import annotations

import re

COMMANDS = {
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
SYMBOLS = {
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


def escaped(text: str) -> str:
    """The text for LaTeX.

    Letters of other scripts stay as they are: they need LuaLaTeX or XeLaTeX, and a font that has them.
    """
    pieces = []
    end = 0
    for run in RUNS.finditer(text):
        pieces += [COMMANDS.get(c) or SYMBOLS.get(c, c) for c in text[end : run.start()]]
        raised, lowered = run.groups()
        pieces.append(f"$^{{{_plain(raised, RAISED)}}}$" if raised else f"$_{{{_plain(lowered, LOWERED)}}}$")
        end = run.end()
    return "".join([*pieces, *(COMMANDS.get(c) or SYMBOLS.get(c, c) for c in text[end:])])


def _plain(digits: str, table: dict[str, str]) -> str:
    return "".join(table[digit] for digit in digits)
