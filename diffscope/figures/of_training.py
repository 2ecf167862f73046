"""Figures of a training: one head at every checkpoint, and all heads over the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import xarray as xr

from diffscope.capture import Capture
from diffscope.figures import checkpoints as _checkpoints
from diffscope.figures import training as _training  # noqa: F401 (registers what it draws)
from diffscope.figures.base import KINDS, Figure

Contrast = Literal["sqrt", "linear"]


def training(
    estimates: xr.Dataset,
    *,
    statistic: str = "answer",
    layer: int | None = None,
    head: int = 0,
    venue: str | None = None,
    wide: bool | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """A statistic of every head over the steps of a training, one head set apart, beside its control where it has one.

    Parameters
    ----------
    estimates : xarray.Dataset
        Of ``diffscope.readings.along_training(captures)``.
    statistic : str
        One of its variables: ``lambda``, ``answer``, ``sink``, ``rho``, ``cosine``, ``entropy``, ``gini``.
    layer, head : int
        The head that is set apart; by default of the first layer.
    venue, wide, width, title
        As of :func:`diffscope.figures.maps`.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such statistic or head, or it is undefined at every step.
    """
    return KINDS["training"].figure(KINDS["training"].data(estimates, statistic, layer, head), venue, wide, width, title=title)


def checkpoints(
    captures: Mapping[int, Capture],
    *,
    layer: int | None = None,
    head: int = 0,
    name: str = "D",
    size: int = _checkpoints.SIZE,
    contrast: Contrast = "sqrt",
    venue: str | None = None,
    wide: bool | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """One head's map at every checkpoint of a training, on one scale.

    Parameters
    ----------
    captures : mapping of int to Capture
        Of one prompt, by step.
    layer, head : int
        By default of the first layer.
    name : str
        Which map; of standard attention it is A.
    size : int
        The largest number of bins a side; of longer prompts a bin shows its value of largest magnitude.
    contrast, venue, wide, width, title
        As of :func:`diffscope.figures.maps`.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such layer, head or map, or the captures are of different prompts.
    """
    data = KINDS["checkpoints"].data(captures, layer, head, name, size)
    return KINDS["checkpoints"].figure(data, venue, wide, width, contrast=contrast, title=title)
