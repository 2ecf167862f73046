"""Processes of their own, there at once: forks of one that has imported what takes long."""

import os
import sys
from pathlib import Path

from diffscope.lab.queue import _context


def begun(function, *args, **options):
    """Start a process in which a function of a module runs."""
    process = _context().Process(target=function, args=args, kwargs=options)
    process.start()
    return process


def ended(process, seconds=60):
    """Return a process's status once it is over, below zero if a signal ended it, None if it is still running."""
    process.join(seconds)
    return process.exitcode


def environment():
    """Return an environment in which a new process finds the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]), "OMP_NUM_THREADS": "1"}
