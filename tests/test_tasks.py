"""Retrieval prompts are what they say: exact length, exact spans, the same tokens from text, nothing of training in them."""

import numpy as np
import pytest

from diffscope.errors import PromptError
from diffscope.prompts import Chars, encode
from diffscope.tasks import Retrieval, examples
from diffscope.tasks.text import standard_library_text
from diffscope.tasks.vocabulary import CITIES, train_tokenizer


@pytest.fixture(scope="module")
def task():
    sentences = [f" The magic number: {city}" for city in CITIES] * 5
    return Retrieval(train_tokenizer([*standard_library_text(True), *sentences], 600), held_out=True)


def text_of(task, prompt, span):
    return task.tokenizer.decode([prompt.ids[at] for at in prompt.spans[span]])


@pytest.mark.parametrize("length, needles", [(96, 2), (256, 4), (257, 6)])
def test_length_and_spans_are_exact(task, length, needles):
    rng = np.random.default_rng(0)
    for _ in range(20):
        prompt = task.prompt(length, needles, rng)
        text = task.tokenizer.decode(prompt.ids[1:])
        assert len(prompt.ids) == length
        number = task.tokenizer.decode(prompt.answer).strip()
        assert text_of(task, prompt, "answer") == f" {number}" and len(number) == 4
        assert text.count(f" The magic number: {prompt.city} {number}.") == 1
        assert text.endswith(f" The magic number: {prompt.city}")
        assert text_of(task, prompt, "query") == f" The magic number: {prompt.city}"
        others = text_of(task, prompt, "needles")
        assert others.count("The magic number:") == needles - 1 and prompt.city not in others
        # Encoding the text gives the same tokens, so a typed prompt and a generated one are the same thing.
        assert task.tokenizer(text)["input_ids"] == prompt.ids


def test_depth_is_where_it_was_asked_for(task):
    rng = np.random.default_rng(0)
    for depth in (0.0, 0.25, 0.5, 0.75, 1.0):
        for _ in range(10):
            assert abs(task.prompt(256, 4, rng, depth).depth - depth) < 0.12
    first, last = task.prompt(256, 4, rng, 0.0), task.prompt(256, 4, rng, 1.0)
    assert min(first.spans["answer"]) < min(first.spans["needles"])
    assert max(last.spans["answer"]) > max(last.spans["needles"])


def test_a_seed_gives_one_prompt(task):
    first, again, other = (task.prompt(128, 3, np.random.default_rng(seed)).ids for seed in (5, 5, 6))
    assert first == again != other


def test_needles_that_do_not_fit_are_refused(task):
    with pytest.raises(PromptError, match="do not fit 64 tokens; use at least"):
        task.prompt(64, 12, np.random.default_rng(0))


def test_a_tokenizer_that_cannot_carry_the_task_is_refused(task):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def bytes_only(**special):
        tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)

    for tokenizer in (None, bytes_only(), bytes_only(bos_token="<s>")):
        with pytest.raises(PromptError, match="beginning|begins a word|single token"):
            Retrieval(tokenizer)
    with pytest.raises(PromptError, match="needles alone"):
        task.training_rows(1, 40, 3, 20, np.random.default_rng(0))


def test_training_targets_are_the_numbers_that_were_given_away(task):
    ids, kind = task.training_rows(6, 160, 3, 9, np.random.default_rng(0))
    assert ids.shape == (6, 160) and (ids[:, 0] == task.tokenizer.bos_token_id).all()
    for row, kinds in zip(ids, kind):
        said = {}
        for at in np.flatnonzero(kinds[:-1] * kinds[1:]):
            city = task.tokenizer.decode([row[at - 1]])
            number = tuple(row[at : at + 2])
            assert (kinds[at] == 1) == (city in said)
            assert said.setdefault(city, number) == number
        assert len(said) == 3 and (kinds > 0).sum() == 18


def test_training_and_held_out_text_share_nothing():
    train, unseen = standard_library_text(False), standard_library_text(True)
    assert len(set(train) & set(unseen)) / len(unseen) < 0.02  # a few docstrings stand in two modules
    assert 0.03 < len(unseen) / len(train) < 0.2


def test_cities_and_numbers_are_single_tokens(task):
    for text in (*(f" {city}" for city in CITIES), " 07", "42"):
        assert len(task.tokenizer.tokenize(text)) == 1


def test_examples_have_their_answers_where_they_say(task):
    for example in examples():
        pieces = {name: [Chars(*pair) for pair in pairs] for name, pairs in example.spans.items() if pairs}
        encoded = encode(task.tokenizer, example.prompt, pieces)
        assert "".join(encoded.tokens[at] for at in encoded.spans["answer"]).strip() == example.answer
        assert example.prompt.endswith("".join(encoded.tokens[at] for at in encoded.spans["query"]))
