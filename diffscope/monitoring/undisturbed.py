"""Look into a model in the middle of its training and leave no trace: random numbers, buffers and its forward are put back."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn

from diffscope.attention.precision import without_autocast

SAMPLED = 256  # values of each parameter that its fingerprint is of
WRAPPED = "_original_forward"  # where accelerate keeps the forward that it wraps in autocast


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run a model in its own precision, without autocast; random numbers, buffers and its forward are put back at the end."""
    with ExitStack() as stack:
        stack.enter_context(_random_numbers(model))
        stack.enter_context(_buffers(model))
        stack.enter_context(_own_forward(model))
        stack.enter_context(without_autocast())
        yield


@contextmanager
def _random_numbers(model: nn.Module) -> Iterator[None]:
    """Put back the states of Python's, numpy's and torch's generators."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=sorted(devices, key=str)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


@contextmanager
def _buffers(model: nn.Module) -> Iterator[None]:
    """Put back buffers that were changed in place, exchanged, or made."""
    registered = [(part, dict(part._buffers)) for part in model.modules()]
    kept = [
        (buffer, buffer.clone(), buffer._version) for _, named in registered for buffer in named.values() if buffer is not None
    ]
    try:
        yield
    finally:
        for part, named in registered:
            part._buffers.clear()
            part._buffers.update(named)
        for buffer, values, version in kept:
            if buffer._version != version:
                buffer.copy_(values)


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """Call the model's own forward where accelerate has put one under autocast in its place."""
    wrapped = vars(model).get("forward")
    if wrapped is None or WRAPPED not in vars(model):
        yield
        return
    model.forward = vars(model)[WRAPPED]
    try:
        yield
    finally:
        model.forward = wrapped


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """Return a digest of the first values of every parameter, by which two trainings at one step are told apart."""
    values = [parameter.detach().flatten()[:SAMPLED].float().cpu() for parameter in model.parameters()]
    return hashlib.sha256(torch.cat(values).numpy().tobytes()).hexdigest()


def finite(model: nn.Module) -> bool:
    """Return whether all weights are finite."""
    return all(bool(parameter.detach().isfinite().all()) for parameter in model.parameters())
