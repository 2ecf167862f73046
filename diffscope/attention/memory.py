"""Memory: scratch buffers that blocks of rows reuse, memory returned to the system, and how much is free."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor


class Workspace:
    """Reusable scratch buffers of one thread; a tensor from ``take(name)`` is valid until the next ``take(name)``.

    Asking the system for a megabyte at every block costs as much as a pass over it.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """Return a contiguous tensor of that shape, with arbitrary values."""
        size = math.prod(shape)
        # A tensor from inference mode cannot be written to outside of it.
        key = (name, dtype, torch.device(device), torch.is_inference_mode_enabled())
        buffer = self.buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = self.buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(shape)


class _NewMemory(Workspace):
    """A workspace that returns new memory every time, so that every tensor stays valid."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """Return a new tensor."""
        return torch.empty(shape, dtype=dtype, device=device)


NO_REUSE = _NewMemory()

MAX_POOLED_BYTES = 2**26  # of a workspace: only small computations are short compared with asking for memory
POOL_SIZE = 2
_pool: list[Workspace] = []


@contextmanager
def pooled_workspace() -> Iterator[Workspace]:
    """Lend a workspace while the context is open; small ones go back to a pool."""
    try:
        workspace = _pool.pop()
    except IndexError:
        workspace = Workspace()
        # From now on glibc takes blocks of up to this size from its heap, where they are soon found again, as it does once one of
        # them was freed. It is never written to, so it costs no memory.
        torch.empty(24 * 2**20, dtype=torch.uint8)
    try:
        yield workspace
    finally:
        buffers = workspace.buffers.values()
        small = sum(buffer.nbytes for buffer in buffers) <= MAX_POOLED_BYTES
        if small and len(_pool) < POOL_SIZE and all(buffer.device.type == "cpu" for buffer in buffers):
            _pool.append(workspace)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's function of that name, or None under another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def trim_heap() -> None:
    """Return freed memory to the system.

    glibc keeps freed blocks of a few MiB for itself and scatters small results among them: at 8,192 tokens it had grown
    by 2 GiB of which a few MiB were in use. Trimming every few blocks costs some milliseconds.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def free_memory(device: torch.device) -> float:
    """Return how many bytes are free on a device, or infinity if the system does not tell."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), float("inf"))
