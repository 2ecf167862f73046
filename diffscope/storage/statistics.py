"""Files of results: statistics as labelled arrays or tables, attention inputs as safetensors.

Statistics are written as zarr, netCDF, Parquet or CSV, by the suffix of the file's name. Zarr and netCDF hold the arrays as they
are. Parquet and CSV hold one row a value and one column a dimension, for other programs; what rows leave out (order, attributes,
data types) stands as JSON in Parquet's metadata and in the first line of the CSV, so that all four open as the Dataset that was
saved. Every file names the versions it was made with, carries a digest of its bytes that is compared when it is opened, and
appears under its name only when it is complete.
"""

import json
import math
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from operator import methodcaller
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.io import netcdf_file

from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.fields import shown
from diffscope.storage.atomic import checked_path, replacing
from diffscope.storage.checksum import BLANK, KEY, read_proven, seal

VERSION = version("diffscope-attention")
FORMATS = (".zarr", ".nc", ".parquet", ".csv")
UNPACKED_TIMES = 1000  # how much larger than its file a Dataset may be
UNPACKED_ALWAYS = 2**28  # bytes that any may be
CAPTURE_FORMAT = "diffscope-capture-"
NEWEST = 1  # format of captures
CAPTURE_SUFFIX = ".dscope"
NAMES = {"python": "Python"}  # of what results are made with, if they are written otherwise than their attribute


def save_statistics(dataset, path, dated=True):
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
        The suffix names no known format.
    """
    write_statistics(dataset.assign_attrs(provenance(dated)), path)


def write_statistics(dataset, path):
    """Write a Dataset with the attributes that it has, and a digest; else as :func:`save_statistics`."""
    suffix = statistics_format(path)
    with replacing(path) as unfinished:
        if suffix == ".zarr":
            proven = _with_text_as(object, _with_blank(dataset))
            proven.to_zarr(unfinished, zarr_format=3, consolidated=False)
        elif suffix == ".nc":
            _with_blank(dataset).to_netcdf(unfinished, engine="scipy")
        elif suffix == ".parquet":
            import pyarrow as pa
            from pyarrow import parquet

            table = pa.Table.from_pandas(_rows(dataset), preserve_index=False).replace_schema_metadata(None)
            header = json.dumps(_header(dataset), default=methodcaller("tolist"))
            with parquet.ParquetWriter(unfinished, table.schema) as writer:
                writer.write_table(table)
                writer.add_key_value_metadata({"diffscope": header, KEY: BLANK})  # the digest last
        else:
            header = json.dumps({KEY: BLANK, **_header(dataset)}, default=methodcaller("tolist"))
            with open(unfinished, "w", encoding="utf-8", newline="") as file:
                file.write(f"# {header}\n")
                _rows(dataset).to_csv(file, index=False)
        seal(unfinished)


def open_statistics(path):
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
    readers = {".zarr": _read_zarr, ".nc": _read_netcdf, ".parquet": _read_parquet, ".csv": _read_csv}
    read = readers[statistics_format(path)]

    def read_some(path):
        dataset = read(path)
        if not dataset.variables:
            raise ValueError("it holds nothing")
        dataset.attrs.pop(KEY, None)
        return dataset

    return read_proven(_existing(path), read_some, "measure again")


def attributes_of(path):
    """Read the attributes of a netCDF file of statistics, and none of its arrays.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    dict of str to str
        Those that are text.

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    """

    def read(path):
        with netcdf_file(path, mmap=False) as file:
            return {name: value.decode() for name, value in vars(file).items() if isinstance(value, bytes) and name != KEY}

    return read_proven(_existing(path), read, "measure again")


def _read_zarr(path):
    if odd := next((file for file in path.rglob("*") if not (file.is_file() or file.is_dir())), None):
        raise ValueError(f"{shown(odd.name)} in it is no regular file")
    described = [json.loads(file.read_bytes()) for file in path.rglob("zarr.json")]
    held = sum(math.prod(array["shape"]) * _item_bytes(array["data_type"]) for array in described if "shape" in array)
    _check_unpacked(held, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    # Format 2 would take filters that unpickle what is in it.
    with xr.open_dataset(path, engine="zarr", zarr_format=3, consolidated=False, chunks=None) as dataset:
        return _with_text_as(str, dataset.load())


def _item_bytes(data_type):
    """How many bytes one value of a zarr array takes, at most: of text its length is told."""
    told = data_type.get("configuration", {}) if isinstance(data_type, dict) else {}
    return max(told.get("length_bytes", 0), np.dtype(np.float64).itemsize)


def _read_netcdf(path):
    with xr.open_dataset(path, engine="scipy") as dataset:
        _check_unpacked(dataset.nbytes, path.stat().st_size)
        return dataset.load()


def _read_parquet(path):
    from pyarrow import parquet

    metadata = parquet.read_metadata(path)
    _check_unpacked(metadata.num_rows * np.dtype(np.float64).itemsize, path.stat().st_size)
    types = [str(field.type) for field in metadata.schema.to_arrow_schema() if field.name == "value"]
    if types != ["double"]:
        raise ValueError(f"its values are {shown(types)}, and have to be numbers in float64")
    values = parquet.read_table(path, columns=["value"])["value"].to_numpy()
    return _from_rows(values, json.loads(metadata.metadata[b"diffscope"]))


def _check_unpacked(nbytes, packed):
    """Refuse what a small file would unpack to, before it is: no statistics are as empty as that."""
    if nbytes > UNPACKED_ALWAYS and nbytes > UNPACKED_TIMES * packed:
        raise ValueError(f"{packed / 2**20:.3g} MiB say that they hold {nbytes / 2**30:,.1f} GiB")


def _read_csv(path):
    with open(path, encoding="utf-8") as file:
        header = json.loads(file.readline().removeprefix("# "))
        return _from_rows(pd.read_csv(file, usecols=["value"])["value"].to_numpy(), header)


def save_tensors(path, tensors, record):
    """Write tensors, and a record that describes them, as one safetensors file.

    Parameters
    ----------
    path : path-like
    tensors : dict of str to torch.Tensor
    record : dict
        Of what JSON can hold, and arrays. It is written into the file's header, with the versions that the file was made with.
    """
    described = {KEY: BLANK, **record, "format": f"{CAPTURE_FORMAT}{NEWEST}", "made_with": provenance()}
    # Not files.to_json: numbers that are not finite have to come back as they are.
    header = json.dumps(described, default=methodcaller("tolist"))
    with replacing(path) as unfinished:
        save_file(dict(_for_safetensors(tensors)), unfinished, metadata={"diffscope": header})
        seal(unfinished)


def open_tensors(path, assemble=lambda tensors, record: (tensors, record)):
    """Read tensors and their record that :func:`save_tensors` wrote.

    Parameters
    ----------
    path : path-like
    assemble : callable
        Makes of both what they stand for; whatever it raises is the file's fault. By default they are returned as they are.

    Returns
    -------
    tensors : dict of str to torch.Tensor
    record : dict

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    DiffscopeError
        It was written by a later diffscope, or there is no such file.
    """
    path = _existing(path)
    if path.is_dir():
        raise CorruptFile(f"{path} is a folder, not a saved capture; a model's folder is opened with load, or --model")
    content = read_proven(path, lambda path: _later_format(path) or assemble(*_read_tensors(path)), "capture again")
    if isinstance(content, int):
        reads = f"format {content}; this one reads up to {NEWEST}"
        raise DiffscopeError(f"{path} was written by a later diffscope ({reads}); update diffscope")
    return content


def _later_format(path):
    """The number of a capture's format where it is later than what is known here, else 0."""
    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["diffscope"])
    number = str(record.get("format")).removeprefix(CAPTURE_FORMAT) if isinstance(record, dict) else ""
    return int(number) if number.isdecimal() and int(number) > NEWEST else 0


def _read_tensors(path):
    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["diffscope"])
        if not isinstance(record, dict) or record.get("format") != f"{CAPTURE_FORMAT}{NEWEST}":
            raise ValueError(f"it is not of the format {CAPTURE_FORMAT}{NEWEST}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safetensors has no iterator)
    record.pop(KEY, None)
    return tensors, record


def statistics_format(path):
    """The suffix of a path.

    Raises
    ------
    DiffscopeError
        It names no format of statistics.
    """
    suffix = checked_path(path).suffix.lower()
    if suffix not in FORMATS:
        raise DiffscopeError(f"statistics cannot be kept as {Path(path).name!r}; end the name in {', '.join(FORMATS)}")
    return suffix


def check_capture_suffix(path):
    """Refuse to write a capture under a name that another program would take for its own.

    Raises
    ------
    DiffscopeError
        The name does not end in .dscope.
    """
    path = checked_path(path)
    if path.suffix.lower() != CAPTURE_SUFFIX:
        raise DiffscopeError(f"a capture cannot be kept as {path.name!r}; name it {path.stem + CAPTURE_SUFFIX!r}")


def provenance(dated=True):
    """The versions that a file is made with and, if `dated`, the time, as attributes.

    Returns
    -------
    dict of str to str
    """
    attrs = {
        "diffscope": VERSION,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    if dated:
        attrs["created"] = datetime.now(UTC).isoformat(timespec="seconds")
    return attrs


def other_versions(made: Iterable[Mapping[str, str]], **here: str) -> str:
    """Say which versions some results were made with, if these are not the ones that run here.

    Parameters
    ----------
    made : iterable of mapping
        The attributes of each result, as :func:`provenance` gives them.
    **here : str
        What is compared beside the versions of programs, such as the revision.

    Returns
    -------
    str
        Such as "torch 2.13.0+cpu (2.14.0 here)"; empty if all versions are those that run here.
    """
    made = list(made)
    parts = []
    for name, this in {**provenance(dated=False), **here}.items():
        versions = sorted({attributes[name] for attributes in made if name in attributes})
        if versions and versions != [this]:
            several = " and ".join(filter(None, (", ".join(versions[:-1]), versions[-1])))
            parts.append(f"{NAMES.get(name, name)} {several} ({this} here)")
    return ", ".join(parts)


def _existing(path):
    path = checked_path(path)
    if not path.exists():
        raise DiffscopeError(f"there is no {path}; check the name")
    return path


def _for_safetensors(tensors):
    """The tensors as safetensors needs them: on the CPU, contiguous, no shared storage."""
    taken = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        yield name, tensor.clone() if memory in taken else tensor
        taken.add(memory)


def _with_blank(dataset):
    """A Dataset with a place for its digest, before all other attributes."""
    blank = dataset.copy()
    blank.attrs = {KEY: BLANK, **dataset.attrs}
    return blank


def _with_text_as(kind, dataset):
    """A Dataset with its text as Python strings, which zarr 3 has a type for, or as numpy's, which the rest expects."""
    texts = {name: array for name, array in dataset.variables.items() if array.dtype.kind in "UOT"}
    cast = {name: array.values.astype(object).astype(kind) for name, array in texts.items()}
    return dataset.assign({name: (array.dims, cast[name], array.attrs) for name, array in texts.items()})


def _rows(dataset):
    """One row a value: the statistic, its dimensions and other coordinates (one of the same name by another), the value."""
    tables = []
    for name, array in dataset.data_vars.items():
        table = array.to_dataframe(name="value").reset_index().rename(columns={"statistic": "of_statistic"})
        table.insert(0, "statistic", name)
        whole = [column for column in table.columns[:-1] if pd.api.types.is_integer_dtype(table[column])]
        tables.append(table.astype(dict.fromkeys(whole, "Int64")).astype({"value": "float64"}))
    table = pd.concat(tables, ignore_index=True)
    return table[[column for column in table.columns if column != "value"] + ["value"]]


def _header(dataset):
    """All that the rows leave out, in the order in which they were written."""
    described = {name: [array.dims, str(array.dtype), array.attrs] for name, array in dataset.data_vars.items()}
    coords = dataset.drop_vars(described).to_dict()
    return {"statistics": described, "labels": coords, "sizes": dict(dataset.sizes)}


def _from_rows(values, header):
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
