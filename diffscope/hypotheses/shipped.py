"""Find what is shipped: studies, the published claims beside them, and the power of the primary tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from diffscope.errors import DiffscopeError

PACKAGE = Path(__file__).parents[1]
#: A wheel carries the files of shipped studies in the package; a checkout has them in the folder of its studies.
SHIPPED = next((home for home in (PACKAGE / "_studies", PACKAGE.parent / "studies") if home.is_dir()), PACKAGE / "_studies")
STUDY = "study.json"
CLAIMS = "claims.toml"
POWER = "power.json"
DEFAULT = "laptop"  # the study that is meant if none is named


def shipped() -> list[str]:
    """Return the names of the studies that came with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{STUDY}"))


def find_study(folder: str | Path | None = None) -> Path:
    """Return the file of a study: in a folder, or the shipped one of this name; by default the laptop's.

    Raises DiffscopeError if there is none.
    """
    named = SHIPPED / DEFAULT if folder is None else Path(folder)
    path = next((place / STUDY for place in (named, SHIPPED / named) if (place / STUDY).is_file()), None)
    if path is None:
        raise DiffscopeError(f"there is no study in {named}; shipped: {', '.join(shipped()) or 'none'}")
    return path


def find_claims() -> Path:
    """Return the file of the published claims that were written down with the shipped study."""
    return SHIPPED / DEFAULT / CLAIMS


@cache
def _power() -> dict[str, str]:
    return json.loads((SHIPPED / DEFAULT / POWER).read_text(encoding="utf-8"))


def power_of(test: str) -> str:
    """Return what simulations say of the power of a primary test, by its id, as one sentence."""
    return _power()[test]
