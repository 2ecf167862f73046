"""The bar of a run: of the whole, from the first second, and never back."""

import numpy as np

from diffscope.hypotheses import TESTS, Settings, gather
from diffscope.hypotheses.progress import Job


def test_the_bar_of_a_real_run_goes_forward_to_its_end():
    told = []
    settings = Settings(prompts=10, length=128, untrained=3)
    subjects = gather(["mini-diff"], needs={"model"}, settings=settings, progress=lambda *at: told.append(at))
    assert [total for _, total, _ in told] == [100] * len(told) and told[0][0] == 0
    assert subjects.statements
    subjects.run(["key-token-gain", "sparsity", "sparsity-pair"])
    done = np.array([at[0] for at in told])
    assert (np.diff(done) >= 0).all() and done[-1] == 100
    assert len(set(done.round(2))) > 4 and np.diff(done).max() < 60
    assert any(words.startswith("key-token-gain: untrained model 2 of 3") for _, _, words in told)


def test_what_counts_anew_or_never_ends_does_not_move_the_bar_back():
    told = []
    job = Job(lambda done, total, words: told.append(done))
    tests = [TESTS["sparsity"], TESTS["key-token-gain"]]
    job.plan(tests, 2)
    for number, test in enumerate(tests):
        job.test(number, len(tests), test.id)
        for done in (1, 2, 3, 1, 2, 3, 0, 3):
            job.tell(done, 3, "the same words")
        job.opening(0, 1, "too late to open")
    job.end()
    assert told == sorted(told) and told[-1] == 100
