"""Measure a model on fixed prompts, in one run: statistics, and those that compare two maps beside their control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
import xarray as xr

from diffscope.attention.blocks import Workers
from diffscope.attention.layer import LayerAttention
from diffscope.instruments.injection import layer_with_a2_moved
from diffscope.scope.run import Run
from diffscope.scope.runners import Inputs
from diffscope.scope.scope import Scope
from diffscope.stats.averaging import LEFT_OUT, average
from diffscope.stats.measure import MeasurementRun
from diffscope.stats.registry import STATISTICS
from diffscope.stats.sample import QuerySample

LARGEST = "largest_logit"  # of each branch of each head; measured with the outliers of a layer's logits
SCORES = 2**24  # logits that are computed at once
BRANCHES = ("A1", "A2")
CONTROL = "_control"  # ends the name of a statistic of A1 with the A2 of another head


def by_length(inputs: Inputs) -> Iterator[Inputs]:
    """Yield prompts in batches of one length: a sample of queries is of prompts that are as long."""
    if inputs.packed:
        yield inputs
        return
    for _, numbers in groupby(range(len(inputs.lengths)), key=lambda number: inputs.lengths[number]):
        at = list(numbers)
        some = slice(at[0], at[-1] + 1)
        yield Inputs(inputs.prompts[some], inputs.originals[some], True, inputs.lengths[some], False)


def measured(scope: Scope, batches: Sequence[Inputs], statistics: Sequence[str], queries: QuerySample | None) -> xr.Dataset:
    """Measure statistics of prompts, averaged over queries.

    Parameters
    ----------
    batches : sequence of Inputs
        As :func:`by_length` makes them.
    queries : QuerySample or None
        None for all.

    Returns
    -------
    xarray.Dataset
        By prompt, layer and, for most, head. Of a statistic that compares A1 and A2 there is also ``NAME_control``, the same with
        the second map of another head of the layer; NaN if a head has no other. Beside ``logit_outliers``, which is of a layer,
        ``largest_logit`` is of each branch of each head.
    """
    tables = [average(_batch(scope, inputs, statistics, queries), "query") for inputs in batches]
    if len(tables) == 1:
        return tables[0]
    together = xr.concat(tables, "prompt", combine_attrs="drop_conflicts", join="outer")
    for name, values in together.items():  # counts of the batches are in conflict
        of_batches = [table[name].attrs for table in tables if name in table]
        values.attrs |= {count: sum(attrs.get(count, 0) for attrs in of_batches) for count in LEFT_OUT}
    return together


def compares_maps(statistic: str) -> bool:
    """Return whether a statistic compares A1 and A2 on a span, so that the A2 of another head is its control."""
    return STATISTICS[statistic].kind == "branch"


def _batch(scope: Scope, inputs: Inputs, statistics: Sequence[str], queries: QuerySample | None) -> xr.Dataset:
    """Measure one batch in one run of the model, in the memory of a few layers."""
    pairs = [name for name in statistics if compares_maps(name)]
    own = MeasurementRun(inputs.prompts, statistics, queries, scope.n_layers)
    moved = MeasurementRun(inputs.prompts, pairs, queries, scope.n_layers)
    others: list[torch.Tensor] = []  # by layer, whether each head got the second map of another
    largest: list[torch.Tensor] = []  # by layer, (prompt, head, branch)
    workers = Workers()

    def receive(layer: LayerAttention) -> None:
        own.add(layer, workers)
        if "logit_outliers" in statistics:
            of_prompts = [_largest_logits(layer.prompt(number), at) for number, at in enumerate(own.queries)]
            largest.append(torch.stack(of_prompts).cpu())
        if pairs and layer.differential:
            control, brings = _with_other_a2(layer)
            others.append(brings)
            moved.add(control, workers)

    run = Run(scope, receive, held=1)
    with scope.exclusively(inputs.lengths, inputs.packed), torch.no_grad(), workers:
        run.make(inputs, own.outliers)
        own.finish(workers)
        moved.finish(workers)
    worst = max(proof.error for proof in run.proofs)
    dataset = own.dataset(run.outliers, {**run.facts(), "fidelity_worst": worst}, batch=True)
    if largest:
        dataset[LARGEST] = _by_branch(largest, dataset["layer"].values)
    if not moved.layers:
        return dataset
    brings = xr.DataArray(_padded(others), {"layer": moved.layers}, ("layer", "head")) > 0
    controls = moved.dataset(None, {}, batch=True).where(brings).reindex(layer=dataset["layer"].values)
    return dataset.assign({f"{name}{CONTROL}": _named(controls[name]) for name in pairs})


def _largest_logits(layer: LayerAttention, queries: torch.Tensor) -> torch.Tensor:
    """Return the largest |scale q.k| of each head's two maps, over some queries and the keys they see, (head, branch)."""
    of_maps = torch.zeros(layer.q.shape[1], device=layer.q.device)  # (map,)
    for some in queries.split(max(1, SCORES // (len(of_maps) * layer.n_keys))):
        scores = layer.logits(some).abs().masked_fill_(~layer.visible(some), 0.0)  # (map, query, key)
        of_maps = torch.maximum(of_maps, scores.amax((1, 2)).float())
    undefined = torch.full((layer.n_heads,), torch.nan, device=of_maps.device)
    second = of_maps[layer.pairing.of_branch(2)] if layer.differential else undefined
    return torch.stack([of_maps[layer.pairing.of_branch(1)], second], dim=-1)


def _by_branch(largest: Sequence[torch.Tensor], layers: np.ndarray) -> xr.DataArray:
    """Return the largest logits of all layers (prompt, layer, head, branch); NaN of heads that a layer does not have."""
    heads = max(each.shape[1] for each in largest)
    rows = [torch.nn.functional.pad(each, (0, 0, 0, heads - each.shape[1]), value=torch.nan) for each in largest]
    about = {"long_name": "largest magnitude of a branch's logits", "units": "1", "averaged": "mean"}
    values = torch.stack(rows, dim=1).numpy()
    return xr.DataArray(values, {"layer": layers, "branch": list(BRANCHES)}, ("prompt", "layer", "head", "branch"), attrs=about)


def _with_other_a2(layer: LayerAttention) -> tuple[LayerAttention, torch.Tensor]:
    """Return a layer whose heads have second maps of other heads, and which of them do, bool (head,)."""
    own = layer.pairing.of_branch(2)
    brings = [torch.roll(own, -by) != own for by in range(len(own))]
    by = max(range(len(own)), key=lambda shift: (int(brings[shift].sum()), -shift))
    return layer_with_a2_moved(layer, by), brings[by].cpu()


def _padded(rows: Sequence[torch.Tensor]) -> np.ndarray:
    return torch.nn.utils.rnn.pad_sequence([row.float() for row in rows], batch_first=True).numpy()


def _named(control: xr.DataArray) -> xr.DataArray:
    attrs = {**STATISTICS[str(control.name)].attributes, "control": "A2 of another head of the layer"}
    return control.rename(f"{control.name}{CONTROL}").assign_attrs(attrs)
