"""The gallery: every figure with its code. Each script of docs/gallery is run when the site is built, and gets a page.

A script has a docstring, whose first line is the title, and assigns ``figure``, or ``table``. What was drawn is
kept beside the page and drawn again when the script or the package has changed.
"""

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from outside import DOCS, ROOT, write

FOLDER = DOCS / "gallery"
DRAWN = DOCS / "_build" / "drawn"
FIRST = ("maps", "row", "heads", "view")  # the others by name
#: a page of one section needs no list of them, and its code the width
WITHOUT_CONTENTS = "---\nhtml_theme.sidebar_secondary.remove: true\n---"
TALL = 0.6  # height over width, from which on a thumbnail shows the upper part of a figure
ROWS = 6  # of a table, on its card
HEAD = """# Gallery

Click a picture for the code that draws it, on the bundled models: it is what the code gave when this site was built. Each figure
is one function of {py:mod}`diffscope.figures`: `.save("fig.pdf")` writes it for a paper, `.plotly()` returns it to explore,
`.data` has the numbers. Pictures of all statistics are on [their page](../statistics.md).
"""


@dataclass(frozen=True)
class Script:
    """One script of the gallery."""

    path: Path
    title: str
    about: str  # markdown
    code: str

    @property
    def name(self) -> str:
        """The name of its page."""
        return self.path.stem

    @property
    def calls(self) -> list[str]:
        """The figures, tables and readings that it makes, by their names in the package."""
        return list(dict.fromkeys(re.findall(r"\b((?:figures|tables|readings)\.\w+)\(", self.code)))


def scripts() -> list[Script]:
    """All scripts, in the order of the gallery."""
    paths = sorted(
        FOLDER.glob("*.py"), key=lambda path: (FIRST.index(path.stem) if path.stem in FIRST else len(FIRST), path.stem)
    )
    return [read(path) for path in paths]


def read(path: Path) -> Script:
    """One script, in its parts."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, _, about = (ast.get_docstring(tree) or "").partition("\n")
    code = "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip()
    return Script(path, title.rstrip("."), about.strip(), code)


def code_of(script: Script) -> str:
    """Of the script and of the package: what a drawing depends on."""
    return digest([script.path, *package()])


def package() -> list[Path]:
    """The files of the package."""
    return sorted((ROOT / "diffscope").rglob("*.py"))


def digest(paths: list[Path]) -> str:
    """Of what files hold."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()


def run(script: Script) -> tuple[str, bytes]:
    """What a script draws: the suffix of the file that holds it, and what that holds.

    A figure is an SVG, a table Markdown. What a notebook would show, such as the linked view, is HTML.
    """
    from IPython.core.formatters import DisplayFormatter

    names = {"__name__": script.name}
    exec(compile(script.path.read_text(encoding="utf-8"), str(script.path), "exec"), names)
    if "table" in names:
        return ".txt", names["table"].to_markdown().encode()
    figure = names["figure"]
    if hasattr(figure, "to_bytes"):
        return ".svg", figure.to_bytes(".svg")
    shown, _ = DisplayFormatter().format(figure)
    return ".html", shown["text/html"].encode()


def drawn(script: Script) -> Path:
    """The file with what a script draws, made where it is not there or the code is other code."""
    made_of = DRAWN / f"{script.name}.made-of"
    code = code_of(script)
    if not made_of.exists() or made_of.read_text() != code:
        suffix, content = run(script)
        DRAWN.mkdir(parents=True, exist_ok=True)
        for old in DRAWN.glob(f"{script.name}.*"):
            old.unlink()
        (DRAWN / f"{script.name}{suffix}").write_bytes(content)
        made_of.write_text(code)
    return next(path for path in DRAWN.glob(f"{script.name}.*") if path != made_of)


def picture(path: Path, alt: str) -> str:
    """A drawing on white paper, larger than in print, where letters are small."""
    inches = float(re.search(rb'width="([\d.]+)pt"', path.read_bytes())[1]) / 72
    return f"![{alt}](../{path.relative_to(DOCS)}){{.paper width={inches * 150:.0f}px}}"


def embedded(script: Script, drawing: Path) -> str:
    """What was drawn, as it stands on the page."""
    if drawing.suffix == ".svg":
        return picture(drawing, script.title)
    if drawing.suffix == ".txt":
        return drawing.read_text(encoding="utf-8")
    return f"```{{raw}} html\n:file: ../{drawing.relative_to(DOCS)}\n```"


def page(script: Script, drawing: Path) -> str:
    """The page of one script."""
    also = ", ".join(f"{{py:func}}`diffscope.{name}`" for name in script.calls)
    shown = embedded(script, drawing)
    source = f"{{download}}`{script.path.name}`"
    parts = [
        WITHOUT_CONTENTS,
        f"# {script.title}",
        script.about,
        shown,
        f"```python\n{script.code}\n```",
        f"All that can be chosen: {also}. The script: {source}.",
    ]
    return "\n\n".join(parts) + "\n"


def card(script: Script, drawing: Path) -> str:
    """A thumbnail that leads to the page."""
    lines = [f":::{{grid-item-card}} {script.title}", f":link: {script.name}", ":link-type: doc"]
    if drawing.suffix == ".txt":
        return "\n".join([*lines, ":class-body: table-card", "", *first_rows(drawing.read_text(encoding="utf-8")), ":::"])
    path = f"../{drawing.relative_to(DOCS)}" if drawing.suffix == ".svg" else "../maps.svg"
    lines += [f":img-top: {path}", f":img-alt: {script.title}"]
    if drawing.suffix == ".svg" and tall(drawing):
        lines.append(":class-img-top: cropped")
    return "\n".join([*lines, ":::"])


def tall(drawing: Path) -> bool:
    """Whether a drawing is too high for its card."""
    width, height = (float(re.search(rb'%s="([\d.]+)pt"' % side, drawing.read_bytes())[1]) for side in (b"width", b"height"))
    return height > TALL * width


def first_rows(text: str) -> list[str]:
    """The head of the table in a text."""
    return [line for line in text.splitlines() if line.startswith("|")][:ROWS]


def index(made: list[tuple[Script, Path]]) -> str:
    """The page with all thumbnails."""
    parts = [WITHOUT_CONTENTS, HEAD]
    for title, about, chosen in (
        (
            "Tasks",
            "What papers on differential attention show, each in at most six lines of code.",
            [pair for pair in made if is_task(pair[0])],
        ),
        ("Figures", "One function each.", [pair for pair in made if not is_task(pair[0])]),
    ):
        if chosen:
            parts += [
                f"## {title}",
                about,
                "::::{grid} 1 1 2 2\n:gutter: 3\n:class-container: gallery",
                *(card(*pair) for pair in chosen),
                "::::",
            ]
    tree = "\n".join(script.name for script, _ in made)
    return "\n\n".join([*parts, f"```{{toctree}}\n:hidden:\n\n{tree}\n```"]) + "\n"


def is_task(script: Script) -> bool:
    """Whether it draws what a paper shows, rather than one figure's function."""
    return script.name.startswith("task_")


def prepare(app, config) -> None:
    """Draw everything, and write the pages."""
    made = [(script, drawn(script)) for script in scripts()]
    for script, drawing in made:
        write(FOLDER / f"{script.name}.md", page(script, drawing))
    write(FOLDER / "index.md", index(made))
    for path in set(FOLDER.glob("*.md")) - {FOLDER / f"{script.name}.md" for script, _ in made} - {FOLDER / "index.md"}:
        path.unlink()


def setup(app):
    """Draw before anything is read."""
    app.connect("config-inited", prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
