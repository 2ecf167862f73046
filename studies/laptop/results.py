"""Results that cannot be made again from the runs, by name, in ``results.json``: of trained models, and of long simulations.

``calibration`` and ``power`` are of :mod:`studies.laptop.calibration`, as is ``null_models``; ``other_rate`` and ``text`` of the
modules of these names. ``with_weights`` is the board of the seeds whose weights were at hand when the study was read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffscope.storage.atomic import write_text

RESULTS = Path(__file__).with_name("results.json")


def read_result(name: str) -> Any:
    """Return the result of this name."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))[name]


def write_result(name: str, result: Any, path: Path = RESULTS) -> None:
    """Put a result into the file, in the place of an earlier one of its name; one result stands on one line."""
    results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    results[name] = result
    lines = (f"{json.dumps(key)}: {json.dumps(results[key], separators=(',', ':'))}" for key in sorted(results))
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
