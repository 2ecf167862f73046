"""``diffscope test``: the board of hypotheses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import diffscope
from diffscope.cli.options import Device, Dtype, Json, check_out
from diffscope.cli.output import counting, note, plain, say, show_json, show_table
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope test --model mini-diff",
    "diffscope test noise-symmetry sparsity --model mini-diff --json",
    "diffscope test --family runs/laptop --out board.md",
    "diffscope test --list",
)
ROUNDS = 8  # series of untrained models beside one of checkpoints
FORMATS = (".md", ".html", ".json")

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Tests; all without.", show_default=False)]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME|FOLDER|HUB-ID", help="A model, or several seeds of one. Repeatable."),
]
Family = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="A trained family; without --model its DIFF models are tested too."),
]
Baseline = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME|FOLDER|HUB-ID", help="The standard model that it is matched with, seed by seed. Repeatable."),
]
All = Annotated[bool, typer.Option("--all", help="All tests, as without any ID.")]
Listed = Annotated[bool, typer.Option("--list", help="Show what is claimed, predicted and needed; run nothing.")]
Prompts = Annotated[int, typer.Option(min=10, help="Retrieval prompts, spread over five depths.")]
Length = Annotated[int, typer.Option(min=64, help="Tokens a prompt.")]
Untrained = Annotated[int, typer.Option(min=3, help="Models of random weights that a trained one is compared with.")]
Template = Annotated[str | None, typer.Option(metavar="TEXT", help="The needle sentence; of a family what it was trained on.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of prompts and untrained models.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the board: .md, .html or .json.")]


def command(
    ids: Ids = None,
    model: Models = None,
    baseline: Baseline = None,
    family: Family = None,
    everything: All = False,
    listed: Listed = False,
    prompts: Prompts = 40,
    length: Length = 160,
    untrained: Untrained = 24,
    template: Template = None,
    seed: Seed = 50_000,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    as_json: Json = False,
):
    """Does it work by cancelling noise, or by being sparse? Tests with controls, judged by rules declared beforehand."""
    from diffscope.hypotheses import Asked, Pair, board, together

    if everything and ids:
        raise DiffscopeError("--all is all tests; leave out the names, or --all")
    tests = board.chosen(ids or ())
    if listed:
        _show_declared(tests, as_json)
        return
    if out is not None and out.suffix not in FORMATS:
        raise DiffscopeError(f"cannot write a board as {out.suffix!r}; use {', '.join(FORMATS)}")
    if out is not None:
        check_out(out)
    if baseline and len(baseline) != len(model or []):
        raise DiffscopeError("--baseline is matched with --model one by one; give as many of each")
    if not model and family is None:
        raise DiffscopeError("nothing to test; name a model with --model, or a trained family with --family FOLDER")
    found, asked = None, {"prompts": prompts, "length": length, "seed": seed, "untrained": untrained}
    if family is not None:
        found = board.open_family(family)
        if not model:
            model, baseline = board.models_of(family, found, "diff", "standard")
            model = model or board.models_of(family, found, "diff")[0]
        template = template or json.loads(found.attrs["recipe"])["grid"]["template"]
    if template is not None:
        asked["template"] = template
    with counting("testing") as progress:
        how = dict(asked=Asked(**asked), progress=progress, device=device, dtype=dtype)
        needs = {test.needs for test in tests}
        subject = _subject(model if needs & {"model", "pair"} else [], **how)
        standard = _subject(baseline if "pair" in needs else [], **how)
        pair = Pair(subject, standard) if subject and standard else None
        steps = board.steps_of(model[0]) if model and "checkpoints" in needs else []
        rounds = replace(how["asked"], untrained=ROUNDS * len(steps))
        series = _subject(steps, **{**how, "asked": rounds})
        verdicts = board.run([test.id for test in tests], subject, found, pair=pair, checkpoints=series)
    subjects = ", ".join([*model, *(baseline or []), *([str(family)] if family else [])])
    if out is not None:
        _keep(verdicts, out, subjects)
    if as_json:
        show_json({"subjects": subjects, "asked": asked, "together": together(verdicts), "tests": _dicts(verdicts)})
        return
    show_table(("test", "verdict", "claim"), [(one.test.id, one.verdict, one.test.claim) for one in verdicts])
    for one in verdicts:
        say()
        say(f"{one.test.id}: {one.verdict}. {one.sentence}")
    say()
    say(together(verdicts))
    if out is not None:
        note(f"saved {out}")


def _subject(names, asked, progress, **placed):
    """The models as a subject of tests, None without any."""
    from diffscope.hypotheses import Subject

    return Subject([diffscope.load(one, **placed) for one in names], asked, progress) if names else None


def _dicts(verdicts):
    return [one.as_dict() for one in verdicts]


def _keep(verdicts, out, subjects):
    from diffscope.hypotheses import render
    from diffscope.store import replacing

    title = f"Noise cancellation or sparsification: {subjects}"
    if out.suffix == ".json":
        text = json.dumps(plain(_dicts(verdicts)), ensure_ascii=False, indent=1) + "\n"
    else:
        text = (render.markdown if out.suffix == ".md" else render.page)(verdicts, title)
    with replacing(out) as unfinished:
        Path(unfinished).write_text(text, encoding="utf-8")


def _show_declared(tests, as_json):
    if as_json:
        names = ("id", "claim", "source", "statistic", "controls", "rule", "needs", "limits")
        show_json([{name: getattr(test, name) for name in names} for test in tests])
        return
    show_table(("test", "needs", "claim", "rule"), [(test.id, test.needs, test.claim, test.rule) for test in tests])
