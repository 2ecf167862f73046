"""What is measured once for all sessions: at once where that is quick, else in the background, when a reader asks for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import streamlit as st
from jobs import Job, jobs, watch
from words import plain

from diffscope.readings import effort

AT_ONCE = 3.0  # seconds
MOST = 32  # results of a kind that are kept
Tell = Callable[[float, float], object]


class Results:
    """The results of a kind that were asked for last, by what they are of."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The result of this key; None where there is none."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
            return self._results.get(key)

    def keep(self, key: Hashable, result: Any) -> Any:
        """Keep a result, and no longer that which nobody has asked for longest where there are too many."""
        with self._lock:
            self._results[key] = result
            while len(self._results) > self._most:
                self._results.popitem(last=False)
        return result


@st.cache_resource(show_spinner=False)
def results(what: str, most: int) -> Results:
    """The results of all sessions, of one kind."""
    return Results(most)


def once(key: tuple, what: str, seconds: float, compute: Callable[[Tell], Any], most: int = MOST) -> Any:
    """What a computation gives, or None while it is not there.

    Parameters
    ----------
    key : tuple
        What the result is of.
    what : str
        What is measured, in words: no two on a page are the same.
    seconds : float
        How long it will take, roughly. What takes longer than ``AT_ONCE`` has a button, and runs in the background.
    compute : callable
        Called with `tell(done, total)`, which it calls as often as it can. It touches nothing of Streamlit.
    most : int
        How many results of this kind are kept.
    """
    kept = results(what, most)
    result = kept.get(key)
    if result is not None:
        return result
    if seconds <= AT_ONCE:
        with st.spinner(f"Measuring {what}"):
            return kept.keep(key, compute(lambda done, total: None))
    job = jobs().get((what, key))
    if job is not None and job.result is not None:
        jobs().keep_last(what, key)
        return kept.keep(key, job.result)
    if job is not None and job.running:
        watch(job, f"once-{what}")
        return None
    if job is not None and job.trouble:
        st.warning(plain(job.trouble))

    def work(job: Job) -> Any:
        return compute(lambda done, total: job.tell(done, total, f"measuring {what}"))

    label = f"Measure {what} ({effort.in_words(seconds)})"
    st.button(label, key=f"once-{what}", on_click=lambda: jobs().start((what, key), work))
    return None
