"""``diffscope study``: every test on a trained cohort, run or shown."""

from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import Device, Json, check_out_folder, typed
from diffscope.cli.output import counting, note, say, show_json, show_table
from diffscope.cli.test import check_format, keep, show_board, show_verdicts
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope study show runs/study",
    "diffscope study show laptop --board 'seeds with weights'",
    "diffscope study show runs/study --claims --out claims.md",
    "diffscope study run --cohort runs/laptop --out runs/study",
    "diffscope study run --preset gpu --device cuda",
)
#: options of each action, which the other one does not read
OPTIONS = {
    "show": ("folder", "board", "claims"),
    "run": ("preset", "cohort", "prompts", "length", "processes", "device"),
}
REPORT = "which runs and lengths decide this, and what would change it: the report, The study, in the documentation"

Action = Annotated[str, typer.Argument(metavar="show|run", help="Show a study that was kept, or run one.")]
Folder = Annotated[str | None, typer.Argument(metavar="[FOLDER]", help="What to show: a folder, or a shipped study by name.")]
Preset = Annotated[str | None, typer.Option(metavar="laptop|gpu", help="Train this cohort first, what is missing of it.")]
Cohort = Annotated[Path | None, typer.Option(metavar="FOLDER", help="The trained cohort, with its models.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER|FILE",
        help="run: where it is kept; show: the board as .md, .html, .json, .tex, .parquet, .csv; claims: no .html, no .json.",
    ),
]
Claims = Annotated[bool, typer.Option("--claims", help="Published claims beside what the study measured, in place of a board.")]
Board = Annotated[str, typer.Option(metavar="NAME", help="Which board to show: all seeds, seeds with weights.")]
Prompts = Annotated[int, typer.Option(min=10, help="Retrieval prompts, spread over five depths.")]
Length = Annotated[int, typer.Option(min=64, help="Tokens a prompt.")]
Processes = Annotated[int | None, typer.Option(metavar="N", min=1, help="Train in so many processes.")]


def command(
    ctx: typer.Context,
    action: Action,
    folder: Folder = None,
    preset: Preset = None,
    cohort: Cohort = None,
    out: Out = None,
    board: Board = "all seeds",
    claims: Claims = False,
    prompts: Prompts = 40,
    length: Length = 160,
    processes: Processes = None,
    device: Device = None,
    as_json: Json = False,
):
    """Show the tests on a whole cohort, side by side, with a summary: noise cancellation, sparsification, or signed heads."""
    if action not in OPTIONS:
        raise DiffscopeError(f"study {action!r} is unknown; choose show or run")
    other = next(each for each in OPTIONS if each != action)
    if given := typed(ctx, OPTIONS[other]):
        raise DiffscopeError(
            f"study {action} takes no {', '.join(given)}; leave {'it' if len(given) == 1 else 'them'} out, or use study {other}"
        )
    if action == "run":
        _run(preset, cohort, out, device, processes, as_json, prompts, length)
    elif claims:
        if typed(ctx, ("board",)):
            raise DiffscopeError("--claims shows no board; leave --board or --claims out")
        _show_claims(folder, out, as_json)
    else:
        _show(folder, board, out, as_json)


def _run(preset, cohort, out, device, processes, as_json, prompts, length):
    from diffscope.cli import train
    from diffscope.hypotheses import Settings
    from diffscope.hypotheses.cohort_study import run_study
    from diffscope.hypotheses.study import ALL
    from diffscope.lab.training.cohort import Cohort
    from diffscope.lab.training.recipe import Recipe
    from diffscope.scope import load

    if not (preset or cohort):
        raise DiffscopeError("a study needs a cohort: --cohort FOLDER, or --preset laptop to train one first")
    cohort = cohort or Path("runs") / preset
    out = out or cohort.parent / f"{cohort.name}-study"
    check_out_folder(out)
    if preset:
        wanted = Cohort(Recipe.load(preset), cohort, device=device or "cpu")
        if failed := train.train_all(train.with_following(wanted, preset), processes=processes, quiet=as_json):
            raise DiffscopeError(failed)
    with counting("testing") as progress:
        study = run_study(
            cohort,
            settings=Settings(prompts=prompts, length=length),
            progress=progress,
            opener=lambda name: load(name, device=device),
        )
    study.save(out)
    if as_json:
        show_json(study.as_dict())
    else:
        _tell(study, ALL)
    note(f"kept in {out}; show it with: diffscope study show {out}")


def _show(folder, board, out, as_json):
    """Show a study as today's rules judge it."""
    from diffscope.hypotheses.report import study_markdown
    from diffscope.hypotheses.shipped import shipped
    from diffscope.hypotheses.study import open_study
    from diffscope.storage.atomic import write_text

    study = open_study(folder)
    _check_board(study, board)
    check_format(out)
    if out is not None:
        if out.suffix == ".md":
            write_text(out, study_markdown(study, board))
        else:
            keep(study.boards[board], out, f"the {study.facts['recipe']} cohort, {board}")
    if as_json:
        show_json(study.as_dict())
    else:
        _tell(study, board)
    if folder is None or folder in shipped():
        note(REPORT)
    if out is not None:
        note(f"saved {out}")


def _show_claims(folder, out, as_json):
    """Show published claims beside what a study measured."""
    from diffscope.hypotheses.study import open_study
    from diffscope.tables import claims

    table = claims(open_study(folder))
    if out is not None:
        table.save(out)
    if as_json:
        show_json(table.data.to_dict("records"))
    else:
        say(table.caption)
        show_table(table.header, table.rows)
        say(*table.notes)
    if out is not None:
        note(f"saved {out}")


def _check_board(study, board):
    if board not in study.boards:
        raise DiffscopeError(f"this study has no board {board!r}; it has {', '.join(study.boards)}")


def _tell(study, board):
    """Print a study in words, one of its boards whole."""
    _check_board(study, board)
    facts = study.facts
    seeds = sorted({seed for trained in facts["arms"].values() for seed in trained})
    say(f"cohort {facts['recipe']}, seeds {', '.join(map(str, seeds))}")
    if others := [name for name in study.boards if name != board]:
        say(f"shown: {board}; other boards: {', '.join(others)}")
    show_verdicts(study.boards[board])
    say()
    say(f"{board}, in words")
    show_board(study.boards[board])
    say()
    say("steps until the lookup circuit forms (p: log-rank against DIFF, not corrected)")
    headers = ("arm", "runs", "formed", "median", "restricted mean", "p")
    show_table(headers, [tuple(row[name.replace(" ", "_")] for name in headers) for row in study.survival])
    if study.notes:
        heading, *points = study.notes
        note("\n".join((heading, *(f"- {point}" for point in points))))
