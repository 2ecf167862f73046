"""Save statistics as labelled arrays or tables with a digest; read them back.

The suffix of the file's name chooses zarr, netCDF, Parquet or CSV. Zarr and netCDF hold the arrays as they are. Parquet and CSV
hold one row a value and one column a dimension, for other programs. The rest is JSON, in Parquet's metadata and in the first line
of the CSV (order, attributes, data types), and in an attribute of zarr and netCDF (order, data types, since netCDF has no int64),
so that all four formats open as the Dataset that was saved. What would come back otherwise is refused: text and whole numbers
beyond 2⁵³ as values in Parquet and CSV, whole numbers of more than 32 bits in netCDF. Every file names the versions it was made
with, carries a digest that is compared when it is opened, and appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.io import netcdf_file

from diffscope.errors import DiffscopeError
from diffscope.fields import shown
from diffscope.storage.atomic import checked_path, existing_path, replacing
from diffscope.storage.checksum import BLANK, KEY, read_proven, seal
from diffscope.storage.provenance import provenance

UNPACKED_TIMES = 1000  # times that a Dataset may be larger than its file
UNPACKED_ALWAYS = 2**28  # bytes that any Dataset may have
TYPES = "diffscope_types"  # attribute that holds the data types of all variables, in order
FLOAT = np.dtype(np.float64).itemsize
EXACT = 2**53  # whole numbers up to this one are exact in float64


def save_statistics(dataset: xr.Dataset, path: str | os.PathLike, dated: bool = True) -> None:
    """Write a Dataset of statistics.

    Parameters
    ----------
    dataset : xarray.Dataset
        As a capture's ``measure`` returns it.
    path : path-like
        Ends in .zarr, .nc, .parquet or .csv. An earlier result of this name is replaced.
    dated : bool
        Whether the file says when it was made. Without that, equal Datasets make equal files, byte for byte.

    Raises
    ------
    DiffscopeError
        The suffix names no known format, or one that does not hold the values of a variable.
    """
    write_statistics(dataset.assign_attrs(provenance(dated)), path)


def write_statistics(dataset: xr.Dataset, path: str | os.PathLike) -> None:
    """Write a Dataset with a digest and its own attributes only; otherwise like :func:`save_statistics`."""
    suffix = statistics_format(path)
    _check_held(dataset, suffix)
    with replacing(path) as unfinished:
        if suffix == ".zarr":
            proven = _with_text_as(object, _with_types(dataset))
            proven.to_zarr(unfinished, zarr_format=3, consolidated=False)
        elif suffix == ".nc":
            _with_types(dataset).to_netcdf(unfinished, engine="scipy")
        elif suffix == ".parquet":
            import pyarrow as pa
            from pyarrow import parquet

            table = pa.Table.from_pandas(_rows(dataset), preserve_index=False).replace_schema_metadata(None)
            with parquet.ParquetWriter(unfinished, table.schema) as writer:
                writer.write_table(table)
                writer.add_key_value_metadata({"diffscope": _header(dataset), KEY: BLANK})  # the digest last
        else:
            with open(unfinished, "w", encoding="utf-8", newline="") as file:
                file.write(f"# {_header(dataset, blank=True)}\n")
                _rows(dataset).to_csv(file, index=False)
        seal(unfinished)


def open_statistics(path: str | os.PathLike) -> xr.Dataset:
    """Read a Dataset that :func:`save_statistics` wrote.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    xarray.Dataset
        In memory; its attributes name the versions that the file was made with.

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    """
    suffix = statistics_format(path)

    def read(path: Path) -> xr.Dataset:
        dataset = READERS[suffix](path)
        dataset.attrs.pop(KEY, None)
        return dataset

    return read_proven(existing_path(path), read, "measure again")


def attributes_of(path: str | os.PathLike) -> dict[str, str]:
    """Read the attributes of a netCDF file of statistics, and none of its arrays.

    Returns
    -------
    dict of str to str
        The attributes that are text.

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    """

    def read(path: Path) -> dict[str, str]:
        with netcdf_file(path, mmap=False) as file:
            texts = {name: value.decode() for name, value in vars(file).items() if isinstance(value, bytes)}
            return {name: text for name, text in texts.items() if name not in (KEY, TYPES)}

    return read_proven(existing_path(path), read, "measure again")


def _read_zarr(path: Path) -> xr.Dataset:
    if odd := next((file for file in path.rglob("*") if not (file.is_file() or file.is_dir())), None):
        raise ValueError(f"{shown(odd.name)} in it is no regular file")
    described = [json.loads(file.read_bytes()) for file in path.rglob("zarr.json")]
    held = sum(math.prod(array["shape"]) * _item_bytes(array["data_type"]) for array in described if "shape" in array)
    _check_unpacked(held, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    # Format 2 allows filters that unpickle data.
    with xr.open_dataset(path, engine="zarr", zarr_format=3, consolidated=False, chunks=None) as dataset:
        return _of_types(_with_text_as(str, dataset.load()))


def _read_netcdf(path: Path) -> xr.Dataset:
    with xr.open_dataset(path, engine="scipy") as dataset:
        _check_unpacked(dataset.nbytes, path.stat().st_size)
        return _of_types(dataset.load())


def _read_parquet(path: Path) -> xr.Dataset:
    from pyarrow import parquet

    metadata = parquet.read_metadata(path)
    _check_unpacked(metadata.num_rows * FLOAT, path.stat().st_size)
    types = [str(field.type) for field in metadata.schema.to_arrow_schema() if field.name == "value"]
    if types != ["double"]:
        raise ValueError(f"its values are {shown(types)}, and have to be numbers in float64")
    values = parquet.read_table(path, columns=["value"])["value"].to_numpy()
    return _from_rows(values, json.loads(metadata.metadata[b"diffscope"]))


def _read_csv(path: Path) -> xr.Dataset:
    with open(path, encoding="utf-8", newline="\n") as file:  # a carriage return belongs to a label
        header = json.loads(file.readline().removeprefix("# "))
        return _from_rows(pd.read_csv(file, usecols=["value"], lineterminator="\n")["value"].to_numpy(), header)


def _item_bytes(data_type: Any) -> int:
    """Return the bytes that one value of a zarr array takes at most; text names its length."""
    configuration = data_type.get("configuration", {}) if isinstance(data_type, dict) else {}
    return max(configuration.get("length_bytes", 0), FLOAT)


def _check_unpacked(nbytes: int, packed: int) -> None:
    """Refuse a small file that would unpack to very large arrays, before it is unpacked."""
    if nbytes > UNPACKED_ALWAYS and nbytes > UNPACKED_TIMES * packed:
        raise ValueError(f"{packed / 2**20:.3g} MiB say that they hold {nbytes / 2**30:,.1f} GiB")


def without_attrs(dataset: xr.Dataset) -> xr.Dataset:
    """Return a Dataset without attributes, its own and its variables'."""
    bare = dataset.copy()  # drop_attrs takes them off one variable after the other, and aligns all variables each time
    bare.attrs = {}
    for variable in bare.variables.values():
        variable.attrs = {}
    return bare


def statistics_format(path: str | os.PathLike) -> str:
    """Return the suffix of a path.

    Raises
    ------
    DiffscopeError
        It is none of ``FORMATS``.
    """
    suffix = checked_path(path).suffix.lower()
    if suffix not in FORMATS:
        raise DiffscopeError(f"statistics cannot be kept as {Path(path).name!r}; end the name in {', '.join(FORMATS)}")
    return suffix


def _check_held(dataset: xr.Dataset, suffix: str) -> None:
    """Refuse a Dataset of which a format would not give a variable back."""
    for name, array in dataset.variables.items():
        label = name in dataset.coords
        if _holds(suffix, array, label):
            continue
        whole = f"whole numbers from {array.values.min()} to {array.values.max()}" if array.dtype.kind in "iu" else ""
        words = whole or ("text" if array.dtype.kind in "UOT" else str(array.dtype))
        others = ", ".join(each for each in FORMATS if _holds(each, array, label))
        raise DiffscopeError(f"{name!r} is {words}, which a {suffix} file does not hold; end the name in {others}")


def _holds(suffix: str, array: xr.Variable, label: bool) -> bool:
    """Return whether a format gives back the values of a variable; the JSON of Parquet and CSV holds labels of any kind."""
    if suffix == ".zarr" or (suffix != ".nc" and label):
        return True
    if array.dtype.kind not in ("biufUOT" if suffix == ".nc" else "biuf"):
        return False
    if array.dtype.kind not in "iu" or not array.size:
        return True
    bounds = np.iinfo(f"i{min(array.dtype.itemsize, 4)}")  # of netCDF, whose whole numbers have a sign and at most 32 bits
    least, most = (bounds.min, bounds.max) if suffix == ".nc" else (-EXACT, EXACT)
    return least <= int(array.values.min()) and int(array.values.max()) <= most


def _with_types(dataset: xr.Dataset) -> xr.Dataset:
    """Add a place for the digest to a Dataset, before all other attributes, and the data types of its variables after them."""
    proven = dataset.copy()
    types = {name: str(array.dtype) for name, array in dataset.variables.items()}
    proven.attrs = {KEY: BLANK, **dataset.attrs, TYPES: json.dumps(types)}
    return proven


def _of_types(dataset: xr.Dataset) -> xr.Dataset:
    """Return a Dataset in the order, and with the data types of whole numbers, that its file names; earlier files do not."""
    if TYPES not in dataset.attrs:
        if not dataset.variables:
            raise ValueError("it holds nothing")
        return dataset
    types = json.loads(dataset.attrs.pop(TYPES))
    whole = {name: dataset.variables[name] for name, kind in types.items() if kind.startswith(("int", "uint"))}
    cast = {name: (array.dims, array.values.astype(types[name]), array.attrs) for name, array in whole.items()}
    return dataset.assign(cast)[list(types)]


def _with_text_as(kind: type, dataset: xr.Dataset) -> xr.Dataset:
    """Cast the text of a Dataset to Python strings, which zarr 3 has a type for, or to numpy's, which the rest expects."""
    texts = {name: array for name, array in dataset.variables.items() if array.dtype.kind in "UOT"}
    cast = {name: array.values.astype(object).astype(kind) for name, array in texts.items()}
    return dataset.assign({name: (array.dims, cast[name], array.attrs) for name, array in texts.items()})


def _rows(dataset: xr.Dataset) -> pd.DataFrame:
    """Write one row a value: the statistic, dimensions and other coordinates (``statistic`` as ``of_statistic``), value."""
    if not dataset.data_vars:
        return pd.DataFrame({"statistic": [], "value": np.array([], np.float64)})
    tables = []
    for name, array in dataset.data_vars.items():
        indexed = (array if array.dims else array.expand_dims("row")).to_dataframe(name="value")
        table = indexed.reset_index(drop=not array.dims).rename(columns={"statistic": "of_statistic"})
        table.insert(0, "statistic", name)
        whole = [column for column in table.columns[:-1] if pd.api.types.is_integer_dtype(table[column])]
        tables.append(table.astype(dict.fromkeys(whole, "Int64")).astype({"value": "float64"}))
    table = pd.concat(tables, ignore_index=True)
    return table[[column for column in table.columns if column != "value"] + ["value"]]


def _header(dataset: xr.Dataset, blank: bool = False) -> str:
    """Return order, attributes and data types as JSON, with a place for the digest if `blank`."""
    described = {name: [array.dims, str(array.dtype), array.attrs] for name, array in dataset.data_vars.items()}
    coords = dataset.drop_vars(described).to_dict()
    header = {"statistics": described, "labels": coords, "sizes": dict(dataset.sizes)}
    return json.dumps({KEY: BLANK, **header} if blank else header, default=methodcaller("tolist"))


def _from_rows(values: np.ndarray, header: dict[str, Any]) -> xr.Dataset:
    """Build a Dataset from the values of all rows and the header."""
    dataset = xr.Dataset.from_dict(header["labels"])
    start = 0
    for name, (dims, dtype, attrs) in header["statistics"].items():
        shape = [header["sizes"][dim] for dim in dims]
        stop = start + math.prod(shape)
        if stop > len(values) or np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"{shown(name)} is {shown(dtype)} {shown(shape)}, which its {len(values)} values are not of")
        dataset[name] = (dims, values[start:stop].reshape(shape).astype(dtype), attrs)
        start = stop
    if start != len(values):
        raise ValueError(f"{len(values)} values where {start} belong")
    return dataset


READERS: dict[str, Callable[[Path], xr.Dataset]] = {
    ".zarr": _read_zarr,
    ".nc": _read_netcdf,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
}
FORMATS = tuple(READERS)
