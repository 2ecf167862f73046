"""Processes of their own, there at once: forks of one that has imported what takes long."""

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
