"""What is kept on disk: statistics as labelled arrays or tables, attention inputs as safetensors.

Statistics go to zarr, netCDF, Parquet or CSV, by the suffix of the file's name. Zarr and netCDF hold the arrays as they are.
Parquet and CSV hold one row a value and one column a dimension, for other programs; what that leaves out (order, attributes,
data types) is kept as JSON, in Parquet's metadata and in the first line of the CSV, so that all four open as the Dataset that
was saved. Every file says what it was made with, and appears under its name only when it is complete.
"""

import json
import os
import platform
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from diffscope import __version__
from diffscope.errors import CorruptFile, DiffscopeError

FORMATS = (".zarr", ".nc", ".parquet", ".csv")
CAPTURE_FORMAT = "diffscope-capture-1"


def save_statistics(dataset, path, dated=True):
    """Write a Dataset of statistics.

    Parameters
    ----------
    dataset : xarray.Dataset
        What a capture's ``measure`` returned.
    path : path-like
        Ends in .zarr, .nc, .parquet or .csv. What is there already is replaced.
    dated : bool
        Whether it says when it was made. Without that, equal Datasets make equal files, byte for byte.

    Raises
    ------
    DiffscopeError
        The suffix names no known format.
    """
    suffix = statistics_format(path)
    dataset = dataset.assign_attrs(provenance(dated))
    with replacing(path) as unfinished:
        if suffix == ".zarr":
            _with_text_as(object, dataset).to_zarr(unfinished, zarr_format=3, consolidated=False)
        elif suffix == ".nc":
            dataset.to_netcdf(unfinished, engine="scipy")
        elif suffix == ".parquet":
            import pyarrow as pa
            from pyarrow import parquet

            table = pa.Table.from_pandas(_rows(dataset), preserve_index=False)
            parquet.write_table(table.replace_schema_metadata({"diffscope": _header(dataset)}), unfinished)
        else:
            with open(unfinished, "w", encoding="utf-8", newline="") as file:
                file.write(f"# {_header(dataset)}\n")
                _rows(dataset).to_csv(file, index=False)


def open_statistics(path):
    """Read what :func:`save_statistics` wrote.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    xarray.Dataset
        In memory; its attributes say what the file was made with.

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    """
    suffix, path = statistics_format(path), _existing(path)
    try:
        if suffix == ".zarr":
            with xr.open_dataset(path, engine="zarr", consolidated=False, chunks=None) as dataset:
                return _with_text_as(str, dataset.load())
        if suffix == ".nc":
            with xr.open_dataset(path, engine="scipy") as dataset:
                return dataset.load()
        if suffix == ".parquet":
            from pyarrow import parquet

            table = parquet.read_table(path)
            return _from_rows(table["value"].to_numpy(), table.schema.metadata[b"diffscope"])
        with open(path, encoding="utf-8") as file:
            header = file.readline().removeprefix("# ")
            return _from_rows(pd.read_csv(file, usecols=["value"])["value"].to_numpy(), header)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CorruptFile(f"{path} is damaged or was not written by diffscope ({_reason(error)}); measure again") from error


def save_tensors(path, tensors, record):
    """Write tensors, and a record that describes them, as one safetensors file.

    Parameters
    ----------
    path : path-like
    tensors : dict of str to torch.Tensor
    record : dict
        What JSON can hold; it goes into the file's header together with what the file was made with.
    """
    header = json.dumps({**record, "format": CAPTURE_FORMAT, "made_with": provenance()}, default=_plain)
    with replacing(path) as unfinished:
        save_file(dict(_apart(tensors)), unfinished, metadata={"diffscope": header})


def open_tensors(path):
    """Read what :func:`save_tensors` wrote.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    tensors : dict of str to torch.Tensor
    record : dict

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    """
    path = _existing(path)
    if path.is_dir():
        raise CorruptFile(f"{path} is a folder, not a saved capture; a model's folder is opened with load, or --model")
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads(file.metadata()["diffscope"])
            if not isinstance(record, dict) or record.get("format") != CAPTURE_FORMAT:
                raise ValueError(f"it is not of the format {CAPTURE_FORMAT}")
            return {name: file.get_tensor(name) for name in file.keys()}, record
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise CorruptFile(f"{path} is damaged or was not written by diffscope ({_reason(error)}); capture again") from error


def statistics_format(path):
    """The suffix of a path, if statistics can be written as that."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise DiffscopeError(f"statistics cannot be kept as {Path(path).name!r}; end the name in {', '.join(FORMATS)}")
    return suffix


def provenance(dated=True):
    """What a file is made with, as attributes: versions and, unless it is not to be dated, when.

    Returns
    -------
    dict of str to str
    """
    made_with = {
        "diffscope": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    return made_with | ({"created": datetime.now(UTC).isoformat(timespec="seconds")} if dated else {})


def check_target(path):
    """Refuse a place where nothing can be written, or where more than an earlier result would be lost.

    Raises
    ------
    DiffscopeError
        There is no such folder, or the path is itself a folder that is not a zarr store.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise DiffscopeError(f"there is no folder {path.parent} to write {path.name} into; make it first")
    if path.is_dir() and not (path.suffix.lower() == ".zarr" and (path / "zarr.json").is_file()):
        raise DiffscopeError(f"{path} is a folder, which would be lost; give the name of a file")


@contextmanager
def replacing(path):
    """A name to write a file or folder under, which takes the place of `path` when all of it is written."""
    path = Path(path)
    check_target(path)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as workspace:
        unfinished = Path(workspace) / path.name
        yield unfinished
        if path.is_dir():
            path.rename(Path(workspace) / "replaced")
        os.replace(unfinished, path)


def _existing(path):
    path = Path(path)
    if not path.exists():
        raise DiffscopeError(f"there is no {path}; check the name")
    return path


def _reason(error):
    return str(error).partition("\n")[0]


def _apart(tensors):
    """The tensors as safetensors wants them: on the CPU, contiguous, no two in the same memory."""
    taken = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        yield name, tensor.clone() if memory in taken else tensor
        taken.add(memory)


def _with_text_as(kind, dataset):
    """Text as Python strings (what zarr 3 has a type for) or as numpy's (what everything else expects)."""
    texts = {name: array for name, array in dataset.variables.items() if array.dtype.kind in "UOT"}
    cast = {name: array.values.astype(object).astype(kind) for name, array in texts.items()}
    return dataset.assign({name: (array.dims, cast[name], array.attrs) for name, array in texts.items()})


def _rows(dataset):
    """One row a value: the statistic, its dimensions and other coordinates, the value."""
    tables = []
    for name, array in dataset.data_vars.items():
        table = array.to_dataframe(name="value").reset_index()
        table.insert(0, "statistic", name)
        whole = [column for column in table.columns[:-1] if pd.api.types.is_integer_dtype(table[column])]
        tables.append(table.astype(dict.fromkeys(whole, "Int64")).astype({"value": "float64"}))
    table = pd.concat(tables, ignore_index=True)
    return table[[column for column in table.columns if column != "value"] + ["value"]]


def _header(dataset):
    """What the rows leave out, in the order in which they were written, as JSON in one line."""
    described = {name: [array.dims, str(array.dtype), array.attrs] for name, array in dataset.data_vars.items()}
    coords = dataset.drop_vars(described).to_dict()
    return json.dumps({"statistics": described, "labels": coords, "sizes": dict(dataset.sizes)}, default=_plain)


def _plain(value):
    return value.tolist()


def _from_rows(values, header):
    header = json.loads(header)
    dataset = xr.Dataset.from_dict(header["labels"])
    start = 0
    for name, (dims, dtype, attrs) in header["statistics"].items():
        shape = [header["sizes"][dim] for dim in dims]
        stop = start + int(np.prod(shape))
        dataset[name] = (dims, values[start:stop].reshape(shape).astype(dtype), attrs)
        start = stop
    if start != len(values):
        raise ValueError(f"{len(values)} values where {start} belong")
    return dataset
