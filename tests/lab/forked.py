"""Processes of their own, there at once: forks of one that has imported what takes long."""

from diffscope.lab.jobs.processes import _context


def begun(function, *args, **options):
    """A process in which a function of a module runs."""
    process = _context().Process(target=function, args=args, kwargs=options)
    process.start()
    return process


def ended(process, seconds=60):
    """Its status once it is over, below zero where a signal ended it; None where it goes on."""
    process.join(seconds)
    return process.exitcode
