"""``diffscope check``: the conformance report of a model."""

from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import Device, Dtype, Json, Model, check_model, check_out
from diffscope.cli.output import note, say, show_json, show_table, show_value, working
from diffscope.errors import DiffscopeError
from diffscope.numbers import between, ranges

EXAMPLE = ("diffscope check --model mini-diff",)

Name = Annotated[str | None, typer.Argument(hidden=True)]
Length = Annotated[
    int,
    typer.Option(min=25, help="Tokens of the long prompt; at most 4,096, and beyond any window the model declares."),
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the random prompts.")]

Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the layers as a table: .tex, .md, .parquet or .csv.")]

COLUMNS = ("layer", "heads", "pairing", "keys", "λ", "λ in float32", "λ_init", "norm", "post-scale", "mask")


def command(
    name: Name = None,
    model: Model = None,
    length: Length = 48,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    as_json: Json = False,
):
    """Check that a model's attention is what it claims to be. Each layer is proved on prompts that can fail it; exit 1 if not."""
    from diffscope.conformance import check
    from diffscope.scope import load
    from diffscope.tables import conformance
    from diffscope.tables.table import check_suffix

    if name is not None:
        raise DiffscopeError(f"the model is named with --model: diffscope check --model {name}")
    check_model(model)
    if out is not None:
        check_suffix(out)
        check_out(out)
    with working(f"checking {model}"):
        report = check(load(model, device=device, dtype=dtype), length=length, seed=seed)
    if out is not None:
        conformance(report).save(out)
        note(f"saved {out}")
    if as_json:
        show_json(report.as_dict())
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _show(report):
    say(f"{report.model}: family {report.family}, because it has {report.why}")
    say(f"attention {report.attention}, {report.dtype}; this family was tried against the {report.tried_on}")
    say()
    show_table(COLUMNS, [[_cell(row[name]) for name in COLUMNS] for row in report.rows()])
    first = report.layers[0]
    say(f"λ = {first['λ formula']}; RoPE {first['RoPE']}; d = {first['d']}, values {first['value width']} wide")
    say()
    show_table(
        ("verdict", "check", "layers", "what was found"),
        [(finding.verdict, finding.check, ranges(finding.layers), finding.says) for finding in report.findings],
    )
    say()
    say("Differences from the paper's V1, by design: " + ("; ".join(report.differences) or "none"))
    undecided = sum(finding.verdict == "undecided" for finding in report.findings)
    say(("passed" if report.passed else "failed") + (f", {undecided} undecided" if undecided else ""))


def _cell(value):
    if isinstance(value, list):
        return between(value, show_value)
    return round(value, 6) if isinstance(value, float) else value
