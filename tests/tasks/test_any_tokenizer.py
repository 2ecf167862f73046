"""Retrieval prompts and a person's own, in the tokens of tokenizers that treat spaces and digits in every way."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from diffscope.errors import PromptError, SpanError
from diffscope.tasks import Recall, Retrieval, encode_prompts, examples, read_prompts
from diffscope.tasks.text import word_begins
from tests import tiny
from tests.tokenizers_of_kinds import KINDS, tokenizer


@pytest.fixture(scope="module", params=KINDS)
def task(request):
    return Retrieval(tokenizer(request.param))


def text_of(task, prompt, span):
    return task.tokenizer.decode([prompt.ids[at] for at in prompt.spans[span]]).strip()


def whole(task, prompt):
    """The text of a prompt and its answer, without what the tokenizer itself puts first."""
    ids = prompt.ids + prompt.answer
    return task.tokenizer.decode(ids, skip_special_tokens=True), ids


def test_prompts_have_the_tokens_of_their_text_and_exact_spans(task):
    rng = np.random.default_rng(0)
    for questions in (1, 3) * 5:
        prompt = task.prompt(200, 4, rng, questions=questions)
        text, ids = whole(task, prompt)
        assert len(prompt.ids) == 200 and task.tokenizer(text)["input_ids"] == ids
        cities, numbers = zip(*re.findall(r"The magic number: (\w+) (\d{4})", text))
        assert text_of(task, prompt, "query") == f"The magic number: {prompt.city}"
        assert cities[4:][0] == prompt.city and len(cities) == 4 + questions
        stated = dict(zip(cities[:4], numbers[:4]))
        assert [stated[city] for city in cities[4:]] == list(numbers[4:])
        for number, name, at in zip(numbers[4:], ("answer", "answer_2", "answer_3"), prompt.numbers, strict=False):
            assert text_of(task, prompt, name) == number == task.tokenizer.decode([prompt.answer[i] for i in at]).strip()
            assert re.fullmatch(r"\s?\d{4}", task.tokenizer.decode([prompt.ids[i] for i in prompt.spans[name]]))
        others = [number for city, number in stated.items() if city != prompt.city]
        assert [task.tokenizer.decode(number).strip() for number in prompt.distractors] == others
        assert task.tokenizer.decode(prompt.answer[:1]).strip()  # what comes before every number belongs to the question
        assert prompt.spans["sink"] == [0] and text_of(task, prompt, "needles").count("magic number:") == 3


def test_the_first_question_is_the_same_whatever_follows_it():
    task = Retrieval(tokenizer("metaspace"))
    alone, three = (task.prompt(200, 4, np.random.default_rng(3), 0.5, questions) for questions in (1, 3))
    assert alone.ids == three.ids and alone.answer == [three.answer[at] for at in three.numbers[0]]
    with pytest.raises(PromptError, match="5 questions about 4 needles; ask for 1 to 4"):
        task.prompt(200, 4, np.random.default_rng(3), questions=5)


@pytest.mark.parametrize("kind, near, answerable", list(zip(KINDS, [False, True, False] * 2, [True, True, False] * 2)))
def test_controlled_prompts_are_those_of_any_tokenizer_too(kind, near, answerable):
    task = Retrieval(tokenizer(kind))
    cells = [task.controlled(260, count, 5, slots=5, near=near, answerable=answerable) for count in (0, 2, 5)]
    for prompt in cells:
        text, ids = whole(task, prompt)
        assert len(prompt.ids) == 260 and task.tokenizer(text)["input_ids"] == ids
        assert text.endswith(text_of(task, cells[0], "answer") if answerable else f"{prompt.city} unknown")
    for fewer, more in pairwise(cells):
        differ = np.flatnonzero(np.array(fewer.ids) != np.array(more.ids))
        assert set(differ) <= set(more.spans["needles"]) and fewer.spans["query"] == more.spans["query"]


@pytest.mark.parametrize("kind", ["gpt2", "llama2"])  # the first puts nothing before a text
def test_texts_and_training_rows_begin_as_the_tokenizer_begins(kind):
    task = Retrieval(tokenizer(kind))
    prefix = task.tokenizer("The")["input_ids"][: -len(task.tokenizer("The", add_special_tokens=False)["input_ids"])]
    rng = np.random.default_rng(0)
    assert bool(prefix) == (kind != "gpt2") and Recall(task.tokenizer).text(40, rng).ids[: len(prefix)] == prefix
    ids, kinds = task.training_rows(2, 200, 3, 6, rng)
    assert ids.shape == (2, 200) and (ids[:, : len(prefix)] == prefix).all() and (kinds > 0).any(1).all()


def joining(pieces):
    """A tokenizer whose tokens go beyond words."""
    bpe = Tokenizer(models.BPE())
    if pieces:
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(["a The 0712. a"] * 9, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Retrieval(None), "this model has none; load one with it"),
        (lambda: Retrieval(joining(pieces=True)), "to the word before it"),
        (lambda: Retrieval(joining(pieces=False)), "begins a word|to the word before it"),
        (lambda: Retrieval(tokenizer("gpt2"), template="{city} {number}."), "begin it with a space"),
        (lambda: Retrieval(tiny.tokenizer(), template=" {city} {number}\n"), "end it with a point"),
    ],
)
def test_what_cannot_be_put_together_is_refused_in_one_line(make, words):
    with pytest.raises(PromptError, match=words) as refusal:
        make()
    assert "\n" not in str(refusal.value) and "--prompts FILE" in str(refusal.value)


def test_a_vocabulary_may_leave_ids_out():
    words = Tokenizer(models.WordLevel({"▁a": 0, "b": 2, "▁c": 7}, unk_token="b"))
    assert np.flatnonzero(word_begins(PreTrainedTokenizerFast(tokenizer_object=words))).tolist() == [0, 7]


def test_own_prompts_are_continued_with_their_answers(task):
    prompts = encode_prompts(task.tokenizer, examples())
    for prompt, example in zip(prompts, examples(), strict=True):
        text, ids = whole(task, prompt)
        assert text.strip() == f"{example.text} {example.answer}".strip() and task.tokenizer(text)["input_ids"] == ids
        assert text_of(task, prompt, "answer") == example.answer == task.tokenizer.decode(prompt.answer).strip()
        assert [prompt.ids[at] for at in prompt.spans["answer"]] == prompt.answer
        assert prompt.spans["query"][-1] == len(prompt.ids) - 1


def written(folder, **fields):
    file = folder / "my.jsonl"
    file.write_text(json.dumps(fields))
    return read_prompts(file)


def test_own_prompts_without_spans_have_what_was_given(task, tmp_path):
    for prompt in ("My cat is Tom. My dog is Rex. My cat is ", "My cat is Tom. My dog is Rex. My cat is"):
        (own,) = encode_prompts(task.tokenizer, written(tmp_path, prompt=prompt, answer=" Tom", distractors=["Rex"]))
        text, ids = whole(task, own)
        assert text.strip().endswith("My cat is Tom") and task.tokenizer(text)["input_ids"] == ids
        assert task.tokenizer.decode(own.distractors[0]).strip() == "Rex" and own.spans["answer"] == own.spans["needles"] == []
    (bare,) = encode_prompts(task.tokenizer, written(tmp_path, prompt="My cat is "))
    assert bare.answer == [] and bare.ids == task.tokenizer("My cat is ")["input_ids"]


@pytest.mark.parametrize(
    "fields, words",
    [
        (dict(prompt="My cat is", answer="Tom"), "begin the answer with it"),
        (dict(prompt="My cat is", answer=" Tom", distractors="Rex"), "expected a list of texts"),
        (dict(prompt="My cat is Tom", answer=" x", spans={"answer": "to"}), "'to' is not in the prompt"),
    ],
)
def test_own_prompts_that_cannot_be_meant_are_refused_by_name(fields, words, tmp_path):
    with pytest.raises((PromptError, SpanError), match=words) as refusal:
        encode_prompts(tokenizer("gpt2"), written(tmp_path, **fields))
    assert "my.jsonl, line 1" in str(refusal.value)
