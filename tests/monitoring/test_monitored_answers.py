"""Answers, spans and the logits of each branch, measured beside the rest while a model trains."""

import numpy as np
import pytest
import torch

import diffscope
from diffscope.monitoring import Monitor
from tests import tiny
from tests.monitoring.test_left_as_it_was import assert_same, state

TEXTS = ["The magic number of Paris is 7421. The magic number of Rome is 1983. The magic number of Paris is"] * 2
ANSWERS = ["7421", "1983"]


@pytest.fixture
def scope():
    scope = diffscope.load("mini-diff")
    yield scope
    scope.model.eval()


def test_answers_have_the_scores_of_the_model_and_their_mass_is_measured(scope, tmp_path):
    scope.model.train()
    options = dict(every=1, path=tmp_path / "kept", tokenizer=scope.tokenizer, strict=True, budget=None)
    spans = [{"answer": answer} for answer in ANSWERS]
    monitor = Monitor(scope.model, TEXTS, answers=ANSWERS, distractors=["5555"], spans=spans, **options)
    before = state(scope.model)
    logged = monitor.step(0)
    assert_same(state(scope.model), before)
    expected = scope.answer(TEXTS, ANSWERS, ["5555"], spans=spans)
    assert logged["diffscope/answer_log_odds"] == pytest.approx(float(expected["log_odds"].mean()), rel=1e-6)
    kept = diffscope.open(tmp_path / "kept")
    assert float(kept["answer_loss"][0]) == pytest.approx(float(expected["loss"].mean()), rel=1e-6)
    assert "answer" in kept["span_mass"]["span"] and any("span_mass" in name for name in logged)
    with pytest.raises(diffscope.DiffscopeError, match="other prompts and answers"):
        Monitor(scope.model, TEXTS, answers=ANSWERS[::-1], spans=spans[::-1], **options)


@pytest.mark.parametrize("make", [tiny.own, tiny.diffllama, lambda: tiny.standard("llama")])
def test_the_largest_logit_of_each_branch_is_that_of_its_map(make, tmp_path):
    model = make().train()
    ids = tiny.ids(30)
    monitor = Monitor(model, [ids], ["logit_outliers"], queries=None, path=tmp_path / "kept", strict=True)
    monitor.alert("largest_logit", above=0.0, branch="A1")
    assert monitor.step(0)["diffscope/alerts"] > 0 and "largest_logit (A1) of L0H0" in monitor.alerts[0].text
    largest = diffscope.open(tmp_path / "kept")["largest_logit"].isel(step=0)
    for layer in diffscope.load(model).capture(ids).layers:
        scores = layer.logits().masked_fill(~layer.visible(), 0).abs().amax((1, 2))  # (map,)
        for branch, name in ((1, "A1"), (2, "A2")):
            values = largest.sel(layer=layer.layer, branch=name).values
            if branch == 2 and not layer.differential:
                assert np.isnan(values).all()
            else:
                torch.testing.assert_close(torch.from_numpy(values).float(), scores[layer.pairing.of_branch(branch)].float())
