"""``diffscope sweep``: models × checkpoints × prompts × statistics, measured in shards that survive anything."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from diffscope.cli.options import Device, Dtype, Json, read_stats
from diffscope.cli.output import counting, kept_when_stopped, note, say, show_json, show_table
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope sweep plan.toml --out sweeps/first --processes 2",
    "diffscope sweep --model mini-diff --model mini-standard --checkpoints all --stats entropy,gini,span_mass \\",
    "  --prompts retrieval:count=20,length=256 --out sweeps/first",
)

File = Annotated[
    Path | None, typer.Argument(metavar="[PLAN.toml]", help="What to measure; options say it anew.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where shards and dataset go; a sweep that stopped goes on there.")
]
Models = Annotated[list[str] | None, typer.Option("--model", metavar="NAME|FOLDER|HUB-ID", help="A model. Repeatable.")]
Checkpoints = Annotated[str | None, typer.Option(metavar="all|last|STEP,…", help="Which steps of the models' training.")]
Stats = Annotated[str | None, typer.Option(metavar="A,B", help="Which statistics, separated by commas.")]
Prompts = Annotated[
    list[str] | None,
    typer.Option(metavar="TASK:FIELD=N,…|FILE", help="A task with its fields, or a file of prompts. Repeatable."),
]
Queries = Annotated[
    str | None, typer.Option(metavar="last|all|SPAN|sample:N", help="Whose rows are measured; of several, means.")
]
PerShard = Annotated[int | None, typer.Option(min=1, metavar="N", help="Prompts a shard.")]
Count = Annotated[int | None, typer.Option(min=1, metavar="N", help="Work in so many processes; with --ray, in so many actors.")]
Ranks = Annotated[
    str | None,
    typer.Option(
        "--rank", metavar="I/N|auto", help="Do only this rank's part; auto takes it from torchrun's or Slurm's environment."
    ),
]
Ray = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Work on a Ray cluster: local, auto or HOST:PORT.")]
Format = Annotated[Literal["zarr", "nc", "parquet", "csv"], typer.Option("--format", help="Of the dataset.")]
Changed = Annotated[bool, typer.Option("--changed", help="Continue although the plan or the installed versions have changed.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the shards and how large the dataset will be, and measure nothing.")
]


def command(
    plan: File = None,
    out: Out = None,
    model: Models = None,
    checkpoints: Checkpoints = None,
    prompts: Prompts = None,
    stats: Stats = None,
    queries: Queries = None,
    per_shard: PerShard = None,
    dtype: Dtype = None,
    processes: Count = None,
    rank: Ranks = None,
    ray: Ray = None,
    device: Device = None,
    file_format: Format = "zarr",
    changed: Changed = False,
    dry_run: DryRun = False,
    as_json: Json = False,
):
    """Measure statistics of models, at steps of their training, on prompts. What stopped goes on with the same command."""
    from diffscope.lab.plan import Plan
    from diffscope.lab.queue import Rank

    if out is None and not dry_run:
        raise DiffscopeError("a sweep needs --out FOLDER; --dry-run shows what it would do")
    options = {
        "models": model,
        "checkpoints": None if checkpoints is None else _steps(checkpoints),
        "prompts": None if prompts is None else [_prompts(option) for option in prompts],
        "statistics": None if stats is None else read_stats(stats),
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
    where = where_of(processes, ray, device)
    _sweep(
        whole,
        out,
        where,
        None if rank is None else Rank.of(rank),
        as_json,
        device=device,
        suffix=f".{file_format}",
        changed=changed,
    )


@kept_when_stopped("what is complete is kept, and the same command goes on")
def _sweep(plan, out, where, rank, as_json, **how):
    from diffscope.lab.sweep import sweep

    with counting("sweeping") as progress:
        swept = sweep(plan, out, where, rank=rank, progress=progress, **how)
    outcome = swept.outcome
    if as_json:
        counts = {"done": len(outcome.done), "waiting": len(outcome.waiting)}
        failed = [{"id": piece.shard.id, "shard": str(piece), "cause": cause} for piece, cause in swept.failures]
        show_json({"dataset": swept.dataset, **counts, "failed": failed, "left_out": plan.left_out})
    if plan.left_out:
        note(f"left out, for a mean over queries says nothing of it: {', '.join(plan.left_out)}")
    if swept.versions:
        note(f"Shards were measured with other versions: {swept.versions}. They are not measured again.")
    for piece, cause in swept.failures:
        note(f"failed: {piece}: {cause}")
    note(
        f"{len(outcome.done)} of {len(swept.pieces)} shards are done" + (f", dataset in {swept.dataset}" if swept.dataset else "")
    )
    if outcome.waiting:
        note(f"{len(outcome.waiting)} wait for other ranks; the one that ends last joins the dataset")
    if outcome.failed:
        raise DiffscopeError(
            f"{len(outcome.failed)} of {len(swept.pieces)} shards failed, see {out / 'failed'}; the same command tries them again"
        )


def where_of(processes, ray, device):
    """Who does the work, as --processes and --ray say it; None for this process alone."""
    from diffscope.lab.jobs.processes import Processes
    from diffscope.lab.jobs.ray_cluster import OnRay

    gpus = device.startswith("cuda")
    if ray is not None:
        return OnRay(ray, processes, gpus)
    return None if processes is None else Processes(processes, gpus)


def _steps(option):
    if option in ("all", "last"):
        return option
    steps = option.split(",")
    if not all(step.strip().isdigit() for step in steps):
        raise DiffscopeError(f"--checkpoints {option!r} is neither all nor last nor steps such as 0,400,1900")
    return [int(step) for step in steps]


def _prompts(option):
    """``TASK:FIELD=N,FIELD=N``, of which some are text, or a file, as a table of a plan."""
    from diffscope.lab.prompt_sets import OF_TEXT, TASKS

    task, _, fields = option.partition(":")
    if task not in TASKS:
        return {"file": option}
    pairs = [field.partition("=") for field in fields.split(",") if field]
    texts = {name.strip(): value for name, _, value in pairs if name.strip() in OF_TEXT}
    numbers = {name.strip(): value for name, _, value in pairs if name.strip() not in texts}
    if not all(value.isdigit() for value in numbers.values()):
        raise DiffscopeError(f"--prompts {option!r} is not TASK:FIELD=NUMBER,…; for example retrieval:count=20,length=256")
    return {"task": task, **texts, **{name: int(value) for name, value in numbers.items()}}


def _show_plan(plan, device, as_json):
    from diffscope.lab.sweep import values_a_prompt

    pieces = plan.pieces(device)
    values = values_a_prompt(plan, device)
    rows = []
    for model in plan.models:
        mine = [piece for piece in pieces if piece.subject.model == model]
        prompts = sum(piece.count for piece in mine)
        steps = len({piece.subject for piece in mine})
        rows.append([model, steps, prompts // steps, len(mine), prompts * values[model] * 4 / 2**20])
    if as_json:
        shards = [{"id": piece.shard.id, "shard": str(piece)} for piece in pieces]
        show_json({"shards": shards, "mebibytes": sum(row[-1] for row in rows), "left_out": plan.left_out})
        return
    show_table(["model", "checkpoints", "prompts", "shards", "MiB"], rows)
    say(f"{len(pieces)} shards of up to {plan.per_shard} prompts, about {sum(row[-1] for row in rows):.1f} MiB of numbers")
    if plan.left_out:
        say(f"left out, for a mean over queries says nothing of it: {', '.join(plan.left_out)}")
