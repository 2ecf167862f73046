"""``diffscope train``: train a matched cohort, or some of its arms, and say what each learned."""

import re
from pathlib import Path
from typing import Annotated

import typer

import diffscope
from diffscope.cli.options import Device, Json, check_out
from diffscope.cli.output import counting, note, say, show_json, show_table, working
from diffscope.cli.sweep import Count, Ranks, Ray, where_of
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope train laptop --out runs/laptop --processes 2",
    "diffscope train laptop --arm diff --arm standard --seed 0 --out runs/laptop",
    "diffscope train laptop --table",
)

Recipe = Annotated[str | None, typer.Argument(metavar="RECIPE", help="A TOML file, or a bundled recipe by name.")]
Preset = Annotated[str | None, typer.Option(metavar="laptop|gpu", help="The same as the name of a bundled recipe.")]
Arms = Annotated[list[str] | None, typer.Option("--arm", metavar="NAME", help="A model of the cohort; all without. Repeatable.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", min=0, help="A seed; all of the recipe without. Repeatable.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where runs go; what stopped goes on from there.")]
Threads = Annotated[int, typer.Option(min=1, help="Processor threads of each run.")]
Rate = Annotated[float | None, typer.Option("--learning-rate", help="Instead of the recipe's.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard's events too, into FOLDER/tensorboard.")]
Table = Annotated[bool, typer.Option("--table", help="Show what the arms are made of and how well their parameters match.")]
Draw = Annotated[
    Path | None, typer.Option("--figure", metavar="FILE", help="Draw curves and answers: .pdf, .svg, .png or .html.")
]
Report = Annotated[bool, typer.Option("--report", help="Train nothing; say what the runs in FOLDER have learned so far.")]


def command(
    recipe: Recipe = None,
    preset: Preset = None,
    arm: Arms = None,
    seed: Seeds = None,
    out: Out = None,
    learning_rate: Rate = None,
    processes: Count = None,
    rank: Ranks = None,
    ray: Ray = None,
    threads: Threads = 1,
    device: Device = None,
    tensorboard: Board = False,
    table: Table = False,
    report: Report = False,
    figure: Draw = None,
    as_json: Json = False,
):
    """Train the arms of a cohort with every seed, and score them. What stopped goes on with the same command."""
    from dataclasses import replace

    from diffscope.figures.base import check_suffix
    from diffscope.lab.training.recipe import Recipe

    if (recipe is None) == (preset is None):
        raise DiffscopeError("name one recipe: diffscope train laptop, or --preset laptop, or a .toml file")
    chosen = Recipe.load(recipe or preset)
    if learning_rate is not None:
        chosen = replace(chosen, learning_rate=learning_rate)
    if table:
        _show_arms(chosen, as_json)
        return
    if figure is not None:
        check_out(figure)
        check_suffix(figure)
    if out is None:
        raise DiffscopeError("training needs --out FOLDER; --table shows the arms of a recipe")
    if chosen.grid is None:
        if any((processes, rank, ray, report, figure, as_json)):
            raise DiffscopeError(f"recipe {chosen.name!r} has no [grid]: it trains its arms one by one, without scores to report")
        _train_alone(chosen, arm, seed, out, threads, device, tensorboard)
        return
    from diffscope.lab.jobs import shards
    from diffscope.lab.training import cohort

    device = device or "cpu"
    runs = cohort.plan(chosen, arm or (), seed or (), device)
    if not report:
        where = where_of(processes, ray, device)
        rank = None if rank is None else shards.Rank.of(rank)
        how = dict(threads=threads, device=device, tensorboard=tensorboard, rank=rank)
        with counting("training") as progress:
            try:
                cohort.run(chosen, out, runs, where, **how, progress=progress)
            except KeyboardInterrupt:
                note("stopped; what was saved is kept, and the same command goes on")
                raise
    everything = cohort.plan(chosen, seeds=sorted({*chosen.seeds, *(seed or ()), *cohort.seeds_in(out)}), device=device)
    outcome = shards.Outcome.of(runs, out, ".nc")
    if rank is not None and not outcome.failed and not shards.Outcome.of(everything, out, ".nc").done:
        note("nothing is finished yet, and this rank has nothing left to do")
        return
    _tell(chosen, out, everything, device, figure, as_json)
    if outcome.failed:
        raise DiffscopeError(f"{len(outcome.failed)} runs failed, see {out / 'failed'}; the same command tries them again")


def _train_alone(recipe, arms, seeds, out, threads, device, tensorboard):
    """A recipe without a grid: models are trained one by one, and scored with ``diffscope evaluate``."""
    from diffscope.lab.jobs.shards import telling_full_disk
    from diffscope.lab.training.train import train

    for seed in seeds or recipe.seeds:
        for arm in arms or recipe.arms:
            with counting(f"training {arm}") as progress, telling_full_disk(out):
                how = dict(seed=seed, threads=threads, device=device or "cpu", tensorboard=tensorboard)
                folder = train(recipe, arm, out, **how, progress=progress)
            note(f"trained {arm} into {folder}")


def _tell(recipe, out, runs, device, figure, as_json):
    """Put the finished runs of a folder together, and print what they learned and which failed or are missing."""
    from diffscope.lab.training import cohort

    if not out.is_dir():
        raise DiffscopeError(f"there is no folder {out}")
    if cohort.is_copy(out):
        dataset = cohort.open_copy(out, recipe)
        total = dataset["finished"].size
        failed = dict(re.findall(r"(?:^|; )([^\s:]+/seed-\d+): (.*?)(?=; [^\s:]+/seed-\d+: |$)", dataset.attrs.get("failed", "")))
    else:
        dataset, failed = _collect(recipe, out, runs, device)
        total = len(runs)
    rows = cohort.summary(dataset)
    if as_json:
        show_json({"arms": rows, "failed": failed})
    else:
        _show_runs(dataset, rows)
    note(f"{int(dataset['finished'].sum())} of {total} runs are finished; all that was measured is in {out / cohort.DATASET}")
    if figure is not None:
        diffscope.figure("cohort", dataset).save(figure)
        note(f"saved {figure}")


def _collect(recipe, out, runs, device):
    """The dataset of a folder's finished runs, written into it anew, and the causes of failures by run."""
    from diffscope.lab.jobs import job, shards
    from diffscope.lab.training import cohort
    from diffscope.store import save_statistics

    with job.locked(out / cohort.DATASET):  # ranks may end at the same time
        outcome = shards.Outcome.of(runs, out, ".nc")
        failed = {cohort.name(run): outcome.failed[run.id] for run in runs if run.id in outcome.failed}
        for name, cause in failed.items():
            note(f"failed: {name}: {cause}")
        with working("putting runs together"):
            dataset = cohort.collect(recipe, out, outcome, device)
            save_statistics(dataset, out / cohort.DATASET, dated=False)
            save_statistics(dataset[list(cohort.MEASURED)], out / cohort.CURVES, dated=False)
    return dataset, failed


def _show_runs(dataset, rows):
    counts = [int(count) for count in dataset["distractors"].values]
    headers = ["arm", "parameters", "formed at step", *(f"{count} distractors" for count in counts)]
    headers += ["near-duplicates", "says unknown: rightly", "wrongly", "text loss: repeated", "other"]
    table = []
    for row in rows:
        formed = ["never" if step is None else str(step) for step in row["formation"].values()]
        formed += [f"(seed {seed} missing)" for seed in row["missing"]]
        cells = [f"{row['by_distractors'][count]:.1%}" for count in counts]
        cells += [f"{row[name]:.1%}" for name in ("near", "unknown_when_unanswerable", "unknown_when_answerable")]
        table.append([row["arm"], row["parameters"], ", ".join(formed), *cells, row["text_hit"], row["text_other"]])
    chance = [f"{1 / (count + 1):.1%}" for count in counts]
    near = [1 / (1 + near) for near in dataset["near"].values if near]
    table.append(["copying any number", None, "", *chance, f"{sum(near) / len(near):.1%}", "", "", None, None])
    say("exact answers by number of distractors, mean over prompts, lengths, then finished seeds")
    show_table(headers, table)


def _show_arms(recipe, as_json):
    from diffscope.lab.training.train import tokenizer_for

    with working("learning the vocabulary"):
        rows = recipe.table(len(tokenizer_for(recipe)))
    if as_json:
        show_json(rows)
        return
    headers = ["arm", "attention", "heads", "width of a map", "width of the MLP", "parameters", "÷ matched"]
    show_table(headers, ([*list(row.values())[:-1], f"{row['ratio']:.4f}"] for row in rows))
