"""Estimate roughly how long a reading will take on one core, to decide between computing at once and asking first."""

from __future__ import annotations

from diffscope.capture.capture import Capture
from diffscope.readings.second_map import runs
from diffscope.scope import Scope


def of_gains(cap: Capture) -> float:
    """Estimate the seconds of :func:`diffscope.readings.amplifier` without ranks: a row of every head with every A2."""
    return 1.5e-3 * sum(layer.n_heads**2 for layer in cap.layers)


def of_ranks(cap: Capture) -> float:
    """Estimate the seconds of :func:`diffscope.readings.ranks`: singular values of some twelve maps a head."""
    return _heads(cap) * (0.05 + 7e-9 * cap.n_tokens**3)


def of_composition(cap: Capture) -> float:
    """Estimate the seconds of :func:`diffscope.readings.composition` with a few other prompts of the same length."""
    return _heads(cap) * (0.05 + 1.5e-6 * cap.n_tokens**2)


def of_rejection(cap: Capture, sigmas: int, draws: int) -> float:
    """Estimate the seconds of :func:`diffscope.readings.rejection`, with its ceiling and controls."""
    rows = sum(layer.n_heads * (layer.n_heads + 1) for layer in cap.layers if layer.differential) * sigmas * draws
    return 3e-7 * rows * cap.n_tokens


def of_signal_to_noise(scope: Scope, tokens: int, draws: int) -> float:
    """Estimate the seconds of :func:`diffscope.readings.signal_to_noise` with so many answers and fillers."""
    return of_runs(scope, tokens, draws**2)


def of_a2(scope: Scope, cap: Capture) -> float:
    """Estimate the seconds of :func:`diffscope.readings.where_a2_works`, of a prompt whose answer needs an A2."""
    heads = {layer.layer: layer.n_heads for layer in cap.layers if layer.differential}
    return of_runs(scope, cap.n_tokens, runs(heads, cap.n_tokens))


def of_runs(scope: Scope, tokens: int, runs: int) -> float:
    """Estimate the seconds of so many runs of a model under edits, on a prompt of so many tokens."""
    weights = sum(parameter.numel() for parameter in scope.model.parameters())
    return runs * tokens * (2e-4 + 1e-10 * weights)


def _heads(cap: Capture) -> int:
    return sum(layer.n_heads for layer in cap.layers)
