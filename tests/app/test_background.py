"""Work in the background: it says how far it is, stops when it is told to, and belongs to one session."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from small_models import APP

import diffscope
from diffscope.errors import DiffscopeError
from tests import tiny
from tools.browser import dashboard

PAGE = Path(__file__).with_name("background_page.py")


@pytest.fixture
def background(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    import background

    return background


def ended(job):
    """The job, once it is over."""
    job._thread.join(30)
    assert not job.running
    return job


def test_what_is_prepared_for_another_prompt_waits_for_the_job_that_is_stopped(background, monkeypatch):
    import prepare

    monkeypatch.setattr(prepare, "REST", 1.0)
    of_all = prepare.Activity()
    kept = {name: background.Results() for name in ("before", "after")}

    def begun(name):
        asked = background.Measurement((), name, 0.0, lambda report: name)
        return background.Job(lambda job: prepare.measure(job, [(kept[name], lambda: asked)], of_all))

    with of_all.page():
        before = begun("before")
        while not of_all.turn.locked():
            time.sleep(0.01)
        before.stop()
        after = begun("after")
    ended(after)
    assert before.stopped and kept["before"].get(()) is None and kept["after"].get(()) == "after"


def test_a_job_tells_how_far_it_is_and_never_goes_back(background):
    told, check_cancelled = threading.Event(), threading.Semaphore(0)

    def work(job):
        for done, total, words in ((1, 4, "one"), (1, 8, "two"), (9, 8, "three")):
            job.report(done, total, words)
            told.set()
            check_cancelled.acquire(timeout=30)
        return "all of it"

    job = background.Job(work)
    seen = []
    for _ in range(3):
        assert told.wait(30)
        told.clear()
        seen.append((job.share, job.words, job.running))
        check_cancelled.release()
    assert seen == [(0.25, "one", True), (0.25, "two", True), (1.0, "three", True)]
    assert ended(job).result == "all of it" and not job.error


def test_a_job_that_is_stopped_goes_no_further_and_is_no_failure(background):
    reached, done = threading.Event(), []

    def work(job):
        try:
            while True:
                job.check_cancelled()
                reached.set()
                time.sleep(0.01)
        except Exception:  # what handles errors of its own does not keep it
            done.append("handled")
        done.append("went on")

    job = background.Job(work)
    assert reached.wait(30) and not job.stopping
    job.stop()
    ended(job)
    assert not done and not job.error and not job.stopping


COMPUTING = """
import threading, torch, no_models, background
from background import Job
background.UNTIL_STOPPED = 120  # so that a busy machine does not fail it
begun = threading.Event()
def work(job):
    while True:
        torch.randn(200, 200).svd()
        begun.set()
        job.check_cancelled()
jobs = [Job(work), Job(work)]
begun.wait()
"""


def test_an_interpreter_that_ends_stops_the_jobs_that_compute():
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PAGE.parent, APP, APP.parent)))}
    done = subprocess.run([sys.executable, "-c", COMPUTING], env=paths, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "terminate" in done.stderr) == (0, False)


def test_a_failure_is_a_line_and_a_defect_leaves_its_traceback_in_the_log(background, caplog):
    def refused(job):
        raise DiffscopeError("there is no model 'x'")

    def defect(job):
        return 1 / 0

    assert ended(background.Job(refused)).error == "there is no model 'x'"
    assert not caplog.records
    trouble = ended(background.Job(defect)).error
    assert "ZeroDivisionError: division by zero" in trouble and "\n" not in trouble
    assert "return 1 / 0" in caplog.text


def test_a_key_has_one_job_at_a_time(background):
    hold = threading.Event()
    held = background.Jobs()
    first = held.start("a", lambda job: hold.wait(30))
    assert held.start("a", lambda job: None) is first and held.start("b", lambda job: None) is not first
    hold.set()
    ended(first)
    assert held.start("a", lambda job: None) is not first


def test_no_session_takes_all_turns(background):
    """Four jobs of one session wait for each other, and those of another do not wait for them; a waiting one can be stopped."""
    hold = threading.Event()
    one, other = background.Jobs(), background.Jobs()
    long = [one.start(name, lambda job: hold.wait(30)) for name in "abcd"]
    ended(other.start("a", lambda job: None))
    end = time.monotonic() + 30
    while [job.words for job in long].count("waiting for other work to end") != 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    waiting = [job for job in long if job.words.startswith("waiting")]
    waiting[0].stop()
    ended(waiting[0])
    hold.set()
    assert ended(waiting[1]).result is True and waiting[1].words == "beginning"


@pytest.mark.browser
@pytest.mark.slow
def test_sessions_have_jobs_of_their_own_which_outlast_their_page_and_not_their_session(new_page, tmp_path):
    with dashboard(environment={"PYTHONPATH": os.pathsep.join([str(APP), str(APP.parent)])}, script=PAGE) as (address, _):

        def session(name):
            page = new_page(900, 600)
            page.set_default_timeout(60_000)
            page.goto(f"{address}?folder={tmp_path}&name={name}")
            page.get_by_role("button", name="Count").click()
            page.get_by_text("counted").wait_for()
            return page

        def goes_on(name, within=30.0):
            """Return whether a job writes again within some seconds."""
            before, end = (tmp_path / name).read_text(), time.monotonic() + within
            while time.monotonic() < end:
                time.sleep(0.05)
                if (tmp_path / name).read_text() != before:
                    return True
            return False

        one, two = session("one"), session("two")
        before = one.get_by_text("counted").text_content()
        one.wait_for_function("before => !document.body.innerText.includes(before)", arg=before)  # it moves without a click
        one.locator(".st-key-count-stop button").click()
        one.get_by_role("button", name="Count").wait_for()
        assert not goes_on("one", 0.7) and goes_on("two")
        two.get_by_role("link", name="elsewhere").click()
        two.get_by_text("Elsewhere", exact=True).wait_for()
        assert goes_on("two")
        two.get_by_role("link", name="counting").click()
        two.get_by_text("counted").wait_for()
        two.close()
        end = time.monotonic() + 120
        while goes_on("two", 0.7):
            assert time.monotonic() < end, "a job whose session is gone goes on"


def test_a_model_that_is_held_does_not_ask_whether_it_may_go_on(background):
    """The answer may take until a page is through that waits for this model."""
    asked = []
    watched = background.CancellableScope(diffscope.load(tiny.own("v1")), lambda: asked.append(watched.lock._is_owned()))
    with watched.exclusively(), watched.exclusively():
        pass
    watched.capture(tiny.ids(8))
    assert asked and not any(asked)
