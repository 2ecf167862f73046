"""Row statistics of a differential layer: diffscope beside what a user would use instead, in one run.

python benchmarks/engine.py --out results.json --plot engine.svg
python benchmarks/engine.py --lengths 128 256 --methods diffscope "eager + numpy"
python benchmarks/engine.py --long                      # 512 of up to 64K queries: time and memory

Model: one layer of DiffLlama, 8 differential heads, d = 64, random weights. Statistics: all row statistics of A1, A2 and D
for every head and query, Gini exactly. Every method runs in a process of its own; the methods take turns; times are the
median of the runs after a first one; memory is the peak above what the process held before its first run. Before a figure
counts, 32 rows are compared with float64.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

from benchmarks.engine import jobs, oracle, report
from benchmarks.engine.methods import FORWARDS, METHODS, PARTS
from benchmarks.meter import ABSENT, OK, WRONG, Child, Limits
from benchmarks.engine.report import Result

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BUNDLED_LENGTHS = (128, 256, 512)
LONG_LENGTHS, SAMPLED = (8192, 16384, 32768, 65536), 512
THROUGH_MODEL = 16384  # tokens: what a forward of the model on a CPU takes grows with their square
RANDOM = tuple(name for name in METHODS if name not in PARTS)
PATIENCE = Limits(seconds=1200.0)  # of references, and of a forward over 64K tokens


def repeats(seconds: float, wanted: int) -> int:
    """Runs after the first, by how long that took."""
    return wanted if seconds <= 10 else min(wanted, 3 if seconds <= 30 else 1)


def reference(job, device: str) -> oracle.Reference:
    """In a process that is gone before anything is timed."""
    with Child(job, device, PATIENCE) as child:
        answer = child.run() if child.ready.state == OK else child.ready
    if answer.state != OK:
        sys.exit(f"the float64 reference could not be computed: {answer.why}")
    return answer.values


def note(result: Result, answer, exact: oracle.Reference, timed: bool) -> bool:
    """Add one run to a result; whether it may go on."""
    result.state, result.why = answer.state, answer.why
    if answer.state != OK:
        return False
    if answer.values is not None:
        error, where = oracle.error(answer.values, exact)
        if not error <= result.error:
            result.error, result.where = error, where
        if not error <= oracle.WORST:
            result.state, result.why = WRONG, f"{where} is off by {error:.1e}"
            return False
    result.peaks.append(answer.peak)
    if timed:
        result.seconds.append(answer.seconds)
    return True


def compare(
    todo: dict[str, jobs.Job], exact: oracle.Reference, table: str, tokens: int, device: str, wanted: int, limits: Limits
) -> list[Result]:
    """All methods at one length, taking turns.

    Parameters
    ----------
    todo : dict of str to Job
        By method.
    exact : dict
        The reference's rows.
    wanted : int
        Runs after the first.
    """
    results = {name: Result(table, name, tokens) for name in todo}
    with ExitStack() as stack:
        children, left = {}, {}
        for name, job in todo.items():
            child = stack.enter_context(Child(job, device, limits))
            first = child.run() if child.ready.state == OK else child.ready
            if note(results[name], first, exact, timed=False):
                children[name], left[name] = child, repeats(first.seconds, wanted)
            else:
                child.close()
        while left:
            for name in list(left):
                if note(results[name], children[name].run(), exact, timed=True) and left[name] > 1:
                    left[name] -= 1
                else:
                    del left[name]
    return list(results.values())


def measure_all(subject: str, methods: Sequence[str], lengths: Sequence[int], options) -> list[Result]:
    """Every length in turn; what failed at one is not tried at longer ones."""
    results, failed = [], set()
    for tokens in lengths:
        exact = reference(jobs.Reference(subject, tokens, options.device), options.device)
        todo = {name: jobs.Measured(name, subject, tokens, options.device) for name in methods if name not in failed}
        results_at_length = compare(todo, exact, subject, tokens, options.device, options.repeats, options.limits)
        failed |= {result.method for result in results_at_length if result.state != OK}
        results += results_at_length
        progress(results_at_length)
    return results


def measure_long(lengths: Sequence[int], options) -> list[Result]:
    """A sample of the queries, of inputs at hand; at one length also through the whole model."""
    results = []
    for tokens in lengths:
        for through_model in (False, True) if tokens == THROUGH_MODEL else (False,):
            what = (through_model, tokens, min(SAMPLED, tokens // 2), options.device)
            exact = reference(jobs.SampledReference(*what), options.device)
            name = "capture and statistics" if through_model else "statistics"
            results += compare({name: jobs.Sampled(*what)}, exact, "long", tokens, options.device, options.repeats, PATIENCE)
            progress(results[-1:])
    return results


def progress(results: Sequence[Result]) -> None:
    for result in results:
        figures = "" if math.isnan(result.time) else f" {report.duration(result.time)}, {report.size(result.peak)}"
        print(f"{result.table}, {result.tokens} tokens, {result.method}: {result.state}{figures}", file=sys.stderr, flush=True)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=RANDOM, metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5, help="runs after the first; fewer of what takes over 10 s")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of one run")
    parser.add_argument("--memory", type=float, default=0.85, help="share of the available memory that a process may take")
    parser.add_argument("--bundled", action=argparse.BooleanOptionalAction, help="the bundled model too; by default on a CPU")
    parser.add_argument("--long", action="store_true", help=f"only a sample of {SAMPLED} queries of long prompts")
    parser.add_argument("--long-lengths", type=int, nargs="+", default=LONG_LENGTHS)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--kept", type=Path, nargs="+", help="show what earlier runs wrote with --out instead of running")
    parser.add_argument("--plot", type=Path, help="time and memory against length, SVG")
    options = parser.parse_args(argv)
    options.limits = Limits(options.seconds, options.memory)
    options.bundled = options.device == "cpu" if options.bundled is None else options.bundled
    return options


def show_kept(options) -> None:
    """Tables and picture of kept results; of a method measured twice at one length, the later file's."""
    results, known = {}, {field.name for field in fields(Result)}
    for path in options.kept:
        record_file = json.loads(path.read_text(encoding="utf-8"))
        print(f"{path.name}: {record_file['machine']}")
        for record in record_file["results"]:
            result = Result(**{name: value for name, value in record.items() if name in known})
            results[result.table, result.tokens, result.method] = result
    for table in dict.fromkeys(result.table for result in results.values()):
        against = {"against": "statistics"} if table == "long" else {}
        of_table = [result for result in results.values() if result.table == table]
        print(f"\n{table}\n\n{report.markdown(sorted(of_table, key=lambda result: result.tokens), **against)}")
    if options.plot:
        shown = [result for result in results.values() if result.table == "random" and result.method not in PARTS]
        report.draw(shown, options.plot)


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(argv)
    if options.kept:
        return show_kept(options)
    machine, warning = report.machine(options.device), report.load_warning()
    print("\n".join(filter(None, (machine, warning))) + "\n", flush=True)
    if options.long:
        results = measure_long(options.long_lengths, options)
        print(f"{SAMPLED} sampled queries, 8 heads, d = 64, all row statistics\n")
        print(report.markdown(results, against="statistics"))
    else:
        results = measure_all("random", options.methods, options.lengths, options)
        print("One layer of DiffLlama, 8 heads, d = 64, all row statistics; ÷ is over what diffscope takes\n")
        print(report.markdown(results), flush=True)
    if options.bundled and not options.long:
        methods = [*FORWARDS, *PARTS, *(name for name in options.methods if name not in FORWARDS)]
        bundled = measure_all("bundled", methods, BUNDLED_LENGTHS, options)
        print("\nmini-diff, 4 layers of 2 heads, d = 32, all row statistics\n")
        print(report.markdown(bundled))
        results += bundled
    if options.out:
        record = {"machine": machine, "warning": warning, "results": [result.record() for result in results]}
        options.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    if options.plot:
        report.draw([result for result in results if result.table != "bundled" and result.state != ABSENT], options.plot)


if __name__ == "__main__":
    main()
