"""A model as files that a reader uploads: what is taken, what is refused, and where it lies until it is removed.

Nothing is unpacked and nothing is run. Files are told by their content, not by their name alone; they are written only when all
of them are right, into a folder of their own that nobody else can read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trial import Trial

from diffscope.errors import CorruptFile, DiffscopeError, UnsupportedModel
from diffscope.models.outline import Outline, check_memory, named_code
from diffscope.models.settings import CODE, INDEX, PACKED
from diffscope.models.stored import WHOLE
from diffscope.storage.atomic import to_json

SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", INDEX)
WORDS = ("tokenizer.json", "vocab.json", "added_tokens.json", "merges.txt", "vocab.txt")
PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
PART = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
SETTING_BYTES = 4 * 2**20
WORD_BYTES = 40 * 2**20
#: how what may be code, or hide more than it shows, begins
REFUSED = {
    b"PK\x03\x04": "a zip archive, or a pickle in one, and nothing is unpacked here",
    b"\x80": "a pickle, which can run code when it is opened",
    b"\x1f\x8b": "a gzip archive, and nothing is unpacked here",
    b"BZh": "a bzip2 archive, and nothing is unpacked here",
    b"\xfd7zXZ": "an xz archive, and nothing is unpacked here",
    b"\x28\xb5\x2f\xfd": "a zstd archive, and nothing is unpacked here",
    b"7z\xbc\xaf": "a 7z archive, and nothing is unpacked here",
    b"Rar!": "a rar archive, and nothing is unpacked here",
}
REMEDY = "save the model with save_pretrained, and upload its .safetensors, config.json and tokenizer files"
PREFIX = "diffscope-upload-"
LASTS = 24 * 3600.0  # seconds
EVERY = 60.0
TWICE = 2
TRIAL = Trial()


class File(NamedTuple):
    """A file as it came."""

    name: str
    content: bytes

    @property
    def key(self) -> tuple[str, str]:
        """What distinguishes it from other files, for caches."""
        return self.name, hashlib.sha256(self.content).hexdigest()


class Upload:
    """A folder with an uploaded model, which is removed with this object, or when nobody is there any more who uses it."""

    def __init__(self, folder: Path, model: Outline, used: Callable[[], bool], every: float) -> None:
        self.folder = folder
        self.model = model
        self.remove = weakref.finalize(self, _remove, folder.parent)
        threading.Thread(target=_watch, args=(folder.parent, used, every), daemon=True).start()

    @property
    def there(self) -> bool:
        """Whether it was not removed yet."""
        return self.folder.is_dir()


def _watch(home: Path, used: Callable[[], bool], every: float) -> None:
    """Remove a folder when it was not used twice in a row: a page that is loaded again is gone for a moment."""
    unused = 0
    while unused < TWICE:
        time.sleep(every)
        if not home.exists():
            return
        unused = 0 if used() else unused + 1
        if not unused:
            with suppress(OSError):
                os.utime(home)  # so that no other process takes it for left behind
    _remove(home)


def _remove(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)


def is_upload(name: str) -> bool:
    """Whether a path is of an upload."""
    home = Path(name).parent
    return home.name.startswith(PREFIX) and home.parent == Path(tempfile.gettempdir())


def accept(
    files: Sequence[File], called: str, most: int, used: Callable[[], bool] = lambda: True, every: float = EVERY
) -> Upload:
    """Check files and keep them in a folder, whose last part is what the model is called.

    Parameters
    ----------
    files : sequence of File
    called : str
    most : int
        Bytes of all files.
    used : callable
        Whether there is anybody who may use it.
    every : float
        Seconds after which that is asked again.

    Raises
    ------
    DiffscopeError
        They are not the files of a model, or it would not fit into memory; nothing is left on disk.
    """
    contents = dict(_checked(files, most))
    _sweep()
    home = Path(tempfile.mkdtemp(prefix=PREFIX))  # which nobody but this user can read
    try:
        folder = home / (re.sub(r"[^\w.-]+", "-", called).strip(".-")[:60] or "model")
        folder.mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        return Upload(folder, _outline(folder), used, every)
    except BaseException as error:
        _remove(home)
        if isinstance(error, DiffscopeError):
            raise type(error)(str(error).replace(f"{home}/", "")) from None
        raise


def _outline(folder: Path) -> Outline:
    model = TRIAL.outline(folder)
    if model.code:
        raise UnsupportedModel(f"config.json says model_type {model.kind!r}, which is no model that transformers knows")
    check_memory(model)
    return model


def _checked(files: Sequence[File], most: int) -> Iterable[tuple[str, bytes]]:
    """Names and contents of files that are all right; settings without what would name code or other files."""
    total = sum(len(file.content) for file in files)
    if total > most:
        raise DiffscopeError(f"these files have {total / 2**20:,.0f} MiB, and {most / 2**20:,.0f} MiB are taken; {REMEDY}")
    names = [file.name for file in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DiffscopeError(f"{_shown(twice)} was given twice; give each file once")
    for file in files:
        _check_name(file)
        _check_content(file)
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        lacking = "config.json" if "config.json" not in names else WHOLE
        raise DiffscopeError(f"{lacking} is missing; {REMEDY}")
    for file in files:
        yield file.name, _settings(file, names) if file.name in SETTINGS else file.content


def _check_name(file: File) -> None:
    """Refuse a name that is none of a model's files: paths, and whatever could be anything."""
    if (file.name in (*SETTINGS, *WORDS, *PIECES, WHOLE)) or PART.fullmatch(file.name):
        return
    _check_kind(file)
    if set(file.name) & {"/", "\\", "\0"} or ".." in file.name:
        raise DiffscopeError(f"{_shown(file.name)} names a place, and not a file alone; rename it, and upload it again")
    raise DiffscopeError(f"{_shown(file.name)} is none of the files that a model is opened from; {REMEDY}")


def _check_kind(file: File) -> None:
    """Refuse what could run code, or hide more than it shows, by how it begins."""
    for begins, kind in REFUSED.items():
        if file.content.startswith(begins):
            raise CorruptFile(f"{_shown(file.name)} is {kind}; {REMEDY}")


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:79]}…")


def _check_content(file: File) -> None:
    """Refuse what is not what its name says."""
    if file.name.endswith(".safetensors"):
        return  # its header is read where it lies
    _check_kind(file)
    largest = SETTING_BYTES if file.name in SETTINGS else WORD_BYTES
    if len(file.content) > largest:
        raise CorruptFile(
            f"{_shown(file.name)} has {len(file.content) / 2**20:,.0f} MiB, and {largest / 2**20:.0f} MiB are taken"
        )
    if file.name.endswith(".txt"):
        _text(file)
    elif file.name.endswith(".json") and not file.content.lstrip().startswith(b"{"):
        raise CorruptFile(f"{file.name} is no JSON object; {REMEDY}")
    elif file.name in PIECES and not file.content.startswith(b"\n"):
        raise CorruptFile(f"{file.name} is no model of sentencepiece; {REMEDY}")


def _text(file: File) -> str:
    try:
        return file.content.decode("utf-8")
    except UnicodeDecodeError:
        raise CorruptFile(f"{file.name} is not UTF-8 text; {REMEDY}") from None


def _settings(file: File, names: Sequence[str]) -> bytes:
    """A file of settings, without what would have transformers run code, or read other files than these."""
    try:
        fields = json.loads(_text(file))
        plain = to_json(_plain(fields))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{file.name} is broken JSON ({error}); {REMEDY}") from None
    if CODE in fields:
        code = ", ".join(named_code(fields)) or "its own"
        raise UnsupportedModel(f"{file.name} asks for code that comes with the model ({code}), and no code is run from uploads")
    if beyond := sorted({"architecture", "model_args", PACKED} & fields.keys()):
        raise UnsupportedModel(f"{file.name} has {beyond[0]}: such a model's memory cannot be told before it is opened")
    if file.name == "config.json" and not isinstance(fields.get("model_type"), str):
        raise UnsupportedModel("config.json names no model_type, so it is not known what the model is; save it with transformers")
    if file.name == INDEX:
        parts = fields.get("weight_map")
        if not isinstance(parts, dict) or not set(map(str, parts.values())) <= set(names):
            raise CorruptFile(f"{INDEX} names files that were not uploaded; give all parts of the model")
        return file.content
    return plain.encode()


def _plain(fields: Any) -> Any:
    """Settings without private ones, and without those that name files, or code to be fetched."""
    if isinstance(fields, list):
        return [_plain(each) for each in fields]
    if not isinstance(fields, Mapping):
        return fields
    return {name: _plain(value) for name, value in fields.items() if not _names_more(name)}


def _names_more(name: str) -> bool:
    return name.startswith("_") or name.endswith(("_file", "_implementation")) or name in (CODE, "init_inputs", "name_or_path")


def _sweep() -> None:
    """Remove what processes that were killed left behind."""
    for home in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            old = time.time() - home.stat().st_mtime > LASTS
        except OSError:  # somebody else has just removed it
            continue
        if old:
            _remove(home)
