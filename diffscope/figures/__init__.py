"""Figures: labelled data in, a drawing out. No mathematics happens here.

>>> from diffscope import figures
>>> sorted(figures.FIGURES)
['ablation', 'allocation', 'amplifier', 'anatomy', 'attribution', 'board', 'by_depth', 'cells', 'checkpoints', 'cohort',
 'curves', 'depth_by_length', 'fidelity', 'heads', 'interventions', 'lambdas', 'maps', 'rejection', 'row', 'signal_to_noise',
 'similarity', 'statistic_by_layer', 'strips', 'study', 'sweep', 'training']

One function a figure: ``figures.maps(capture, layer=2, head=1)`` returns a `Figure`. Its ``.data`` is what is drawn (xarray),
``.plotly()`` draws it to explore, ``.matplotlib()`` to print, and ``.save(path)`` writes it by its suffix.
``figures.view(capture)`` is none of them: it shows the maps of one head in a notebook, to move in.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from diffscope.errors import DiffscopeError
from diffscope.figures.api import board, cohort, fidelity, heads, lambdas, maps, row
from diffscope.figures.base import Figure
from diffscope.figures.of_captures import allocation, similarity, statistic_by_layer
from diffscope.figures.of_depths import by_depth, depth_by_length
from diffscope.figures.of_edits import ablation, interventions
from diffscope.figures.of_readings import amplifier, anatomy, attribution, rejection, signal_to_noise
from diffscope.figures.of_study import study
from diffscope.figures.of_sweeps import sweep
from diffscope.figures.of_training import checkpoints, training
from diffscope.figures.of_values import cells, curves, strips

__all__ = [
    "FIGURES",
    "Figure",
    "ablation",
    "allocation",
    "amplifier",
    "anatomy",
    "attribution",
    "board",
    "by_depth",
    "cells",
    "checkpoints",
    "cohort",
    "curves",
    "depth_by_length",
    "fidelity",
    "figure",
    "heads",
    "interventions",
    "lambdas",
    "maps",
    "rejection",
    "row",
    "signal_to_noise",
    "similarity",
    "statistic_by_layer",
    "strips",
    "study",
    "sweep",
    "training",
    "view",
]

#: the function of every figure, by its name
FIGURES: dict[str, Callable[..., Figure]] = {
    function.__name__: function
    for function in (
        ablation,
        allocation,
        amplifier,
        anatomy,
        attribution,
        board,
        by_depth,
        cells,
        checkpoints,
        cohort,
        curves,
        depth_by_length,
        fidelity,
        heads,
        interventions,
        lambdas,
        maps,
        rejection,
        row,
        signal_to_noise,
        similarity,
        statistic_by_layer,
        strips,
        study,
        sweep,
        training,
    )
}
RENAMED = {"overview": "heads", "lambda": "lambdas", "family": "cohort"}


def figure(name: str, subject: Any, **choices: Any) -> Figure:
    """A figure by its name, for whoever has the name as a string; otherwise call the function of that name.

    Parameters
    ----------
    name : str
        One of ``FIGURES``.
    subject : Capture, Comparison, xarray.Dataset or list of Verdict
        What the figure is of.
    **choices
        The keywords of that function.

    Raises
    ------
    DiffscopeError
        There is no such figure, it takes no such keyword, or what is chosen is not there.
    """
    check_choices(name, choices)
    return FIGURES[name](subject, **choices)


def check_choices(name: str, choices: Mapping[str, Any]) -> None:
    """Refuse a figure that there is not, and keywords that it does not take.

    Raises
    ------
    DiffscopeError
        It says which there are.
    """
    if name in RENAMED:
        raise DiffscopeError(f"the figure {name!r} is called {RENAMED[name]!r}")
    if name not in FIGURES:
        raise DiffscopeError(f"no figure {name!r}: there are {', '.join(FIGURES)}")
    keywords = inspect.signature(FIGURES[name]).parameters
    if unknown := [word for word in choices if word not in keywords]:
        known = [word for word, parameter in keywords.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        raise DiffscopeError(f"the figure {name!r} does not take {unknown[0]!r}; it takes {', '.join(known)}")


def __getattr__(name: str) -> Any:
    """Return ``view``. It is imported when it is asked for, since ``diffscope.views`` imports the colours of this room."""
    if name == "view":
        return importlib.import_module("diffscope.views.notebook").view
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
