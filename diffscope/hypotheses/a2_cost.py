"""What the second map costs the answer in the heads that a test is of: whether there is anything to explain there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

from diffscope.evidence.heads import HEADS, weighted
from diffscope.hypotheses.rules import Cost
from diffscope.hypotheses.statistics import Sample, estimate

WHOLE = "whole heads"


@dataclass(frozen=True)
class A2Cost(Cost):
    """By how much the loss of the answer rises without A2, mean over heads as they count, and what A2 of each layer costs.

    Attributes
    ----------
    value, low, high, of
        As of :class:`diffscope.hypotheses.rules.Cost`; the interval is over seeds where there are several and else over prompts.
        Whole heads are no bound: to lose A2 leaves A1 as it was not trained to stand, which can cost more than to lose both.
    layers : tuple of float
        What A2 of a whole layer costs at once, mean over seeds and prompts; of whole heads the sum of what each costs alone.
    """

    layers: tuple[float, ...] = ()


def a2_cost(
    heads: Sequence[xr.DataArray],
    counting: Sequence[xr.DataArray],
    layers: Sequence[xr.DataArray],
    prompts_are: Literal["crossed", "nested"],
) -> A2Cost:
    """The cost of A2 in the heads that count.

    Parameters
    ----------
    heads : sequence of DataArray (layer, head, prompt)
        What A2 of each head costs, a model each.
    counting : sequence of DataArray (layer, head)
        What the heads count with.
    layers : sequence of DataArray (layer, prompt)
        What A2 of each layer costs at once.
    prompts_are : {"crossed", "nested"}
        Whether the models had the same prompts.
    """
    values = np.stack([weighted(cost, weights, HEADS).values for cost, weights in zip(heads, counting, strict=True)])
    of = estimate(Sample(values, prompts=prompts_are), leave_out=False)  # (seed, prompt)
    together = np.mean([layer.mean("prompt").values for layer in layers], 0)
    return A2Cost(of.value, of.low, of.high, "A2", tuple(together.tolist()))
