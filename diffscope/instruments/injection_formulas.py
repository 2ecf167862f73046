"""Common-mode rejection, measured by injecting noise: what comes out for opposite noise over what comes out for the same noise.

Both functions take squared sizes of what noise changed in a head's output, (..., draw), of the same draws.
"""

import math

import torch
from torch import Tensor


def cmrr_injected(differential: Tensor, common: Tensor) -> Tensor:
    """Compute CMRR by injection: 20 log10(rms|O_differential - O| / rms|O_common - O|), root mean squares over draws.

    For noise that is small, and maps that are equal, it is 20 log10((g + lambda) / |g - lambda|), that is 6.02 dB more than the
    ratio that gains alone give (:func:`diffscope.stats.heads.cmrr`), where A1 - A2 counts as the differential input:
    opposite noise is twice as large by that measure.

    Parameters
    ----------
    differential, common : Tensor (..., draw)
        |O' - O|² under opposite and under the same noise on the scores of both maps.

    Returns
    -------
    Tensor (...)
        Decibels: 0 where the second map takes no part, infinite where common noise changes nothing. NaN where neither kind does.
    """
    return 10 * (differential.mean(-1) / common.mean(-1)).log10()


def cmrr_injected_error(differential: Tensor, common: Tensor) -> Tensor:
    """Return the standard error over draws of :func:`cmrr_injected`, by the delta method for a ratio of means of paired draws.

    Returns
    -------
    Tensor (...)
        Decibels. NaN with fewer than two draws, or where the ratio is 0, infinite or undefined.
    """
    draws = common.shape[-1]
    relative = differential / differential.mean(-1, keepdim=True) - common / common.mean(-1, keepdim=True)
    if draws < 2:
        return torch.full_like(common[..., 0], math.nan)
    return 10 / math.log(10) * (relative.square().sum(-1) / (draws * (draws - 1))).sqrt()
