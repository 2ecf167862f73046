"""``diffscope train``: train one arm of a matched family."""

from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import Device
from diffscope.cli.output import counting, note

EXAMPLE = ("diffscope train mini --arm mini-diff --out runs/mini",)

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A bundled recipe by name, or a TOML file.")]
Arm = Annotated[str, typer.Option(metavar="NAME", help="Which model of the family.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where checkpoints go; a run that stopped goes on from there.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Processor threads to use.")]


def command(recipe: Recipe, arm: Arm, out: Out, threads: Threads = None, device: Device = None):
    """Train one arm of a recipe, or go on where an earlier run stopped."""
    from diffscope.lab.train import train

    with counting(f"training {arm}") as progress:
        folder = train(recipe, arm, out, threads=threads, device=device or "cpu", progress=progress)
    note(f"trained {arm} into {folder}")
