"""What is said of a run of tests beside its verdicts: its progress, never back, and how the models answer."""

import math

import numpy as np
import pytest

from diffscope.hypotheses import Settings, gather
from diffscope.hypotheses.gathering import Subjects
from diffscope.lab.accuracy import Accuracy


def test_progress_goes_forward_to_its_end_and_says_what_is_done():
    told = []
    settings = Settings(prompts=10, length=128, untrained=3)
    subjects = gather(["mini-diff"], needs={"model"}, settings=settings, progress=lambda *at: told.append(at))
    assert told[0] == (0, 1, "opening mini-diff") and subjects.statements
    subjects.run(["key-token-gain", "sparsity", "sparsity-pair"])
    done = np.array([at[0] for at in told])
    assert (np.diff(done) >= 0).all() and told[-1] == (3, 3, "")
    assert {total for _, total, _ in told} == {1, 3}
    assert any(words.startswith("key-token-gain: untrained model 2 of 3") for _, _, words in told)


@pytest.mark.parametrize("p, better", [(0.001, 5), (0.3, 0), (math.nan, 0)])  # NaN where chance is not known
def test_of_many_models_it_is_said_how_many_answer_better_than_chance(p, better):
    subjects = Subjects(["five"], Settings())
    chance = math.nan if math.isnan(p) else 0.1
    of_each = Accuracy("one", 40, 0, 0.3, chance, p, 1.0, 0.5, 1.5, -1.0, np.zeros(40, bool))
    subjects.__dict__["accuracies"] = [of_each] * 5
    *weak, last = subjects.statements
    assert last == f"{better} of 5 models answer better than chance" and len(weak) == 5 - better
