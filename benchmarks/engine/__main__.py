"""Compare row statistics of a differential layer: diffscope beside what a user would use instead.

    python -m benchmarks.engine                     # every length, diffscope beside four other ways
    python -m benchmarks.engine --part sweeps       # many prompts on one model
    python -m benchmarks.engine --draw docs/engine.svg

Every method runs in a process of its own; the methods take turns; times are the median of the runs after a first one; memory is
the peak above what the process held before its first run. Before a figure counts, 32 rows are compared with float64.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import results
from benchmarks.engine import report, subjects, sweeps
from benchmarks.engine.methods import FORWARDS, METHODS, PARTS
from benchmarks.engine.report import Result
from benchmarks.meter import ABSENT, OK, WRONG, Answer, Child, Job, Limits
from benchmarks.results import LOAD, Section
from diffscope.errors import DiffscopeError
from tests import reference

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BUNDLED_LENGTHS = (128, 256, 512)
LONG_LENGTHS, SAMPLED = (8192, 16384, 32768, 65536), 512
PATIENCE = Limits(seconds=1200.0)  # of references
MODELS = {
    "random": "one layer of DiffLlama, 8 differential heads, d = 64, random weights",
    "bundled": "mini-diff, as it is bundled",
    "long": "queries and keys at random, 8 differential heads, d = 64",
    "sweeps": "mini-diff at 256 tokens; one layer of DiffLlama, 8 heads, d = 64, at 2,048",
}
TITLES = {
    "random": "All row statistics, side by side",
    "bundled": "Row statistics of short prompts on the bundled model",
    "long": "A sample of 512 queries of long prompts",
    "sweeps": "Sweeps: many prompts on one model",
}
TEXTS = {
    "random": "Fourteen row statistics of A1, A2 and D with exact Gini, for every head and query. *diffscope* is the whole of "
    "`scope.measure(ids)`: forward, hooks, proof, statistics. *eager + numpy*, *TransformerLens* and *nnsight* take the "
    "maps of the library and use one numpy script head by head; *numpy, full maps* makes all maps from q and k, without a "
    "forward. None of them proves anything.",
    "bundled": "*capture alone* is the forward with its proof, *Capture.measure alone* the statistics of a capture at hand.",
    "sweeps": "Only diffscope proves. Differences are from diffscope's own values, one by one.",
}


def compare(todo: dict[str, Job], exact: dict, tokens: int, device: str, wanted: int, limits: Limits) -> list[Result]:
    """Run all methods at one length, taking turns.

    Parameters
    ----------
    todo : dict of str to Job
        By method.
    exact : dict
        The reference's rows.
    wanted : int
        Runs after the first; fewer of what takes more than ten seconds.
    """
    found = {name: Result(name, tokens) for name in todo}
    with ExitStack() as stack:
        children, left = {}, {}
        for name, job in todo.items():
            child = stack.enter_context(Child(job, device, limits))
            first = child.run()
            if note(found[name], first, exact, timed=False):
                children[name] = child
                left[name] = wanted if first.seconds <= 10 else min(wanted, 3 if first.seconds <= 30 else 1)
        while left:
            for name in list(left):
                if note(found[name], children[name].run(), exact, timed=True) and left[name] > 1:
                    left[name] -= 1
                else:
                    del left[name]
    return list(found.values())


def note(result: Result, answer: Answer, exact: dict, timed: bool) -> bool:
    """Add one run to a result; return whether it may go on."""
    result.state, result.why = answer.state, answer.why
    if answer.state != OK:
        return False
    if answer.values is not None:
        error, where = reference.error(answer.values, exact)
        if not error <= result.error:
            result.error, result.where = error, where
        if not error <= reference.WORST:
            result.state, result.why = WRONG, f"{where} is off by {error:.1e}"
            return False
    result.peaks.append(answer.peak)
    if timed:
        result.seconds.append(answer.seconds)
    return True


def rows_in_float64(job: Job, device: str) -> dict:
    """Return a reference, computed in a process that is gone before anything is timed."""
    with Child(job, device, PATIENCE) as child:
        answer = child.run()
    if answer.state != OK:
        raise DiffscopeError(f"the float64 reference could not be computed: {answer.why}")
    return answer.values


def measure(subject: str, methods: Sequence[str], lengths: Sequence[int], options: Namespace) -> list[dict]:
    """Measure every length in turn; what failed at one is not tried at longer ones."""
    records, failed = [], set()
    for tokens in lengths:
        exact = rows_in_float64(subjects.WholeReference(subject, tokens, options.device), options.device)
        todo = {name: subjects.Whole(name, subject, tokens, options.device) for name in methods if name not in failed}
        found = compare(todo, exact, tokens, options.device, options.repeats, options.limits)
        failed |= {result.method for result in found if result.state != OK}
        records += progress(found)
    return records


def measure_long(lengths: Sequence[int], options: Namespace) -> list[dict]:
    """Measure a sample of the queries of inputs at hand."""
    records = []
    for tokens in lengths:
        sampled = subjects.Sampled(tokens, min(SAMPLED, tokens // 2), options.device)
        exact = rows_in_float64(subjects.SampledReference(sampled), options.device)
        records += progress(compare({"statistics": sampled}, exact, tokens, options.device, options.repeats, PATIENCE))
    return records


def progress(found: Sequence[Result]) -> list[dict]:
    """Print what was measured, and return it as records."""
    for result in found:
        figures = "" if math.isnan(result.time) else f" {results.duration(result.time)}, {results.size(result.peak)}"
        print(f"{result.tokens} tokens, {result.method}: {result.state}{figures} {result.why}", file=sys.stderr, flush=True)
    return [result.record() for result in found]


def section(part: str, records: list[dict], options: Namespace) -> Section:
    """Return one part as it is kept."""
    caption = "÷ is over what diffscope takes; × over the model's own forward." if part != "sweeps" else "More is faster."
    shown = [record for record in records if record["state"] != ABSENT]
    table = sweeps.table_of(caption, records) if part == "sweeps" else report.table_of(caption, shown)
    command = f"python -m benchmarks.engine --part {part}" + (f" --device {options.device}" if options.device != "cpu" else "")
    about = {"text": TEXTS.get(part, ""), "machine": results.machine(options.device), "load": LOAD}
    return Section(part, TITLES[part], command, MODELS[part], [table], numbers={"rows": records}, **about)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, or draw what was measured."""
    parser = results.parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=tuple(TITLES), default=list(TITLES))
    parser.add_argument("--lengths", type=int, nargs="+", help="instead of the usual ones")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5, help="runs after the first; fewer of what takes over 10 s")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of one run")
    parser.add_argument("--draw", type=Path, help="draw what was measured of one layer as SVG, and measure nothing")
    options = parser.parse_args(argv)
    if options.draw:
        return report.draw(results.read(options.out or results.HOME)["engine"]["random"]["numbers"]["rows"], options.draw)
    options.limits, options.repeats = Limits(options.seconds), 1 if options.quick else options.repeats
    lengths = options.lengths or ([128] if options.quick else None)
    plain = [name for name in options.methods or METHODS if name not in PARTS]
    for part in options.part:
        if part == "random":
            records = measure("random", plain, lengths or LENGTHS, options)
        elif part == "bundled":
            methods = [*FORWARDS, *PARTS, *(name for name in plain if name not in FORWARDS)]
            records = measure("bundled", methods, lengths or BUNDLED_LENGTHS, options)
        elif part == "long":
            records = measure_long(lengths or LONG_LENGTHS, options)
        else:
            sizes = {256: 2} if options.quick else {tokens: count for tokens, (_, count) in sweeps.SIZES.items()}
            records = [record for tokens, count in sizes.items() for record in sweeps.measure(tokens, count, options.repeats)]
        results.keep("engine", [section(part, records, options)], options)


if __name__ == "__main__":
    main()
