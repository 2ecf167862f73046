"""``diffscope models``: what can be looked into without any download, and which kinds of attention are known."""

from diffscope.cli.options import Json
from diffscope.cli.output import say, show_json, show_table

EXAMPLE = ("diffscope models --json",)


def command(as_json: Json = False):
    """List the bundled models and the supported families of attention."""
    from diffscope.cards import FAMILIES, bundled

    models = bundled()
    families = {name: card.reads for name, card in FAMILIES.items()}
    if as_json:
        show_json({"models": models, "families": families})
        return
    headers = ["model", "attention", "layers", "heads", "parameters", "trained length", "retrieval", "checkpoints"]
    show_table(headers, (_row(model) for model in models))
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
