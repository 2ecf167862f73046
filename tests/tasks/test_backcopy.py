"""Bigram-Backcopy sequences follow their table and their triggers, and the losses that are said to be the least are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from diffscope.errors import PromptError
from diffscope.prompts.encoded import encode
from diffscope.tasks import Backcopy
from tests import tiny


@pytest.fixture(scope="module")
def task():
    return Backcopy()


class Oracle(torch.nn.Module):
    """Predicts what the task itself draws from, or at triggers a copy with probability `copying`."""

    def __init__(self, task, copying=1.0):
        super().__init__()
        self.task, self.copying = task, copying
        self.embedding = torch.nn.Embedding(64, 1)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, ids, use_cache):
        p = torch.from_numpy(self.task.transitions)[ids]  # (row, query, token)
        triggers = torch.isin(ids, torch.from_numpy(self.task.trigger_ids))
        copies = torch.nn.functional.one_hot(ids.roll(1, 1), 64) * self.copying + (1 - self.copying) / 64
        self.logits = torch.where(triggers[..., None], copies, p).clamp(min=1e-300).log()
        return self


@given(length=st.integers(3, 80), seed=st.integers(0, 2**32), triggers=st.integers(1, 6))
def test_a_trigger_is_followed_by_what_stood_before_it(length, seed, triggers):
    task = Backcopy(triggers)
    ids, kind = task.training_rows(4, length, np.random.default_rng(seed))
    assert ids.shape == kind.shape == (4, length) and (ids[:, 0] == task.tokenizer.bos_token_id).all()
    assert not (ids[:, 1:] == task.tokenizer.bos_token_id).any()
    after = np.zeros(ids.shape, dtype=bool)
    after[:, 1:] = np.isin(ids[:, :-1], task.trigger_ids)
    assert (kind == after).all()
    assert not after[:, :3].any(where=[[True, True, False]])  # so there is a character to copy, which is not <bos>
    assert all(row[at] == row[at - 2] for row, marks in zip(ids, after) for at in np.flatnonzero(marks))
    assert (task.transitions[ids[:, :-1], ids[:, 1:]] > 0)[~after[:, 1:]].all()
    again, _ = task.training_rows(4, length, np.random.default_rng(seed))
    assert (ids == again).all()


@settings(max_examples=25)
@given(length=st.integers(3, 120), seed=st.integers(0, 2**32))
def test_spans_of_a_prompt_are_its_tokens(task, length, seed):
    prompt = task.prompt(length, np.random.default_rng(seed))
    ids, spans = np.array(prompt.ids), prompt.spans
    assert len(ids) == length and ids[-1] in task.trigger_ids and prompt.answer == [ids[-2]]
    assert sorted(spans["sink"] + spans["triggers"] + spans["dormant"]) == list(range(length))
    assert np.isin(ids[spans["triggers"]], task.trigger_ids).all() and not np.isin(ids[spans["dormant"]], task.trigger_ids).any()
    assert [at + 1 for at in spans["copied"]] == spans["triggers"]
    assert spans["answer"] == spans["copied"][-1:] and spans["query"] == [length - 1]
    encoded = encode(task.tokenizer, prompt.ids, {name: span for name, span in spans.items() if span})
    assert encoded.text == "".join(encoded.tokens[1:]) and list(encode(task.tokenizer, encoded.text).ids) == prompt.ids


def test_draws_are_of_the_table(task):
    """Chi-square against the table, over all characters together."""
    ids, kind = task.training_rows(400, 257, np.random.default_rng(0))
    drawn = kind[:, 1:] == 0
    counts = np.zeros((64, 64))
    np.add.at(counts, (ids[:, :-1][drawn], ids[:, 1:][drawn]), 1)
    expected = counts.sum(1, keepdims=True) * task.transitions
    many = expected > 5
    statistic = ((counts - expected) ** 2)[many] / expected[many]
    assert many.sum() > 500 and abs(statistic.sum() / many.sum() - 1) < 0.15
    assert kind.mean() == pytest.approx(task.bayes_loss()["share"], abs=0.01)


def test_triggers_are_the_same_on_every_machine(task):
    assert task.tokenizer.convert_ids_to_tokens(task.trigger_ids.tolist()) == ["t", "a", "n"]
    assert task.bayes_loss()["bigram"] == pytest.approx(2.5851126802589097, abs=1e-9)


def test_the_least_loss_is_what_a_model_that_knows_the_task_has(task):
    perfect = task.score(Oracle(task), 200, 256, np.random.default_rng(3))
    assert perfect.copied == 0 and perfect.exact == 1 and perfect.excess == pytest.approx(0, abs=1e-12)
    assert perfect.bigram == pytest.approx(task.bayes_loss()["bigram"], abs=0.02)
    poor = task.score(Oracle(task, copying=0.5), 50, 256, np.random.default_rng(3))
    assert poor.copied == pytest.approx(-np.log(0.5 + 0.5 / 64), abs=1e-9) and poor.exact == 1
    untrained = task.score(tiny.own(vocab_size=64), 4, 64, np.random.default_rng(0))
    assert untrained.copied > 2 and untrained.exact < 0.3 and untrained.excess > 0.5


def test_the_tokenizer_is_the_same_when_saved(task, tmp_path):
    task.tokenizer.save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    text = " the cat (of 3)"
    assert saved(text)["input_ids"] == task.tokenizer(text)["input_ids"] and saved.decode(saved(text)["input_ids"][1:]) == text
    assert saved.bos_token == "<bos>" and len(saved) == 64


def test_what_cannot_be_drawn_is_refused(task):
    with pytest.raises(PromptError, match="triggers = 0; give a number from 1 to"):
        Backcopy(0)
    with pytest.raises(PromptError, match="give a length of 3 or more"):
        task.prompt(2, np.random.default_rng(0))
    with pytest.raises(PromptError, match="give a length of 2 or more"):
        task.training_rows(1, 1, np.random.default_rng(0))
    with pytest.raises(PromptError, match="cannot split this text"):
        encode(task.tokenizer, "naïve")
