"""What tests read off a model: answers under edits, ranks of the second map, knock-outs."""

import numpy as np
import pytest
import torch

import diffscope
from diffscope import edits
from diffscope.evidence.ablations import answers, hidden_answer_losses
from diffscope.evidence.maps import second_map_ranks
from diffscope.tasks import scoring
from diffscope.tasks.log_odds import logits_of


def test_answers_are_those_of_the_model_and_of_its_edits(prompts):
    scope = diffscope.load("mini-diff")
    plain = answers(scope, prompts)
    edited = answers(scope, prompts, edits.zero_a2())
    assert plain.right.tolist() == scoring.answers(logits_of(scope.model), prompts).right.astype(float).tolist()
    ids = torch.tensor([prompts[2].ids + prompts[2].answer])
    width = len(prompts[2].answer)
    with torch.no_grad():
        logits = scope.model(ids).logits[0, -width - 1 : -1]
    assert plain.loss[2] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, ids[0, -width:])), abs=1e-5)
    assert edited.loss.mean() > plain.loss.mean() + 1


def test_ranks_of_the_second_map_are_those_of_the_map(prompts):
    scope = diffscope.load("mini-diff")
    ranks = second_map_ranks(scope, prompts[:2])
    second = scope.capture(prompts[1].ids).map("lambda_A2", 2, 1).values
    sigma = np.linalg.svd(second.astype(np.float64), compute_uv=False)
    p = sigma / sigma.sum()
    rank = ranks["rank"].sel(definition="erank")
    assert float(rank.sel(control="map")[1, 2, 1]) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-3)
    theirs = scope.capture(prompts[1].ids).measure(["effective_rank"])["effective_rank"].sel(ranked_map="lambda_A2")
    np.testing.assert_allclose(ranks["rank"][1].values, theirs.transpose("layer", "head", "definition", "control"), rtol=1e-3)


def test_the_answer_is_knocked_out_and_not_its_surroundings(prompts):
    scope = diffscope.load("mini-diff")
    prompt = prompts[1]
    rises = hidden_answer_losses(scope, [prompt])
    total, by_layer = rises["together"].values, rises["layers"].values[0]
    queries = [len(prompt.ids) - 1, len(prompt.ids)]
    with scope.edit(edits.knock_out(prompt.spans["answer"], queries)):
        assert scope.capture(prompt.ids).map("A1", 1, 0, queries=[-1]).values[0, prompt.spans["answer"]].sum() == 0
    assert len(prompt.answer) == 2 and total[0] > 1 and by_layer.max() > 0.05 and len(by_layer) == scope.n_layers
