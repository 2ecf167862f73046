"""``diffscope figure``: one figure, as a file."""

from pathlib import Path
from typing import Annotated

import typer

import diffscope
from diffscope.cli.figure_options import CHOICES, OF_SUBJECT, FigureCommand, about, labels, options_of, words
from diffscope.cli.options import (
    DecoderPrompt,
    Device,
    Dtype,
    Json,
    KeySpan,
    Model,
    OfKind,
    Prompt,
    PromptFile,
    Span,
    check_out,
)
from diffscope.cli.output import note, say, show_json, working
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope figure --model mini-diff \\",
    '  --prompt "Magic numbers. Paris 7421. Rome 2174. Paris" \\',
    "  --layer 2 --head 1 --venue icml --out maps.pdf --sidecars all",
    "diffscope figure --kind by_depth --model mini-diff --baseline mini-standard --out table3.pdf",
    "diffscope figure --kind heads --list",
)

Saved = Annotated[
    Path | None,
    typer.Argument(metavar="[PATH]", help="A saved capture, sweep, study or cohort, instead of a model.", show_default=False),
]
Kind = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which figure; --list says which there are, and with --help its options.")
]
List = Annotated[bool, typer.Option("--list", help="The figures that there are; with --kind the options of one.")]
Baseline = Annotated[str | None, typer.Option(metavar="NAME|FOLDER|HUB-ID", help="A second model, beside the first.")]
Answer = Annotated[str | None, typer.Option(metavar="TEXT", help="attribution, patching: the answer that is asked for.")]
Distractor = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="attribution, patching, signal_to_noise: another answer. Repeatable.")
]
Prompts = Annotated[str, typer.Option(metavar="N|FILE", help="How many prompts are drawn, or a file of your own.")]
Length = Annotated[list[int] | None, typer.Option(min=1, metavar="TOKENS", help="Lengths of prompts that are drawn. Repeatable.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Where to draw it: .pdf, .svg, .png, .pgf, .html or .json.")]
Also = Annotated[str, typer.Option("--sidecars", metavar="A,B|all", help="What is written beside it: data, latex, provenance.")]


def command(
    ctx: typer.Context,
    saved: Saved = None,
    out: Out = None,
    kind: Kind = None,
    list_: List = False,
    model: Model = None,
    baseline: Baseline = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    span: Span = None,
    decoder_prompt: DecoderPrompt = None,
    key_span: KeySpan = None,
    of_kind: OfKind = None,
    answer: Answer = None,
    distractor: Distractor = None,
    prompts: Prompts = "",
    length: Length = None,
    also: Also = "",
    as_json: Json = False,
    device: Device = None,
    dtype: Dtype = None,
):
    """Draw a figure: by default the maps A1, A2, λ·A2 and D of one head."""
    if list_:
        return show_list(kind)
    if out is None:
        raise DiffscopeError("nothing says where to draw; give --out FILE, or see what there is with --list")
    check_out(out)
    from diffscope.figures import FIGURES

    if saved is not None and str(saved) in FIGURES and not saved.exists():
        raise DiffscopeError(f"there is no file {str(saved)!r}; to draw that kind of figure, give --kind {saved}")
    kind = kind or "maps"
    choices = {word: choice for word, choice in ctx.meta[CHOICES].items() if choice not in (None, [])}
    if "where" in choices:
        choices["where"] = labels(choices["where"])
    from diffscope.cli.figure_subjects import Source, subject

    chosen = {word: choices.pop(word, None) for word in OF_SUBJECT.get(kind, {})}
    source = Source(
        saved,
        model,
        baseline,
        prompt,
        prompt_file,
        span,
        answer,
        distractor,
        prompts,
        length,
        device,
        dtype,
        of_kind,
        decoder_prompt,
        key_span,
        chosen,
    )
    drawn = subject(source, kind)
    with working("drawing"):
        figure = diffscope.figure(kind, drawn, **choices)
        figure.save(out, also="all" if also == "all" else words(also))
    if as_json:
        show_json({"figure": kind, "saved": out})
    note(f"saved {out}")
    if "□" in figure.caption:
        note(f"□ {figure.caption.rpartition('□ ')[2]}")


def show_list(kind):
    """Print every figure in a line, or the options of one with what its function says of them."""
    from diffscope.figures import FIGURES

    if kind is None:
        for name, function in sorted(FIGURES.items()):
            say(f"{name:20} {about(function)[0]}")
        return
    say(about(FIGURES[kind])[0])
    for option in options_of(kind):
        say(f"  {option.opts[0]:18} {option.help}")


#: how the options of the chosen figure are found
COMMAND = FigureCommand
