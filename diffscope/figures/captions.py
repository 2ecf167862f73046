"""What is said of a figure: its caption, the lines of LaTeX that show it, and what it was made of."""

from __future__ import annotations

import hashlib
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import lacking, short_name, visible
from diffscope.numbers import counted, minus
from diffscope.render import as_latex
from diffscope.storage.atomic import to_json

PACKAGES = ("diffscope-attention", "torch", "transformers", "numpy", "scipy", "xarray", "matplotlib")
SHOWN = 12  # characters without a glyph that are named
#: what the data of a figure says of itself, in the order in which a caption lists it
FACTS = {
    "layer": "layer {}",
    "head": "head {}",
    "query": "query {}",
    "window": "{}",
    "n_tokens": "a prompt of {} tokens",
    "selection": "{}",
    "normalisation": "normalisation: {}",
    "averaged_over": "mean over {}",
    "prompts": "n = {}",
    "bin": "the value of largest magnitude of each {0} × {0} tokens",
    "edits": "under {}",
}


def caption_of(data: xr.Dataset, about: str, style: dict[str, Any]) -> str:
    """Return a caption: one sentence of what is seen, one of the facts in the attributes of the data.

    `about` is what is seen, if the data does not say it.
    """
    attrs = data.attrs
    models = str(attrs.get("model") or "")
    several = " and " in models or ", " in models
    facts = [f"models {models}" if several else f"model {short_name(models)}"] if models else []
    if not attrs.get("caption"):  # which tells them itself
        stated = {name: attrs[name] for name in FACTS if _is_stated(name, attrs.get(name))}
        if "prompts" in stated:
            stated["prompts"] = counted(stated["prompts"], "prompt")
        facts += [FACTS[name].format(value) for name, value in stated.items()]
    lam = attrs.get("lam")
    if lam is not None:
        facts.append(f"λ {lam}" if isinstance(lam, str) else minus(f"λ = {float(lam):.3f}"))
    seen = attrs.get("caption") or about or attrs.get("long_name") or attrs.get("value") or attrs.get("y") or ""
    sentences = [str(seen).rstrip("."), "; ".join(facts)]
    if cut := _cut(data):
        sentences.append(f"{counted(cut, 'end')} of ranges beyond the axis {'is' if cut == 1 else 'are'} drawn at its end")
    if attrs.get("signs"):  # of weights that are summed by size
        sentences.append(str(attrs["signs"]).rstrip("."))
    if style.get("contrast") == "sqrt":
        sentences.append("colours follow the root of a value, and zero is white")
    if boxes := lacking("".join(map(visible, _texts(data)))):
        sentences.append(f"□ stands for characters that no font of this machine has: {boxes[:SHOWN]}")
    return " ".join(f"{_begun(sentence)}." for sentence in sentences if sentence)


def _cut(data: xr.Dataset) -> int:
    """Return how many ends of ranges are beyond the ends that were chosen for the vertical axis."""
    if not data.attrs.get("within") or "low" not in data:
        return 0
    least, most = data.attrs["within"]
    ends = data[["low", "high"]].where(data["low"] < data["high"]).to_array()
    return int(((ends < least) | (ends > most)).sum())


def _begun(sentence: str) -> str:
    """Return a sentence that begins with a capital, but for letters that mean something else as capitals, such as λ."""
    return sentence[:1].upper() + sentence[1:] if sentence[0].isascii() else sentence


def _texts(data: xr.Dataset) -> set[str]:
    """Return the labels of a figure's data, tokens among them."""
    labels = (coordinate.values.ravel() for coordinate in data.coords.values() if coordinate.dtype.kind in "UO")
    return {str(label) for values in labels for label in values}


def _is_stated(name: str, value: Any) -> bool:
    """Return whether a fact is there and is worth its words: bins of one token are none."""
    return value is not None and value != "" and not (name == "bin" and value == 1)


def latex_of(name: str, data: xr.Dataset, path: Path, width: float, venue: str | None, caption: str) -> str:
    """Return the lines of a paper that show the figure at `path`, as many inches wide as it was drawn."""
    column, page = theme.VENUES.get((venue or "neurips").lower(), (width, width))
    environment = "figure*" if column < width - 0.005 and column < page else "figure"
    place = [str(data.attrs[dim]) for dim in ("layer", "head") if dim in data.attrs]
    label = "-".join(["fig:" + name, *place])
    show = {
        ".pgf": f"\\input{{{path.name}}}% needs \\usepackage{{pgf}}",
        ".svg": f"\\includesvg[width={width:.4g}in]{{{path.name}}}% needs \\usepackage{{svg}}",
    }
    picture = f"\\includegraphics[width={width:.4g}in]{{{path.name}}}% needs \\usepackage{{graphicx}}"
    return "\n".join(
        [
            f"\\begin{{{environment}}}",
            "  \\centering",
            f"  {show.get(path.suffix.lower(), picture)}",
            f"  \\caption{{{as_latex(caption)}}}",
            f"  \\label{{{label}}}",
            f"\\end{{{environment}}}",
            "",
        ]
    )


def provenance_of(name: str, data: xr.Dataset, caption: str, python: str, drawn: dict[str, Any]) -> dict[str, Any]:
    """Return where the numbers of a figure come from: the facts and the digest of its data, its call, versions, the command."""
    plain = {word: value for word, value in data.attrs.items() if isinstance(value, (str, int, float, bool, np.number))}
    content = to_json(data.to_dict()).encode()
    return {
        "figure": name,
        "caption": caption,
        "data": plain | {"sha256": hashlib.sha256(content).hexdigest()},
        "python": python,
        "drawn": drawn,
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
    """Return how the program was called; a notebook's kernel is told a file of the moment, which says nothing."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    return "a notebook" if "ipykernel" in program else shlex.join([program, *sys.argv[1:]])
