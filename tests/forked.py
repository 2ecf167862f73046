"""Processes of their own, there at once: forks of one that has imported what takes long."""

import os
import sys
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from diffscope.lab.queue import _context


def begun(function, *args, **options):
    """Start a process in which a function of a module runs."""
    process = _context().Process(target=_of_one_server, args=(function, *args), kwargs=options)
    process.start()
    return process


def _of_one_server(function, *args, **options):
    """Run a function, the processes of which are forks of the server that this one is a fork of.

    Python says that a child uses its parent's server; but it does not notice that it has one, and would start another, which
    takes seconds to import the same. This holds for Python 3.11 to 3.13; in a later one, the server asks for a key that the
    child lacks, and the child starts another.
    """
    if sys.version_info < (3, 14) and forkserver._forkserver._forkserver_address:
        forkserver._forkserver.ensure_running = resource_tracker.ensure_running
    function(*args, **options)


def ended(process, seconds=60):
    """Return a process's status once it is over, below zero if a signal ended it, None if it is still running."""
    process.join(seconds)
    return process.exitcode


def environment():
    """Return an environment in which a new process finds the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]), "OMP_NUM_THREADS": "1"}
