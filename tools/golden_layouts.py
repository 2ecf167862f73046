"""Numbers of every layout of ``tests/layouts``: prompts alone and padded, edits, saved files, in every precision.

``tools.golden`` saves and compares them. The models are tiny and random, and so are their prompts.
"""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

import diffscope
from diffscope import Capture, edits
from diffscope.errors import DiffscopeError, DiffscopeWarning
from diffscope.scope import Scope
from diffscope.scope.two_sides import Denoiser
from diffscope.storage.statistics import open_statistics, save_statistics
from tests import tiny
from tests.layouts import vision
from tests.layouts.published import MODELS

Numbers = dict[str, np.ndarray]
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LENGTHS = (24, 17)  # tokens of the prompts of a batch: the second is padded
QUERIES = [3, 11, 23]  # of a sample
HEAD = {"layer": 1, "head": 0}  # whose maps are compared
ROW = "entropy"  # the statistic that is measured at a sample of queries, and of a saved file
EDITS_OF_TWO_MAPS = {"set_lambda": edits.set_lambda(0.5), "ablate_heads": edits.ablate_heads(layers=1, heads=0)}
EDITS_OF_ONE_MAP = {"top_k_a1": edits.top_k_a1(4), "ablate_heads": edits.ablate_heads(layers=1, heads=0)}


def layouts(dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[tuple[str, Scope]]:
    """Yield every layout in every precision that it runs in, with a name of both."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiffscopeWarning)  # of layouts that differ from the paper
        for name, make in MODELS.items():
            for dtype in dtypes:
                yield f"{name}, {str(dtype).removeprefix('torch.')}", diffscope.load(make().to(dtype))


def exact() -> Numbers:
    """Return the numbers of every layout and precision; where the library refuses, the error's class instead."""
    arrays: Numbers = {}
    for name, scope in layouts():
        for case, numbers in (("", _captures), ("left, ", _padded_left)):
            try:
                arrays |= {f"{name}, {case}{of}": values for of, values in numbers(scope).items()}
            except DiffscopeError as error:
                arrays[f"{name}, {case}refused"] = np.array(type(error).__name__)
    return arrays


def digits() -> Numbers:
    """Return the mean of every statistic over heads and queries of one prompt, in double precision: (layer, map)."""
    arrays = {}
    for name, scope in layouts((torch.float64,)):
        measured = scope.measure(prompts(scope)[0], ["all"])
        for statistic, values in measured.data_vars.items():
            means = values.mean([dim for dim in values.dims if dim not in ("layer", "map")])
            arrays[f"{name}, {statistic}"] = means.values
    return arrays


def prompts(scope: Scope) -> list[Any]:
    """Return two prompts of the kind that a model takes: token ids or latents of different lengths, or images."""
    if type(scope.runner).__name__ == "ImageModel":
        dtype = next(scope.model.parameters()).dtype
        return [vision.image(seed).to(dtype) for seed in (0, 1)]
    if isinstance(scope.runner, Denoiser):
        return [scope.runner.random_prompt(length, torch.Generator().manual_seed(seed)) for seed, length in enumerate(LENGTHS)]
    return [tiny.ids(length, seed) for seed, length in enumerate(LENGTHS)]


def _captures(scope: Scope) -> Numbers:
    """Capture a prompt, a batch, and the prompt under each edit and from a file."""
    first, second = prompts(scope)
    capture = scope.capture(first)
    arrays = {f"alone, {of}": values for of, values in _numbers(capture).items()}
    arrays |= {f"saved, {of}": values for of, values in _reopened(capture).items()}
    measured = scope.measure(first, ["all"], queries=QUERIES[:-1])
    arrays |= {f"measured, {of}": values.values for of, values in measured.data_vars.items()}
    for edit, change in _edits(capture).items():
        with scope.edit(change):
            arrays |= {f"{edit}, {of}": values for of, values in _numbers(scope.capture(first)).items()}
    try:
        batch = scope.capture([first, second])
    except DiffscopeError as error:
        return arrays | {"batch, refused": np.array(type(error).__name__)}
    arrays |= {f"batch, {of}": values.values for of, values in batch.measure(["all"]).data_vars.items()}
    return arrays | {f"batch, prompt 1, {of}": values for of, values in _numbers(batch[1]).items()}


def _numbers(capture: Capture) -> Numbers:
    """Return statistics, λ, maps of a head, proofs and the likeliest next tokens of a capture of one prompt."""
    measured = capture.measure(["all"]).data_vars
    arrays = {str(statistic): values.values for statistic, values in measured.items()}
    arrays |= {f"fidelity {of}": values.values for of, values in capture.fidelity.data_vars.items() if values.dtype.kind in "fb"}
    arrays["undecided"] = np.array(sorted(layer for layers in capture.undecided.values() for layer in layers), dtype=int)
    if capture.differential:
        arrays |= {"lambda": capture.lam.values, "lambda in float32": capture.lam_fp32.values}
    for kind in ("A1", "A2", "D", "share") if capture.differential else ("A1", "D"):
        arrays[f"map {kind}"] = capture.map(kind, **HEAD).values
    arrays["rows of D"] = capture.map("D", **HEAD, queries=[3, 11], keys=slice(2, 9)).values
    return arrays | {"next": np.array([probability for _, probability in capture.next])}


def _reopened(capture: Capture) -> Numbers:
    """Return what is measured of a capture that was saved and opened, and statistics that were."""
    measured = capture.measure([ROW])
    with tempfile.TemporaryDirectory() as folder:
        capture.save(Path(folder) / "capture.dscope")
        arrays = _numbers(diffscope.open(Path(folder) / "capture.dscope"))
        for suffix in ("nc", "zarr", "csv", "parquet"):
            path = Path(folder) / f"statistics.{suffix}"
            save_statistics(measured, path)
            opened: xr.Dataset = open_statistics(path)
            arrays[f"as {suffix}"] = opened[ROW].transpose(*measured[ROW].dims).values
    return arrays


def _edits(capture: Capture) -> dict[str, edits.Edit]:
    return EDITS_OF_TWO_MAPS if capture.differential else EDITS_OF_ONE_MAP


def _padded_left(scope: Scope) -> Numbers:
    """Return the logits (prompt, vocabulary) of a batch padded on the left, under each edit, if the model takes a mask."""
    if "attention_mask" not in inspect.signature(scope.model.forward).parameters:
        return {}
    rows = prompts(scope)
    ids, mask = (torch.zeros(len(rows), max(LENGTHS), dtype=torch.int64) for _ in range(2))
    for row, prompt in enumerate(rows):
        ids[row, -len(prompt) :], mask[row, -len(prompt) :] = torch.tensor(prompt), 1
    arrays = {}
    for edit, change in _edits(scope.capture(rows[0])).items():
        with scope.edit(change):
            out = scope.model(ids, attention_mask=mask)
            arrays[edit] = getattr(out, "logits", out)[:, -1].float().numpy()
    return arrays
