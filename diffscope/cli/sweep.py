"""``diffscope sweep``: models × checkpoints × prompts × statistics, measured in shards, each made once and whole."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from diffscope.cli.options import Device, Dtype, Json, check_out_folder, read_statistics
from diffscope.cli.output import counting, kept_when_stopped, note, say, show_json, show_table
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope sweep plan.toml --out sweeps/first --processes 2",
    "diffscope sweep --model mini-diff --model mini-standard --checkpoints all --statistics entropy,gini,span_mass \\",
    "  --prompts retrieval:count=20,length=256 --out sweeps/first",
)

File = Annotated[
    Path | None, typer.Argument(metavar="[PLAN.toml]", help="The sweep plan; options override it.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where shards and dataset go; a sweep that stopped goes on there.")
]
Models = Annotated[list[str] | None, typer.Option("--model", metavar="NAME|FOLDER|HUB-ID", help="A model. Repeatable.")]
Checkpoints = Annotated[str | None, typer.Option(metavar="all|last|STEP,…", help="Which steps of the models' training.")]
Statistics = Annotated[str | None, typer.Option(metavar="A,B", help="Which statistics, separated by commas.")]
Prompts = Annotated[
    list[str] | None,
    typer.Option(metavar="TASK:FIELD=N,…|FILE", help="A task with its fields, or a file of prompts. Repeatable."),
]
Queries = Annotated[
    str | None, typer.Option(metavar="last|all|SPAN|sample:N", help="Which queries to measure; several are averaged.")
]
PerShard = Annotated[int | None, typer.Option(min=1, metavar="N", help="Prompts a shard.")]
Count = Annotated[int | None, typer.Option(min=1, metavar="N", help="How many processes work; with --ray, items at once.")]
Ray = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Work on a Ray cluster: local, auto or HOST:PORT.")]
Format = Annotated[Literal["zarr", "nc", "parquet", "csv"], typer.Option("--format", help="Of the dataset.")]
Changed = Annotated[
    bool, typer.Option("--plan-changed", help="Continue although the plan or the installed versions have changed.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the shards and how large the dataset will be, and measure nothing.")
]


def command(
    plan: File = None,
    out: Out = None,
    model: Models = None,
    checkpoints: Checkpoints = None,
    prompts: Prompts = None,
    statistics: Statistics = None,
    queries: Queries = None,
    per_shard: PerShard = None,
    dtype: Dtype = None,
    processes: Count = None,
    ray: Ray = None,
    device: Device = None,
    file_format: Format = "zarr",
    changed: Changed = False,
    dry_run: DryRun = False,
    as_json: Json = False,
):
    """Measure statistics of models, at steps of their training, on prompts. The same command resumes what was stopped."""
    from diffscope.lab.plan import Plan

    if out is None and not dry_run:
        raise DiffscopeError("a sweep needs --out FOLDER; --dry-run shows what it would do")
    check_out_folder(out)
    options = {
        "models": model,
        "checkpoints": None if checkpoints is None else _steps(checkpoints),
        "prompts": None if prompts is None else [_prompts(option) for option in prompts],
        "statistics": None if statistics is None else read_statistics(statistics),
        "queries": queries,
        "per_shard": per_shard,
        "dtype": dtype,
    }
    options = {name: value for name, value in options.items() if value is not None}
    whole = Plan.of(options) if plan is None else Plan.load(plan, **options)
    device = device or "cpu"
    if dry_run:
        _show_plan(whole, device, as_json)
        return
    how = dict(processes=processes, ray=ray, device=device, suffix=f".{file_format}", changed=changed)
    _sweep(whole, out, as_json, **how)


@kept_when_stopped("what is complete is kept, and the same command goes on")
def _sweep(plan, out, as_json, **how):
    """Carry out a plan and say what came of it."""
    from diffscope.lab.sweep import sweep

    with counting("sweeping") as progress:
        swept = sweep(plan, out, progress=progress, **how)
    outcome = swept.outcome
    if as_json:
        failed = [{"file": shard.item.place, "shard": str(shard), "cause": cause} for shard, cause in swept.failures]
        show_json({"dataset": swept.dataset, "done": len(outcome.done), "failed": failed, "left_out": plan.left_out})
    if plan.left_out:
        note(f"left out, for a mean over queries says nothing of it: {', '.join(plan.left_out)}")
    if swept.versions:
        note(f"Shards were measured with other versions: {swept.versions}. They are not measured again.")
    for shard, cause in swept.failures:
        note(f"failed: {shard}: {cause}")
    note(
        f"{len(outcome.done)} of {len(swept.shards)} shards are done" + (f", dataset in {swept.dataset}" if swept.dataset else "")
    )
    if outcome.failed:
        raise DiffscopeError(
            f"{len(outcome.failed)} of {len(swept.shards)} shards failed, see {out / 'failed'}; the same command tries them again"
        )


def _steps(option):
    """Read the option --checkpoints."""
    if option in ("all", "last"):
        return option
    steps = option.split(",")
    if not all(step.strip().isdecimal() for step in steps):
        raise DiffscopeError(f"--checkpoints {option!r} is neither all nor last nor steps such as 0,400,1900")
    return [int(step) for step in steps]


def _prompts(option):
    """Read ``TASK:FIELD=N,FIELD=N`` or the name of a file as a table of a plan."""
    from diffscope.lab.prompt_sets import OF_TEXT, TASKS

    task, _, fields = option.partition(":")
    if task not in TASKS:
        return {"file": option}
    pairs = [field.partition("=") for field in fields.split(",") if field]
    texts = {name.strip(): value for name, _, value in pairs if name.strip() in OF_TEXT}
    numbers = {name.strip(): value for name, _, value in pairs if name.strip() not in texts}
    if not all(value.isdecimal() for value in numbers.values()):
        raise DiffscopeError(f"--prompts {option!r} is not TASK:FIELD=NUMBER,…; for example retrieval:count=20,length=256")
    return {"task": task, **texts, **{name: int(value) for name, value in numbers.items()}}


def _show_plan(plan, device, as_json):
    """Show how many shards a plan has, and how large its dataset is."""
    from diffscope.lab.sweep import values_a_prompt

    shards = plan.shards(device)
    values = values_a_prompt(plan, device)
    rows = []
    for model in plan.models:
        mine = [shard for shard in shards if shard.subject.model == model]
        prompts = sum(shard.count for shard in mine)
        steps = len({shard.subject for shard in mine})
        rows.append([model, steps, prompts // steps, len(mine), prompts * values[model] * 4 / 2**20])
    if as_json:
        files = [{"file": shard.item.place, "shard": str(shard)} for shard in shards]
        show_json({"shards": files, "mebibytes": sum(row[-1] for row in rows), "left_out": plan.left_out})
        return
    show_table(["model", "checkpoints", "prompts", "shards", "MiB"], rows)
    say(f"{len(shards)} shards of up to {plan.per_shard} prompts, about {sum(row[-1] for row in rows):.1f} MiB of numbers")
    if plan.left_out:
        say(f"left out, for a mean over queries says nothing of it: {', '.join(plan.left_out)}")
