"""Keep what the benchmarks measure: ``results.json``, and ``RESULTS.md``, which is written from it.

A script hands over sections. A section replaces the one of the same script and name, so that parts can be measured at different
times; each says its command, its models, the machine and the date.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import pandas as pd

from diffscope.storage.atomic import write_text
from diffscope.tables.table import Table

HOME = Path(__file__).parent
JSON, PAGE = "results.json", "RESULTS.md"
BUSY = 0.5  # load of a machine beside which times say little
SCALARS = re.compile(r'\[\n((?:\s+(?:"(?:[^"\\]|\\.)*"|[-+\w.]+),?\n)+)\s*\]')
INTRODUCTION = """# Results

The scripts in `benchmarks/` write this page from [results.json](results.json): `python -m benchmarks.NAME` measures again and
replaces its sections, `--quick` tries everything small and writes nothing. Every section says with which command, on which models
and when it was measured; times and memory hold for the machine that it names.
"""


@dataclass
class Section:
    """What one part of a script measured.

    Attributes
    ----------
    name : str
        Unique within its script.
    title, command, models : str
    tables : list of Table
    text : str
        What a reader has to know beside the table.
    numbers : dict
        What was measured, unrounded.
    measured : str
        Date.
    machine, load : str
        The machine in words; of times, a warning if others were at work on it (`LOAD`).
    then : str
        The command of then, of what was measured by an earlier form of the script and not again since.
    """

    name: str
    title: str
    command: str
    models: str
    tables: list[Table] = field(default_factory=list)
    text: str = ""
    numbers: dict = field(default_factory=dict)
    measured: str = field(default_factory=lambda: date.today().isoformat())
    machine: str = field(default_factory=lambda: machine("cpu"))
    load: str = ""
    then: str = ""

    def record(self) -> dict:
        """Return it as JSON has it, without its name."""
        tables = [{"caption": of.caption, "header": of.header, "rows": of.rows} for of in self.tables]
        return {name: value for name, value in {**vars(self), "tables": tables}.items() if name != "name" and value}


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table of cells as they are printed; a dash stands for what is not there."""
    cells = tuple(tuple("–" if cell is None else str(cell) for cell in row) for row in rows)
    return Table("benchmark", tuple(header), cells, caption, pd.DataFrame(list(cells), columns=list(header)))


def markdown(script: str, record: dict) -> str:
    """Return a section of a script as Markdown."""
    by = f" by what was then `{record['then']}`, and not again since" if "then" in record else ""
    facts = f"`{record['command']}`, measured {record['measured']}{by}. Models: {record['models']}. Machine: {record['machine']}."
    parts = [f"## {record['title']}", facts, record.get("load", ""), record.get("text", "")]
    parts += [table(of["caption"], of["header"], of["rows"]).to_markdown().strip() for of in record.get("tables", ())]
    return "\n\n".join(filter(None, parts))


def page(results: dict) -> str:
    """Return RESULTS.md of all results."""
    sections = [markdown(script, record) for script, records in sorted(results.items()) for record in records.values()]
    return "\n\n".join([INTRODUCTION.strip(), *sections]) + "\n"


def read(folder: Path = HOME) -> dict:
    """Return the results in a folder: sections by script and name."""
    path = folder / JSON
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(results: dict, folder: Path = HOME) -> None:
    """Write results.json and RESULTS.md."""
    text = json.dumps(results, indent=1, ensure_ascii=False)
    text = SCALARS.sub(lambda match: "[" + " ".join(line.strip() for line in match[1].splitlines()) + "]", text)
    write_text(folder / JSON, text + "\n")
    write_text(folder / PAGE, page(json.loads(text)))


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every script has."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--quick", action="store_true", help="everything small, to see that it runs; writes nothing unless --out is given"
    )
    options.add_argument("--out", type=Path, help=f"folder of {JSON} and {PAGE}; by default benchmarks")
    return options


def keep(script: str, sections: Sequence[Section], options: argparse.Namespace) -> None:
    """Print sections, and write them unless they were measured with ``--quick``."""
    folder = options.out or (None if options.quick else HOME)
    results = read(folder) if folder else {}
    for section in sections:
        record = json.loads(json.dumps(section.record()))
        results.setdefault(script, {})[section.name] = record
        print(markdown(script, record) + "\n", flush=True)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        write(results, folder)


def machine(device: str) -> str:
    """Return processor, cores, memory, threads and versions in words."""
    import numpy
    import torch
    import transformers

    processor = next((value for name, value in _fields("/proc/cpuinfo") if name == "model name"), platform.processor())
    total = next((1024 * int(value.split()[0]) for name, value in _fields("/proc/meminfo") if name == "MemTotal"), math.nan)
    parts = [f"{processor}, {os.cpu_count()} cores, {total / 2**30:.0f} GiB"]
    if device.startswith("cuda"):
        parts.append(f"{torch.cuda.get_device_name(device)} (CUDA {torch.version.cuda})")
    parts.append(f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    versions = {"torch": torch, "numpy": numpy, "transformers": transformers}
    return "; ".join(
        [*parts, f"Python {platform.python_version()}", *(f"{name} {of.__version__}" for name, of in versions.items())]
    )


def _fields(path: str) -> list[tuple[str, str]]:
    """Return the lines `name: value` of a file of /proc; none if there is no such file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def load_warning() -> str:
    """Return a line to print if others are at work; else nothing."""
    load = os.getloadavg()[0]
    return f"Load {load:.1f} over the last minute: others were at work, and times are not to be trusted." if load > BUSY else ""


LOAD = load_warning()  # when a script begins: later it is at work itself


def duration(seconds: float) -> str:
    """Return seconds in words."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def size(n: float) -> str:
    """Return bytes in words."""
    return f"{n / 2**30:.3g} GiB" if n >= 2**30 else f"{max(n, 0) / 2**20:.0f} MiB"
