"""The cards of the page of tutorials: of each notebook its picture, its question, and what its conclusion says, as it ran."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

from gallery import DRAWN
from outside import DOCS, notebooks

FOLDER = DRAWN / "tutorials"
#: pictures for notebooks that draw none
PICTURES = {"12_long_prompts": "engine.svg", "14_transformerlens_nnsight": "maps.svg"}
LONGEST = 240  # letters of an answer


def cells(path: Path) -> list[dict]:
    """The cells of a notebook."""
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def question(notebook: list[dict]) -> str:
    """The title of a notebook, which is a question."""
    return "".join(notebook[0]["source"]).partition("\n")[0].removeprefix("# ")


def answer(notebook: list[dict]) -> str:
    """What is printed first under the heading of the conclusion; empty if nothing is."""
    after = [
        number for number, cell in enumerate(notebook) if re.search(r"^#+ .*conclusion", "".join(cell["source"]), re.I | re.M)
    ]
    for cell in notebook[after[-1] :] if after else ():
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                return shortened("".join(output["text"]))
    return ""


def shortened(text: str) -> str:
    """As many sentences of printed text as a card has room for; lines of a table count as sentences."""
    found = ""
    for sentence in sentences(text.strip().partition("\n\n")[0].splitlines()):
        if found and len(found) + len(sentence) > LONGEST:
            break
        found = f"{found} {sentence}".strip()
    return found


def sentences(lines: list[str]) -> Iterator[str]:
    """The sentences of text whose lines are wrapped, and the rows of tables in it."""
    running = ""
    for number, line in enumerate(lines):
        row = re.search(r"\S {2,}\S", line)
        running = running if row else f"{running} {line}".strip()
        if running and (row or number == len(lines) - 1):
            yield from re.split(r"(?<=[.])\s", running)
            running = ""
        if row:
            yield re.sub(r" {2,}", ": ", line.strip(), count=1).rstrip(".") + "."


def picture(name: str, notebook: list[dict]) -> str:
    """The path of the first picture of a notebook, from docs/; empty if it has none."""
    for cell in notebook:
        for output in cell.get("outputs", ()):
            if png := output.get("data", {}).get("image/png"):
                FOLDER.mkdir(parents=True, exist_ok=True)
                path = FOLDER / f"{name}.png"
                path.write_bytes(base64.b64decode("".join(png)))
                return path.relative_to(DOCS).as_posix()
    return PICTURES.get(name, "")


def card(path: Path) -> str:
    """The card of one notebook."""
    notebook = cells(path)
    lines = [f":::{{grid-item-card}} {question(notebook)}", f":link: tutorials/{path.stem}", ":link-type: doc"]
    if drawing := picture(path.stem, notebook):
        lines += [f":img-top: {drawing}", f":img-alt: A picture of notebook {path.stem[:2]}"]
    escaped = re.sub(r"([|*_<\[`$])", r"\\\1", answer(notebook))
    return "\n".join([*lines, "", escaped, ":::"])


def read(app, name: str, source: list[str]) -> None:
    """Put the cards into the page when it is read."""
    if name == "tutorials":
        cards = "\n".join(["::::{grid} 1 2 2 3", ":gutter: 3", *map(card, notebooks()), "::::"])
        source[0] = source[0].replace("<!-- cards -->", cards)


def setup(app):
    """Write cards when the page is read."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
