"""Write numbers by step as TensorBoard's events."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

Row = tuple[int, Mapping[str, float]]  # a step, and numbers by name
Write = Callable[[int, Mapping[str, float]], None]


@contextmanager
def events(folder: str | os.PathLike, before: Iterable[Row] = ()) -> Iterator[Write]:
    """Yield a function that writes the numbers of a step as events of TensorBoard.

    Earlier rows are written again first, and TensorBoard is told to drop all earlier events: when a run is killed, its last
    events are lost, or belong to steps that will be repeated.

    Parameters
    ----------
    folder : path-like
    before : iterable of (int, mapping of str to float)
        What earlier processes of the run have written.
    """
    from tensorboardX import SummaryWriter

    def write(step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    with SummaryWriter(str(folder), purge_step=0) as writer:
        for step, numbers in before:
            write(step, numbers)
        yield write
