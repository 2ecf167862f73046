"""Take the screenshots of the dashboard that docs and README show, into ``docs/pictures``: ``python -m tools.screenshots``.

They show the bundled models and examples; two of them show a training while it goes on.
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

from tools.browser import ROOT, chromium, dashboard, faults, settle

FOLDER = ROOT / "docs" / "pictures"
DRAWN = 4000  # milliseconds in which a page draws what comes after its script
TRAINED = "runs/small"  # in the checkout, and removed again
MEASURED = 24  # steps that are measured before a training's pictures are taken
#: file, address, size, scheme
SHOTS = (
    ("explore", "", (1440, 1150), "light"),
    ("compare", "compare", (1440, 1150), "light"),
    ("change", "change", (1440, 1000), "dark"),
    ("training", f"training?training-folder={TRAINED}", (1440, 1150), "light"),
    ("training_dark", f"training?training-folder={TRAINED}", (1440, 1150), "dark"),
)


def shoot(page, address: str, path: Path) -> list[str]:
    """Save the visible part of one page as a picture, and return what is wrong with it."""
    page.goto(address)
    settle(page, 120)
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
    parser.add_argument("--only", nargs="+", choices=[name for name, *_ in SHOTS], help="some of them, by name")
    only = parser.parse_args().only
    shots = [shot for shot in SHOTS if not only or shot[0] in only]
    wrong = 0
    with dashboard() as (address, _), chromium() as new_page, training(name for name, *_ in shots):
        for name, where, size, scheme in shots:
            page = new_page(*size, color_scheme=scheme)
            problems = shoot(page, f"{address}/{where}", FOLDER / f"{name}.png")
            page.close()
            print(f"{name}: {'; '.join(problems) or 'fine'}", flush=True)
            wrong += bool(problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
