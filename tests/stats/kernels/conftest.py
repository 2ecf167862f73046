"""Kernels run on the GPU where there is one, and otherwise through Triton's interpreter, in a process of its own."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch

from diffscope.attention.layer import LayerAttention
from diffscope.lab.queue import _context
from tests.stats.kernels import interpreting

TENSORS = ("q", "k", "v", "lam", "gain", "lam_fp32", "sink_logit")


def _onto(device, x):
    """Tensors of a layer, or one by itself, on another device."""
    if isinstance(x, LayerAttention):
        pairing = replace(x.pairing, **{name: y.to(device) for name, y in vars(x.pairing).items() if y is not None})
        tensors = {name: y for name in TENSORS if (y := getattr(x, name)) is not None}
        return replace(x, pairing=pairing, **{name: y.to(device) for name, y in tensors.items()})
    if isinstance(x, dict):
        return {name: _onto(device, y) for name, y in x.items()}
    return x.to(device) if torch.is_tensor(x) else x


@pytest.fixture(scope="session")
def interpreted():
    """Calls a function of tensors or layers on the CPU and returns tensors there, whatever it is run on."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        yield lambda work, *args, **kwargs: _onto("cpu", work(*(_onto("cuda", x) for x in args), **kwargs))
        return
    with ProcessPoolExecutor(1, _context(), initializer=interpreting.prepare) as pool:
        yield lambda work, *args, **kwargs: pool.submit(work, *args, **kwargs).result()


@pytest.fixture(scope="session")
def moments(interpreted):
    """rows.moments; `scratch` histograms at a time."""
    return partial(interpreted, interpreting.moments)
