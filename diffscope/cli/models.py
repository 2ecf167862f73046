"""``diffscope models``: what can be looked into without any download, and which kinds of attention are known."""

import diffscope
from diffscope.cli.options import Json
from diffscope.cli.output import say, show_json, show_table

EXAMPLE = ("diffscope models --json",)


def command(as_json: Json = False):
    """List the bundled models and the supported families of attention."""
    bundled = diffscope.models.bundled()
    families = {family.name: family.description for family in diffscope.families.FAMILIES}
    if as_json:
        show_json({"models": bundled, "families": families})
        return
    headers = ["model", "attention", "layers", "heads", "parameters", "trained length", "retrieval", "checkpoints"]
    show_table(headers, (_row(model) for model in bundled))
    say()
    show_table(["family", "reads"], families.items())


def _row(model):
    return [
        model["name"],
        model["attention"],
        model["layers"],
        model["heads"],
        model["parameters"],
        model["positions"],
        (model["scores"] or {}).get("retrieval"),
        len(model["checkpoints"] or []),
    ]
