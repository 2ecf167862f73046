"""Memory: what is used again for every block of rows, what is given back, and how much there is."""

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
    """Buffers by name: what is taken under a name is good until the next is taken under it.

    A megabyte that is asked of the system for every block costs as much as a pass over it. One thread uses one workspace.
    """

    def __init__(self) -> None:
        self._held: dict[tuple, Tensor] = {}

    @property
    def nbytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    @property
    def on_gpu(self) -> bool:
        return any(held.device.type != "cpu" for held in self._held.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """A contiguous tensor of that shape, holding anything."""
        size = math.prod(shape)
        # What is made in inference mode cannot be written to outside of it.
        key = (name, dtype, torch.device(device), torch.is_inference_mode_enabled())
        held = self._held.get(key)
        if held is None or held.numel() < size:
            held = self._held[key] = torch.empty(size, dtype=dtype, device=device)
        return held[:size].view(shape)


class Fresh(Workspace):
    """A workspace that gives new memory every time, so that what was taken stays."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)


FRESH = Fresh()

KEPT = 2**26  # bytes: a larger workspace is not kept, for only the work of small ones is short beside asking for memory
SPARE = 2
_spare: list[Workspace] = []


@contextmanager
def borrowed() -> Iterator[Workspace]:
    """A workspace for as long as the context is open; small ones are kept for the next who borrows."""
    try:
        workspace = _spare.pop()
    except IndexError:
        workspace = Workspace()
        # From now on glibc takes blocks of up to this size from its heap, where they are soon found again, as it does once one of
        # them was freed. It is never written to, so it costs no memory.
        torch.empty(24 * 2**20, dtype=torch.uint8)
    try:
        yield workspace
    finally:
        if workspace.nbytes <= KEPT and len(_spare) < SPARE and not workspace.on_gpu:
            _spare.append(workspace)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's function of that name; None under another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def give_back_memory() -> None:
    """Return freed memory to the system.

    glibc keeps freed blocks of a few MiB for itself and scatters small results among them: at 8,192 tokens it had grown
    by 2 GiB of which a few MiB were in use. Trimming every few blocks costs some milliseconds.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def free_memory(device: torch.device) -> float:
    """Bytes that can still be had; infinite where the system does not say."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), float("inf"))
