"""Silence the progress bars and reports that transformers prints while it loads a model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging

_lock = threading.Lock()
_inside = 0  # open contexts: the settings belong to the process, so the last context to close restores them
_restore: Callable[[], None]


@contextmanager
def quietly() -> Iterator[None]:
    """Hide the bars of transformers, and all of its log but errors, while the context is open.

    Downloads keep their bar on a terminal.
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
    """Silence both libraries, and return a function that restores their settings."""
    bars = logging._tqdm_active
    verbosity = logging.get_verbosity()
    # If the environment asks for bars, they stay: the library refuses to switch them off.
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
