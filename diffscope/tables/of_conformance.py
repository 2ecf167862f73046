"""What a conformance check found, layer by layer."""

from __future__ import annotations

import math

from diffscope import numbers
from diffscope.conformance.report import Report
from diffscope.errors import DiffscopeError
from diffscope.tables.table import Table

HEADER = ("layer", "heads", "pairing", "λ", "λ_init", "norm", "mask", "error", "tolerance", "verdict")


def conformance(report: Report) -> Table:
    """Tabulate the layers of a check: what each is, how closely its output is rebuilt, and the verdict on it.

    Parameters
    ----------
    report : Report
        What ``diffscope.check`` gave.

    Returns
    -------
    Table
        ``data`` has least and largest λ, and the error unrounded.

    Raises
    ------
    DiffscopeError
        It is no such report.
    """
    import pandas as pd

    if not isinstance(report, Report):
        raise DiffscopeError(f"this table is of what diffscope.check gives, not of a {type(report).__name__}")
    records = [_record(report, layer) for layer in report.layers]
    rows = tuple(_row(record) for record in records)
    tokens = "; ".join(f"{prompt}: {numbers.significant(error, 2)}" for prompt, error in report.fidelity.items())
    outcome = "passed" if report.passed else "failed"
    caption = (
        f"Conformance of {report.model} (family {report.family}, attention {report.attention}, {report.dtype}): {outcome}. "
        "Error: of each layer's rebuilt output, the worst over all prompts, beside what rounding allows."
    )
    findings = [f"{finding.check}: {finding.verdict}, {finding.says}" for finding in report.findings if finding.verdict != "pass"]
    notes = (
        f"Worst error by prompt. {tokens}." if tokens else "",
        f"Not simply passed. {'; '.join(findings)}." if findings else "",
        f"Differences from the paper's V1, by design. {'; '.join(report.differences)}." if report.differences else "",
    )
    return Table("conformance", HEADER, rows, caption, pd.DataFrame(records), tuple(note for note in notes if note))


def _record(report: Report, layer: dict) -> dict:
    number = layer["layer"]
    low, high = layer["λ"] or (math.nan, math.nan)
    return {
        "layer": number,
        "heads": layer["heads"],
        "pairing": layer["pairing"],
        "lambda_low": low,
        "lambda_high": high,
        "lambda_init": math.nan if layer["λ_init"] is None else layer["λ_init"],
        "norm": layer["norm"],
        "mask": layer["mask"],
        "error": report.errors.get(number, math.nan),
        "tolerance": report.tolerances.get(number, math.nan),
        "verdict": report.verdict_of(number),
    }


def _row(record: dict) -> tuple[str, ...]:
    ends = [numbers.significant(record[end]) for end in ("lambda_low", "lambda_high")]
    return (
        str(record["layer"]),
        str(record["heads"]),
        record["pairing"],
        ends[0] if ends[0] == ends[1] else " to ".join(ends),
        numbers.significant(record["lambda_init"]),
        record["norm"],
        record["mask"],
        numbers.significant(record["error"], 2),
        numbers.significant(record["tolerance"], 2),
        record["verdict"],
    )
