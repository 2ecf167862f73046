import pytest

from diffscope.monitoring.schedule import Schedule, stride


def test_a_stride_keeps_to_the_budget_and_is_a_multiple():
    assert stride(100, seconds=1, seconds_a_step=1, budget=0.02) == 100
    assert stride(100, seconds=2.5, seconds_a_step=1, budget=0.02) == 200
    assert stride(100, seconds=2.5, seconds_a_step=1, budget=None) == 100


def test_a_schedule_is_stretched_by_what_it_sees_and_keeps_its_early_steps():
    schedule = Schedule(10, frozenset({0, 1}), budget=0.1)
    schedule.note(0, 0.0, 3.0)
    assert schedule.stride == 10  # the time of a step is not known yet
    schedule.note(1, 4.0, 7.0)  # a step takes 1 s, a measurement 3 s
    assert schedule.stride == 30 and schedule.share == pytest.approx(0.1)
    assert [step for step in range(61) if schedule.due(step)] == [0, 1, 30, 60]


def test_one_slow_measurement_does_not_stretch_it_for_good():
    schedule = Schedule(10, frozenset(), budget=0.1)
    for step, seconds in ((0, 60.0), (10, 1.0), (20, 1.0), (30, 1.0)):
        schedule.note(step, 100.0 * step, 100.0 * step + seconds)
    assert schedule.stride == 10
