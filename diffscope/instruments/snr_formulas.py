"""Signal-to-noise ratio of a head's output, from a crossed design: every answer stands in every filler.

Outputs are Y[a, f], vectors, for I answers a and J fillers f. They are split as in a two-way analysis of variance with one
observation a cell; a variance of vectors is the trace of their covariance. Expected mean squares give, without bias,

    answer + interaction   the mean over fillers of the variance over answers: the signal, the filler kept
    filler + interaction   the mean over answers of the variance over fillers: the noise, the answer kept
    interaction            sum of squares of Y[a, f] - Y[a, .] - Y[., f] + Y[., .], over (I - 1)(J - 1)

The first two are means of sample variances, so they are never negative. The interaction is a part of both.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def variances(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute signal, noise and interaction of outputs of a crossed design.

    Parameters
    ----------
    outputs : Tensor (..., answer, filler, width)
        At least two answers and two fillers.

    Returns
    -------
    tuple of Tensor (...)
        Signal (answer + interaction), noise (filler + interaction), interaction; in squared units of the outputs.
    """
    answers, fillers = outputs.shape[-3:-1]
    of_filler = outputs.mean(-3, keepdim=True)  # (..., 1, filler, width)
    of_answer = outputs.mean(-2, keepdim=True)  # (..., answer, 1, width)
    signal = (outputs - of_filler).square().sum((-3, -2, -1)) / (fillers * (answers - 1))
    noise = (outputs - of_answer).square().sum((-3, -2, -1)) / (answers * (fillers - 1))
    rest = outputs - of_filler - of_answer + outputs.mean((-3, -2), keepdim=True)
    return signal, noise, rest.square().sum((-3, -2, -1)) / ((answers - 1) * (fillers - 1))


def decibels(ratio: Tensor) -> Tensor:
    """Compute 10 log10 of a ratio of powers, in dB."""
    return 10 * ratio.log10()


def left_out(values: Tensor, dim: int) -> Tensor:
    """Return values without each index of a dimension in turn, (draw, ...); the last draw keeps all others."""
    n = values.shape[dim]
    keep = [
        torch.tensor([other for other in range(n) if other != draw], dtype=torch.int64, device=values.device) for draw in range(n)
    ]
    return torch.stack([values.index_select(dim, at) for at in keep])


def jackknife_error(estimates: Tensor) -> Tensor:
    """Return the standard error by the jackknife, from estimates with each draw left out in turn.

    Parameters
    ----------
    estimates : Tensor (draw, ...)

    Returns
    -------
    Tensor (...)
        sqrt((n - 1) / n · sum of squares about their mean); NaN of fewer than two.
    """
    n = len(estimates)
    if n < 2:
        return torch.full_like(estimates[0], math.nan)
    return ((n - 1) / n * (estimates - estimates.mean(0)).square().sum(0)).sqrt()
