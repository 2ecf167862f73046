"""What the commands print: tables and JSON on stdout, progress and notes on stderr."""

import datetime
import math
import sys
import time
from contextlib import contextmanager

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from diffscope.storage.atomic import to_json

GAP = 2  # between columns
PIPED_WIDTH = 1000  # what is read by a program is never cut to a screen's width


def _console():
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def say(line=""):
    """Print one line of a result, on a terminal broken between words."""
    console = _console()
    console.print(Text(line), soft_wrap=not console.is_terminal)


def note(line):
    """Tell the person, not the program that reads stdout."""
    Console(stderr=True, highlight=False).print(Text(line), soft_wrap=True)


STOPPED = 130  # the exit status of an interrupt


@contextmanager
def kept_when_stopped(words):
    """Say what an interrupt leaves, by a context or a decorator, and end the command."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped; {words}")
        raise typer.Exit(STOPPED) from None


OUT_OF_MEMORY = "out of memory; use a shorter prompt, bfloat16 or fewer statistics"


def ran_out_of_memory(error):
    """Return whether an exception says that memory is used up, by its name and words, since torch may not be loaded."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    words = ("DefaultCPUAllocator", "not enough memory", "out of memory")
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or (
        "RuntimeError" in kinds and any(word in str(error) for word in words)
    )


def show_table(headers, rows):
    """Print rows under headers; numbers are aligned to the right. On a narrow screen each row is a list."""
    rows = [list(row) for row in rows]
    shown = [[show_value(value) for value in row] for row in rows]
    console = _console()
    widths = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in zip(headers, *shown)]
    if sum(widths) + GAP * (len(widths) - 1) > console.width:
        for row in shown:
            console.print(_row_by_lines(headers, row))
        return
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column, (header, width) in enumerate(zip(headers, widths)):
        numeric = all(isinstance(row[column], int | float | None) for row in rows)
        table.add_column(Text(header), justify="right" if numeric else "left", min_width=width)
    for row in shown:
        table.add_row(*map(Text, row))
    console.print(table)


def _row_by_lines(headers, row):
    """Return one row of a table as lines of a header and its value, and a blank line."""
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column(overflow="fold")
    for header, value in zip(headers, row):
        lines.add_row(Text(header), Text(value))
    lines.add_row()
    return lines


def show_value(value):
    """Write a number to four figures, other values as they are, and a dash for a missing one."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_json(value):
    """Print a value as JSON; what is not a finite number becomes null."""
    sys.stdout.write(to_json(value) + "\n")


@contextmanager
def working(what):
    """Show that something of unknown length goes on, with the time it has taken."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with _progress(*columns) as progress:
        progress.add_task(what, total=None)
        yield


@contextmanager
def counting(what, unit=""):
    """Show how far something has come, or one thing after the other; yields a function of (done, total, note).

    With the unit "%" what is done is that share of the whole.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} %" if unit else "{task.completed:.0f}/{task.total}"),
        TextColumn("{task.fields[left]}"),
    )
    first = last = None
    with _progress(*columns) as progress:
        task = progress.add_task(what, total=None, left="")

        def update(done, total, note=""):
            nonlocal first, last
            if first is None or total != last[1] or done < last[0]:  # something else is counted now
                first = done, time.monotonic()
            last = done, total
            left = time_left(done, total, *first, time.monotonic())
            progress.update(task, completed=done, total=total, description=f"{what} {note}".rstrip(), left=left)

        yield update


def time_left(done, total, done_first, began, now):
    """Say how long the rest will take at the mean speed since the first report; single reports may be minutes apart."""
    if done <= done_first or total is None:
        return ""
    seconds = (total - done) * (now - began) / (done - done_first)
    return f"{datetime.timedelta(seconds=round(seconds))} left"


def _progress(*columns):
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
