"""What the process that interprets is given to run; a module of its own, that it may be found there by its name."""

import os
from unittest import mock

import torch

from diffscope.stats.kernels import rows


def prepare():
    """Triton reads once, when it is imported, whether it is to interpret."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def moments(layer, *args, scratch=rows.SCRATCH_ROWS, **kwargs):
    """rows.moments with the histograms of so many rows in memory at a time."""
    with mock.patch.object(rows, "SCRATCH_ROWS", scratch):
        return rows.moments(layer, *args, **kwargs)


def read(*args):
    """brackets.read, whose module imports Triton."""
    from diffscope.stats.kernels import histogram_programs as brackets

    return brackets.read(*args)
