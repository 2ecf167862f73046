"""Figures: labelled data in, a drawing out. No mathematics happens here.

>>> import diffscope.figures
>>> sorted(diffscope.figures.FIGURES)
['board', 'cohort', 'fidelity', 'lambda', 'maps', 'overview', 'row']

`figure(name, capture, ...)`, for a cohort its dataset, for a board its verdicts, returns a `Figure`: `.data` is what is drawn
(xarray), `.plotly()` draws it to explore, `.matplotlib()` draws it to print, and `.save(path)` writes it by its suffix.
"""

from diffscope.errors import DiffscopeError
from diffscope.figures import board, cohort, layers, maps, overview, rows  # noqa: F401 (each registers what it draws)
from diffscope.figures.base import FIGURES, Figure

__all__ = ["FIGURES", "Figure", "figure"]


def figure(name: str, cap, **choices) -> Figure:
    """A figure of a capture.

    Parameters
    ----------
    name : one of `FIGURES`
    cap : a capture
    choices : what to draw (`layer=`, `head=`, `queries=`, ... as the figure takes them), and how:
        `venue=` (icml, neurips, iclr, acl, cvpr, aaai, tmlr), `wide=` full width or one column, `width=` inches,
        `contrast=` "sqrt" or "linear" colours, `scale=` "shared" by all maps or each its "own", `title=`.
    """
    if name not in FIGURES:
        raise DiffscopeError(f"no figure {name!r}: there are {', '.join(sorted(FIGURES))}")
    return FIGURES[name](cap, **choices)
