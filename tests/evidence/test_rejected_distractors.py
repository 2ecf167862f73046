"""Branch attribution of retrieval prompts: the table, and planted truths that its statistic has to tell apart."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy.special import softmax

import diffscope
from diffscope.errors import PromptError
from diffscope.evidence.branches import BRANCHES, attributions, rejection
from diffscope.evidence.key_sets import number_spans
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import Retrieval

KEYS, DISTRACTORS, PROMPTS, LAMBDA = 150, 12, 60, 0.8


@pytest.fixture(scope="module")
def scope():
    return diffscope.load("mini-diff")


@pytest.fixture(scope="module")
def prompts(scope):
    task = Retrieval(scope.tokenizer)
    return [task.controlled(160, count, [3, count], slots=8) for count in (8, 4, 2)]


def test_the_table_is_that_of_branch_attribution(scope, prompts):
    measured = attributions(scope, prompts)
    numbers = [[number[0] for number in prompt.distractors] for prompt in prompts]
    assert list(map(len, numbers)) == [8, 4, 2] and measured["branch"].values.tolist() == list(BRANCHES)
    ids = [prompt.ids for prompt in prompts]
    places = [[prompt.spans["answer"], *number_spans(prompt)] for prompt in prompts]
    answers = [prompt.answer[0] for prompt in prompts]
    table = diffscope.attribution.branch_attribution(scope, ids, answers, numbers, places=places, control=True)
    branches = [table["contribution"].sel(branch="A1"), table["contribution"].sel(branch="A2"), table["other_a2"]]
    for branch, contribution in zip(BRANCHES, branches):
        for number in range(3):
            own = contribution.values[number, ..., : 1 + len(numbers[number])]  # (layer, head, candidate)
            ours = measured.sel(branch=branch).isel(prompt=number)
            np.testing.assert_allclose(ours["answer"], own[..., 0])
            np.testing.assert_allclose(ours["distractors"], own[..., 1:].mean(-1))
            np.testing.assert_allclose(ours["margin"], own[..., 0] - own[..., 1:].mean(-1))
    own = [table["through"].sel(branch="A1"), table["through"].sel(branch="A2"), table["other_a2_through"]]
    first, second, other = (branch.values[0, 2, 1, 1:] for branch in own)
    for ending, taken in (("", second), ("_control", other)):
        ours = measured.isel(prompt=0, layer=2, head=1)
        there = np.isfinite(taken)  # the other prompt has fewer distractors
        assert there.sum() == (8 if not ending else 4)
        assert float(ours[f"rejection{ending}"]) == pytest.approx(-np.corrcoef(first[there], taken[there])[0, 1])
        assert float(ours[f"rejected{ending}"]) == pytest.approx(-np.cov(first[there], taken[there], bias=True)[0, 1])
        assert float(ours[f"raised{ending}"]) == pytest.approx(first[there].var())
    assert np.isnan(measured["rejection"][2]).all() and np.isnan(measured["rejected"][2]).all()  # two distractors


def test_numbers_are_where_their_sentences_have_them(scope, prompts):
    for prompt in prompts:
        places = number_spans(prompt)
        assert [[prompt.ids[at] for at in of_number] for of_number in places] == prompt.distractors
        assert {at for of_number in places for at in of_number} <= set(prompt.spans["needles"])
    twice = Prompt([0, 7, 8, 2, 7, 8, 3], [9], {"needles": [1, 2, 4, 5]}, distractors=[[7, 8], [7, 8]])
    assert number_spans(twice) == [[1, 2], [4, 5]]
    assert number_spans(replace(prompts[0], distractors=[[5, 6], *prompts[0].distractors[1:]]))[0] == []


def test_standard_attention_has_no_second_branch_and_one_prompt_no_control(prompts):
    standard = diffscope.load("mini-standard")
    measured = attributions(standard, prompts)
    assert np.isfinite(measured["margin"].sel(branch="A1")).all() and np.isnan(measured["margin"].sel(branch="A2")).all()
    assert np.isnan(measured[["rejection", "rejection_control", "rejected"]].to_array()).all()
    with pytest.raises(PromptError, match="another prompt"):
        attributions(standard, prompts[:1])


@pytest.mark.parametrize("distractors", [lambda answer: [], lambda answer: [[answer[0], 5]]])
def test_prompts_without_a_distractor_to_tell_apart_are_refused(scope, prompts, distractors):
    """As a person's own prompts may be, which other tests can do without."""
    bare = [replace(prompt, distractors=distractors(prompt.answer)) for prompt in prompts]
    with pytest.raises(PromptError, match="no prompt has a distractor"):
        attributions(scope, bare)


# Scores of the two maps over keys, from noise of this prompt and noise of their own.
TRUTHS = {
    "shared noise, cancelled": lambda noise, own: (noise, noise + 0.5 * own),
    "shared noise, in part": lambda noise, own: (noise, noise + 1.5 * own),
    "lowers what A1 left small": lambda noise, own: (noise, -noise),
    "a map of its own": lambda noise, own: (noise, own),
    "uniform": lambda noise, own: (0 * noise, noise),
}
LIFT = 2.0  # both maps look at numbers more than at other text,
TREND = 2.0  # and at late keys more than at early ones


def planted(truth, seed):
    """Rejection, less its control, where values say of their number more or less what it is."""
    rng = np.random.default_rng(seed)
    first, second, values = [], [], []
    for _ in range(PROMPTS):
        places = np.sort(rng.choice(KEYS, DISTRACTORS, replace=False))
        scores = np.array(TRUTHS[truth](*rng.normal(scale=1.5, size=(2, KEYS)))) + TREND * np.arange(KEYS) / KEYS
        scores[:, places] += LIFT
        a1, a2 = softmax(scores, axis=-1)
        first.append(a1[places])
        second.append(a2[places])
        values.append(rng.normal(10, 4, size=DISTRACTORS))
    values = np.array(values)
    others = np.roll(second, -1, axis=0)
    added = (np.array(first) * values, -LAMBDA * np.array(second) * values, -LAMBDA * others * values)
    a1, a2, other = (xr.DataArray(table, dims=("prompt", "candidate")) for table in added)
    return float((rejection(a1, a2)["rejection"] - rejection(a1, other)["rejection"]).mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rejection_tells_planted_truths_apart(seed):
    excess = {truth: planted(truth, seed) for truth in TRUTHS}
    assert excess["shared noise, cancelled"] > 0.5
    assert excess["shared noise, in part"] > 0.15
    assert excess["lowers what A1 left small"] < -0.15
    assert abs(excess["a map of its own"]) < 0.12 and abs(excess["uniform"]) < 0.12
