"""Look into a model in the middle of its training and leave no trace: what a forward pass changes is put back."""

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
CACHED_LENGTH = "max_seq_len_cached"  # in dynamic RoPE, the length that its frequencies are for, perhaps by type of layer
WRAPPED = "_original_forward"  # where accelerate keeps the forward that it wraps in autocast


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run a model in its own precision, without autocast, and at the end put back what that has changed.

    That is random numbers, buffers, what dynamic RoPE keeps of the prompts before, and the model's forward.
    """
    with ExitStack() as stack:
        stack.enter_context(_random_numbers(model))
        stack.enter_context(_buffers(model))
        stack.enter_context(_rotary_lengths(model))
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
def _rotary_lengths(model: nn.Module) -> Iterator[None]:
    """Put back the plain attributes of rotary embeddings, which dynamic RoPE writes when a prompt's length asks for it."""
    kept = [(part, dict(vars(part))) for part in model.modules() if any(name.endswith(CACHED_LENGTH) for name in vars(part))]
    try:
        yield
    finally:
        for part, attributes in kept:
            now = vars(part)
            for name in now.keys() - attributes.keys():
                del now[name]
            now.update({name: value for name, value in attributes.items() if now.get(name) is not value})


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
