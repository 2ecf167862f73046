"""Choose one label along each dimension of a statistic: the one that is named, else the usual one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import xarray as xr

from diffscope.errors import DiffscopeError, check_choice

USUAL = {"map": ("D", "A1"), "span": ("answer", "sink"), "normalisation": ("share",)}
KEPT = ("layer", "head", "query")
UNSIGNED = "share of |D|"
UNIFORM = "uniform attention"  # the control of shares: the same weight on every key that a query sees
SPANS = {"needles": "distractors", "query": "the question", "irrelevant": "irrelevant tokens"}


def called(span: str) -> str:
    """Name a span in a sentence."""
    return f"the {span}" if span in ("answer", "sink") else SPANS.get(span, span)


def usual_label(labels: Sequence[str], dim: str) -> str:
    """Return the label that is meant along a dimension where none is named: the first, unless there is a usual one."""
    return next((name for name in USUAL.get(dim, ()) if name in labels), labels[0])


def at_labels(values: xr.DataArray, choices: Mapping[str, str | None]) -> tuple[xr.DataArray, list[str]]:
    """Return a statistic of one prompt at one label along every dimension but layer, head and query, and these labels in words.

    Where `choices` names no label of a dimension, it is the usual one. D of standard attention is called A; shares of D are
    called those of |D|. Raises DiffscopeError if there is no such label, or if the values are of several prompts.
    """
    if (prompts := values.sizes.get("prompt", 1)) > 1:
        raise DiffscopeError(f"{values.name} was measured of {prompts} prompts; choose one, such as measured.isel(prompt=0)")
    why = str(values.attrs.get("why", ""))
    one_map = "standard attention" in why and "as the layer changes it" not in why  # D is A
    words = []
    for dim in [str(dim) for dim in values.dims if dim not in KEPT]:
        labels = list(map(str, values[dim].values)) if dim in values.coords else list(map(str, range(values.sizes[dim])))
        choice = str(choices.get(dim) or usual_label(labels, dim))
        check_choice(dim, choice, labels)
        values = values.isel({dim: labels.index(choice)})
        words.append("A" if one_map and dim == "map" and choice in ("A1", "D") else choice)
    return values, told_unsigned(words)


def told_unsigned(words: Sequence[str]) -> list[str]:
    """Labels in words, of which a share of D is called one of |D|: of its weights' sizes."""
    return [UNSIGNED if word == "share" and "D" in words else word for word in words]


def is_unsigned(selection: str) -> bool:
    """Return whether labels in words are of a share of D: of its weights' sizes, which does not tell their signs."""
    return UNSIGNED in selection.split(", ")
