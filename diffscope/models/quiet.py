"""Loading without what transformers prints beside it: bars, and reports of what went well."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging

_lock = threading.Lock()
_inside = 0  # how many are loading: these settings are the process' own, and the last to leave puts them back
_restore: Callable[[], None]


@contextmanager
def quietly() -> Iterator[None]:
    """While the context is open, transformers shows no bar and logs errors alone; afterwards all is as it was.

    Downloads keep their bar on a terminal, where a person waits for them.
    """
    global _inside, _restore
    with _lock:
        _inside += 1
        if _inside == 1:
            _restore = _silence()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _restore()


def _silence() -> Callable[[], None]:
    """Silence both libraries; the function puts back what they were set to."""
    bars = logging._tqdm_active
    verbosity = logging.get_verbosity()
    # Whoever demands bars by the environment gets them: the library itself refuses to switch these off.
    downloads = not (sys.stderr.isatty() or are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is False)
    logging._tqdm_active = False
    logging.set_verbosity(max(verbosity, logging.ERROR))
    if downloads:
        disable_progress_bars()

    def restore() -> None:
        logging._tqdm_active = bars
        logging.set_verbosity(verbosity)
        if downloads:
            enable_progress_bars()

    return restore
