"""Execute the notebooks of analyses/, each in a kernel of its own: in place, or as copies with another model.

    python -m tools.notebooks                            # all of them, in place
    python -m tools.notebooks 03 07                      # those whose names begin so
    python -m tools.notebooks --model FOLDER --out DIR   # copies in which MODEL is that folder

Prints seconds and size of each. Times, versions and the kernel's name depend on the machine and are not written.
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

from diffscope.storage.atomic import write_text

ROOT = Path(__file__).parents[1]
ANALYSES = ROOT / "analyses"
TIMEOUT = 600  # seconds per cell
SUBJECT_LINE = re.compile(r"^(MODEL|STUDY) = .*$", re.M)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebooks(begin: Iterable[str] = ()) -> list[Path]:
    """Return the notebooks in order, or those whose names begin in one of these ways."""
    return [path for path in sorted(ANALYSES.glob("*.ipynb")) if path.name.startswith(tuple(begin) or "")]


def subjects(notebook: nbformat.NotebookNode) -> list[str]:
    """Return "MODEL" or "STUDY" for each line that says which model or study a notebook looks at."""
    return [match[1] for cell in notebook.cells if cell.cell_type == "code" for match in SUBJECT_LINE.finditer(cell.source)]


def read(path: Path, model: str | None = None) -> nbformat.NotebookNode:
    """Read a notebook, and put another model into its model line if one is given."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells if model is not None else ():
        if cell.cell_type == "code":
            cell.source = SUBJECT_LINE.sub(lambda line: f"MODEL = {model!r}" if line[1] == "MODEL" else line[0], cell.source)
    return notebook


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run a notebook in a kernel and a temporary folder, up to the first error, and return it with its outputs."""
    options = {"timeout": TIMEOUT, "kernel_name": "python3", "record_timing": False, "coalesce_streams": True}
    with TemporaryDirectory() as folder:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        os.environ["IPYTHONDIR"] = str(Path(folder) / "ipython")
        with suppress(CellExecutionError):  # the cell's output has it
            NotebookClient(notebook, resources={"metadata": {"path": folder}}, **options).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def failure(notebook: nbformat.NotebookNode) -> str:
    """Return the error that a notebook ended with, in a line; empty if there was none."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return next((f"{output.ename}: {output.evalue}" for output in outputs if output.output_type == "error"), "")


def main() -> int:
    """Execute the chosen notebooks; 1 if one ended with an error."""
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
    failed = 0
    for path in notebooks(options.begin):
        notebook = read(path, model)
        if model and "MODEL" not in subjects(notebook):
            print(f"{path.name:45} is about more than one model")
            continue
        began = time.perf_counter()
        error = failure(execute(notebook))
        text = nbformat.writes(notebook) + "\n"
        failed += bool(error)
        if options.out or not error:
            (options.out or ANALYSES).mkdir(parents=True, exist_ok=True)
            write_text((options.out or ANALYSES) / path.name, text)
        print(f"{path.name:45} {time.perf_counter() - began:6.1f} s {len(text.encode()) / 1024:6.0f} kB  {error}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
