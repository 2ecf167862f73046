"""Figures: labelled data in, a drawing out. No mathematics happens here.

>>> from diffscope import figures
>>> sorted(figures.FIGURES)
['ablation', 'allocation', 'amplifier', 'anatomy', 'attribution', 'board', 'by_depth', 'cells', 'checkpoints', 'cohort',
 'curves', 'depth_by_length', 'fidelity', 'head_types', 'heads', 'interventions', 'lambdas', 'maps', 'patching', 'rejection',
 'row', 'score_parts', 'signal_to_noise', 'similarity', 'statistic_by_layer', 'strips', 'study', 'sweep', 'training']

One function a figure: ``figures.maps(capture, layer=2, head=1)`` returns a `Figure`. Its ``.data`` is what is drawn (xarray),
``.plotly()`` draws it to explore, ``.matplotlib()`` to print, and ``.save(path)`` writes it by its suffix.
"""

from typing import Any

from diffscope.errors import check_choice
from diffscope.figures.amplification import amplifier, anatomy, attribution, rejection, signal_to_noise
from diffscope.figures.attention import board, cohort, fidelity, heads, lambdas, maps, row
from diffscope.figures.declaration import FIGURES
from diffscope.figures.edits import ablation, interventions
from diffscope.figures.figure import Figure
from diffscope.figures.head_types import head_types
from diffscope.figures.patching import patching
from diffscope.figures.retrieval import by_depth, depth_by_length
from diffscope.figures.score_parts import score_parts
from diffscope.figures.statistics import allocation, similarity, statistic_by_layer
from diffscope.figures.sweeps import sweep
from diffscope.figures.tests import study
from diffscope.figures.trainings import checkpoints, training
from diffscope.figures.values import cells, curves, strips

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
    "head_types",
    "heads",
    "interventions",
    "lambdas",
    "maps",
    "patching",
    "rejection",
    "row",
    "score_parts",
    "signal_to_noise",
    "similarity",
    "statistic_by_layer",
    "strips",
    "study",
    "sweep",
    "training",
]


def figure(name: str, subject: Any, **choices: Any) -> Figure:
    """Draw a figure by its name, for callers that have the name as a string. Otherwise call the function of that name.

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
    check_choice("figure", name, sorted(FIGURES))
    return FIGURES[name](subject, **choices)
