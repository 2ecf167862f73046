"""Windows that pass through a text, each once a pass."""

import numpy as np
import pytest

from diffscope.errors import DiffscopeError
from diffscope.lab.training.passes import Passes
from diffscope.tasks.text import TextStream

RNG = np.random.default_rng(0)


def text(tokens=4000):
    cuts = np.random.default_rng(1).random(tokens) < 0.6
    return TextStream(np.arange(tokens, dtype=np.uint16), cuts)


def passes(taken=0, seed=(3, 0)):
    filler = text()
    return Passes(filler.ids, filler.cuts, 50, seed, taken=taken)


def test_a_pass_takes_every_window_once_and_begins_at_words():
    words = text().cuts
    windows = passes()
    for _ in range(2):
        starts = np.sort([windows.sample(50, RNG)[0][0] for _ in range(windows.windows)])
        assert (np.diff(starts) > 25).all() and (np.diff(starts) < 75).all() and words[starts].all()
        covered = np.zeros(4000, dtype=int)
        for start in starts:
            covered[start : start + 50] += 1
        assert (covered > 0).mean() > 0.95 and covered.max() <= 2
    assert windows.sample(50, RNG)[0].dtype == np.int64


def test_passes_differ_in_order_and_each_begins_elsewhere():
    windows = passes()
    first, second = ([int(windows.sample(50, RNG)[0][0]) for _ in range(windows.windows)] for _ in range(2))
    assert first != second and sorted(first) != sorted(second)
    assert first == [int(passes(taken=at).sample(50, RNG)[0][0]) for at in range(len(first))]  # as after a stop
    assert int(passes(seed=(4, 0)).sample(50, RNG)[0][0]) != first[0]


def test_windows_of_a_text_that_ends_with_a_word_stay_as_they_were():
    begun = passes()
    assert [int(begun.sample(50, RNG)[0][0]) for _ in range(6)] == [3040, 3140, 42, 2843, 2491, 2240]


def test_a_text_may_end_with_its_longest_word():
    cuts = np.arange(1000) % 3 == 0
    cuts[600:] = False
    windows = Passes(np.arange(1000), cuts, 20, (0, 0))
    starts = [int(windows.sample(20, RNG)[0][0]) for _ in range(3 * windows.windows)]
    assert cuts[starts].all() and windows.windows == (597 - 20) // 20


def test_a_text_without_a_window_is_refused():
    filler = text(80)
    with pytest.raises(DiffscopeError, match="a text of 80 tokens has no windows of 50"):
        Passes(filler.ids, filler.cuts, 50, (0, 0))
