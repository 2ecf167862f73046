"""Retrieval prompts are what they say: exact length, exact spans, the same tokens from text, nothing of training in them."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import diffscope
from diffscope.errors import PromptError
from diffscope.models import bundled
from diffscope.prompts.encoded import encode
from diffscope.tasks import Recall, Retrieval, examples
from diffscope.tasks.exchanging import redrawn
from diffscope.tasks.recall import earlier
from diffscope.tasks.text import TextStream, fingerprint, insert, standard_library_text
from diffscope.tasks.tokenizer import CITIES, QUALIFIERS, train_tokenizer
from studies.subtraction.train import recipe_of
from tests import tiny


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
    first = task.prompt(256, 4, rng, 0.0)
    last = task.prompt(256, 4, rng, 1.0)
    assert min(first.spans["answer"]) < min(first.spans["needles"])
    assert max(last.spans["answer"]) > max(last.spans["needles"])


def test_a_seed_gives_one_prompt(task):
    first, again, other = (task.prompt(128, 3, np.random.default_rng(seed)).ids for seed in (5, 5, 6))
    assert first == again != other


def test_needles_that_do_not_fit_are_refused(task):
    with pytest.raises(PromptError, match="do not fit 64 tokens; use at least"):
        task.prompt(64, 12, np.random.default_rng(0))
    with pytest.raises(PromptError, match="65 needles need as many cities, and there are 64"):
        task.prompt(2000, 65, np.random.default_rng(0))
    with pytest.raises(PromptError, match="all 64 cities are mentioned"):
        task.training_rows(1, 2000, 64, 64, np.random.default_rng(0), unanswerable=1.0)


def test_training_rows_without_room_are_refused(task):
    with pytest.raises(PromptError, match="needles alone"):
        task.training_rows(1, 40, 3, 20, np.random.default_rng(0))


def test_training_targets_are_the_numbers_that_were_given_away(task):
    ids, kind = task.training_rows(6, 160, 3, 9, np.random.default_rng(0))
    assert ids.shape == (6, 160) and (ids[:, 0] == task.tokenizer.bos_token_id).all()
    for row, kinds in zip(ids, kind):
        numbers = {}
        for at in np.flatnonzero(kinds[:-1] * kinds[1:]):
            city = task.tokenizer.decode([row[at - 1]])
            number = tuple(row[at : at + 2])
            assert (kinds[at] == 1) == (city in numbers)
            assert numbers.setdefault(city, number) == number
        assert len(numbers) == 3 and (kinds > 0).sum() == 18


def test_the_text_is_what_the_bundled_models_were_trained_on():
    """Whatever Python runs: with other text every prompt and every score would be another."""
    for model in bundled():
        card = json.loads((Path(model["path"]) / "card.json").read_text(encoding="utf-8"))
        of_text = card["summary"]["task"] == "text"  # on the corpus of the second study
        trained_on = recipe_of("text").corpus if of_text else fingerprint(standard_library_text(held_out=False))
        assert trained_on == card["facts"]["fingerprint"], card["summary"]["name"]
    assert fingerprint(standard_library_text(held_out=True)).startswith("6bf7e5692edbd3ca")


def test_training_and_held_out_text_share_nothing():
    train = standard_library_text(False)
    unseen = standard_library_text(True)
    assert len(set(train) & set(unseen)) / len(unseen) < 0.02  # a few docstrings stand in two modules
    assert 0.03 < len(unseen) / len(train) < 0.2


def test_cities_and_numbers_are_single_tokens(task):
    for text in (*(f" {city}" for city in CITIES), " 07", "42"):
        assert len(task.tokenizer.tokenize(text)) == 1


def test_examples_have_their_answers_where_they_say(task):
    for example in examples():
        encoded = encode(task.tokenizer, example.text, example.spans)
        assert "".join(encoded.tokens[at] for at in encoded.spans["answer"]).strip() == example.answer
        assert example.text.endswith("".join(encoded.tokens[at] for at in encoded.spans["query"]))


def test_texts_end_before_a_word_that_the_model_of_text_tells():
    scope = diffscope.load("mini-text")
    for example in examples("text"):
        cap = scope.capture(example.text, spans=example.spans)
        assert "".join(cap.tokens[at] for at in cap.spans["answer"]).strip() == example.answer == cap.next[0][0].strip()
        repeated = [cap.tokens[at] for at in cap.spans["query"]]
        before = min(cap.spans["answer"])
        assert cap.tokens[before - len(repeated) : before] == repeated == cap.tokens[-len(repeated) :]
        ids = scope.tokenize(example.text)
        answer = ids[before]
        pieces = {token: scope.tokenizer.decode([token]) for token in ids[1:]}
        words = sorted(token for token, piece in pieces.items() if piece.startswith(" ") and piece[1:].isalpha())
        others = [token for token in words if token != answer][::5]
        with torch.inference_mode():
            replaced = torch.tensor([[other if token == answer else token for token in ids] for other in others])
            told = scope.model(replaced).logits[:, -1].argmax(-1)
        assert len(others) > 2 and not (told == answer).any(), example.name  # it is told because it stands there
    with pytest.raises(PromptError, match="no examples of 'code'; there are retrieval, text"):
        examples("code")


def sentences_of(task, prompt):
    """The needle sentences of a prompt in their order, as text."""
    import re

    return re.findall(r" The magic number: (?:\w+ )?\w+ \d{4}\.", task.tokenizer.decode(prompt.ids[1:]))


@pytest.mark.parametrize("near", [False, True])
def test_distractors_change_nothing_but_the_distractors(task, near):
    for seed in range(12):
        cells = {n: task.controlled(160, n, seed, slots=6, depth=seed / 11, near=near) for n in (0, 2, 5, 6)}
        quiet = np.array(cells[0].ids)
        assert len(quiet) == 160 and cells[0].spans["needles"] == [] and len(sentences_of(task, cells[0])) == 1
        before = set()
        for distractors, prompt in cells.items():
            changed = np.flatnonzero(np.array(prompt.ids) != quiet)
            assert set(changed) <= set(prompt.spans["needles"]) and before <= set(prompt.spans["needles"])
            assert len(sentences_of(task, prompt)) == distractors + 1
            same = ("answer", "query", "sink")
            assert [prompt.spans[name] for name in same] == [cells[0].spans[name] for name in same]
            assert (prompt.answer, prompt.city, prompt.depth) == (cells[0].answer, cells[0].city, cells[0].depth)
            assert task.tokenizer(task.tokenizer.decode(prompt.ids[1:]))["input_ids"] == prompt.ids
            before = set(prompt.spans["needles"])


def test_length_changes_nothing_but_the_length(task):
    for seed in range(12):
        short, long = (task.controlled(length, 4, seed, slots=slots, depth=0.3) for length, slots in ((160, 6), (480, 40)))
        assert (len(short.ids), len(long.ids)) == (160, 480)
        assert sentences_of(task, short) == sentences_of(task, long) and len(sentences_of(task, long)) == 5
        assert (short.answer, short.city) == (long.answer, long.city)
        assert len(short.spans["needles"]) == len(long.spans["needles"])
        assert abs(short.depth - long.depth) < 0.15


def test_the_queried_needle_stands_at_its_depth_among_others(task):
    for seed in range(8):
        first, last = (task.controlled(200, 6, seed, slots=6, depth=depth) for depth in (0.0, 1.0))
        assert min(first.spans["answer"]) < min(first.spans["needles"])
        assert max(last.spans["answer"]) > max(last.spans["needles"])


def test_the_numbers_of_distractors_are_those_in_the_text(task):
    for answerable in (True, False):
        prompt = task.controlled(200, 3, 5, answerable=answerable)
        stated = [sentence[-5:-1] for sentence in sentences_of(task, prompt)]
        asked = task.tokenizer.decode(prompt.answer).strip()
        numbers = [task.tokenizer.decode(number).strip() for number in prompt.distractors]
        assert numbers == [number for number in stated if number != asked] and len(numbers) == 4 - answerable


def test_near_duplicates_share_their_city(task):
    prompt = task.controlled(160, 5, 3, slots=5, near=True)
    cities = [sentence.removeprefix(" The magic number: ").rpartition(" ")[0] for sentence in sentences_of(task, prompt)]
    assert len(set(cities)) == 6 and {city.split()[1] for city in cities} == {prompt.city.split()[1]}


@pytest.mark.parametrize("near", [False, True])
def test_without_an_answer_only_the_needle_is_another(task, near):
    for seed in range(8):
        with_answer = task.controlled(160, 3, seed, slots=4, near=near)
        without = task.controlled(160, 3, seed, slots=4, near=near, answerable=False)
        assert len(without.ids) == 160 and without.spans["answer"] == [] and np.isnan(without.depth)
        assert task.tokenizer.decode(without.answer) == " unknown"
        assert all(f" {without.city} " not in sentence for sentence in sentences_of(task, without))
        if not near:  # sentences about cities of one word are equally long
            differ = np.flatnonzero(np.array(with_answer.ids) != np.array(without.ids))
            begin = with_answer.spans["answer"][0] - len(with_answer.spans["query"])
            assert set(differ) <= set(range(begin, begin + 12)) and with_answer.city == without.city


def test_distractors_that_have_no_room_is_refused(task):
    with pytest.raises(PromptError, match="9 distractors in 8 slots"):
        task.controlled(200, 9, 0)
    with pytest.raises(PromptError, match="at most 7 slots"):
        task.controlled(300, 2, 0, slots=8, near=True)
    with pytest.raises(PromptError, match="do not fit 64 tokens; use at least"):
        task.controlled(64, 0, 0, slots=8)


def test_training_rows_with_near_duplicates_and_questions_without_answer(task):
    rng = np.random.default_rng(0)
    ids, kind = task.training_rows(40, 200, 4, 9, rng, near=0.5, unanswerable=0.5)
    word = task.tokenizer(" unknown", add_special_tokens=False)["input_ids"]
    near = unknown = 0
    for row, kinds in zip(ids, kind):
        numbers = {}
        text = task.tokenizer.decode(row[1:])
        near += any(f" {qualifier} " in text for qualifier in QUALIFIERS)
        for start in np.flatnonzero((kinds > 0) & (np.r_[0, kinds[:-1]] == 0)):
            length = np.flatnonzero(np.r_[kinds[start:], 0] == 0)[0]
            city = task.tokenizer.decode(row[:start]).rpartition("number:")[2].strip()
            answer = tuple(row[start : start + length])
            if list(answer) == word:
                unknown += 1
                assert city not in numbers and kinds[start] == 1
            else:
                assert (kinds[start] == 1) == (city in numbers) and numbers.setdefault(city, answer) == answer
    assert 8 < near < 36 and 8 < unknown < 32
    plain, _ = task.training_rows(40, 200, 4, 9, np.random.default_rng(0))
    assert " unknown" not in task.tokenizer.decode(plain[:, -8:].ravel())


def test_other_text_can_be_the_filler(task):
    other = Retrieval(task.tokenizer, texts=["a sentence of mine about gardens and their walls " * 30])
    prompt = other.prompt(96, 2, np.random.default_rng(0))
    assert "gardens and their walls" in task.tokenizer.decode(prompt.ids)


def test_hits_are_repeated_n_grams():
    ids = [5, 6, 7, 5, 6, 7, 5, 6, 8]
    assert earlier(ids, 2).tolist() == [-1, -1, -1, -1, 1, 2, 3, 4, -1]
    assert earlier(ids, 3).tolist() == [-1, -1, -1, -1, -1, 2, 3, 4, -1]
    assert earlier([1, 1, 1], 2).tolist() == [-1, -1, 1]
    with pytest.raises(PromptError, match="nothing to recall by"):
        earlier(ids, 1)


def test_recall_prompts_end_before_a_hit(task):
    recall = Recall(task.tokenizer, n=3)
    rng = np.random.default_rng(0)
    for _ in range(10):
        prompt = recall.prompt(200, rng)
        ids = [*prompt.ids, *prompt.answer]
        (at,) = prompt.spans["answer"]
        assert len(prompt.ids) == 200 and ids[at] == prompt.answer[0] and ids[at - 2 : at + 1] == ids[-3:]
        assert [prompt.ids[i] for i in prompt.spans["query"]] == ids[at - 2 : at]
        for other in prompt.spans["needles"]:
            assert ids[other - 2 : other] == ids[at - 2 : at] and ids[other] != ids[at]
    with pytest.raises(PromptError, match="no place"):
        Recall(task.tokenizer, texts=[" ".join(CITIES)], n=9).prompt(20, rng)


def test_plain_text_has_its_length_and_its_hits(task):
    recall = Recall(task.tokenizer, n=2)
    ids, hits = recall.rows(3, 120, np.random.default_rng(0))
    assert ids.shape == hits.shape == (3, 120) and (ids[:, 0] == task.tokenizer.bos_token_id).all()
    for row, marked in zip(ids.tolist(), hits):
        pairs = list(pairwise(row))
        assert marked.tolist() == [False] + [pair in pairs[:i] for i, pair in enumerate(pairs)]
    assert 0.02 < hits.mean() < 0.6


def test_text_is_encoded_once_for_a_tokenizer_and_anew_when_it_got_tokens():
    tokenizer = tiny.tokenizer()
    texts = ["The answer to the question is found in the text."] * 2
    before = TextStream.of(texts, tokenizer)
    assert TextStream.of(list(texts), tokenizer) is before
    tokenizer.add_tokens([" question"])
    (added,) = tokenizer.convert_tokens_to_ids([" question"])
    assert added not in before.ids and (TextStream.of(texts, tokenizer).ids == added).sum() == 2


def test_each_stretch_of_positions_is_filled_with_one_piece_of_text(task):
    tokens = task.filler.fill([1, 2, 3, 6, 8, 9], np.random.default_rng(0))
    text = task.filler.ids.tolist()
    for piece in (tokens[:3], tokens[3:4], tokens[4:]):
        assert any(text[at : at + len(piece)] == piece for at in range(len(text)))
    assert len(tokens) == 6


def test_sentences_are_inserted_at_their_places_in_the_text():
    ids, starts = insert(np.arange(5), [[10, 11], [12], [13]], [0, 3, 3])
    assert ids.tolist() == [10, 11, 0, 1, 2, 12, 13, 3, 4] and starts == [0, 5, 6]
    assert insert(np.arange(3), [], [])[0].tolist() == [0, 1, 2]


def test_a_prompt_drawn_anew_keeps_its_question_its_answer_and_all_places(task):
    """Its text is new, and so are the cities and numbers of its other sentences, some of which stand together."""
    for seed in range(20):
        prompt = task.prompt(128, 5, np.random.default_rng(seed))
        ids = redrawn(task, prompt, np.random.default_rng(seed))
        assert len(ids) == 128
        number = prompt.spans["answer"]
        asked = list(range(number[0] - len(prompt.spans["query"]), number[-1] + 2))
        kept = [0, *asked, *prompt.spans["query"]]
        assert [ids[at] for at in kept] == [prompt.ids[at] for at in kept]
        other = task.tokenizer.decode([ids[at] for at in prompt.spans["needles"]])
        cities = [city for city in CITIES if f" The magic number: {city} " in other]
        assert other.count(" The magic number: ") == 4 == len(set(cities)) and prompt.city not in cities
        assert other != text_of(task, prompt, "needles")
        text = sorted(set(range(128)) - {*kept, *prompt.spans["needles"]})
        assert np.mean([ids[at] != prompt.ids[at] for at in text]) > 0.5
