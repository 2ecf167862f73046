"""Whether every link of the finished pages leads somewhere, and nothing is loaded from elsewhere; what does not is a warning."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

ID = re.compile(r'\sid="([^"]*)"')
LINK = re.compile(r"<(a|script|img|link|iframe|source|object)\s([^>]*)>")
TARGET = re.compile(r'\b(?:href|src|data)="([^"]*)"')


def faults(folder: Path) -> list[str]:
    """What is wrong with the links of the pages in a folder, a line each."""
    folder = folder.resolve()
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts}
    anchors = {path: set(map(unescape, ID.findall(text))) for path, text in pages.items()}
    found = []
    for path, text in pages.items():
        for tag, attributes in dict.fromkeys(LINK.findall(text)):
            if (match := TARGET.search(attributes)) and (fault := fault_of(path, tag, unescape(match[1]), anchors)):
                found.append(f"{path.relative_to(folder)} {fault}")
    return list(dict.fromkeys(found))


def fault_of(page: Path, tag: str, link: str, anchors: dict[Path, set[str]]) -> str:
    """What is wrong with one link of a page, or nothing; elements other than <a> load what they link to."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        loaded = tag != "a" and parts.scheme in ("", "http", "https")
        return f"loads {link}" if loaded else ""
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.exists():
        return f"links to {link}, which is not there"
    if parts.fragment and target in anchors and unquote(parts.fragment) not in anchors[target]:
        return f"links to {link}, and there is no such place on that page"
    return ""


def check(app, exception) -> None:
    """Warn of every fault."""
    from sphinx.util import logging

    if exception is None and app.builder.name == "html":
        for fault in faults(Path(app.outdir)):
            logging.getLogger(__name__).warning(fault)


def setup(app):
    """Check when everything is written."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
