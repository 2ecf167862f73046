"""``diffscope train``: train a matched cohort, or some of its arms, and say what each learned."""

from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import Device, Json, check_out_folder
from diffscope.cli.output import counting, kept_when_stopped, note, show_json, show_table, working
from diffscope.cli.sweep import Count, Ray
from diffscope.cli.training_report import (
    check_folder,
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

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or a bundled recipe by name.")]
Arms = Annotated[list[str] | None, typer.Option("--arm", metavar="NAME", help="An arm; by default all. Repeatable.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", min=0, help="A seed; by default all of the recipe. Repeatable.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where runs go, and are resumed from.")]
Threads = Annotated[int, typer.Option(min=1, help="Processor threads of each run.")]
Rate = Annotated[float | None, typer.Option("--learning-rate", help="Instead of the recipe's.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard's events too, into FOLDER/tensorboard.")]
Table = Annotated[bool, typer.Option("--table", help="Show what the arms are made of and how well their parameters match.")]
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
    recipe: Recipe,
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
    as_json: Json = False,
):
    """Train the arms of a cohort with every seed, and score them. The same command resumes what was stopped."""
    _check_modes({"--table": table, "--status": status, "--recompute-evidence": evidence, "--report": report})
    chosen = _chosen(recipe, learning_rate, text, any_text)
    if table:
        _show_arms(chosen, as_json)
        return
    if out is None:
        raise DiffscopeError("training needs --out FOLDER; --table shows the arms of a recipe")
    check_out_folder(out)
    from diffscope.lab.training.cohort import Cohort

    wanted = Cohort(chosen, out, tuple(arm or ()), tuple(seed or ()), device or "cpu")
    if evidence:
        _take_anew(wanted)
        return
    if report:
        show_report(wanted, as_json)
        return
    cohorts = with_following(wanted, recipe, text, any_text)
    if status:  # which reads files alone
        show_status(cohorts, processes or 1, as_json)
        return
    _check_following(cohorts[1:], learning_rate)
    failed = train_all(cohorts, quiet=as_json, processes=processes, ray=ray, threads=threads, tensorboard=tensorboard)
    if as_json:
        show_report(wanted, as_json)
    if failed:
        raise DiffscopeError(failed)


def _check_modes(modes):
    """Refuse more than one of the options, by name, that take the place of the training."""
    chosen = [name for name, on in modes.items() if on]
    if len(chosen) > 1:
        raise DiffscopeError(f"{' and '.join(chosen)} exclude each other; give one of them")


def _chosen(name, learning_rate, text, any_text):
    """Return the recipe of this name, on its corpus, with one learning rate for all arms if one is given."""
    from diffscope.lab.training.initialisation import with_text
    from diffscope.lab.training.recipe import Recipe

    if any_text and text is None:
        raise DiffscopeError("--any-text allows another corpus and names none; give its folder with --text FOLDER")
    chosen = Recipe.load(name)
    following = _following(chosen, name)
    of_next = chosen.corpus is None and following is not None and following.corpus is not None  # whose text it is
    chosen = with_text(chosen, None if of_next else text, any_text)
    return chosen if learning_rate is None else chosen.with_rate(learning_rate)


def with_following(wanted, name, text=None, any_text=False):
    """Return a cohort whose recipe has this name, and the one that is trained after it, unless some of its runs are chosen."""
    from diffscope.lab.training.cohort import Cohort
    from diffscope.lab.training.initialisation import with_text

    following = _following(wanted.recipe, name)
    if following is None or wanted.arms or wanted.seeds:
        return [wanted]
    following = with_text(following, None if following.corpus is None else text, any_text)
    return [wanted, Cohort(following, wanted.out / following.name, device=wanted.device)]


def _following(recipe, name):
    """Return the recipe that is trained after one of this name, None if there is none; its file is found from where that lies."""
    from diffscope.lab.training.recipe import Recipe

    if recipe.then is None:
        return None
    return Recipe.load(str(Path(name).parent / recipe.then) if recipe.then.endswith(".toml") else recipe.then)


def _check_following(cohorts, learning_rate):
    """Refuse cohorts that are trained after the first if a chosen rate does not reach them, or their corpus is not given."""
    from diffscope.lab.training.initialisation import corpus_of

    for each in cohorts:
        if learning_rate is not None:
            raise DiffscopeError(f"--learning-rate does not reach {each.recipe.name}, which is trained too; name arms with --arm")
        corpus_of(each.recipe)


def train_all(cohorts, *, processes=None, ray=None, threads=1, tensorboard=False, quiet=False):
    """Train what is left of cohorts, one after the other, and return in words which runs failed, None if none did.

    Parameters
    ----------
    processes, ray, threads, tensorboard
        As of :func:`diffscope.lab.training.train_cohort.train_cohort`.
    quiet : bool
        Print nothing to stdout, which is for JSON.
    """
    from diffscope.lab.items import FAILED_FOLDER

    how = dict(processes=processes, ray=ray, threads=threads, tensorboard=tensorboard)
    failed = {wanted.out / FAILED_FOLDER: _train_cohort(wanted, how, quiet) for wanted in cohorts}
    if not any(failed.values()):
        return None
    folders = " and ".join(str(folder) for folder, count in failed.items() if count)
    return f"{sum(failed.values())} runs failed, see {folders}; the same command tries them again"


@kept_when_stopped(SAVED)
def _train_cohort(wanted, how, quiet):
    """Train what is left of a cohort, show what came of it but for its scores, and return how many runs failed."""
    from diffscope.evidence.runs import check_cohort, store_cohort_run
    from diffscope.lab.training.cohort import progress_by_arm, remaining_in_words
    from diffscope.lab.training.train import check_tools
    from diffscope.lab.training.train_cohort import train_cohort

    if how["ray"] is None:  # before anything is said of runs
        check_tools(wanted.device, how["tensorboard"])
    tell_versions(wanted)
    note(f"{wanted.recipe.name}: {remaining_in_words(progress_by_arm(wanted), how['processes'] or 1)}")
    evidence = None if wanted.recipe.keep_weights else store_cohort_run
    if evidence and len(wanted.outcome().done) < len(wanted.planned()):
        check_cohort(wanted)
    with counting(f"training {wanted.recipe.name}") as progress:
        outcome = train_cohort(wanted, **how, evidence=evidence, progress=progress)
    tell_failures(wanted, outcome)
    if not any("tuning" not in run.spec for run in outcome.done):
        note("no run is finished yet")
        return len(outcome.failed)
    dataset = collected(wanted)
    if not quiet:
        show_progress(wanted, dataset)
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
    from diffscope.lab.training.run import check_recipe
    from diffscope.lab.training.stages import RETRIEVAL

    if wanted.recipe.task != RETRIEVAL:
        task = wanted.recipe.task
        raise DiffscopeError(
            f"evidence is taken on retrieval prompts, and {wanted.recipe.name!r} trains {task}; read its weights"
        )
    check_folder(wanted.out)
    chosen = []
    for name in outdated(wanted.out):
        run = wanted.out / name
        arm, seed = run.parent.name, int(run.name.removeprefix("seed-"))
        if arm in (wanted.arms or [arm]) and seed in (wanted.seeds or [seed]):
            check_recipe(run, wanted.recipe, arm)
            chosen.append((name, seed))
    with counting("taking evidence") as progress:
        for done, (name, seed) in enumerate(chosen):
            progress(done, len(chosen), name)
            store_cohort_run(wanted.out / name, wanted.recipe, seed)
    note(f"took the evidence of {len(chosen)} runs")


def _show_arms(recipe, as_json):
    from diffscope.lab.training.initialisation import tokenizer_for

    with working("learning the vocabulary"):
        rows = recipe.table(len(tokenizer_for(recipe)))
    if as_json:
        show_json(rows)
        return
    headers = ["arm", "attention", "heads", "width of a map", "width of the MLP", "parameters", "÷ matched"]
    show_table(headers, ([*list(row.values())[:-1], f"{row['ratio']:.4f}"] for row in rows))
