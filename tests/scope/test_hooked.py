"""What others build on a scope: prepared prompts, logits, hooks on passes through attention, and the model for one alone."""

import pytest
import torch

import diffscope
from diffscope import edits
from diffscope.errors import PromptError
from tests import tiny

IDS = [tiny.ids(12), tiny.ids(20, seed=1)]


@pytest.fixture(scope="module")
def scope():
    return diffscope.load(tiny.own("v1"))


def test_prepared_prompts_run_as_the_model_runs_them(scope):
    inputs = scope.prepare(IDS)
    logits = scope.run(inputs)
    assert inputs.batch and inputs.lengths == (12, 20) and not logits.requires_grad
    for row, ids in zip(logits, IDS, strict=True):
        alone = scope.logits(torch.tensor([ids]))[0]
        torch.testing.assert_close(row[: len(ids)], alone)
        torch.testing.assert_close(scope.logits(torch.tensor([ids]), 2)[0], alone[-2:])
    for columns in ([3, 19], torch.tensor([3, 19])):
        assert torch.equal(scope.run(inputs, columns), logits[:, [3, 19]])
    for column in (20, -1):
        with pytest.raises(PromptError, match=f"logits at {column} were asked for, and positions are 0 to 19"):
            scope.run(inputs, [column])


def test_logits_are_under_edits_and_take_gradients_if_asked(scope):
    ids = torch.tensor(IDS[:1])
    plain = scope.logits(ids, 1)
    with scope.edit(edits.zero_a2()):
        assert not torch.equal(scope.logits(ids, 1), plain)
    assert scope.logits(ids, 1, gradients=True).requires_grad
    with pytest.raises(PromptError, match="positions for 256"):
        scope.logits(torch.zeros(1, 257, dtype=torch.int64))


def test_hooks_see_every_pass_and_may_replace_its_output(scope):
    inputs = scope.prepare(IDS)
    lengths, plain = [], scope.run(inputs)
    with scope.hooked(lambda passage: lengths.append(passage.lengths), lengths=inputs.lengths):
        assert torch.equal(scope.run(inputs), plain)
    assert lengths == [(12, 20)] * scope.n_layers
    with scope.hooked(replace_output=lambda passage: torch.zeros_like(passage.observed)):
        assert not torch.equal(scope.run(inputs), plain)
    assert torch.equal(scope.run(inputs), plain)


def test_the_model_is_held_in_evaluation_mode_and_given_back(scope):
    scope.model.train()
    try:
        with scope.exclusively():
            assert not scope.model.training and scope.lock._is_owned()
        assert scope.model.training and not scope.lock._is_owned()
    finally:
        scope.model.eval()
