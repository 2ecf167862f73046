"""Planted lookups: exact windows, one number that its first mention gives away, and nowhere else in the window."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffscope.errors import PromptError
from diffscope.tasks import PlantedLookups, Recall
from diffscope.tasks.text import TextStream, standard_library_text
from diffscope.tasks.tokenizer import CITIES, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*standard_library_text(True), *[f" {city}" for city in CITIES] * 5], 600)


@given(length=st.integers(64, 512), seed=st.integers(0, 2**32), most=st.integers(0, 3))
def test_a_planted_window_states_a_number_early_and_asks_for_it_later(tokenizer, length, seed, most):
    task = PlantedLookups(tokenizer, share=1.0, distractors=(0, most))
    ids, kind = task.training_rows(2, length, np.random.default_rng(seed))
    assert ids.shape == kind.shape == (2, length)
    for row, kinds in zip(ids, kind):
        given_away, stated = np.flatnonzero(kinds == 1), np.flatnonzero(kinds == 2)
        text = tokenizer.decode(row[1:])
        assert len(given_away) == 2 and len(stated) in range(2, 2 * most + 3, 2) and tokenizer(text)["input_ids"] == row.tolist()
        number = row[given_away].tolist()
        where = [at for at in range(1, length - 1) if row[at : at + 2].tolist() == number]
        assert len(where) == 2 and where[0] in stated and where[1] == given_away[0]
        assert (
            row[where[0] - 1]
            == row[where[1] - 1]
            == tokenizer.convert_tokens_to_ids(city := tokenizer.decode([row[where[0] - 1]]))
        )
        assert where[0] < length / 2 + 8 and where[1] > length / 2 - 8 and stated.max() < given_away[0]
        assert len(re.findall(rf"{city} {tokenizer.decode(number).strip()}\.", text)) == 2


def test_lookups_stand_in_their_share_of_windows_and_the_rest_is_plain_text(tokenizer):
    task = PlantedLookups(tokenizer, share=0.05)
    _, kind = task.training_rows(2000, 96, np.random.default_rng(0))
    assert 0.035 < (kind > 0).any(1).mean() < 0.065
    plain, _ = PlantedLookups(tokenizer, share=0.0).training_rows(3, 96, np.random.default_rng(1))
    stream = task.retrieval.filler.ids.tolist()
    joined = " ".join(map(str, stream))
    assert all(" ".join(map(str, row[1:])) in joined for row in plain.tolist())


def test_windows_follow_from_their_seed_alone(tokenizer):
    first, again, other = (
        PlantedLookups(tokenizer, share=0.5).training_rows(6, 80, np.random.default_rng(seed))[0] for seed in (4, 4, 5)
    )
    assert (first == again).all() and (first != other).any()


def test_text_of_ones_own_may_be_tokens_already(tokenizer):
    filler = TextStream.of(standard_library_text(False)[:2000], tokenizer)
    rows = [
        PlantedLookups(tokenizer, texts, share=0.5).training_rows(4, 90, np.random.default_rng(0))[0]
        for texts in (filler, standard_library_text(False)[:2000])
    ]
    assert (rows[0] == rows[1]).all()
    assert Recall(tokenizer, filler).filler is filler


def test_a_prompt_asks_for_a_planted_number(tokenizer):
    task = PlantedLookups(tokenizer)
    prompt = task.prompt(200, np.random.default_rng(0), distractors=3, depth=0.25)
    text = tokenizer.decode(prompt.ids[1:])
    assert len(prompt.ids) == 200 and text.endswith(f" {prompt.city}") and len(prompt.distractors) == 3
    assert f" {prompt.city} {tokenizer.decode(prompt.answer).strip()}." in text
    assert [prompt.ids[at] for at in prompt.spans["answer"]] == prompt.answer


def test_what_cannot_be_planted_is_refused(tokenizer):
    with pytest.raises(PromptError, match="share = 1.5 is no share"):
        PlantedLookups(tokenizer, share=1.5)
    with pytest.raises(PromptError, match="not the fewest and the most"):
        PlantedLookups(tokenizer, distractors=(3, 1))
    with pytest.raises(PromptError, match="has places for 7 sentences"):
        PlantedLookups(tokenizer, share=1.0, distractors=(5, 5)).training_rows(9, 36, np.random.default_rng(0))
    with pytest.raises(PromptError, match="is without their cities; use longer windows"):
        PlantedLookups(tokenizer, [" ".join(CITIES)] * 6, share=1.0).training_rows(1, 150, np.random.default_rng(0))
