"""Printed figures keep their width and take the height that their content needs."""

from __future__ import annotations

import numpy as np


def canvas(width: float, height: float, w_pad: float = 0.02, h_pad: float = 0.02):
    """An empty matplotlib figure that belongs to no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    made.get_layout_engine().set(w_pad=w_pad, h_pad=h_pad, wspace=0.02, hspace=0.02)
    FigureCanvasAgg(made)
    return made


def trim(made, axes, tries: int = 3) -> None:
    """Choose the height at which axes of fixed aspect fill the room they were given.

    `axes` is the grid of axes (row, column). What is too high leaves white above and below the
    axes, what is too low leaves it left and right; both show as a difference between the box
    that the layout gave and the box that the aspect left.
    """
    axes = np.atleast_2d(axes)
    for _ in range(tries):
        made.get_layout_engine().execute(made)
        for ax in axes.flat:
            ax.apply_aspect()
        width, height = made.get_size_inches()
        change = 0.0
        for row in axes:
            seen = [ax for ax in row if ax.get_visible()]
            if not seen:
                continue
            given, left = seen[0].get_position(original=True), seen[0].get_position()
            ratio = left.height * height / (left.width * width)
            change += (left.height - given.height) * height + (given.width - left.width) * width * ratio
        if abs(change) < 0.02:
            break
        made.set_size_inches(width, max(0.8, height + change))
    settle(made)


def settle(made) -> None:
    """Lay out once more and keep it so: what is drawn later stays where it is."""
    made.get_layout_engine().execute(made)
    made.set_layout_engine("none")
