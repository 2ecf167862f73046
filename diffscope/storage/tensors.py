"""Save tensors and a record that describes them as one safetensors file with a digest, and read it back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.storage.atomic import checked_path, existing_path, replacing
from diffscope.storage.checksum import BLANK, KEY, read_proven, seal
from diffscope.storage.provenance import provenance

FORMAT = "diffscope-capture-"
NEWEST = 1  # of formats
SUFFIX = ".dscope"

T = TypeVar("T")


def save_tensors(path: str | os.PathLike, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write tensors and a record that describes them as one safetensors file.

    Parameters
    ----------
    path : path-like
    tensors : mapping of str to Tensor
    record : mapping
        JSON values and arrays. It is written into the file's header, with the versions of programs.
    """
    described = {KEY: BLANK, **record, "format": f"{FORMAT}{NEWEST}", "made_with": provenance()}
    # atomic.to_json would lose infinities and NaN.
    header = json.dumps(described, default=methodcaller("tolist"))
    with replacing(path) as unfinished:
        save_file(dict(_for_safetensors(tensors)), unfinished, metadata={"diffscope": header})
        seal(unfinished)


def open_tensors(path: str | os.PathLike, assemble: Callable[[dict[str, Tensor], dict[str, Any]], T]) -> T:
    """Read tensors and their record that :func:`save_tensors` wrote.

    Parameters
    ----------
    path : path-like
    assemble : callable
        Builds the result from tensors and record. Any exception it raises is reported as CorruptFile.

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    DiffscopeError
        It was written by a later diffscope, or there is no such file.
    """
    path = existing_path(path)
    if path.is_dir():
        raise CorruptFile(f"{path} is a folder, not a saved capture; a model's folder is opened with load, or --model")

    def read(path: Path) -> tuple[int, T | None]:
        with safe_open(path, framework="pt") as file:
            record = json.loads(file.metadata()["diffscope"])
            number = _format_of(record)
            if number > NEWEST:
                return number, None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safetensors has no iterator)
        record.pop(KEY, None)
        return number, assemble(tensors, record)

    number, content = read_proven(path, read, "capture again")
    if content is None:
        reads = f"format {number}; this one reads up to {NEWEST}"
        raise DiffscopeError(f"{path} was written by a later diffscope ({reads}); update diffscope")
    return content


def _format_of(record: Any) -> int:
    """Return the format number of a capture; ValueError if the record is not of a capture."""
    name = str(record.get("format")) if isinstance(record, dict) else ""
    number = name.removeprefix(FORMAT)
    if number == name or not number.isdecimal() or int(number) < NEWEST:
        raise ValueError(f"it is not of the format {FORMAT}{NEWEST}")
    return int(number)


def check_capture_suffix(path: str | os.PathLike) -> None:
    """Refuse a file name with the suffix of another program.

    Raises
    ------
    DiffscopeError
        The name does not end in .dscope.
    """
    path = checked_path(path)
    if path.suffix.lower() != SUFFIX:
        raise DiffscopeError(f"a capture cannot be kept as {path.name!r}; name it {path.stem + SUFFIX!r}")


def _for_safetensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors as safetensors needs them: on the CPU, contiguous, without shared storage."""
    copied = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        yield name, tensor.clone() if memory in copied else tensor
        copied.add(memory)
