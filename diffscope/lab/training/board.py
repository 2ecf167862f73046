"""Watch a run of a cohort: its metrics and what a monitor measures, as TensorBoard's events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from diffscope.lab.training.drawing import Draws
from diffscope.monitoring import Monitor
from diffscope.monitoring.record import FOLDER

EVERY = 50  # steps
WATCHED = 4  # rows of the run's first step, on which it is watched
Row = dict[str, float]
Watch = Callable[[int, Row | None], None]  # of a step, and of its row of metrics if it has one


@contextmanager
def watching(
    folder: Path | None, run_folder: Path, model: nn.Module, draws: Draws, stage: int, metrics: Sequence[Row]
) -> Iterator[Watch]:
    """Yield a function that watches a step, and writes what it is given as TensorBoard's events.

    Without `folder` it does nothing.

    Parameters
    ----------
    folder : Path or None
        Of the events.
    run_folder : Path
        Has the monitor's own numbers in its folder ``monitor``.
    draws : Draws
        Of the run; rows of the first step of the stage `stage` are the prompts.
    metrics : sequence of dict
        What was logged by earlier processes.
    """
    if folder is None:
        yield lambda step, row: None
        return
    ids, _ = draws.rows(stage, 0)
    monitor = Monitor(model, torch.from_numpy(ids[:WATCHED]), every=EVERY, path=run_folder / FOLDER)
    assert monitor.record is not None
    until = metrics[-1]["step"] if metrics else -1
    before = [(step, monitor.record.logged(step)) for step in monitor.record.steps if step <= until]
    with events(folder, sorted([*before, *map(_numbers, metrics)], key=lambda row: row[0])) as write:

        def watch(step: int, row: Row | None) -> None:
            if row is not None:
                write(*_numbers(row))
            known = {} if row is None else {name: value for name, value in row.items() if name.endswith("loss")}
            write(step, monitor.step(step, **known))

        yield watch


@contextmanager
def events(folder: Path, before: Iterable[tuple[int, Row]] = ()) -> Iterator[Callable[[int, Row], None]]:
    """Yield a function that writes the numbers of a step as events of TensorBoard.

    Earlier rows are written again first, and TensorBoard is told to drop all earlier events: when a run is killed, its last
    events are lost, or belong to steps that will be repeated.
    """
    from tensorboardX import SummaryWriter

    def write(step: int, numbers: Row) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    with SummaryWriter(str(folder), purge_step=0) as writer:
        for step, numbers in before:
            write(step, numbers)
        yield write


def _numbers(row: Row) -> tuple[int, Row]:
    return int(row["step"]), {name: value for name, value in row.items() if name not in ("step", "length")}
