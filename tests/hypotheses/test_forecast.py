"""What is said of time and memory beforehand, against what is measured or counted afterwards."""

import pytest

import diffscope
from diffscope.conformance.checks import planned_runs
from diffscope.hypotheses import Settings, forecast
from tests import tiny


@pytest.fixture(scope="module")
def scope():
    return diffscope.load(tiny.own("v1"), tiny.tokenizer())


def test_the_memory_of_a_capture_is_what_it_keeps(scope):
    speed = forecast.measured_speed(scope)
    cap = scope.capture([5] * 37)
    kept = sum(tensor.nbytes for layer in cap.layers for tensor in (layer.q, layer.k, layer.v))
    assert speed.capture(37).nbytes == pytest.approx(kept)
    assert 0 < speed.capture(37).seconds <= speed.capture(3700).seconds  # equal where other work held up the short ones


def test_the_pace_leads_through_what_was_timed(scope):
    layers = scope.capture([5] * 32).layers
    speed = forecast._speed(scope, layers, {8: 0.5, 16: 0.6, 32: 1.5})
    assert speed.capture(8).seconds == pytest.approx(0.5) and speed.capture(32).seconds == pytest.approx(1.5)
    quick = forecast._speed(scope, layers, {8: 0.5, 32: 0.4})  # noise: a longer one took less
    assert quick.capture(10**6).seconds == pytest.approx(0.5)


def test_the_runs_of_a_check_are_those_it_makes(scope, monkeypatch):
    tokens, told = [], []
    run = type(scope.runner).logits

    def counted(self, ids, mask, columns=None):
        tokens.append(int(mask.sum()))
        return run(self, ids, mask, columns)

    monkeypatch.setattr(type(scope.runner), "logits", counted)
    diffscope.check(scope, progress=lambda done, total, words: told.append((done, total)))
    planned = planned_runs(scope)
    steps = planned.count(1)
    decoded = [planned[0] - steps, *(steps * [1])]  # by the model itself
    assert sorted([*tokens, *decoded]) == sorted(planned)
    assert told == [(done, len(planned)) for done in range(len(planned))]


def test_tests_take_longer_with_more_prompts_and_untrained_models():
    speed = forecast.Speed(overhead=1.0, pace=0.0, weights=1, pairs=1, token_bytes=1.0)
    one = forecast.of_tests(speed, ["model"], Settings(prompts=10, untrained=0))
    assert one.seconds == forecast.READING * 10 + forecast.CHANGING * 10
    assert forecast.of_tests(speed, ["model", "pair"], Settings(prompts=10, untrained=0)).seconds == 2 * one.seconds
    assert forecast.of_tests(speed, ["cohort"], Settings()).seconds == 0


def test_what_does_not_fit_is_known(monkeypatch):
    monkeypatch.setattr(forecast, "free_memory", lambda device: 1000.0)
    assert forecast.Forecast(1.0, 1000.0).fits and not forecast.Forecast(1.0, 1001.0).fits
