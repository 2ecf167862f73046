"""Compare the numbers of the library with saved ones: ``python -m tools.golden save|compare FOLDER``.

``save`` writes three files into FOLDER. ``compare`` computes the numbers again and prints what differs from the files in FOLDER.

``exact.npz`` is for one machine, before and after a change of the code. It has every statistic of every example prompt on every
bundled model, the maps of one head, the logits of the next token under every edit, and the report of ``check`` on every layout
of ``tests/layouts``, all in the precision that models run in. These numbers have to be equal to the bit. On another processor,
with other threads or another build of torch they differ in their last digits.

``layouts.npz`` is of the same kind. It has the numbers of every layout of ``tests/layouts`` in four precisions: a prompt alone,
one that is padded on the right and one that is padded on the left, captures under two edits, and what is read from saved files.

``digits.npz`` is for any machine. Models run in double precision for it, and numbers have to be equal to 1e-6. It has means over
queries of the same statistics of the first prompt, logits of the likeliest tokens under the same edits, means of the statistics
of each layout, and every estimate of the boards of the shipped study. The one in ``tests/golden`` is committed, and
``tests/test_golden.py`` compares with it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import diffscope
from diffscope import models
from diffscope.edits import EDITS
from diffscope.hypotheses.study import open_study
from diffscope.scope import Scope
from diffscope.tasks import examples
from tests.layouts import published
from tools import golden_layouts

COMMITTED = Path(__file__).parents[1] / "tests" / "golden"
EXACT, LAYOUTS, DIGITS = "exact.npz", "layouts.npz", "digits.npz"
TOLERANCE = 1e-6  # of a number, and of the largest of its array
LIKELIEST = 32  # tokens whose logits are compared on any machine
EXAMPLES = 1  # prompts that are compared on any machine
STUDY = "laptop"
ESTIMATE = ("value", "low", "high", "null_low", "null_high", "p")
Numbers = dict[str, np.ndarray]


def models_of_examples() -> list[dict]:
    """Return the bundled models that read the example prompts; those of copies have a vocabulary of their own."""
    return [card for card in models.bundled() if card["task"] != "copies"]


def measured(model: dict, scope: Scope, count: int | None = None) -> Iterator[tuple[str, xr.DataArray]]:
    """Yield every statistic, λ and the maps of one head of the first `count` example prompts, each with its name."""
    name = model["name"]
    for number, example in enumerate(examples()[:count]):
        capture = scope.capture(example.text, spans=example.spans)
        for statistic, values in capture.measure(["all"]).data_vars.items():
            yield f"{name}, prompt {number}, {statistic}", values
        yield f"{name}, prompt {number}, captured lambda", capture.lam
        for which in ("A1", "A2", "D", "share") if _differential(model) else ("A1", "D"):
            yield f"{name}, prompt {number}, map {which}", capture.map(which, layer=1, head=1)


def edited(model: dict, scope: Scope) -> Numbers:
    """Return the logits of the token after the first example under every edit that the model can have: (vocabulary,)."""
    name = model["name"]
    prompts = [example.text for example in examples()]
    ids = torch.tensor([scope.tokenize(prompts[0])])
    arrays = {f"{name}, logits": scope.model(ids).logits[0, -1].numpy()}
    for edit, declared in EDITS.items():
        if (_differential(model) or not declared.needs) and not declared.of_source:  # of the same prompt it changes nothing
            captures = [scope.capture(prompts[0])] if declared.of_captures else []
            with scope.edit(declared.function(*captures, **declared.example)):
                arrays[f"{name}, edit {edit}"] = scope.model(ids).logits[0, -1].numpy()
    return arrays


def _differential(model: dict) -> bool:
    return model["attention"] != "standard"


def board() -> Numbers:
    """Return the estimates of the shipped study, board by board, one array a quantity: (estimate and what stands with it,)."""
    arrays = {}
    for which, verdicts in open_study(STUDY).boards.items():
        for verdict in verdicts:
            for quantity, estimate in verdict.estimates.items():
                values = [getattr(estimate, name) for name in ESTIMATE]
                arrays[f"board {which}, {verdict.test.id}, {quantity}"] = np.array(values, dtype=float)
    return arrays


def exact() -> Numbers:
    """Return what has to be equal to the bit on one machine."""
    arrays = {f"check {name}": np.array(repr(diffscope.check(make()))) for name, make in published.MODELS.items()}
    for model in models_of_examples():
        scope = diffscope.load(model["name"])
        arrays |= {name: values.values for name, values in measured(model, scope)} | edited(model, scope)
    return arrays


def digits() -> Numbers:
    """Return what has to be equal to `TOLERANCE` on any machine."""
    arrays = golden_layouts.digits() | board()
    for model in models_of_examples():
        scope = diffscope.load(model["name"])
        scope.model.double()
        for name, values in measured(model, scope, EXAMPLES):
            arrays[name] = values.mean([dim for dim in values.dims if dim in ("query", "key")]).values
        logits = edited(model, scope)
        likeliest = np.argsort(-logits[f"{model['name']}, logits"], kind="stable")[:LIKELIEST]
        arrays |= {name: values[likeliest] for name, values in logits.items()}
    return arrays


COMPUTED = {EXACT: exact, LAYOUTS: golden_layouts.exact, DIGITS: digits}


def write(arrays: Numbers, path: Path) -> None:
    """Write numbers as one compressed array a type, with an index of names and shapes; those for any machine as float32."""
    if path.name == DIGITS:
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    index: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, array in arrays.items():
        index.setdefault(array.dtype.str, {})[name] = array.shape
    flat = {kind: np.concatenate([np.ravel(arrays[name]) for name in shapes]) for kind, shapes in index.items()}
    np.savez_compressed(path, index=np.frombuffer(json.dumps(index).encode(), np.uint8), **flat)


def read(path: Path) -> Numbers:
    """Read what `write` wrote."""
    with np.load(path) as saved:
        arrays = {}
        for kind, shapes in json.loads(bytes(saved["index"])).items():
            ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
            parts = np.split(saved[kind], ends[:-1])
            arrays |= {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts)}
        return arrays


def differences(before: Numbers, after: Numbers, tolerance: float) -> list[str]:
    """Return a line for each array that differs; with a tolerance of 0 arrays have to be equal to the bit."""
    lines = [f"{name}: only {'saved' if name in before else 'computed'}" for name in sorted(before.keys() ^ after.keys())]
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        if old.shape != new.shape:
            lines.append(f"{name}: shape {old.shape} saved, {new.shape} computed")
        elif old.dtype.kind == "U" and old != new:
            lines.append(f"{name}: {old} saved, {new} computed")
        elif old.dtype.kind != "U" and not _equal(old, new, tolerance):
            off = np.nanmax(np.abs(old.astype(float) - new.astype(float)), initial=0)
            lines.append(f"{name}: differs by up to {off:.2g}, of values up to {np.nanmax(np.abs(old), initial=0):.3g}")
    return lines


def _equal(old: np.ndarray, new: np.ndarray, tolerance: float) -> bool:
    if not tolerance:
        return old.dtype == new.dtype and old.tobytes() == new.tobytes()
    finite = np.abs(old[np.isfinite(old)])
    return np.allclose(old, new, rtol=tolerance, atol=tolerance * finite.max(initial=0), equal_nan=True)


@torch.no_grad()
def main() -> int:
    """Save the numbers, or print which differ from those that were saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("save", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=COMPUTED, help="one of the three files")
    arguments = parser.parse_args()
    files = [arguments.folder / name for name in COMPUTED if arguments.only in (None, name)]
    torch.set_num_threads(1)
    if arguments.what == "save":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        for path in files:
            arrays = COMPUTED[path.name]()
            write(arrays, path)
            print(f"{path}: {len(arrays)} arrays, {path.stat().st_size / 1000:.0f} kB")
        return 0
    saved = [path for path in files if path.is_file()]
    if not saved:
        parser.error(f"there is no {' or '.join(path.name for path in files)} in {arguments.folder}; save it there first")
    differing = 0
    for path in saved:
        before = read(path)
        lines = differences(before, COMPUTED[path.name](), TOLERANCE if path.name == DIGITS else 0.0)
        print("\n".join([*lines, f"{path}: {len(before)} arrays, {len(lines)} differ"]))
        differing += len(lines)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
