"""``diffscope train``: train one arm of a matched family."""

from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import Device, Json
from diffscope.cli.output import counting, note, show_json, show_table
from diffscope.errors import DiffscopeError

EXAMPLE = ("diffscope train mini --arm mini-diff --out runs/mini", "diffscope train mini --table")

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A bundled recipe by name, or a TOML file.")]
Arm = Annotated[str | None, typer.Option(metavar="NAME", help="Which model of the family.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where checkpoints go; a run that stopped goes on from there.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Processor threads to use.")]
Table = Annotated[bool, typer.Option("--table", help="Show what the arms are made of and how well their parameters match.")]


def command(
    recipe: Recipe,
    arm: Arm = None,
    out: Out = None,
    threads: Threads = None,
    device: Device = None,
    table: Table = False,
    as_json: Json = False,
):
    """Train one arm of a recipe, or go on where an earlier run stopped."""
    if table:
        _show(recipe, as_json)
        return
    if arm is None or out is None:
        raise DiffscopeError("training needs --arm NAME and --out FOLDER; --table shows the arms of a recipe")
    from diffscope.lab.train import train

    with counting(f"training {arm}") as progress:
        folder = train(recipe, arm, out, threads=threads, device=device or "cpu", progress=progress)
    note(f"trained {arm} into {folder}")


def _show(name: str, as_json: bool) -> None:
    from diffscope.lab.recipe import Recipe

    rows = Recipe.load(name).table()
    if as_json:
        show_json(rows)
        return
    headers = ["arm", "attention", "heads", "width of a map", "width of the MLP", "parameters", "÷ matched"]
    show_table(headers, ([*list(row.values())[:-1], f"{row['ratio']:.4f}"] for row in rows))
