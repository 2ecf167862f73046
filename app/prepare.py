"""What later pages need, computed while the first is read: by one job of all sessions, which waits while any page is computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import streamlit as st
from amplifier.anatomy import anatomy_of
from amplifier.logits import branches_of
from amplifier.numbers import gains_of
from amplifier.ranks import ranks_of
from amplifier.signal import signal_of
from background import KEPT, PREPARE, Job, Measurement, Results, jobs, results
from cache import capture, modified_at
from question import distractors_in, question_of

from diffscope.errors import DiffscopeError

LONGEST = 20.0  # seconds of a measurement; longer ones are asked for
PAUSE = 0.1  # seconds
Step = tuple[Results, Measurement]


class Activity:
    """How many pages are computed now, and the turn of the one job that prepares."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._pages = 0
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether any page is computed."""
        return self._pages > 0

    @contextmanager
    def page(self) -> Iterator[None]:
        """Count a page while it is computed."""
        with self._lock:
            self._pages += 1
        try:
            yield
        finally:
            with self._lock:
                self._pages -= 1


@st.cache_resource(show_spinner=False)
def activity() -> Activity:
    """Return the activity of all sessions."""
    return Activity()


def prepare(subject) -> None:
    """Begin to measure what Numbers and Logits show of a subject, once a session; what others need is no longer prepared."""
    key = (PREPARE, subject.key)
    if subject.saved or jobs().get(key) is not None:
        return
    jobs().stop(PREPARE)
    with suppress(DiffscopeError):  # the page has said it
        cap = capture(subject.model, modified_at(subject.model), subject.prompt, subject.spans)
        steps = [(results(each.what, KEPT), each) for each in _asked(subject, cap) if each.seconds <= LONGEST]
        of_all = activity()
        jobs().start(key, lambda job: measure(job, steps, of_all))


def _asked(subject, cap) -> list[Measurement]:
    """Return what Numbers and Logits measure, in the order in which they show it; nothing of what they cannot ask."""
    last = cap.n_tokens - 1
    distractors = distractors_in(st.session_state.get("distractors") or "", subject)
    asks = [
        lambda: gains_of(subject, cap, last),
        lambda: signal_of(subject, cap, last, distractors),
        lambda: ranks_of(subject, cap),
        lambda: anatomy_of(subject, cap),
        lambda: branches_of(subject, cap, question_of(subject, cap, distractors)),
    ]
    asked = []
    for ask in asks if cap.differential else asks[1:]:
        with suppress(DiffscopeError):  # the page says why
            asked.append(ask())
    return asked


def measure(job: Job, steps: list[Step], of_all: Activity) -> None:
    """Measure what is not known, as a job's work; if another session is prepared for, nothing is done."""
    if not of_all.turn.acquire(blocking=False):
        return
    try:
        for kept, asked in steps:

            def report(done: float, total: float) -> None:
                wait(job, of_all)

            wait(job, of_all)
            if kept.get(asked.key) is None:
                with suppress(DiffscopeError):  # the page that shows it says so
                    kept.keep(asked.key, asked.compute(report))
    finally:
        of_all.turn.release()


def wait(job: Job, of_all: Activity) -> None:
    """Wait while any page is computed."""
    while of_all.busy:
        job.check_cancelled()
        time.sleep(PAUSE)
    job.check_cancelled()
