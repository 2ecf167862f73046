"""``diffscope figure``: one figure, as a file."""

import inspect
from pathlib import Path
from typing import Annotated

import typer

import diffscope
from diffscope.cli import figure_options as options
from diffscope.cli.options import Device, Dtype, Json, Model, Prompt, PromptFile, Span, check_out
from diffscope.cli.output import note, say, show_json, working
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope figure --model mini-diff \\",
    '  --prompt "Magic numbers. Paris 7421. Rome 2174. Paris" \\',
    "  --layer 2 --head 1 --venue icml --out maps.pdf --also all",
    "diffscope figure --kind by_depth --model mini-diff --baseline mini-standard --out table3.pdf",
    "diffscope figure --kind heads --list",
)

Saved = Annotated[
    Path | None,
    typer.Argument(metavar="[PATH]", help="A saved capture, sweep, study or cohort, instead of a model.", show_default=False),
]
Kind = Annotated[str | None, typer.Option(metavar="NAME", help="Which figure; --list says which there are.")]
List = Annotated[bool, typer.Option("--list", help="The figures that there are; with --kind what one takes.")]
Baseline = Annotated[str | None, typer.Option(metavar="NAME|FOLDER|HUB-ID", help="A second model, beside the first.")]
Answer = Annotated[str | None, typer.Option(metavar="TEXT", help="attribution: the answer that is asked for.")]
Distractor = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="attribution, signal_to_noise: another answer. Repeatable.")
]
Prompts = Annotated[str, typer.Option(metavar="N|FILE", help="How many prompts are drawn, or a file of your own.")]
Cohort = Annotated[Path | None, typer.Option(metavar="FOLDER", help="A trained cohort, for the figure cohort.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Where to draw it: .pdf, .svg, .png, .pgf, .html or .json.")]
Also = Annotated[str, typer.Option(metavar="A,B|all", help="What is written beside it: data, latex, provenance.")]


def command(
    saved: Saved = None,
    out: Out = None,
    kind: Kind = None,
    list_: List = False,
    model: Model = None,
    baseline: Baseline = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    span: Span = None,
    answer: Answer = None,
    distractor: Distractor = None,
    prompts: Prompts = "",
    length: options.Length = None,
    cohort: Cohort = None,
    layer: options.Layer = None,
    head: options.Head = None,
    layers: options.Layers = None,
    heads: options.Heads = None,
    queries: options.Queries = None,
    keys: options.Keys = None,
    query: options.Query = None,
    names: options.Names = None,
    arms: options.Arms = None,
    statistic: options.Statistic = None,
    map: options.Map = None,
    key_set: options.KeySet = None,
    normalisation: options.Normalisation = None,
    where: options.Where = None,
    quantity: options.Quantity = None,
    way: options.Way = None,
    x: options.Along = None,
    y: options.Down = None,
    series: options.Series = None,
    panels: options.Panels = None,
    points: options.Points = None,
    style: options.Style = None,
    log: options.Log = None,
    sigma: options.Sigma = None,
    size: options.Size = None,
    contrast: options.Contrast = None,
    scale: options.Scale = None,
    limit: options.Limit = None,
    venue: options.Venue = None,
    wide: options.Wide = None,
    width: options.Width = None,
    title: options.Title = None,
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
    if cohort is not None:
        if kind not in (None, "cohort") or saved is not None:
            raise DiffscopeError("a cohort is drawn as the figure cohort, and of its folder alone; leave --kind and PATH out")
        saved, kind = cohort, "cohort"
    kind = kind or "maps"
    choices = dict(
        layer=layer, head=head, layers=layers, heads=heads, queries=queries, keys=keys, query=query, names=names, arms=arms,
        statistic=statistic, map=map, span=key_set, normalisation=normalisation, where=options.labels(where or []) or None,
        quantity=quantity, way=way, x=x, y=y, series=series, panels=panels, points=points, style=style, log=log, sigma=sigma,
        size=size, contrast=contrast, scale=scale, limit=limit, venue=venue, wide=wide, width=width, title=title,
    )  # fmt: skip
    choices = {word: choice for word, choice in choices.items() if choice is not None}
    from diffscope.cli.figure_subjects import OF_VALUES, Source, subject
    from diffscope.figures import check_choices

    of_values = {word: choices.pop(word, None) for word in ("statistic", "where")} if kind in OF_VALUES else {}
    check_choices(kind, choices)
    source = Source(
        saved, model, baseline, prompt, prompt_file, span, answer, distractor, prompts, length, device, dtype, **of_values
    )
    drawn = subject(source, kind)
    with working("drawing"):
        figure = diffscope.figure(kind, drawn, **choices)
        figure.save(out, also="all" if also == "all" else options.words(also))
    if as_json:
        show_json({"figure": kind, "saved": out})
    note(f"saved {out}")
    if "□" in figure.caption:
        note(f"□ {figure.caption.rpartition('□ ')[2]}")


def show_list(kind):
    """Print every figure in a line, or what one takes: what its function says of the keywords that are options."""
    from diffscope.figures import FIGURES, check_choices

    if kind is None:
        for name, function in FIGURES.items():
            say(f"{name:20} {options.about(function)[0]}")
        return
    check_choices(kind, {})
    first, keywords = options.about(FIGURES[kind])
    usual = options.about(FIGURES["maps"])[1]  # what all figures take is said there
    say(first)
    for name, words in keywords.items():
        option = "key_set" if name == "span" else name
        if option in inspect.signature(command).parameters and option != "prompt":
            told = usual.get(name, words) if words.startswith("As of") else words
            say(f"  --{option.replace('_', '-'):16} {told.replace('``', '')}")
