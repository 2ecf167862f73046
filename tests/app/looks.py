"""What a page that AppTest ran looks like, and when nothing runs behind it."""

import threading
import time


def fine(test):
    """The page, which has no red box."""
    assert not test.exception, test.exception
    return test


def shown(elements):
    """The texts of some elements, without the marks that keep Markdown from reading them."""
    return " ".join(element.value for element in elements).replace("\\", "")


def at_rest(test, seconds=120):
    """The page once nothing runs behind it; it is drawn when a job has ended, since that takes turns from those that run."""
    end = time.monotonic() + seconds
    while test.get("progress"):
        assert time.monotonic() < end, "it never ends"
        running, soon = _jobs(), time.monotonic() + 2
        while _jobs() >= running and time.monotonic() < soon:
            time.sleep(0.02)
        fine(test.run())
    return test


def _jobs():
    return sum(thread.name == "diffscope job" for thread in threading.enumerate())
