"""Try whether what a user is told to install resolves, for every Python and platform, without installing anything.

``python tools/grid.py`` asks the package index for each cell and takes wheels alone, so that no compiler is needed. It tries, one
after the other,

- the checkout with its tools for tests and pages, held to ``constraints.txt``, as ``make test`` and ``make docs`` install it,
- the same where torch asks for what a CPU build asks for, no triton and no CUDA library (PyTorch's own index, where such builds
  for Linux are, is not asked),
- the package alone without constraints, as whoever installs the wheel gets it, and with its extras.

It prints yes or no for each cell, and why no; the exit code is 1 if there is a no. The extras ``gpu`` and ``nnsight`` are left
out: flash-attn is built from source everywhere, nnsight on Linux arm64.
"""

import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "Linux x86-64": "x86_64-manylinux_2_28",
    "Linux arm64": "aarch64-manylinux_2_28",
    "macOS 14 arm64": "aarch64-apple-darwin",
    "Windows x86-64": "x86_64-pc-windows-msvc",
}
EXTRAS = tuple(f"--extra={name}" for name in ("vision", "kernels", "cluster", "data", "audio", "lightning", "lab"))
TESTED = ("--extra=dev", "--extra=docs", "--extra=vision", "--constraint", "constraints.txt")
WAYS = {
    "checkout with test tools, constraints.txt": TESTED,
    "the same with a CPU build of torch": (*TESTED, "--config-file", "{cpu}"),
    "the package alone": (),
    "the package with its extras": EXTRAS,
}
# The one package that exists only as source is of plain Python.
WHEELS = ("--only-binary", ":all:", "--no-binary", "transformers-stream-generator")
# What a CPU build of torch asks for: what the other asks for, but no CUDA library and no triton.
NEEDED = (
    "filelock",
    "typing-extensions>=4.10",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "networkx>=2.5.1",
    "jinja2",
    "fsspec>=0.8.5",
)
CPU_BUILD = f"""
[[dependency-metadata]]
name = "torch"
version = "VERSION"
requires-dist = {list(NEEDED)}
"""


def find_uv() -> str:
    """Return the uv of the running environment, or the one on the PATH."""
    uv = shutil.which("uv", path=sysconfig.get_path("scripts")) or shutil.which("uv")
    if uv is None:
        sys.exit("error: this needs uv, which is not installed: pip install uv")
    return uv


def resolve(uv: str, *options: str) -> str:
    """Resolve pyproject.toml; return why that cannot be done, or an empty string."""
    command = [uv, "pip", "compile", "pyproject.toml", "--quiet", *WHEELS, *options]
    # torch's wheels for macOS are of 14, and uv takes 13 unless it is told so.
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return (done.stderr.strip() or f"uv ended with {done.returncode}") if done.returncode else ""


def reason_unresolved(uv: str, python: str, platform: str, options: list[str]) -> str:
    """Return why one cell of the grid does not resolve, or an empty string.

    What the index answered a moment ago is taken from the cache. A failure is tried twice: the index may have been out of reach.
    """
    cell = ("--python-version", python, "--python-platform", PLATFORMS[platform], *options)
    return resolve(uv, *cell, "--offline") and resolve(uv, *cell) and resolve(uv, *cell)


def pinned_torch() -> str:
    """Return the version of torch in constraints.txt."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return next(pin.removeprefix("torch==") for pin in pins if pin.startswith("torch=="))


def main() -> int:
    """Try every cell and say which do not resolve."""
    uv = find_uv()
    # What the index says now, for all cells: without this, an answer from its cache could be an old one.
    if reason := resolve(uv, "--universal", "--refresh", "--extra=dev", *EXTRAS, "--python-version", PYTHONS[0]):
        sys.exit(f"error: nothing resolves, or the package index does not answer\n{reason}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        cpu = Path(folder, "cpu.toml")
        cpu.write_text(CPU_BUILD.replace("VERSION", pinned_torch()), encoding="utf-8")
        cells = {}
        for way, options in WAYS.items():
            filled = [option.format(cpu=cpu) for option in options]
            for platform, python in itertools.product(PLATFORMS, PYTHONS):
                cells[way, platform, python] = pool.submit(reason_unresolved, uv, python, platform, filled)
        reasons = {cell: future.result() for cell, future in cells.items()}
    for way in WAYS:
        print(f"{way:<42}" + "".join(f"{python:>6}" for python in PYTHONS))
        for platform in PLATFORMS:
            answers = ("no" if reasons[way, platform, python] else "yes" for python in PYTHONS)
            print(f"  {platform:<40}" + "".join(f"{answer:>6}" for answer in answers))
    unresolved = [cell for cell, reason in reasons.items() if reason]
    for reason in dict.fromkeys(reasons[cell] for cell in unresolved):
        print("\n" + "\n".join(", ".join(cell) for cell in unresolved if reasons[cell] == reason) + "\n" + reason)
    print(f"\n{len(reasons) - len(unresolved)} of {len(reasons)} resolve")
    return 1 if unresolved else 0


if __name__ == "__main__":
    sys.exit(main())
