"""Errors of other libraries, and what is asked for in the wrong form, become errors of diffscope in one line."""

import numpy as np
import pytest

import diffscope
from diffscope import hypotheses, instruments, readings
from diffscope.errors import CorruptFile, DiffscopeError, PromptError, check_index, translated
from tests import tiny

IDS = tiny.ids(12)


def test_an_error_of_another_library_is_raised_as_one_line():
    with pytest.raises(CorruptFile) as raised, translated(CorruptFile, "f.bin cannot be read", "copy it again", errors=OSError):
        raise OSError("no such device\nsee the manual")
    assert str(raised.value) == "f.bin cannot be read (no such device); copy it again" and raised.value.__suppress_context__


def test_other_errors_and_those_of_diffscope_pass():
    with pytest.raises(KeyError), translated(CorruptFile, "f.bin cannot be read", errors=OSError):
        raise KeyError("name")
    with pytest.raises(PromptError, match="^the prompt is empty$"), translated(CorruptFile, "f.bin cannot be read"):
        raise PromptError("the prompt is empty")


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda scope: readings.depths(scope, 128), "lengths are given as a list, such as .128, 512., and not as 128"),
        (lambda scope: readings.noise_cost(scope, None, sigmas=0.5), "standard deviations of noise are given as a list"),
        (lambda scope: readings.rejection(scope.capture(IDS), sigmas=np.array(0.5)), "standard deviations of noise are given"),
        (lambda scope: instruments.log_odds_under_noise(scope, IDS, 1, 2), "tokens of distractors are given as a list"),
        (lambda scope: diffscope.monitor(scope.model, IDS, steps="100"), "steps are given as a list, .* not as '100'"),
        (lambda scope: hypotheses.test(scope, seeds=[0]), "seeds are chosen from a cohort"),
        (lambda scope: diffscope.load(3), "a model is not opened from 3; give its name"),
        (lambda scope: check_index("layer", "1", range(3)), "there is no layer '1'; choose from 0 to 2"),
    ],
)
def test_one_thing_in_place_of_several_or_of_another_kind_is_refused_in_a_line(ask, words):
    with pytest.raises(DiffscopeError, match=words):
        ask(diffscope.load(tiny.own("v1")))
