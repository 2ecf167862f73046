"""The page "Every statistic": a table, and each beside a picture of itself, from the registry and the model on board."""

from docutils import nodes
from gallery import DRAWN, digest, package
from outside import DOCS, write

KINDS = {
    "row": "Of a row of a map",
    "span": "Of a key set, and of sinks",
    "branch": "Of both maps on a key set",
    "layer": "Of a layer",
    "rank": "Of a whole map",
}
HEAD = """# Every statistic

What {py:func}`cap.measure <diffscope.Capture.measure>` and {py:func}`scope.measure <diffscope.Scope.measure>` know. The tables
say in which units, and where there is no value: there stands NaN. A name leads to its formula, range and source. x is a row of
A1, A2 or D, p its shares |x|/Σ|x|, n the number of keys that it sees, X a [key set](reading_numbers.md#key-sets).

Each picture shows one number for each head of `mini-diff` (layers down, heads across) at the last token of an example prompt,
which asks for a number that stands in it, as {py:func}`figures.heads(cap, statistic=NAME) <diffscope.figures.heads>` draws it.
What stands above a picture behind the dot says which of a statistic's numbers it is: the map (D, A1), then what else there is to
choose, such as the key set (answer), the normalisation (share), the sinks (S, the first token), the k of the largest weights (1),
and the query. They show what a statistic looks like, and nothing of whether it is large: for that compare it with
[its control](reading_numbers.md#controls).
"""


def drawn() -> dict[str, str]:
    """A picture of each statistic that is not the error of another one, by name; drawn where the package is another one."""
    made_of = DRAWN / "statistics" / "made-of"
    code = digest(package())
    if not made_of.exists() or made_of.read_text() != code:
        (DRAWN / "statistics").mkdir(parents=True, exist_ok=True)
        draw_all()
        made_of.write_text(code)
    return {path.stem: f"_build/drawn/statistics/{path.name}" for path in (DRAWN / "statistics").glob("*.svg")}


def draw_all() -> None:
    """Draw every statistic on an example."""
    import diffscope
    from diffscope.stats import STATISTICS

    scope = diffscope.load("mini-diff")
    example = diffscope.tasks.examples()[0]
    cap = scope.capture(example.text, spans=example.spans)
    for name in STATISTICS:
        if not name.endswith("_error"):
            diffscope.figures.heads(cap, statistic=name, width=2.6).save(DRAWN / "statistics" / f"{name}.svg")


def page(pictures: dict[str, str]) -> str:
    """The whole page."""
    from diffscope.stats import STATISTICS

    parts = [HEAD]
    for kind, title in KINDS.items():
        names = [name for name, statistic in STATISTICS.items() if statistic.kind == kind]
        parts += [f"## {title}", table({name: STATISTICS[name] for name in names})]
        shown = [tile(name, STATISTICS[name], pictures[name]) for name in names if name in pictures]
        parts += ["::::{grid} 1 2 3 3\n:gutter: 2", *shown, "::::"]
    return "\n\n".join(parts) + "\n"


def table(statistics) -> str:
    """Units, description, NaN and average of some statistics."""
    rows = ["| statistic | is | units | NaN | averaged by |", "|---|---|---|---|---|"]
    for name, words in statistics.items():
        units = "none" if words.units == "1" else words.units
        average = "not averaged" if words.averaged == "not" else words.averaged
        cells = (f"[{name}](definitions.md#{name})", words.description, units, words.undefined, average)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def tile(name: str, words, path: str) -> str:
    """A picture with its formula."""
    options = f":link: definitions.html#{anchor(name)}\n:link-type: url\n:img-top: {path}\n:img-alt: {name} by layer and head"
    return f":::{{grid-item-card}} {name}\n{options}\n\n{words.description}\n:::"


def anchor(name: str) -> str:
    """Where the site has the heading of that name."""
    return nodes.make_id(name)


def prepare(app, config) -> None:
    """Draw, and write the page."""
    write(DOCS / "statistics.md", page(drawn()))


def setup(app):
    """Draw before anything is read."""
    app.connect("config-inited", prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
