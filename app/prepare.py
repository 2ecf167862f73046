"""What is computed before it is asked for: the first view before the server is up, and later pages while the first is read.

One job of all sessions does the latter; it waits while any page is computed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import streamlit as st
from amplifier.logits import BRANCHES, branches_of
from amplifier.numbers import anatomy_of, gains_of, ranks_of, signal_of
from background import PREPARE, Job, Measurement, Results, jobs, results
from cache import all_heads, capture, examples, thumbnails
from catalog import cards
from offered_heads import where_of
from question import answer_of, distractors_in
from selection import default_head
from sidebar import Subject

from diffscope.errors import DiffscopeError
from diffscope.readings import question

LONGEST = 20.0  # seconds of a measurement; longer ones are asked for
PAUSE = 0.1  # seconds
REST = 3.0  # seconds after a page was computed, in which a browser draws it and asks for what it needs
Step = tuple[Results, Callable[[], Measurement]]


class Activity:
    """How many pages are computed now, and the turn of the one job that prepares."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._pages = 0
        self._left = 0.0
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether any page is computed, or was a moment ago."""
        return self._pages > 0 or time.monotonic() - self._left < REST

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
                self._left = time.monotonic()


@st.cache_resource(show_spinner=False)
def activity() -> Activity:
    """Return the activity of all sessions."""
    return Activity()


def prepare_first_view() -> None:
    """Load the first model and read the first example, as the first page does of an address that names nothing."""
    for name in [*cards()][:1]:
        example = examples(name)[0]
        subject = Subject(name, prompt=example.text, spans=dict(example.spans))
        cap = subject.capture()
        default_head(cap, subject.key)
        thumbnails(cap, subject.key[:-1], "D")
        all_heads(cap, subject.key, cap.n_tokens - 1)
        if asked := where_of(subject, cap):
            results(asked.what).keep(asked.key, asked.compute(lambda done, total: None))


def prepare(subject) -> None:
    """Begin to measure what Numbers and Logits show of a subject, once a session; what others need is no longer prepared."""
    key = (PREPARE, subject.key)
    if subject.saved or subject.kind or ((job := jobs().get(key)) is not None and not job.stopped):
        return
    jobs().stop(PREPARE)
    with suppress(DiffscopeError):  # the page has said it
        cap = capture(subject.model, subject.stamp, subject.prompt, subject.spans)
        steps = _steps(subject, cap)
        of_all = activity()
        jobs().start(key, lambda job: measure(job, steps, of_all))


def _steps(subject, cap) -> list[Step]:
    """Return what Numbers and Logits measure, in the order in which they show it; nothing of what they cannot ask."""
    last = cap.n_tokens - 1
    distractors = distractors_in(st.session_state.get("distractors") or "", subject, answer_of(subject, cap))
    asks = [
        lambda: gains_of(subject, cap, last),
        lambda: signal_of(subject, cap, last, distractors),
        lambda: ranks_of(subject, cap),
        lambda: anatomy_of(subject, cap),
    ]
    steps: list[Step] = []
    for ask in asks if cap.differential else asks[1:]:
        with suppress(DiffscopeError):  # the page says why
            asked = ask()
            steps.append((results(asked.what), lambda asked=asked: asked))
    if answer := answer_of(subject, cap):
        scope, key = subject.scope(), subject.key

        def ask_branches() -> Measurement:  # by the job: of a long prompt, the distractors take seconds to encode
            return branches_of(scope, key, question(scope, cap, answer, distractors))

        steps.append((results(BRANCHES), ask_branches))
    return steps


def measure(job: Job, steps: list[Step], of_all: Activity) -> None:
    """Measure what is not known, as a job's work; if another session is prepared for, nothing is done.

    A job that was stopped keeps the turn until it notices, so this waits for it a moment.
    """
    end = time.monotonic() + REST
    while not of_all.turn.acquire(timeout=PAUSE):
        job.check_cancelled()
        if time.monotonic() > end:
            return
    try:
        for kept, ask in steps:

            def report(done: float, total: float) -> None:
                wait(job, of_all)

            wait(job, of_all)
            with suppress(DiffscopeError):  # the page that shows it says so
                asked = ask()
                if asked.seconds <= LONGEST and kept.get(asked.key) is None:
                    kept.keep(asked.key, asked.compute(report))
    finally:
        of_all.turn.release()


def wait(job: Job, of_all: Activity) -> None:
    """Wait while any page is computed, or was a moment ago."""
    while of_all.busy:
        job.check_cancelled()
        time.sleep(PAUSE)
    job.check_cancelled()
