"""Log-odds of whole numbers, answers to several questions, and whether a model answers better than chance."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import diffscope
from diffscope import edits, readings
from diffscope.errors import PromptError
from diffscope.lab.accuracy import accuracy_of
from diffscope.monitoring.questions import averages
from diffscope.tasks import Retrieval
from diffscope.tasks.log_odds import log_odds
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.sampling import draw
from diffscope.tasks.scoring import answers

VOCABULARY = 4


def logits(ids, width):
    """Logits that depend on all tokens before, (prompt, width, vocabulary)."""
    table = torch.zeros(len(ids), width, VOCABULARY)
    for row, tokens in zip(table, ids.tolist()):
        for column in range(width):
            before = tokens[: len(tokens) - width + column + 1]
            row[column] = torch.tensor([math.sin(7 * sum(before) + 3 * len(before) + 5 * token) for token in range(VOCABULARY)])
    return table


def probability(ids, begins):
    """That what follows `ids` begins so: the sum over all three tokens that may follow, (slowly)."""
    total = 0.0
    for tokens in itertools.product(range(VOCABULARY), repeat=3):
        if tokens[: len(begins)] == begins:
            chances = [
                logits(torch.tensor([[*ids, *tokens[:at]]]), 1)[0, 0].double().softmax(-1)[token]
                for at, token in enumerate(tokens)
            ]
            total += float(np.prod(chances))
    return total


@pytest.mark.parametrize(
    "numbers, telling",
    [
        ([(0, 1, 2), (1, 1, 2), (2, 0, 0)], [(0,), (1,), (2,)]),  # first tokens differ
        ([(0, 1, 2), (0, 2, 2), (2, 0, 0)], [(0, 1), (0, 2), (2,)]),
        ([(0, 1, 2), (0, 1, 3), (0, 2, 1), (3,)], [(0, 1, 2), (0, 1, 3), (0, 2), (3,)]),
        ([(3, 3), (1, 0), (1, 0)], [(3,), (1,)]),  # a number that stands there twice is one answer
        ([(3, 3), (1, 0, 2), (1,), (1, 0)], [(3,), (1,)]),  # and so are those that begin with another
    ],
)
def test_log_odds_are_those_of_what_tells_numbers_apart(numbers, telling):
    ids = [1, 3, 2]
    prompt = Prompt(ids, list(numbers[0]), {}, distractors=[list(number) for number in numbers[1:]])
    right, *others = (probability(ids, begins) for begins in telling)
    expected = math.log(right) - math.log(sum(others if len(telling) > 2 else others[:1]))
    for tokens in (None, 5):
        assert log_odds(logits, [prompt], tokens)[0] == pytest.approx(expected, abs=1e-6)
    assert answers(logits, [prompt]).log_odds[0] == pytest.approx(expected, abs=1e-6)


def test_chance_and_no_preference_count_what_log_odds_count(mini_diff):
    """A distractor that is named twice or continues another is no further answer."""
    prompt = Prompt([1, 3, 2], [40, 41], {"answer": []}, distractors=[[50, 51], [50, 51], [50], [60]])
    accuracy = accuracy_of(mini_diff, [prompt])
    assert accuracy.chance == pytest.approx(1 / 3) and accuracy.blind == pytest.approx(-math.log(2))
    reading = readings.interventions(mini_diff, [prompt], {"λ × 1": edits.scale_lambda(1.0)})
    assert float(reading.estimates["indifferent"]) == pytest.approx(-math.log(2))
    assert readings.predict(mini_diff, mini_diff.capture(prompt.ids), prompt).distractors == 2


def test_log_odds_without_other_answers_are_not_known():
    alone = Prompt([1], [2], {})
    assert np.isnan(log_odds(logits, [alone])[0]) and np.isnan(answers(logits, [alone]).log_odds[0])
    with pytest.raises(PromptError, match="prompt 'mine': a distractor has the right answer's own"):
        log_odds(logits, [Prompt([1], [2], {}, city="mine", distractors=[[2]])])


@pytest.mark.parametrize("certain", [50.0, 0.0, -50.0])
@pytest.mark.parametrize("answer, judged", [([2], []), ([2, 3], []), ([2, 0, 3], [[0], [2]])])
def test_odds_against_all_else_are_exact_however_sure_the_answer_is(certain, answer, judged):
    """The log-odds of a sure answer are kept in the average that a monitor gives."""

    def sure(ids, width):
        table = torch.zeros(len(ids), width, VOCABULARY)
        table.scatter_(2, torch.tensor([answer]).unsqueeze(-1), certain)
        return table

    p = Fraction(math.exp(certain)) / (Fraction(math.exp(certain)) + VOCABULARY - 1)  # of a token
    p **= len(judged or answer)
    expected = math.log(p) - math.log(1 - p)
    prompt = Prompt([1], answer, {}, judged=judged)
    assert answers(sure, [prompt]).against_rest[0] == pytest.approx(expected, rel=1e-12, abs=1e-12)
    scope = SimpleNamespace(logits=sure, runner=SimpleNamespace(predicts=True, vocabulary=VOCABULARY))
    assert averages(scope, [prompt])["answer_log_odds"] == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("right, other", [([2, 3], [2]), ([2], [2, 3])])
def test_answers_of_which_one_begins_with_the_other_are_not_compared(right, other):
    with pytest.raises(PromptError, match="prompt 'mine': the right answer begins with a distractor"):
        answers(logits, [Prompt([1], right, {}, city="mine", distractors=[[0], other])])


def test_of_several_questions_only_the_numbers_are_judged():
    def giving(wrong):
        def logits(ids, width):
            scores = torch.nn.functional.one_hot(torch.tensor([[5, 9, 9, 6]]).repeat(len(ids), 1), 10).float()
            scores[0, wrong] = 0
            scores[0, wrong, 0] = 1
            return scores

        return logits

    prompt = Prompt([1, 2], [5, 7, 8, 6], {}, judged=[[0], [3]])  # 7 and 8 are given
    for wrong, right in ((1, True), (2, True), (0, False), (3, False)):
        answered = answers(giving(wrong), [prompt])
        assert answered.right.tolist() == [right]
    sure = -math.log(math.e / (math.e + 9))
    assert answers(giving(1), [prompt]).loss[0] == pytest.approx(sure, rel=1e-5)


def test_greedy_decoding_gives_all_answers_where_they_are_judged_right():
    scope = diffscope.load("mini-diff")
    task = Retrieval(scope.tokenizer)
    prompts = draw(task, 5, 128, 3, seed=4, questions=2)
    right = accuracy_of(scope, prompts).right
    for prompt, exact in zip(prompts, right):
        ids = list(prompt.ids)
        given = []
        for at, following in zip(prompt.numbers, [*prompt.numbers[1:], None]):
            given += scope.runner.generate(torch.tensor([ids]), len(at), True)[0, len(ids) :].tolist()
            stop = following[0] if following else None
            ids = [*prompt.ids, *prompt.answer[:stop]] if stop else ids
        assert exact == (given == [prompt.answer[i] for at in prompt.numbers for i in at])
