"""A printed legend below the axes, in as many columns as the figure is wide enough for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CHARACTER = 0.055  # inches of a letter at the size of a legend
HANDLE = 0.42  # inches of what stands before an entry and behind it
LINE = 2.0  # times the size of its letters a line is long, so that a broken one is seen to be
COLUMNS = 6
ROW = 0.15  # inches


def legend_below(figure, ax, width: float) -> None:
    """The legend of one pair of axes, below all axes of a figure so many inches wide; none where nothing has a name."""
    handles, labels = ax.get_legend_handles_labels()
    if any(labels):
        figure.legend(
            handles, labels, loc="outside lower left", ncols=columns(labels, width), columnspacing=1.2, handlelength=LINE
        )


def columns(labels: Sequence[str], width: float) -> int:
    """How many columns of entries fit; matplotlib fills one after the other, the first ones with one more."""
    for count in range(min(COLUMNS, len(labels)), 1, -1):
        longest = [max(map(len, part)) for part in np.array_split(np.array(labels, dtype=object), count)]
        if sum(CHARACTER * letters + HANDLE for letters in longest) <= width:
            return count
    return 1


def legend_height(labels: Sequence[str], width: float) -> float:
    """How many inches a legend of more than one row takes beyond that one."""
    return ROW * (math.ceil(len(labels) / columns(labels, width)) - 1) if labels else 0.0
