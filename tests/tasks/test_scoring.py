"""Scores of answers and of text are what the model's own logits and its greedy decoding say."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope.errors import PromptError
from diffscope.tasks import Recall, Retrieval
from diffscope.tasks.log_odds import logits_of
from diffscope.tasks.sampling import draw
from diffscope.tasks.scoring import answers, batches, losses, prompt_losses, text_losses


@pytest.fixture(scope="module")
def scope():
    return diffscope.load("mini-diff")


@pytest.fixture(scope="module")
def prompts(scope):
    """Prompts of two lengths."""
    task = Retrieval(scope.tokenizer)
    return [*draw(task, 5, 96, 2, seed=0), *draw(task, 5, 120, 4, seed=1)]


def test_an_answer_is_exact_if_greedy_decoding_gives_it(scope, prompts):
    wrong = [replace(prompt, answer=prompt.distractors[0], distractors=[prompt.answer]) for prompt in prompts[:2]]
    prompts = [*wrong, *prompts[2:]]
    right = answers(scope.logits, prompts).right
    generated = [scope.runner.generate(torch.tensor([p.ids]), len(p.answer), True)[0, len(p.ids) :].tolist() for p in prompts]
    assert right.tolist() == [prompt.answer == tokens for prompt, tokens in zip(prompts, generated)]
    assert 0 < right.sum() < len(prompts)


@pytest.mark.parametrize("tokens", [None, 200, 40])
def test_scores_do_not_depend_on_what_runs_together(scope, prompts, tokens):
    one_by_one = [answers(scope.logits, [prompt]) for prompt in prompts]
    together = answers(scope.logits, prompts, tokens)
    for name in ("loss", "right", "log_odds"):
        expected = np.concatenate([getattr(each, name) for each in one_by_one])
        np.testing.assert_allclose(getattr(together, name), expected, atol=1e-4)


def test_scores_in_float64_are_bounded_without_being_asked_for(scope, prompts, monkeypatch):
    class Scores(torch.Tensor):
        def double(self):
            sizes.append(self.numel())
            return self.as_subclass(torch.Tensor).double()

    whole = answers(scope.logits, prompts)
    sizes: list[int] = []
    most = 2 * len(prompts[0].answer) * scope.runner.vocabulary  # two prompts
    monkeypatch.setattr("diffscope.tasks.scoring.LOGITS", most)
    parts = answers(lambda ids, width: scope.logits(ids, width).as_subclass(Scores), prompts)
    assert max(sizes) == most
    for name, values in whole._asdict().items():
        np.testing.assert_array_equal(getattr(parts, name), values)


def test_a_batch_holds_prompts_of_one_shape_and_every_prompt_once(prompts):
    assert [len(members) for members, _, _ in batches(prompts)] == [5, 5]
    parts = list(batches(prompts, tokens=200, answer_tokens=4))
    assert sorted(np.concatenate([members for members, _, _ in parts])) == list(range(10))
    for members, tokens, wanted in parts:
        assert len(members) * wanted.shape[1] <= 4
        for index, ids, answer in zip(members, tokens.tolist(), wanted.tolist()):
            assert ids == prompts[index].ids + prompts[index].answer[:-1] and answer == prompts[index].answer


def test_a_scope_and_its_module_give_the_same_logits(scope, prompts):
    ids = torch.tensor([prompt.ids for prompt in prompts[:5]])
    with torch.no_grad():
        torch.testing.assert_close(scope.logits(ids, 3), logits_of(scope.model)(ids, 3))
        torch.testing.assert_close(scope.logits(ids, 3), scope.model(ids).logits[:, -3:])


def test_text_losses_are_means_over_hits_and_others(scope):
    recall = Recall(scope.tokenizer, n=2)
    means = text_losses(scope.logits, recall, 80, seed=3, texts=5)
    ids, hits = recall.rows(5, 80, np.random.default_rng(3))
    with torch.no_grad():
        logp = scope.model(torch.tensor(ids)).logits.double().log_softmax(-1)
    loss = -logp[:, :-1].gather(-1, torch.tensor(ids[:, 1:, None]))[..., 0].numpy()
    np.testing.assert_allclose(losses(scope.logits, ids, tokens=160), loss, atol=1e-4)
    assert means["hit"] == pytest.approx(loss[hits[:, 1:]].mean(), rel=1e-5)
    assert means["other"] == pytest.approx(loss[~hits[:, 1:]].mean(), rel=1e-5)


def test_the_loss_of_a_prompt_is_that_of_its_tokens(scope, prompts):
    expected = [scope.loss(prompt.ids) for prompt in prompts]
    np.testing.assert_allclose(prompt_losses(scope.logits, prompts), expected, rtol=1e-5)
    with pytest.raises(PromptError, match="two tokens"):
        losses(scope.logits, np.array([[1]]))
