"""``diffscope figure``: one figure of a capture, as a file."""

from pathlib import Path
from typing import Annotated

import typer

import diffscope
from diffscope.cli.options import (
    Device,
    Dtype,
    Head,
    Json,
    Layer,
    Model,
    Prompt,
    PromptFile,
    SavedCapture,
    Span,
    check_out,
    read_capture,
)
from diffscope.cli.output import note, show_json, working
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope figure --model mini-diff \\",
    '  --prompt "The magic number: Paris 7421. The magic number: Paris" \\',
    "  --layer 3 --head 1 --out maps.pdf",
)

Kind = Annotated[str | None, typer.Option(metavar="NAME", help="Which figure: maps, row, heads, lambdas, fidelity, cohort.")]
Statistic = Annotated[
    str | None, typer.Option("--stats", metavar="NAME", help="Of the figure heads: the statistic that it shows.")
]
Cohort = Annotated[Path | None, typer.Option(metavar="FOLDER", help="A trained cohort, for the figure cohort.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="Where to draw it: .pdf, .svg, .png, .html or .json.")]
Venue = Annotated[str | None, typer.Option(help="Widths and font sizes of a venue, for example neurips, icml, acl.")]


def command(
    out: Out,
    saved: SavedCapture = None,
    model: Model = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    span: Span = None,
    kind: Kind = None,
    layer: Layer = None,
    head: Head = None,
    stats: Statistic = None,
    cohort: Cohort = None,
    venue: Venue = None,
    as_json: Json = False,
    device: Device = None,
    dtype: Dtype = None,
):
    """Draw a figure: by default the maps A1, A2, λ·A2 and D of one head."""
    check_out(out)
    if cohort is not None:
        from diffscope.lab.training.cohort import open_dataset

        if kind not in (None, "cohort"):
            raise DiffscopeError(f"a cohort is drawn as the figure cohort, not as {kind!r}; leave --kind out")
        subject = open_dataset(cohort)
        kind = "cohort"
    else:
        kind = kind or "maps"
        subject = read_capture(saved, model, prompt, prompt_file, span, device, dtype)
    choices = {"layer": layer, "head": head, "statistic": stats, "venue": venue}
    with working("drawing"):
        figure = diffscope.figure(kind, subject, **{word: choice for word, choice in choices.items() if choice is not None})
        figure.save(out)
    if as_json:
        show_json({"figure": kind, "saved": out})
    note(f"saved {out}")
