"""Progress of a run of tests: from the first second, and never back."""

import numpy as np

from diffscope.hypotheses import Settings, gather


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
