"""Questions with graded evidence differ in nothing but the evidence, and "unknown" is weighed against all numbers of the text."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diffscope
from diffscope.errors import PromptError
from diffscope.lab.training.grid import Grid, unknown_by_evidence
from diffscope.tasks import Retrieval
from diffscope.tasks.lookups import GRADES
from tests.tokenizers_of_kinds import KINDS, tokenizer


@pytest.fixture(scope="module", params=KINDS)
def task(request):
    return Retrieval(tokenizer(request.param))


@settings(max_examples=12)
@given(length=st.integers(260, 400), distractors=st.integers(0, 3), seed=st.integers(0, 2**32), depth=st.floats(0, 1))
def test_grades_differ_in_the_evidence_alone(task, length, distractors, seed, depth):
    prompts = {g: task.graded(length, g, seed, distractors=distractors, slots=3, depth=depth) for g in GRADES}
    stated = prompts["stated"]
    sentence = r"The magic number: ((?:\w+ )?\w+) (\d{4})\."
    texts = {g: task.tokenizer.decode(p.ids, skip_special_tokens=True) for g, p in prompts.items()}
    qualifier, city = stated.city.split()
    alike = {
        "nothing": lambda name: name.split()[0] != qualifier and name.split()[1] != city,
        "qualifier": lambda name: name.split()[0] == qualifier and name.split()[1] != city,
        "city": lambda name: name.split()[0] != qualifier and name.split()[1] == city,
    }
    number = task.tokenizer.decode(stated.answer).strip()
    for grade, prompt in prompts.items():
        assert len(prompt.ids) == length and prompt.city == stated.city and texts[grade].endswith(f"number: {stated.city}")
        said = re.findall(sentence, texts[grade])
        of_first = [name for name, value in said if value == number]
        assert sorted({value for _, value in said}) == sorted({value for _, value in re.findall(sentence, texts["stated"])})
        assert len(said) == distractors + max(1, GRADES[grade]) and len(of_first) == max(1, GRADES[grade])
        if GRADES[grade]:
            assert set(of_first) == {stated.city} and prompt.answer == stated.answer
            spans = task.tokenizer.decode([prompt.ids[at] for at in prompt.spans["answer"]])
            assert re.findall(r"\d", spans) == list(number) * GRADES[grade]
            assert [task.tokenizer.decode(other).strip() for other in prompt.distractors] == [v for _, v in said if v != number]
        else:
            assert alike[grade](of_first[0]) and prompt.answer == task.unknown and prompt.spans["answer"] == []
            differing = np.flatnonzero(np.array(prompt.ids) != np.array(stated.ids))
            assert set(differing) <= set(prompt.spans["needles"]) and np.ptp(differing) < 12
        others = [v for v in said if v[1] != number]
        assert others == [v for v in re.findall(sentence, texts["stated"]) if v[1] != number]
        assert not any(word in name for name, _ in others for word in (qualifier, city))


def test_an_unknown_grade_and_too_many_slots_are_refused():
    task = Retrieval(tokenizer(KINDS[0]))
    with pytest.raises(PromptError, match="no grade 'twice' of evidence; choose from nothing, qualifier, city, stated"):
        task.graded(300, "twice", 0)
    with pytest.raises(PromptError, match="at most 61 slots"):
        task.graded(300, "city", 0, slots=62)


def test_unknown_is_weighed_against_all_numbers_of_the_text():
    scope = diffscope.load("mini-diff")
    task = Retrieval(scope.tokenizer)
    grid = Grid(lengths=(192,), distractors=(0, 2), prompts=10)
    table = unknown_by_evidence(scope.model, task, grid, seed=3)
    prompt = task.graded(192, "city", [3, 1], distractors=2, slots=2, depth=0.25)
    with torch.inference_mode():
        logits = scope.model(torch.tensor([prompt.ids])).logits[0, -1].double()
    numbers = [number[0] for number in prompt.distractors]
    assert len(numbers) == 3
    by_hand = float(logits[task.unknown[0]] - logits[numbers].logsumexp(0))
    assert float(table["unknown"].sel(grade="city", length=192, distractors=2, prompt=1)) == pytest.approx(by_hand, abs=1e-3)
    difference = table["unknown"].sel(grade="nothing") - table["unknown"].sel(grade="stated")
    assert np.allclose(table["sensitivity"].sel(unanswerable="nothing"), difference)
    assert np.allclose(table["bias"].sel(unanswerable="nothing"), table["unknown"].sel(grade="stated") + difference / 2)
    # The model was taught to say "unknown", though by the city alone: "New Paris" will do for "Old Paris".
    means = table["sensitivity"].mean(("length", "prompt"))
    assert (means.sel(unanswerable="nothing") > 5).all() and (abs(means.sel(unanswerable="city")) < 1).all()
