"""What instruments measured as labelled Datasets, with the words of ``diffscope.instruments.definitions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from diffscope.capture.capture import Capture
from diffscope.instruments.definitions import INSTRUMENTS
from diffscope.stats.ragged import stack_layers


def labelled_dataset(
    call: str,
    cap: Capture,
    tables: Sequence[Sequence[Mapping[str, Tensor]]],
    dims: Sequence[str],
    labels: Mapping[str, Sequence],
) -> xr.Dataset:
    """Return tables by prompt and layer as one Dataset; what a layer of fewer heads does not have is NaN.

    Parameters
    ----------
    call : str
        The function that measured it, as in ``INSTRUMENTS``.
    tables : for each prompt, for each layer, Tensors by name
        Each (head, ...).
    dims : sequence of str
        Of the tensors.
    labels : mapping of str to sequence
        Along the dimensions other than head.
    """
    variables: dict[str, Any] = {}
    for name in tables[0][0]:
        values = [stack_layers([table[name].numpy() for table in layers]) for layers in tables]
        variables[name] = (("prompt", "layer", *dims), np.stack(values))
    coords = {"layer": cap.layer_numbers, "head": range(cap.n_heads), **labels}
    dataset = xr.Dataset(variables, coords, {"model": cap.model_name or ""})
    return with_attributes(call, dataset if cap.batch else dataset.isel(prompt=0, drop=True))


def with_attributes(call: str, dataset: xr.Dataset) -> xr.Dataset:
    """Return a Dataset whose variables say what they are."""
    for name, values in dataset.data_vars.items():
        values.attrs = dict(INSTRUMENTS[call][str(name)].attributes)
    return dataset
