"""Write docs/statistics.md and the table of docs/edits.md from the declarations: ``python tools/definitions.py``."""

from collections.abc import Mapping
from pathlib import Path

from diffscope.edits import EDITS
from diffscope.instruments.definitions import INSTRUMENTS
from diffscope.stats import STATISTICS
from diffscope.stats.registry import LABELS
from diffscope.stats.statistic import Definition

FILE = Path(__file__).parents[1] / "docs" / "statistics.md"
EDITS_FILE = FILE.with_name("edits.md")
HEAD = """# Statistics

After this page you can say what a number of `cap.measure` or `scope.measure` is: its formula, its range, when it is NaN, how it
is averaged, and where it comes from. `python tools/definitions.py` writes the page from the registry,
`diffscope.stats.STATISTICS`.

The formulas use these letters:

| letter | means |
|---|---|
| x | a row of A1, A2 or D = g·A1 − λ·A2 |
| p | the row's shares, \\|x\\| / Σ\\|x\\|. In statistics of both branches, p and q are A1 and A2, each made to sum to 1 on X |
| n | the number of keys that the row sees |
| X | a [key set](reading_numbers.md#key-sets). ⟨,⟩ and \\|.\\| are taken on it |
| g | the gain of A1, which is 1 in most models |

- **Standard attention** has no A2. Statistics that need A2 are NaN, and D is A1.
- **A sink logit** (GPT-OSS) takes part in the softmax and has no key, so rows of such a map sum to less than 1. All sums on this
  page are over keys. So statistics of the shares p describe how a row spreads the weight that keys get, raw masses are those of
  the row as it is, and 1 − `row_sum` of A1 or A2 is what the sink logit takes. A sink in the name of a statistic is a token.
- **Any array**: statistics of rows are functions of arrays too, such as `from diffscope.stats.formulas import entropy`.
- **Averages** over queries, heads and layers: see [averages](measuring.md#averages).
- **What to compare a number with**: see [controls](reading_numbers.md#controls).
<!-- pictures -->
"""
KINDS = {
    "row": ("Rows", "One value for each row of A1, A2 and D."),
    "span": ("Key sets and sinks", "Attention on key sets, and on sinks, which are keys that get much of it."),
    "branch": ("Branches", "What A1 and A2 share on a key set, and what the subtraction leaves."),
    "layer": ("Layers", "λ, scores, and the heads of a layer compared with each other."),
    "rank": ("Whole maps", "Ranks of A1, λ·A2 and D, with their controls."),
}
ESCAPED = "\\|"
AVERAGED = {"mean": "mean", "median": "median", "not": "not averaged"}


def page() -> str:
    """Return the whole file."""
    parts = [HEAD]
    for kind, (title, what) in KINDS.items():
        of_kind = {name: statistic for name, statistic in STATISTICS.items() if statistic.kind == kind}
        parts += [
            f"## {title}\n\n{what}\n",
            contents(of_kind),
            *(section(name, statistic) for name, statistic in of_kind.items()),
        ]
    for function, variables in INSTRUMENTS.items():
        parts.append(
            f"## instruments.{function}\n\n[`diffscope.instruments.{function}`](instruments.md) returns these variables.\n"
        )
        parts += [section(name, words) for name, words in variables.items()]
    labels = [f"| `{dim}` | {', '.join(f'`{label}`' for label in map(str, values))} |" for dim, values in LABELS.items()]
    return "\n".join([*parts, "## Labels\n\n| dimension | labels |\n|---|---|", *labels, ""])


def contents(statistics: Mapping[str, Definition]) -> str:
    """Return the table at the head of a kind: what each statistic is, in which units."""
    rows = ["| statistic | is | units |", "|---|---|---|"]
    for name, words in statistics.items():
        cells = (f"[{name}](#{name})", words.description, "none" if words.units == "1" else words.units)
        rows.append(f"| {' | '.join(cell.replace('|', ESCAPED) for cell in cells)} |")
    return "\n".join([*rows, ""])


def section(name: str, words: Definition) -> str:
    """Return the section of a variable: what it is, formula, range, where it is undefined, averages, dimensions and source."""
    units = "" if words.units == "1" else f" [{words.units}]"
    averaged = f"{AVERAGED[words.averaged]}; itself a mean over {words.averaged_over}" if words.averaged_over else None
    lines = {
        "formula": f"`{words.formula}`",
        "range": f"{words.range[0]} to {words.range[1]}",
        "NaN": words.undefined,
        "averaged": averaged or AVERAGED[words.averaged],
        "dimensions": ", ".join(words.dims) or "none",
        "source": words.source,
    }
    return "\n".join([f"### {name}\n", f"{words.description}{units}\n", *(f"- {key}: {text}" for key, text in lines.items()), ""])


def edits_page() -> str:
    """Return docs/edits.md with its table of edits, the only one of the page, made anew."""
    rows = ["| edit | what is computed instead |", "|---|---|"]
    for name, edit in sorted(EDITS.items(), key=lambda item: item[1].stage):
        computed = edit.computes.replace("|", ESCAPED)
        rows.append(f"| `{name}({', '.join(edit.parameters)})` | {computed} |")
    lines = EDITS_FILE.read_text(encoding="utf-8").splitlines()
    table = [number for number, line in enumerate(lines) if line.startswith("|")]
    return "\n".join([*lines[: table[0]], *rows, *lines[table[-1] + 1 :], ""])


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    EDITS_FILE.write_text(edits_page(), encoding="utf-8")
