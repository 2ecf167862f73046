"""Pages that lie outside of docs/: notebooks, the changelog, measurements. They are copied to where the site has them.

Links between files of the checkout, which lead somewhere in an editor and on a page of the repository, are turned into links
between pages of the site, and one that is called by the name of its file is called by the title of its page. What the site has
no page for is a file to download.
"""

import json
import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent

#: which file of the checkout is which page of the site, beside the notebooks
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/RESULTS.md": "project/results.md",
    "benchmarks/GPU_QUEUE.md": "project/gpu_queue.md",
    "analyses": "tutorials.md",
    "docs/gallery": "gallery/index.md",
}
LINK = re.compile(r"(?:(?<=\[)([^\[\]]*))?(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def notebooks() -> list[Path]:
    """The notebooks, in order."""
    return sorted((ROOT / "analyses").glob("*.ipynb"))


def pages() -> dict[str, str]:
    """Every file outside of docs/ that has a page: its path in the checkout, and its path in the site."""
    return PAGES | {f"analyses/{path.name}": f"tutorials/{path.name}" for path in notebooks()}


def linked(text: str, source: str, page: str) -> str:
    """Markdown with its links between files as links between pages.

    Parameters
    ----------
    text : str
    source : str
        Where it stands in the checkout.
    page : str
        Where it stands in docs/.
    """
    known = pages()

    def replace(match: re.Match) -> str:
        words, between, link, place = match.groups(default="")
        if "://" in link or link.startswith("mailto:"):
            return match[0]
        target = os.path.normpath(os.path.join(os.path.dirname(source), link))
        in_docs = known.get(target) or os.path.relpath(ROOT / target, DOCS)
        if not in_docs.startswith("..") and words.strip("`").endswith((".md", ".ipynb")):
            words = ""  # for which the title of the page is written
        return words + between + os.path.relpath(in_docs, os.path.dirname(page) or ".") + place

    return LINK.sub(replace, text)


def copy(source: str, page: str) -> None:
    """Write one file of the checkout as a page, unless it is there already."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if source.endswith(".ipynb"):
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = linked("".join(cell["source"]), source, page)
        text = json.dumps(notebook, ensure_ascii=False, indent=1)
    else:
        text = linked(text, source, page)
    write(DOCS / page, text)


def write(path: Path, text: str) -> None:
    """Write a page that is made, if it is another one than before: what did not change is not read again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def prepare(app, config) -> None:
    """Copy what lies outside, and forget copies of what is gone."""
    made = {source: page for source, page in pages().items() if (ROOT / source).is_file() and source != "README.md"}
    for source, page in made.items():
        copy(source, page)
    for path in (DOCS / "tutorials").glob("*.ipynb"):
        if f"tutorials/{path.name}" not in made.values():
            path.unlink()


def turn_links(app, name: str, source: list[str]) -> None:
    """Turn the links of a page of docs/ when it is read; what was copied is turned already."""
    path = Path(app.env.doc2path(name))
    page = path.relative_to(DOCS).as_posix()
    if path.suffix == ".md" and page not in pages().values():
        source[0] = linked(source[0], f"docs/{page}", page)


def setup(app):
    """Copy before anything is read."""
    app.connect("config-inited", prepare)
    app.connect("source-read", turn_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
