"""Log-odds, loss and rank of an answer: those of the model's own logits, for one prompt, a batch, and under edits."""

import copy
import math

import numpy as np
import pytest
import torch

import diffscope
from diffscope import PromptError, edits, readings, tasks
from diffscope.scope.answers import encode_question, score_answers
from tests import tiny
from tests.tokenizers_of_kinds import tokenizer

PROMPTS = [
    "The magic number: Paris 7421. The magic number: Rome 2174. The magic number: Paris",
    "The magic number: Oslo 1983. The magic number: Lima 2050. The magic number: Bern 7777. The magic number: Lima",
]
ANSWERS = [" 7421", " 2050"]
RIVALS = [["2174"], ["1983", "7777"]]


@torch.no_grad()
def slowly(mini_diff, prompt, answer, rivals):
    """Token by token, from bare calls of the model."""

    def log_p(text):
        tokens = mini_diff.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = list(mini_diff.tokenize(prompt))
        steps, ranks = [], []
        for token in tokens:
            logits = mini_diff.model(torch.tensor([ids])).logits[0, -1].double()
            steps.append(float(logits.log_softmax(-1)[token]))
            ranks.append(1 + int((logits > logits[token]).sum()))
            ids.append(token)
        return steps, ranks

    (steps, ranks), others = log_p(answer), [log_p(" " + text)[0] for text in rivals]
    right, count = sum(steps), len(steps)
    # First tokens tell these numbers apart, and then the odds are of these alone.
    odds = steps[0] - np.logaddexp.reduce([other[0] for other in others]) if rivals else right - math.log(-math.expm1(right))
    return {"log_p": right, "loss": -right / count, "rank": ranks[0], "exact": set(ranks) == {1}, "log_odds": odds}


def test_it_is_what_the_models_logits_say(mini_diff):
    said = mini_diff.answer(PROMPTS, ANSWERS, RIVALS)
    for number, (prompt, answer, rivals) in enumerate(zip(PROMPTS, ANSWERS, RIVALS)):
        expected = slowly(mini_diff, prompt, answer, rivals)
        alone = mini_diff.answer(prompt, answer, rivals)
        for name, value in expected.items():
            assert said[name].values[number] == pytest.approx(value, rel=1e-5), name
            assert alone[name].item() == pytest.approx(said[name].values[number], rel=1e-4), name
    assert said["log_odds"].attrs["units"] == "nats" and said["loss"].attrs["units"] == "nats a token"
    assert all(values.attrs["definition"] for values in said.values())


def test_without_distractors_the_odds_are_against_all_else(mini_diff):
    expected = slowly(mini_diff, PROMPTS[0], " 7421", [])
    assert mini_diff.answer(PROMPTS[0], "7421", spans={"answer": "7421"})["log_odds"].item() == pytest.approx(
        expected["log_odds"], rel=1e-3
    )


def test_of_several_questions_only_the_tokens_of_their_numbers_count(mini_diff):
    prompt = tasks.Retrieval(mini_diff.tokenizer).prompt(250, 10, np.random.default_rng(28), questions=3)
    said = score_answers(mini_diff, [prompt]).isel(prompt=0)
    rows = mini_diff.logits(torch.tensor([[*prompt.ids, *prompt.answer[:-1]]]), len(prompt.answer))[0].double().log_softmax(-1)
    judged = [at for number in prompt.numbers for at in number]
    expected = sum(float(rows[at, prompt.answer[at]]) for at in judged)
    assert said["log_p"].item() == pytest.approx(expected, rel=1e-6) and said["tokens"].item() == len(judged) < len(prompt.answer)


def test_after_a_line_break_no_space_is_put_before_an_answer():
    """Of a chat, and of token ids that no text has, by a tokenizer that begins every text with a space."""
    own = copy.deepcopy(tokenizer("metaspace"))
    own.chat_template = "{{ bos_token }}{% for message in messages %}{{ message.content }}\n{% endfor %}"
    scope = diffscope.load(tiny.own("v1"), own)
    chat = scope.encode([{"role": "user", "content": "is it the first"}])
    of_no_text = scope.encode([*own.convert_tokens_to_ids(["t", "h", "e"]), chat.ids[-1]])
    assert chat.text.endswith("\n") and scope.encode(of_no_text.text).ids[1:] != of_no_text.ids
    in_place = own(f"{chat.text}yes", add_special_tokens=False)["input_ids"]
    for encoded in (chat, of_no_text):
        question = encode_question(scope, encoded, "yes", ["no"])
        assert question.ids == list(encoded.ids) and question.answer == in_place[len(chat.ids) :]


def test_token_ids_that_end_in_white_space_are_scored_as_they_are(mini_diff):
    text = "The magic number: Paris 7421. The magic number: Paris "
    ids = mini_diff.tokenize(text)
    own = mini_diff.tokenizer("7421", add_special_tokens=False)["input_ids"]
    rows = mini_diff.logits(torch.tensor([ids + own[:-1]]), len(own))[0].double().log_softmax(-1)
    expected = sum(float(row[token]) for row, token in zip(rows, own))
    assert mini_diff.answer(ids, "7421")["log_p"].item() == pytest.approx(expected, rel=1e-5)
    assert mini_diff.answer(text, "7421")["log_p"].item() == mini_diff.answer(text.strip(), " 7421")["log_p"].item()


def test_edits_count_and_predictions_agree(mini_diff):
    cap = mini_diff.capture(PROMPTS[0], spans={"answer": "7421"})
    plain = mini_diff.answer(PROMPTS[0], " 7421", ["2174"])
    with mini_diff.edit(edits.a2_of_head(0)):
        edited = mini_diff.answer(PROMPTS[0], " 7421", ["2174"])
        predicted = readings.predict(mini_diff, cap, readings.encode_question(mini_diff, cap, "7421", ["2174"]))
    assert edited["log_odds"].item() == predicted.log_odds and edited["log_p"].item() == predicted.answer
    assert edited["log_odds"].item() != plain["log_odds"].item() and edited.attrs["edits"] and not plain.attrs["edits"]


def test_what_cannot_be_asked_is_one_line(mini_diff):
    for words, ask in {
        "2 prompts but 3 answers": lambda: mini_diff.answer(PROMPTS, [" 1", " 2", " 3"]),
        "2 prompts but 1 lists of distractors": lambda: mini_diff.answer(PROMPTS, " 1", [["2"]]),
        "an answer or distractor is empty": lambda: mini_diff.answer(PROMPTS[0], " "),
        "distractors are a list": lambda: mini_diff.answer(PROMPTS[0], " 1", "2"),
        "the right answer's own number": lambda: mini_diff.answer(PROMPTS[0], " 7421", ["7421"]),
        "^the right answer begins with a distractor": lambda: mini_diff.answer(PROMPTS[0], " 7421", ["74"]),
        "prompt 1 of the batch: the prompt ends in": lambda: mini_diff.answer(PROMPTS, [" 7421", "2050"]),
    }.items():
        with pytest.raises(PromptError, match=words):
            ask()


def test_a_scope_opens_the_checkpoints_of_its_training(mini_diff, tiny_diff_folder):
    assert mini_diff.checkpoints == tuple(sorted(int(step) for step in mini_diff.checkpoints)) and len(mini_diff.checkpoints) > 1
    first = mini_diff.at(mini_diff.checkpoints[0])
    assert first.name == f"mini-diff@{mini_diff.checkpoints[0]}" and first.checkpoints == mini_diff.checkpoints
    assert first.loss(PROMPTS[0]) == diffscope.load(first.name).loss(PROMPTS[0]) != mini_diff.loss(PROMPTS[0])
    assert first.at(mini_diff.checkpoints[1]).name == f"mini-diff@{mini_diff.checkpoints[1]}"
    with pytest.raises(diffscope.ModelNotFound, match=r"no checkpoint 7; saved steps: 0, "):
        first.at(7)
    assert diffscope.load(tiny_diff_folder).checkpoints == () == diffscope.load(mini_diff.model).checkpoints[9:]


def test_an_answer_that_is_no_text_and_ids_that_are_none_are_refused_in_a_line(mini_diff):
    for answer, rivals in ((5, None), (None, None), (" 7421", [5])):
        with pytest.raises(PromptError):
            mini_diff.answer(PROMPTS[0], answer, distractors=rivals)
    for ids in (torch.tensor([[-1, 3]]), torch.zeros(1, 0, dtype=torch.int64), torch.tensor([1, 2]), [[1, 2]]):
        with pytest.raises(PromptError, match="token ids are"):
            mini_diff.logits(ids)
    with pytest.raises(PromptError, match="give 1 to 2"):
        mini_diff.logits(torch.tensor([[1, 2]]), width=3)
