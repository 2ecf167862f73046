"""Work in the background: a thread that says how far it is, can be stopped, and belongs to one session.

The work never touches Streamlit. It tells its job how far it is, which is also where it is stopped; a page looks at the job with
:func:`watch`. A job goes on while its reader is on another page, and stops when the session ends.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import streamlit as st
from messages import escape_markdown, in_a_line

from diffscope.numbers import duration
from diffscope.scope import Scope

LOOK_EVERY = 0.5  # seconds
MOST, MOST_OF_SESSION = 4, 2  # jobs that are worked on at a time, so that no reader keeps all others waiting
UNTIL_STOPPED = 10.0  # seconds that jobs have to stop when the dashboard ends
PREPARE = "prepare"  # begins the keys of jobs that nobody asked for
SLOTS = threading.BoundedSemaphore(MOST)


class Cancelled(BaseException):
    """Raised inside of work that is to stop; no error, so that nothing that handles errors keeps it."""


class Job:
    """Something that is done in a thread of its own, begun at once.

    Parameters
    ----------
    work : callable
        Called with the job, whose `report` or `check_cancelled` it calls as often as it can: they raise if the job was
        stopped. What it returns is the job's result.
    turns : threading.Semaphore, optional
        What it waits for first, beside the turn that all jobs wait for.

    Attributes
    ----------
    share : float
        How much is done, of 1; it never goes back.
    words : str
        What is being done.
    result
        What the work returned; None until then.
    error : str
        Why it failed, in a line; empty where it did not.
    """

    def __init__(self, work: Callable[[Job], Any], turns: threading.Semaphore | None = None):
        self._turns = [turns, SLOTS] if turns else [SLOTS]
        self.share = 0.0
        self.words = "beginning"
        self.result: Any = None
        self.error = ""
        self._begun = time.monotonic()
        self._halt = threading.Event()
        self._thread = Worker(self, work)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it is being worked on."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop and has not yet."""
        return self.running and self.stopped

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._halt.is_set()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begun

    def stop(self) -> None:
        """Have it stop at what it tells next."""
        self._halt.set()

    def report(self, done: float, total: float, words: str) -> None:
        """So much of the whole is done, and this is what is done now."""
        self.check_cancelled()
        self.share = max(self.share, min(done / total, 1.0))
        self.words = words

    def check_cancelled(self) -> None:
        """Raise Cancelled where the job is to stop."""
        if self._halt.is_set():
            raise Cancelled

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until fewer jobs are worked on than may be at a time, of this session and of all."""
        before = self.words
        with ExitStack() as held:
            for turns in self._turns:
                while not turns.acquire(timeout=LOOK_EVERY):
                    self.words = "waiting for other work to end"
                    self.check_cancelled()
                held.callback(turns.release)
            self.words = before
            yield

    def _run(self, work: Callable[[Job], Any]) -> None:
        try:
            with self._turn():
                self.result = work(self)
        except Cancelled:
            pass
        except Exception as error:  # a thread has nobody to raise it to
            self.error = in_a_line(error)


class Worker(threading.Thread):
    """The thread of a job."""

    def __init__(self, job: Job, work: Callable[[Job], Any]):
        super().__init__(target=job._run, args=(work,), name="diffscope job", daemon=True)
        self.job = job


def stop_all() -> None:
    """Stop the jobs of all sessions and wait for them: an interpreter that ends while one computes aborts."""
    workers = [thread for thread in threading.enumerate() if isinstance(thread, Worker)]
    for worker in workers:
        worker.job.stop()
    end = time.monotonic() + UNTIL_STOPPED
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))


atexit.register(stop_all)


class CancellableScope(Scope):
    """A model that asks whether it may go on before it is run, perhaps under another name.

    It does not ask while it holds the model: the answer may take until others, which wait for the model, are through.
    """

    def __init__(self, opened: Scope, check_cancelled: Callable[[], None], name: str = ""):
        super().__init__(opened.model, opened.tokenizer, name or opened.name, opened.family)
        self._check_cancelled = check_cancelled
        self._held = 0  # how many times over, by the one thread that has this scope

    @contextmanager
    def exclusively(
        self, lengths: tuple[int, ...] | None = None, packed: bool = False, key_lengths: tuple[int, ...] | None = None
    ) -> Iterator[None]:
        """As of Scope."""
        if not self._held:
            self._check_cancelled()
        with super().exclusively(lengths, packed, key_lengths):
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1


class Jobs:
    """The jobs of one session, one for each key."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, Job] = {}
        self._turns = threading.BoundedSemaphore(MOST_OF_SESSION)

    def get(self, key: Hashable) -> Job | None:
        """The job of this key, running or ended; None where none was begun."""
        return self._jobs.get(key)

    def start(self, key: Hashable, work: Callable[[Job], Any]) -> Job:
        """The job of this key if it is running and was not stopped, else a new one."""
        job = self._jobs.get(key)
        if job is None or not job.running or job.stopped:
            job = self._jobs[key] = Job(work, self._turns)
        return job

    def keep_last(self, what: str, key: Hashable) -> None:
        """Of the ended jobs ``(what, …)`` keep that of this key alone, with its result."""
        for name, job in list(self._jobs.items()):
            if isinstance(name, tuple) and name[0] == what and name != (what, key) and not job.running:
                del self._jobs[name]

    def stop(self, what: str = "") -> None:
        """Stop all of them, or those of the keys ``(what, …)``."""
        for name, job in self._jobs.items():
            if not what or (isinstance(name, tuple) and name[0] == what):
                job.stop()


@st.cache_resource(scope="session", on_release=Jobs.stop, show_spinner=False)
def jobs() -> Jobs:
    """The jobs of this session; they are stopped when it ends."""
    return Jobs()


def show_progress(job: Job, key: str, words: Callable[[], str] | None = None, news: Callable[[], object] | None = None) -> None:
    """Show how far a running job is, with a stop, and draw the page again when it has ended.

    Parameters
    ----------
    job : Job
    key : str
        Begins the keys of what is shown.
    words : callable, optional
        What is said before the words of the job.
    news : callable, optional
        Where what it gives changes, the page is drawn again too.
    """
    before = news() if news else None

    @st.fragment(run_every=LOOK_EVERY)
    def look() -> None:
        if not job.running or (news and news() != before):
            st.rerun()
        progress = "stopping" if job.stopping else job.words
        parts = [words() if words else "", progress, f"{job.seconds:.0f} s"]
        with st.container(horizontal=True, vertical_alignment="center"):
            st.progress(job.share, escape_markdown(" · ".join(filter(None, parts))))
            st.button("Stop", key=f"{key}-stop", on_click=job.stop, disabled=job.stopping)

    look()


def background(
    key: Hashable,
    button: str,
    label: str,
    prepare: Callable[[], Callable[[Job], Any]],
    *,
    caption: str = "",
    primary: bool = False,
    words: Callable[[], str] | None = None,
    news: Callable[[], object] | None = None,
) -> Any:
    """Return the result of work in the background, or None while there is none.

    A button starts the work. While it runs its progress is shown with a stop, and an error as a line.

    Parameters
    ----------
    key : hashable
        What the result is of.
    button : str
        Key of the button; that of the stop ends in ``-stop``.
    label : str
        Of the button.
    prepare : callable
        Called when the button is pressed; returns the work, which touches nothing of Streamlit.
    caption : str
        Stands beside the button.
    primary : bool
        Whether the button is the main one of the page.
    words, news
        As of :func:`show_progress`.
    """
    job = jobs().get(key)
    if job is not None and job.running:
        show_progress(job, button, words, news)
        return None
    if job is not None and job.error:
        st.warning(escape_markdown(job.error))
    if job is not None and job.result is not None:
        return job.result
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button(label, key=button, type="primary" if primary else "secondary")
        if caption:
            st.caption(caption)
    if pressed:
        jobs().stop(PREPARE)  # what is asked for goes first
        jobs().start(key, prepare())
        st.rerun()
    return None


AT_ONCE = 3.0  # seconds
KEPT = 32  # results of a kind that are kept
Report = Callable[[float, float], object]


class Measurement(NamedTuple):
    """Something that is measured for all sessions: what :func:`cached_job` takes.

    Attributes
    ----------
    key : tuple
        What the result is of.
    what : str
        What is measured, in words: no two on a page are the same.
    seconds : float
        How long it will take, roughly.
    compute : callable
        Called with `report(done, total)`, which it calls as often as it can. It touches nothing of Streamlit.
    """

    key: tuple
    what: str
    seconds: float
    compute: Callable[[Report], Any]


class Results:
    """The results of a kind that were asked for last, by what they are of."""

    def __init__(self) -> None:
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._results)

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
            while len(self._results) > KEPT:
                self._results.popitem(last=False)
        return result


@st.cache_resource(show_spinner=False)
def results(what: str) -> Results:
    """The results of all sessions, of one kind."""
    return Results()


def cached_job(asked: Measurement) -> Any:
    """Return what was measured, or None while it is not there: what takes longer than ``AT_ONCE`` waits for a button."""
    key, what, seconds, compute = asked
    kept = results(what)
    result = kept.get(key)
    if result is not None:
        return result
    if seconds <= AT_ONCE:
        with st.spinner(f"Measuring {what}"):
            return kept.keep(key, compute(lambda done, total: None))

    def work(job: Job) -> Any:
        return compute(lambda done, total: job.report(done, total, f"measuring {what}"))

    result = background((what, key), f"measure-{what}", f"Measure {what} (about {duration(seconds)})", lambda: work)
    if result is not None:
        jobs().keep_last(what, key)
        kept.keep(key, result)
    return result
