"""``diffscope train``: train a matched cohort, or some of its arms, and say what each learned."""

from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import Device, Json, check_out
from diffscope.cli.output import counting, kept_when_stopped, note, show_json, show_table, working
from diffscope.cli.sweep import Count, Ray
from diffscope.cli.training_report import (
    collected,
    show_progress,
    show_report,
    show_status,
    tell_failures,
    tell_outdated,
    tell_versions,
)
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope train laptop --out runs/laptop --processes 2",
    "diffscope train laptop --arm diff --arm standard --seed 0 --out runs/laptop",
    "diffscope train laptop --out runs/laptop --status",
    "diffscope train laptop --table",
)

SAVED = "what was saved is kept, and the same command goes on"

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
Text = Annotated[Path | None, typer.Option(metavar="FOLDER", help="The corpus of a recipe that trains on one.")]
AnyText = Annotated[bool, typer.Option("--any-text", help="Take another corpus than the one that the recipe names.")]
Status = Annotated[
    bool, typer.Option("--status", help="Train nothing; say which runs are done, under way and left, and how long they take.")
]
Anew = Annotated[
    bool,
    typer.Option("--recompute-evidence", help="Do not train; take evidence of runs that have none, or one of another format."),
]
Report = Annotated[
    bool, typer.Option("--report", help="Train nothing; say what the runs in FOLDER have learned so far, scores included.")
]


def command(
    recipe: Recipe = None,
    preset: Preset = None,
    arm: Arms = None,
    seed: Seeds = None,
    out: Out = None,
    learning_rate: Rate = None,
    text: Text = None,
    any_text: AnyText = False,
    processes: Count = None,
    ray: Ray = None,
    threads: Threads = 1,
    device: Device = None,
    tensorboard: Board = False,
    table: Table = False,
    report: Report = False,
    status: Status = False,
    evidence: Anew = False,
    figure: Draw = None,
    as_json: Json = False,
):
    """Train the arms of a cohort with every seed, and score them. What stopped goes on with the same command."""
    from diffscope.figures.figure import check_suffix
    from diffscope.lab.training.recipe import Recipe

    chosen = _chosen(recipe, preset, learning_rate, text, any_text)
    if table:
        _show_arms(chosen, as_json)
        return
    if figure is not None:
        check_out(figure)
        check_suffix(figure)
    if out is None:
        raise DiffscopeError("training needs --out FOLDER; --table shows the arms of a recipe")
    from diffscope.lab.training.cohort import Cohort

    wanted = Cohort(chosen, out, tuple(arm or ()), tuple(seed or ()), device or "cpu")
    if status:
        show_status(wanted, processes or 1, as_json)
        return
    if evidence:
        _take_anew(wanted)
        return
    if report:
        show_report(wanted, figure, as_json)
        return
    how = dict(processes=processes, ray=ray, threads=threads, tensorboard=tensorboard)
    failed = _train_cohort(wanted, how)
    if chosen.then is not None and not (arm or seed):
        following = Cohort(Recipe.load(chosen.then), out / chosen.then, device=wanted.device)
        failed += _train_cohort(following, how)
    if figure is not None or as_json:
        show_report(wanted, figure, as_json)
    if failed:
        raise DiffscopeError(f"{failed} runs failed, see {out / 'failed'}; the same command tries them again")


def _chosen(recipe, preset, learning_rate, text, any_text):
    """Return the recipe of this name, on its corpus, with one learning rate for all arms if one is given."""
    from dataclasses import replace

    from diffscope.lab.training.initialisation import with_text
    from diffscope.lab.training.recipe import Recipe

    if (recipe is None) == (preset is None):
        raise DiffscopeError("name one recipe: diffscope train laptop, or --preset laptop, or a .toml file")
    if any_text and text is None:
        raise DiffscopeError("--any-text allows another corpus and names none; give its folder with --text FOLDER")
    chosen = with_text(Recipe.load(recipe or preset), text, any_text)
    return chosen if learning_rate is None else replace(chosen, learning_rate=learning_rate, tuning=None)


@kept_when_stopped(SAVED)
def _train_cohort(wanted, how):
    """Train what is left of a cohort, show what came of it but for its scores, and return how many runs failed."""
    from diffscope.evidence.runs import store_cohort_run
    from diffscope.lab.training.cohort import progress_by_arm, remaining_in_words
    from diffscope.lab.training.train import check_tools
    from diffscope.lab.training.train_cohort import train_cohort

    if how["ray"] is None:  # before anything is said of runs
        check_tools(wanted.device, how["tensorboard"])
    tell_versions(wanted)
    note(f"{wanted.recipe.name}: {remaining_in_words(progress_by_arm(wanted), how['processes'] or 1)}")
    with counting(f"training {wanted.recipe.name}") as progress:
        evidence = None if wanted.recipe.keep_weights else store_cohort_run
        outcome = train_cohort(wanted, **how, evidence=evidence, progress=progress)
    tell_failures(wanted, outcome)
    if not any("tuning" not in run.spec for run in outcome.done):
        note("no run is finished yet")
        return len(outcome.failed)
    show_progress(wanted, collected(wanted))
    if not wanted.recipe.keep_weights:
        tell_outdated(wanted)
    if outcome.failed or outcome.waiting:
        note(remaining_in_words(progress_by_arm(wanted), how["processes"] or 1))
    return len(outcome.failed)


@kept_when_stopped(SAVED)
def _take_anew(wanted):
    """Take the evidence of finished runs that have none, or one of another format."""
    from diffscope.evidence.run_file import outdated
    from diffscope.evidence.runs import store_cohort_run
    from diffscope.lab.training.stages import RETRIEVAL

    if wanted.recipe.task != RETRIEVAL:
        task = wanted.recipe.task
        raise DiffscopeError(
            f"evidence is taken on retrieval prompts, and {wanted.recipe.name!r} trains {task}; read its weights"
        )
    names = outdated(wanted.out)
    with counting("taking evidence") as progress:
        for done, run in enumerate(names):
            progress(done, len(names), run)
            store_cohort_run(wanted.out / run, wanted.recipe, int(run.rpartition("-")[2]))
    note(f"took the evidence of {len(names)} runs")


def _show_arms(recipe, as_json):
    from diffscope.lab.training.initialisation import tokenizer_for

    with working("learning the vocabulary"):
        rows = recipe.table(len(tokenizer_for(recipe)))
    if as_json:
        show_json(rows)
        return
    headers = ["arm", "attention", "heads", "width of a map", "width of the MLP", "parameters", "÷ matched"]
    show_table(headers, ([*list(row.values())[:-1], f"{row['ratio']:.4f}"] for row in rows))
