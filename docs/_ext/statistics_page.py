"""Pictures of the statistics: each heading of docs/statistics.md gets one, drawn on a bundled model when the site is built."""

import re

from gallery import DRAWN, digest, package

HEADING = re.compile(r"^### (\w+)\n", re.M)
ABOUT = """
Each picture shows one number for each head of `mini-diff` (layers down, heads across), at the last token of an example
prompt, which asks for a number that occurs in it. {py:func}`figures.heads(cap, statistic=NAME) <diffscope.figures.heads>`
draws these pictures. The words above a picture say which number of the statistic it shows: the map (D, A1), and what else
there is to choose, such as the key set (answer), the normalisation (share), the sinks (S, the first token), the number of
largest weights (1), or the query. A picture shows what a statistic looks like, and not whether it is large.
"""


def drawn() -> dict[str, str]:
    """A picture of each statistic that is not the error of another one, by name; drawn again if the package has changed."""
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
            diffscope.figures.heads(cap, statistic=name, width=3.2).save(DRAWN / "statistics" / f"{name}.svg")


def pictured(text: str, pictures: dict[str, str]) -> str:
    """The page with a picture below the heading of each statistic that has one."""

    def replace(match: re.Match) -> str:
        path = pictures.get(match[1])
        return match[0] + (f"\n![{match[1]} of each head]({path}){{.statistic}}\n" if path else "")

    return HEADING.sub(replace, text).replace("<!-- pictures -->", ABOUT)


def prepare(app, config) -> None:
    """Draw before anything is read."""
    drawn()


def read(app, name: str, source: list[str]) -> None:
    """Put the pictures into the page when it is read."""
    if name == "statistics":
        source[0] = pictured(source[0], drawn())


def setup(app):
    """Draw first, then place what was drawn."""
    app.connect("config-inited", prepare)
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
