"""Execute the notebooks of analyses/, each in a kernel of its own: in place, or copies of them with another model line.

    python -m tools.notebooks                            # all of them, in place
    python -m tools.notebooks 03 07                      # those whose names begin so
    python -m tools.notebooks --model FOLDER --out DIR   # copies in which MODEL is that folder

Prints seconds and size of each. What depends on the machine or the moment is not kept: times, versions, the kernel's name.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from diffscope.files import write_text

ROOT = Path(__file__).parents[1]
ANALYSES = ROOT / "analyses"
TIMEOUT = 600  # seconds a cell
MODEL_LINE = re.compile(r"^MODEL = .*$", re.M)
STUDY_LINE = re.compile(r"^STUDY = .*$", re.M)  # of a notebook that is of many models
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebooks(begin: Iterable[str] = ()) -> list[Path]:
    """The notebooks in order, or those whose names begin in one of these ways."""
    chosen = tuple(begin) or ("",)
    return [path for path in sorted(ANALYSES.glob("*.ipynb")) if path.name.startswith(chosen)]


def read(path: Path, model: str | None = None) -> nbformat.NotebookNode:
    """A notebook, with another model in its one model line if a model is given."""
    notebook = nbformat.read(path, as_version=4)
    if model is not None:
        (cell,) = model_cells(notebook)
        cell.source = MODEL_LINE.sub(lambda _: f"MODEL = {model!r}", cell.source)
    return notebook


def subject_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells that say which model, or which study, is looked at."""
    return [cell for line in (MODEL_LINE, STUDY_LINE) for cell in _with(notebook, line)]


def model_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells that say which model is looked at."""
    return _with(notebook, MODEL_LINE)


def _with(notebook: nbformat.NotebookNode, line: re.Pattern[str]) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and line.search(cell.source)]


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with what a kernel made of it, in a folder that is gone afterwards; it ends at the first error."""
    with TemporaryDirectory() as folder:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        os.environ["IPYTHONDIR"] = str(Path(folder) / "ipython")
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        with suppress(CellExecutionError):  # the cell's output has it
            client.execute()
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    return notebook


def failure(notebook: nbformat.NotebookNode) -> str:
    """The error that a notebook ended with, in a line; empty where there was none."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return next((f"{output.ename}: {output.evalue}" for output in outputs if output.output_type == "error"), "")


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, nbformat.writes(notebook) + "\n")


def main() -> int:
    """Execute what was asked for; 1 where a notebook ended with an error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("begin", nargs="*", help="how the names of notebooks begin; by default all")
    parser.add_argument("--model", help="another name, folder or hub id for the model line")
    parser.add_argument("--out", type=Path, help="folder for executed copies; by default they are executed in place")
    options = parser.parse_args()
    if options.model and not options.out:
        parser.error("with another model, say where its copies go: --out DIR")
    model = options.model
    if model and Path(model).is_dir():
        model = str(Path(model).resolve())  # a notebook runs in a folder of its own
    failed = False
    total = 0.0
    for path in notebooks(options.begin):
        if model and not model_cells(nbformat.read(path, as_version=4)):
            print(f"{path.name:45} is of no one model")
            continue
        began = time.perf_counter()
        notebook = execute(read(path, model))
        seconds = time.perf_counter() - began
        total += seconds
        error = failure(notebook)
        failed = failed or bool(error)
        target = path if options.out is None else options.out / path.name
        if not error or options.out is not None:
            write(notebook, target)
        size = len(nbformat.writes(notebook).encode()) / 1024
        print(f"{path.name:45} {seconds:6.1f} s {size:6.0f} kB  {error}", flush=True)
    print(f"{'total':45} {total:6.1f} s")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
