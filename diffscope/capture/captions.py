"""Write what captions of figures and of tables share: the edits in force, and the number of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import xarray as xr

from diffscope.capture.capture import Capture


def edits_of(parts: Mapping[str, Capture | xr.Dataset]) -> str:
    """Return the edits that captures or readings were made under: of all of them, or with the names of those that had them."""
    abouts = {name: part.attrs if isinstance(part, xr.Dataset) else part.facts for name, part in parts.items()}
    edits = {name: str(about.get("edits") or "") for name, about in abouts.items()}
    if len(set(edits.values())) == 1:
        return next(iter(edits.values()))
    return "; ".join(f"{words} ({name})" for name, words in edits.items() if words)


def count_of_prompts(counts: Iterable[int]) -> str:
    """Count prompts in words, if places may differ in their number: 4 to 6 prompts; places without any are left out."""
    defined = [int(count) for count in counts if count] or [0]
    least, most = min(defined), max(defined)
    many = f"{most} prompt{'' if most == 1 else 's'}"
    return many if least == most else f"{least} to {many}"
