"""One folder a training, every step once, whatever happens to the process."""

import signal
import time

import numpy as np
import pytest
import torch

import diffscope
from diffscope import CorruptFile, DiffscopeError, DiffscopeWarning
from diffscope.monitoring import Monitor
from diffscope.monitoring.record import Record, stamp
from tests import tiny
from tests.forked import begun, ended

PROMPTS = [tiny.ids(9)]


def model_at(step, seed=0):
    """The model after so many steps of a training that is the same each time."""
    model = tiny.own(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.001 * step + 0.01 * seed
    return model


def watched(path, steps, seed=0, **more):
    """Measure a training at some steps, as a process that begins anew would."""
    monitor = None
    for step in steps:
        model = model_at(step, seed)
        options = dict(statistics=["lambda", "entropy"], every=1, budget=None, path=path, strict=True) | more
        monitor = monitor or Monitor(model, PROMPTS, **options)
        monitor.attach(model)
        yield monitor.step(step)


def test_a_run_that_begins_anew_goes_on_and_repeats_no_step(tmp_path):
    first = list(watched(tmp_path / "kept", range(4)))
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "kept").iterdir()}
    again = list(watched(tmp_path / "kept", range(2, 7)))
    assert again[:2] == first[2:]  # a tracker that lost its last events gets them again
    assert all(file.stat().st_mtime_ns == time for file, time in written.items() if not file.name.startswith("."))
    assert diffscope.open(tmp_path / "kept")["step"].values.tolist() == list(range(7))


def test_another_course_of_the_training_replaces_later_steps_and_says_so(tmp_path):
    list(watched(tmp_path / "kept", range(6)))
    with pytest.warns(DiffscopeWarning, match="steps 3 to 5 in .* another course"):
        list(watched(tmp_path / "kept", range(3, 5), seed=1))
    assert Record(tmp_path / "kept").steps == [0, 1, 2, 3, 4]
    assert len(list((tmp_path / "kept" / "replaced-1").glob("*.nc"))) == 3


def hold(path, sign):
    """Claim a folder, say so and keep it."""
    record = Record(path)
    sign.write_text(f"{record.claimed()}")
    time.sleep(600)


def test_a_folder_that_another_process_writes_is_left_to_it_until_that_ends(tmp_path):
    list(watched(tmp_path / "kept", range(2)))
    again = watched(tmp_path / "kept", range(2, 6), seed=1, strict=False)
    other = begun(hold, tmp_path / "kept", tmp_path / "sign")
    try:
        while not ((tmp_path / "sign").exists() and (tmp_path / "sign").read_text() == "True"):
            assert other.is_alive()
            time.sleep(0.01)
        with pytest.warns(DiffscopeWarning, match="another process keeps its measurements in .*; give another path, or end it"):
            assert next(again)  # trackers get it all the same
        assert next(again) and Record(tmp_path / "kept").steps == [0, 1]
    finally:
        other.kill()
        ended(other)
    assert next(again) and Record(tmp_path / "kept").steps == [0, 1, 4]


def test_what_a_killed_beginning_has_left_is_no_hindrance(tmp_path):
    (tmp_path / "kept" / ".monitor.json-abc").mkdir(parents=True)
    list(watched(tmp_path / "kept", range(1)))
    assert Record(tmp_path / "kept").steps == [0]


def test_a_full_disk_loses_the_step_and_not_the_training(tmp_path):
    list(watched(tmp_path / "kept", range(2)))
    resource = pytest.importorskip("resource")
    ignored, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    going_on = watched(tmp_path / "kept", range(2, 4), strict=False)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.warns(DiffscopeWarning, match="step 2 could not be kept in .*too large"):
            assert next(going_on)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert next(going_on) and diffscope.open(tmp_path / "kept")["step"].values.tolist() == [0, 1, 3]


def test_a_step_that_was_measured_anew_has_another_stamp(tmp_path):
    list(watched(tmp_path / "kept", range(2)))
    before = stamp(tmp_path / "kept")
    with pytest.warns(DiffscopeWarning, match="another course"):
        list(watched(tmp_path / "kept", range(1, 2), seed=1))
    after = stamp(tmp_path / "kept")
    assert list(after) == list(before) == ["step-00000000.nc", "step-00000001.nc"] and after != before


def test_maps_of_chosen_heads_are_kept_with_their_steps_and_drawn(tmp_path):
    options = dict(statistics=["lambda"], every=1, budget=None, path=tmp_path / "kept", strict=True, maps=[(0, 1)], maps_every=2)
    monitor = Monitor(model_at(0), PROMPTS, **options)
    for step in range(3):
        model = model_at(step)
        monitor.attach(model)
        monitor.step(step)
    record = Record(tmp_path / "kept")
    assert record.steps_with_maps == [0, 2]
    expected = diffscope.load(model).capture(PROMPTS[0]).map("D", layer=0, head=1)
    np.testing.assert_allclose(record.maps(2).map("D", layer=0, head=1), expected, atol=1e-6)
    image = monitor.images["diffscope/maps/layer_0/head_1/D"]
    assert image.dtype == np.uint8 and image.shape == (252, 252, 3)  # nine tokens, of 28 pixels
    blue = image[::28, ::28, 2].astype(int) - image[::28, ::28, 0]
    assert (np.sign(blue[np.abs(expected) > 0.05]) == np.sign(expected.values[np.abs(expected) > 0.05])).all()
    with pytest.raises(DiffscopeError, match="has no maps of step 1; those that it has are of the steps: 0, 2"):
        record.maps(1)


def test_nothing_is_written_before_the_first_step(tmp_path):
    Monitor(model_at(0), PROMPTS, path=tmp_path / "kept")  # in every process, if torch.distributed has not begun
    assert not list(tmp_path.iterdir())


def test_a_head_that_is_not_there_is_warned_of_and_the_numbers_are_kept(tmp_path):
    monitor = Monitor(model_at(0), PROMPTS, statistics=["lambda"], every=1, path=tmp_path / "kept", maps=[(0, 99)])
    with pytest.warns(DiffscopeWarning, match="maps are not kept: .*99"):
        assert monitor.step(0)
    assert Record(tmp_path / "kept").steps == [0]
    with pytest.raises(DiffscopeError, match="layer 7"):
        Monitor(model_at(0), PROMPTS, maps=[(7, 0)])


@pytest.mark.parametrize("begins", [64, 65])  # at a step that is measured, and between two
def test_steps_that_a_resumed_training_goes_past_are_replaced(begins, tmp_path):
    list(watched(tmp_path / "kept", range(60, 68), every=2))
    with pytest.warns(DiffscopeWarning, match="step 66 in .* another course"):
        list(watched(tmp_path / "kept", range(begins, 69), every=4))
    assert Record(tmp_path / "kept").steps == [60, 62, 64, 68]


def test_a_folder_of_something_else_is_refused(tmp_path):
    list(watched(tmp_path / "kept", range(1)))
    with pytest.raises(DiffscopeError, match="other statistics"):
        Monitor(model_at(0), PROMPTS, statistics=["gini"], path=tmp_path / "kept")
    with pytest.raises(DiffscopeError, match="other prompts"):
        Monitor(model_at(0), [tiny.ids(9, 4)], statistics=["lambda", "entropy"], path=tmp_path / "kept")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(DiffscopeError, match="give another path"):
        Monitor(model_at(0), PROMPTS, path=tmp_path / "mine")
    with pytest.raises(DiffscopeError, match="holds no measurements"):
        Record(tmp_path / "mine")


def test_an_empty_and_a_damaged_record_are_errors_of_one_line(tmp_path):
    list(watched(tmp_path / "kept", range(1)))
    (tmp_path / "kept" / "step-00000000.nc").unlink()
    with pytest.raises(DiffscopeError, match="no step yet"):
        diffscope.open(tmp_path / "kept")
    list(watched(tmp_path / "other", range(2)))
    file = tmp_path / "other" / "step-00000001.nc"
    file.write_bytes(file.read_bytes()[:-40] + b"x" * 40)
    with pytest.raises(CorruptFile, match="damaged"):
        diffscope.open(tmp_path / "other")


def test_a_record_is_followed_without_reading_what_was_read(tmp_path, monkeypatch):
    list(watched(tmp_path / "kept", range(3)))
    record = Record(tmp_path / "kept")
    record.dataset()
    list(watched(tmp_path / "kept", range(3, 5)))
    read = []
    from diffscope.monitoring import record as module

    own = module.open_statistics
    monkeypatch.setattr(module, "open_statistics", lambda path: read.append(path.name) or own(path))
    assert record.dataset().sizes["step"] == 5
    assert read == ["step-00000003.nc", "step-00000004.nc"]


def go_through(path, steps, log):
    """Measure a training, with a line in a log after each step."""
    for step, _ in enumerate(watched(path, range(steps))):
        with open(log, "a") as file:
            file.write(f"{step}\n")


@pytest.mark.slow
def test_killed_at_several_moments_it_has_every_step_once(tmp_path, full):
    moments = (2, 5, 7, 11, 13) if full else (4,)
    for moment in moments:
        log = tmp_path / f"until-{moment}"
        log.touch()
        process = begun(go_through, tmp_path / "kept", 100_000, log)
        while str(moment) not in log.read_text().split() and process.is_alive():
            time.sleep(0.001)
        process.kill()
        assert ended(process) == -signal.SIGKILL
    steps = diffscope.open(tmp_path / "kept").sizes["step"] + 4
    assert ended(begun(go_through, tmp_path / "kept", steps, tmp_path / "to the end")) == 0
    assert diffscope.open(tmp_path / "kept")["step"].values.tolist() == list(range(steps))
