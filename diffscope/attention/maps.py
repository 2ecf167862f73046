"""Maps of a head by name: their titles, whether a layer has them, and their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention
from diffscope.errors import DiffscopeError, check_choice


@dataclass(frozen=True)
class AttentionMap:
    """Names of one kind of map.

    Attributes
    ----------
    name : str
        As it is asked for.
    symbol : str
        As it is printed in a chart.
    title : str
        As it is printed above a figure of the map.
    long_name : str
    needs_a2 : bool
        Whether there is none without a second map.
    """

    name: str
    symbol: str
    title: str
    long_name: str
    needs_a2: bool = False

    @property
    def text(self) -> str:
        """Return the symbol as it is written in a sentence or a table, without subscripts."""
        return self.symbol.translate(str.maketrans("₁₂", "12"))


MAPS = {
    entry.name: entry
    for entry in (
        AttentionMap("A1", "A₁", "A₁", "first attention map"),
        AttentionMap("A2", "A₂", "A₂", "second attention map", needs_a2=True),
        AttentionMap("D", "D", "D = A₁ − λ·A₂", "difference map A1 − λ·A2"),
        AttentionMap("lambda_A2", "λ·A₂", "λ·A₂", "subtracted map λ·A2", needs_a2=True),
        AttentionMap("share", "share", "|D| / Σ|D|", "share of the row's absolute mass |D|/Σ|D|"),
    )
}
NEED_A2 = tuple(entry.name for entry in MAPS.values() if entry.needs_a2)
DEFAULT_MAPS = ("A1", "A2", "lambda_A2", "D")  # returned and drawn if no names are given
MEASURED_MAPS = ("A1", "A2", "D")  # the dimension `map` of statistics: those of λ·A2 follow from A2's
RANKED_MAPS = ("A1", "lambda_A2", "D")  # the dimension `ranked_map`: what D is made of, and D


def title_of(name: str, layers: Sequence[LayerAttention]) -> str:
    """Return what a map is called above a figure; D by how the layers make it, all of their titles if they do it differently."""
    titles = list(dict.fromkeys(_title(name, layer) for layer in layers))
    if len(titles) == 1:
        return titles[0]
    *first, last = sorted(titles, key=lambda title: title == "A")  # A comes last
    return f"{', '.join(first)}, or {'A of standard attention' if last == 'A' else last}"


def _title(name: str, layer: LayerAttention) -> str:
    if layer.d_is_a1 and name in ("A1", "D"):
        return "A"
    if name == "D" and not layer.differential:
        return "D: A₁ as the layer changes it"
    return "D: A₁ − λ·A₂ as the layer changes it" if name == "D" and layer.d_is_changed else MAPS[name].title


def short_title(title: str) -> str:
    """Return the name with which the title of a map begins: D of "D = A₁ − λ·A₂"."""
    return title.partition(" = ")[0].partition(":")[0]


def check_map(name: str, layer: LayerAttention) -> None:
    """Raise DiffscopeError unless there is a map of that name and the layer has it."""
    if name == "noise":
        raise DiffscopeError("there is no map 'noise'; the subtracted map λ·A2 is called 'lambda_A2'")
    check_choice("map", name, MAPS)
    if name in NEED_A2 and not layer.differential:
        raise DiffscopeError(f"layer {layer.layer} is standard attention and has no second map, so no {name!r}; ask for 'A1'")


def present(layer: LayerAttention, names: Iterable[str]) -> tuple[str, ...]:
    """Return which of some maps a layer has: no A2 without a second map, and no D if it is A1."""
    absent: tuple[str, ...] = () if layer.differential else NEED_A2
    if layer.d_is_a1:
        absent = (*absent, "D")
    return tuple(name for name in names if name not in absent)


def map_of(rows: Rows, name: str) -> Tensor:
    """Return one of ``MAPS`` of a block of rows, (head, query, key); ValueError if there is no such map."""
    if name not in MAPS:
        raise ValueError(f"there is no map {name!r}; choose one of {', '.join(MAPS)}")
    if name == "A1":
        return rows.a1
    if name == "D":
        return rows.d
    if name == "share":
        size = rows.d.abs()
        return size / size.sum(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)  # a row of zeros has shares of 0
    if rows.a2 is None:
        raise ValueError(f"standard attention has no second map, so there is no {name!r}")
    return rows.a2 if name == "A2" else rows.lam[..., None] * rows.a2
