"""What a conformance check found, layer by layer."""

from __future__ import annotations

import math
from operator import itemgetter

from diffscope import numbers
from diffscope.conformance.report import Report
from diffscope.errors import DiffscopeError
from diffscope.tables.table import Column, Table

COLUMNS = (
    Column("layer", lambda record: str(record["layer"])),
    Column("heads", lambda record: str(record["heads"])),
    Column("pairing", itemgetter("pairing")),
    Column("λ", lambda record: numbers.between((record["lambda_low"], record["lambda_high"]), numbers.significant)),
    Column("λ_init", lambda record: numbers.significant(record["lambda_init"])),
    Column("norm", itemgetter("norm")),
    Column("mask", itemgetter("mask")),
    Column("error", lambda record: numbers.significant(record["error"], 2)),
    Column("tolerance", lambda record: numbers.significant(record["tolerance"], 2)),
    Column("verdict", itemgetter("verdict")),
)


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
    if not isinstance(report, Report):
        raise DiffscopeError(f"this table is of what diffscope.check gives, not of a {type(report).__name__}")
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
    return Table.of("conformance", [_record(row) for row in report.rows()], COLUMNS, caption, notes)


def _record(row: dict) -> dict:
    """Return the numbers and words of one layer, with the ends of λ apart."""
    low, high = row["λ"] or (math.nan, math.nan)
    return {
        "layer": row["layer"],
        "heads": row["heads"],
        "pairing": row["pairing"],
        "lambda_low": low,
        "lambda_high": high,
        "lambda_init": math.nan if row["λ_init"] is None else row["λ_init"],
        **{name: row[name] for name in ("norm", "mask", "error", "tolerance", "verdict")},
    }
