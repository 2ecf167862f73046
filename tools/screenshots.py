"""Take screenshots of the dashboard: ``python -m tools.screenshots FOLDER`` for every page, size and scheme.

They show the bundled models and examples, from top to bottom of each page. With ``--docs``: those of docs and README, into
``docs/pictures``; two of them show a training while it goes on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.browser import PAGES, ROOT, chromium, dashboard, faults, settle

WIDTHS = (800, 1440, 1920)
TALLEST = 6000  # pixels
DRAWN = 2000  # milliseconds in which a page draws what comes after its script
TRAINED = "runs/small"  # in the checkout, and removed again
MEASURED = 24  # steps that are measured before a training's pictures are taken
#: what the docs show: file, address, size, scheme
DOCS = (
    ("explore", "", (1440, 1150), "light"),
    ("compare", "compare", (1440, 1150), "light"),
    ("change", "change", (1440, 1000), "dark"),
    ("training", f"training?training-folder={TRAINED}", (1440, 1150), "light"),
    ("training_dark", f"training?training-folder={TRAINED}", (1440, 1150), "dark"),
)


def shoot(page, address: str, path: Path, whole: bool = True) -> list[str]:
    """Save one page as a picture, and return what is wrong with it."""
    page.goto(address)
    settle(page, 120)
    page.wait_for_timeout(DRAWN)  # charts and canvases are drawn after the script is through
    if whole:
        size = page.viewport_size
        tall = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": size["width"], "height": min(TALLEST, max(size["height"], tall + 20))})
        settle(page)
    page.wait_for_timeout(DRAWN)
    page.screenshot(path=str(path))
    return faults(page)


@contextmanager
def training(names: Iterable[str]) -> Iterator[None]:
    """Train a model, if a picture shows one, until enough steps are measured, and on until the pictures are taken."""
    folder = ROOT / TRAINED
    if not any(name.startswith("training") for name in names) or folder.exists():
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", "tools.small_training", str(folder)], cwd=ROOT)
    try:
        while process.poll() is None and len(list(folder.glob("step-*.nc"))) < MEASURED:
            time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Take what the command line says; 1 where a page shows that something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("screenshots"))
    parser.add_argument("--docs", action="store_true", help="those that README and docs show")
    parser.add_argument("--only", nargs="+", help="with --docs: some of them, by name")
    parser.add_argument("--pages", nargs="+", default=list(PAGES), help="parts of addresses")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--schemes", nargs="+", default=["light", "dark"])
    chosen = parser.parse_args()
    folder = ROOT / "docs" / "pictures" if chosen.docs else chosen.folder
    folder.mkdir(parents=True, exist_ok=True)
    if chosen.docs:
        shots = [
            (name, where, size, scheme, False) for name, where, size, scheme in DOCS if not chosen.only or name in chosen.only
        ]
    else:
        shots = [
            (f"{page or 'explore'}-{width}-{scheme}", f"{page}", (width, 1000), scheme, True)
            for page in chosen.pages
            for width in chosen.widths
            for scheme in chosen.schemes
        ]
    wrong = 0
    with dashboard() as (address, _), chromium() as new_page, training(name for name, *_ in shots if chosen.docs):
        for name, where, size, scheme, whole in shots:
            page = new_page(*size, color_scheme=scheme)
            problems = shoot(page, f"{address}/{where}", folder / f"{name}.png", whole)
            page.close()
            print(f"{name}: {'; '.join(problems) or 'fine'}", flush=True)
            wrong += bool(problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
