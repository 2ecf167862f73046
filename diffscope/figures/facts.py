"""What is known of a figure besides its values: a caption for a paper, and where its numbers come from."""

from __future__ import annotations

import hashlib
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffscope.figures import theme
from diffscope.figures.escaping import lacking, visible
from diffscope.figures.panels import short_name
from diffscope.render import as_latex
from diffscope.storage.atomic import to_json

if TYPE_CHECKING:
    from diffscope.figures.base import Figure

PACKAGES = ("diffscope-attention", "torch", "transformers", "numpy", "scipy", "xarray", "matplotlib")
SHOWN = 12  # characters without a glyph that are named
#: what the data of a figure says of itself, in the order in which a caption tells it
FACTS = {
    "layer": "layer {}",
    "head": "head {}",
    "query": "query {}",
    "n_tokens": "a prompt of {} tokens",
    "selection": "{}",
    "normalisation": "normalisation: {}",
    "averaged_over": "mean over {}",
    "prompts": "n = {} prompts",
    "bin": "the value of largest magnitude of each {0} × {0} tokens",
    "edits": "under {}",
}


def caption(figure: Figure) -> str:
    """What is seen, and of what: one sentence of what the figure is, one of the facts that its data tells."""
    attrs = figure.data.attrs
    models = str(attrs.get("model") or "")
    several = " and " in models or ", " in models
    facts = [f"models {models}" if several else f"model {short_name(models)}"] if models else []
    if not attrs.get("caption"):  # which tells them itself
        facts += [words.format(attrs[name]) for name, words in FACTS.items() if _told(name, attrs.get(name))]
    lam = attrs.get("lam")
    if lam is not None:
        facts.append(f"λ {lam}" if isinstance(lam, str) else f"λ = {float(lam):.3f}")
    about = _about(figure)
    sentences = [about, "; ".join(facts)]
    if attrs.get("signs"):  # of weights that are summed by size
        sentences.append(str(attrs["signs"]).rstrip("."))
    if figure.kind.name in ("maps", "grid", "checkpoints") and figure.style.get("contrast") == "sqrt":
        sentences.append("colours follow the root of a weight, and zero is white")
    if boxes := lacking("".join(map(visible, _texts(figure)))):
        sentences.append(f"□ stands for characters that no font of this machine has: {boxes[:SHOWN]}")
    return " ".join(f"{_begun(sentence)}." for sentence in sentences if sentence)


def _begun(sentence: str) -> str:
    """With a capital, but for letters that mean something else as capitals, such as λ."""
    return sentence[:1].upper() + sentence[1:] if sentence[0].isascii() else sentence


def _about(figure: Figure) -> str:
    """What is seen, without its place: what the figure says of itself, else which maps there are, else what is measured."""
    attrs = figure.data.attrs
    if attrs.get("caption"):
        return str(attrs["caption"]).rstrip(".")
    if figure.kind.name in ("maps", "row"):
        names = [str(array.attrs.get("title") or theme.TITLES[str(name)]) for name, array in figure.data.data_vars.items()]
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        return listed if "models" in attrs else f"{listed} of one {'head' if figure.kind.name == 'maps' else 'query'}"
    if figure.kind.name in ("grid", "checkpoints"):
        title = theme.TITLES[attrs["map"]] + (", or A of standard attention" if attrs.get("mixed") else "")
        return f"{title}: {figure.kind.about}"
    return str(attrs.get("long_name") or attrs.get("value") or attrs.get("y") or figure.kind.about.partition(";")[0])


def _texts(figure: Figure) -> set[str]:
    """The labels of a figure's data, tokens among them."""
    labels = (coordinate.values.ravel() for coordinate in figure.data.coords.values() if coordinate.dtype.kind in "UO")
    return {str(label) for values in labels for label in values}


def _told(name: str, value: Any) -> bool:
    """Whether a fact is there and is worth its words: bins of one token are none."""
    return value is not None and value != "" and not (name == "bin" and value == 1)


def latex(figure: Figure, path: Path) -> str:
    """The lines of a paper that show the figure at `path`, as wide as it was drawn."""
    column, page = theme.VENUES.get((figure.venue or "neurips").lower(), (figure.width, figure.width))
    environment = "figure*" if column < figure.width - 0.005 and column < page else "figure"
    place = [str(figure.data.attrs[name]) for name in ("layer", "head") if name in figure.data.attrs]
    label = "-".join(["fig:" + figure.kind.name, *place])
    show = {
        ".pgf": f"\\input{{{path.name}}}% needs \\usepackage{{pgf}}",
        ".svg": f"\\includesvg[width={figure.width:.4g}in]{{{path.name}}}% needs \\usepackage{{svg}}",
    }
    picture = f"\\includegraphics[width={figure.width:.4g}in]{{{path.name}}}% needs \\usepackage{{graphicx}}"
    return "\n".join(
        [
            f"\\begin{{{environment}}}",
            "  \\centering",
            f"  {show.get(path.suffix.lower(), picture)}",
            f"  \\caption{{{as_latex(caption(figure))}}}",
            f"  \\label{{{label}}}",
            f"\\end{{{environment}}}",
            "",
        ]
    )


def provenance(figure: Figure) -> dict:
    """Where the numbers of a figure come from: what its data says of itself, its digest, how it is drawn, versions, command."""
    plain = {name: value for name, value in figure.data.attrs.items() if isinstance(value, (str, int, float, bool, np.number))}
    content = to_json(figure.data.to_dict()).encode()
    return {
        "figure": figure.kind.name,
        "caption": caption(figure),
        "data": plain | {"sha256": hashlib.sha256(content).hexdigest()},
        "drawn": {"venue": figure.venue, "width_in": figure.width} | figure.style,
        "versions": {"python": ".".join(map(str, sys.version_info[:3]))} | _versions(),
        "command": _command(),
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _command() -> str:
    """How the program was called; a notebook's kernel is told a file of the moment, which says nothing."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    return "a notebook" if "ipykernel" in program else shlex.join([program, *sys.argv[1:]])
