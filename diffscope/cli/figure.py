"""``diffscope figure``: one figure of a capture, as a file."""

from pathlib import Path
from typing import Annotated

import typer

import diffscope
from diffscope.cli.options import (
    Device,
    Dtype,
    Head,
    Layer,
    Model,
    Prompt,
    PromptFile,
    SavedCapture,
    Span,
    check_out,
    read_capture,
)
from diffscope.cli.output import note, working

EXAMPLE = (
    "diffscope figure --model mini-diff \\",
    '  --prompt "The magic number: Paris 7421. The magic number: Paris" \\',
    "  --layer 3 --head 1 --out maps.pdf",
)

Kind = Annotated[str, typer.Option(metavar="NAME", help="Which figure: maps, row, heads, lambdas, fidelity.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="Where to draw it: .pdf, .svg, .png, .html or .json.")]
Venue = Annotated[str | None, typer.Option(help="Widths and font sizes of a venue, for example neurips, icml, acl.")]


def command(
    out: Out,
    saved: SavedCapture = None,
    model: Model = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    span: Span = None,
    kind: Kind = "maps",
    layer: Layer = None,
    head: Head = None,
    venue: Venue = None,
    device: Device = None,
    dtype: Dtype = None,
):
    """Draw a figure: by default the maps A1, λA2 and D of one head."""
    from diffscope.figures.selection import check_place

    check_out(out)
    capture = read_capture(saved, model, prompt, prompt_file, span, device, dtype)
    check_place(capture, layer, head)
    choices = {"layer": layer, "head": head, "venue": venue}
    with working("drawing"):
        diffscope.figure(kind, capture, **{word: choice for word, choice in choices.items() if choice is not None}).save(out)
    note(f"saved {out}")
