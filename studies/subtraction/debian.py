"""Debian packages as data: fetched by apt, proven by the SHA-256 of its index, read without being installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diffscope.errors import DiffscopeError
from diffscope.tasks.text_folder import sha256

UPDATE = "run `apt-get update` first"


@dataclass(frozen=True)
class Fetched:
    """A package on disk."""

    name: str
    version: str
    sha256: str
    file: Path


def fetch(name: str, recorded: dict | None, folder: Path) -> Fetched:
    """Return a package, downloaded into `folder` unless it is there.

    Parameters
    ----------
    name : str
    recorded : dict or None
        ``version`` and ``sha256`` to prefer. If apt no longer has that version, the current one is taken.
    folder : Path

    Raises
    ------
    DiffscopeError
        apt has no such package, or what was downloaded is not what its index says.
    """
    if recorded and (held := _held(name, recorded["sha256"], folder)):
        return Fetched(name, recorded["version"], recorded["sha256"], held)
    entry = (recorded and _index(f"{name}={recorded['version']}")) or _index(name)
    if entry is None:
        raise DiffscopeError(f"apt has no package {name}; {UPDATE}, on Debian 12, or put its .deb file into {folder}")
    version, digest = entry["Version"], entry["SHA256"]
    held = _held(name, digest, folder) or _download(name, version, digest, folder)
    return Fetched(name, version, digest, held)


def members(package: Fetched, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of a package's regular files whose path matches a regular expression, as they are packed."""
    wanted = re.compile(pattern)
    _need("dpkg-deb")
    damaged = f"dpkg-deb cannot unpack {package.file}; remove the file, so that it is downloaded anew"
    command = ["dpkg-deb", "--fsys-tarfile", package.file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|", encoding="utf-8", errors="replace") as archive:
                for member in archive:
                    if member.isfile() and wanted.search(member.name):
                        yield member.name.removeprefix("./"), archive.extractfile(member).read()
        except tarfile.TarError:
            raise DiffscopeError(damaged) from None
        process.stdout.read()  # the padding, or dpkg-deb would complain
    if process.returncode:
        raise DiffscopeError(damaged)


def _held(name: str, digest: str, folder: Path) -> Path | None:
    """Return the package of this digest if it is in the folder already."""
    return next((file for file in sorted(folder.glob(f"{name}_*.deb")) if sha256(file) == digest), None)


def _index(package: str) -> dict[str, str] | None:
    """Return the record of a package, or of ``NAME=VERSION``, in apt's index."""
    done = _run(["apt-cache", "show", "--no-all-versions", package], None)
    entry = dict(re.findall(r"^(Version|SHA256): (.+)$", done.stdout, re.MULTILINE))
    return entry if done.returncode == 0 and len(entry) == 2 else None


def _download(name: str, version: str, digest: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as workspace:
        done = _run(["apt-get", "download", "--quiet", f"{name}={version}"], workspace)
        file = next(Path(workspace).glob("*.deb"), None)
        if done.returncode or file is None:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise DiffscopeError(f"apt-get cannot download {name} {version} ({reason}); {UPDATE}")
        if sha256(file) != digest:
            raise DiffscopeError(f"what apt-get downloaded as {name} {version} is not what its index says; {UPDATE}")
        return file.replace(folder / file.name)


def _run(command: list[str], folder: str | None) -> subprocess.CompletedProcess:
    _need(command[0])
    environment = {**os.environ, "LC_ALL": "C"}  # for apt's English words
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", errors="replace")


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise DiffscopeError(f"there is no {program}; the corpus is built on Debian 12")
