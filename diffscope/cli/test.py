"""``diffscope test``: the board of hypotheses."""

from pathlib import Path
from typing import Annotated

import typer

import diffscope
from diffscope.cli.options import Device, Dtype, Json, check_out, read_prompts_option, refuse_drawing
from diffscope.cli.output import counting, note, say, show_json, show_table
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope test --model mini-diff",
    "diffscope test noise-symmetry sparsity --model mini-diff --json",
    "diffscope test --cohort runs/laptop --out board.md",
    "diffscope test --model FOLDER --prompts my.jsonl",
    "diffscope test --list",
)
TABLES = (".tex", ".parquet", ".csv")
FORMATS = (".md", ".html", ".json", *TABLES)

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Tests to run; by default all.", show_default=False)]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME|FOLDER|HUB-ID", help="A model, or several seeds of one. Repeatable."),
]
Cohort = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="A trained cohort; without --model its DIFF models are tested too."),
]
Baseline = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME|FOLDER|HUB-ID", help="The standard model that it is matched with, seed by seed. Repeatable."),
]
Listed = Annotated[bool, typer.Option("--list", help="Show what is asked, predicted and needed; run nothing.")]
Prompts = Annotated[
    str, typer.Option(metavar="COUNT|FILE", help="How many retrieval prompts, over five depths; or a file of your own prompts.")
]
Length = Annotated[int, typer.Option(min=64, help="Tokens a prompt.")]
Untrained = Annotated[int, typer.Option(min=3, help="Models of random weights that a trained one is compared with.")]
Template = Annotated[str | None, typer.Option(metavar="TEXT", help="The needle sentence; without, what was trained on.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of prompts and untrained models.")]
Weights = Annotated[
    str,
    typer.Option(
        metavar="knock-out|a2|answer",
        help="What heads count with: the answer's loss without each, or without its A2; A1's mass on it.",
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep the board: .md, .html, .json; as a table .tex, .parquet, .csv.")
]


def command(
    ctx: typer.Context,
    ids: Ids = None,
    model: Models = None,
    baseline: Baseline = None,
    cohort: Cohort = None,
    listed: Listed = False,
    prompts: Prompts = "40",
    length: Length = 160,
    untrained: Untrained = 24,
    template: Template = None,
    seed: Seed = 50_000,
    weights: Weights = "knock-out",
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    as_json: Json = False,
):
    """Test whether a model cancels noise or is sparse, with controls, by rules that were declared beforehand.

    Exit status 0: every named test ran, or without names at least one; 1: some could not run, see the board; 2: invalid input.
    """
    from diffscope.hypotheses import Settings, gather, lacking, summary
    from diffscope.hypotheses.gathering import with_own
    from diffscope.hypotheses.tests import chosen
    from diffscope.tasks.template import check_template

    tests = chosen(ids)
    if listed:
        _show_declared(tests, as_json)
        return
    check_format(out)
    check_out(out)
    if template is not None:
        check_template(template)
    count, own = read_prompts_option(prompts, 10)
    if own:
        refuse_drawing(ctx)
    chosen_settings = Settings(prompts=count, length=length, seed=seed, template=template, untrained=untrained, weights=weights)
    with counting("testing") as progress:
        subjects = gather(
            model or [],
            baseline or [],
            cohort,
            needs={test.needs for test in tests},
            settings=with_own(chosen_settings, own) if own else chosen_settings,
            progress=progress,
            opener=lambda name: diffscope.load(name, device=device, dtype=dtype),
        )
        accuracies = subjects.accuracies
        verdicts = subjects.run(ids)
    if out is not None:
        keep(verdicts, out, ", ".join(subjects.names), subjects.statements)
    wants = lacking(verdicts)
    if as_json:
        settings = vars(subjects.settings) | {"own": [prompt.name for prompt in subjects.settings.own]}
        board = {"subjects": subjects.names, "settings": settings, "answers": [each.as_dict() for each in accuracies]}
        show_json({**board, "summary": summary(verdicts), "tests": _dicts(verdicts), "wanting": wants})
    else:
        for statement in subjects.statements:
            say(f"{statement}.")
        show_verdicts(verdicts)
        say()
        show_board(verdicts)
    if out is not None and not as_json:
        note(f"saved {out}")
    if wants and (ids or sum(map(len, wants.values())) == len(verdicts)):
        raise typer.Exit(1)


def check_format(out):
    """Refuse a name that tells no format of a board."""
    if out is not None and out.suffix not in FORMATS:
        raise DiffscopeError(f"cannot write a board as {out.suffix!r}; use {', '.join(FORMATS)}")


def show_board(verdicts):
    """Print of every test its verdict, its question with the answer, and all numbers; then what they say together."""
    from diffscope.hypotheses import summary
    from diffscope.hypotheses.report import in_order

    for verdict in in_order(verdicts):
        say(f"{verdict.test.id}: {verdict.judged} ({verdict.test.kind})")
        say(f"{verdict.test.question} {verdict.answer}")
        say(verdict.sentence)
        say()
    say(summary(verdicts))


def show_verdicts(verdicts):
    """Print the word of each account on every test that has a verdict; then what was measured, and what was not run, by name."""
    from diffscope.hypotheses.report import in_order

    ordered = in_order(verdicts)
    if judged := [verdict for verdict in ordered if verdict.verdicts]:
        show_table(("test", *judged[0].verdicts), [(verdict.test.id, *verdict.verdicts.values()) for verdict in judged])
    rest: dict[str, list[str]] = {}
    for verdict in ordered:
        if not verdict.verdicts:
            rest.setdefault(verdict.judged, []).append(verdict.test.id)
    for came, tests in rest.items():
        say(f"{came}: {', '.join(tests)}")


def _dicts(verdicts):
    return [verdict.as_dict() for verdict in verdicts]


def keep(verdicts, out, subjects, statements=()):
    """Write a board as its suffix says."""
    from diffscope.hypotheses import report
    from diffscope.storage.atomic import to_json, write_text

    if out.suffix in TABLES:
        from diffscope.tables import board

        board(verdicts).save(out)
        return
    title = f"Noise cancellation, sparsification, or signed heads: {subjects}"
    if out.suffix == ".json":
        text = to_json(_dicts(verdicts), indent=1) + "\n"
    else:
        text = (report.markdown if out.suffix == ".md" else report.page)(verdicts, title, statements)
    write_text(out, text)


def _show_declared(tests, as_json):
    from diffscope.hypotheses.verdict import DECLARED

    if as_json:
        show_json([{name: getattr(test, name) for name in DECLARED} for test in tests])
        return
    show_table(("kind", "test", "needs", "question"), [(test.kind, test.id, test.needs, test.question) for test in tests])
    for test in tests:
        say()
        say(f"{test.id}: {test.rule}")
