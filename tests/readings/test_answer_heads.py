"""Which heads find the answer: planted shares, counted and named."""

import numpy as np
import pytest
import torch

import diffscope
from diffscope import edits
from diffscope.errors import DiffscopeError
from diffscope.readings import answer_heads, of_head
from tests import tiny
from tests.instruments.planted import capture_of, layer_of

PROMPT = "The magic number of a city is found in the text. Return the answer"


@pytest.fixture(scope="module")
def scope():
    return diffscope.load(tiny.own("v1", 3), tiny.tokenizer())


@pytest.fixture(scope="module")
def cap(scope):
    return scope.capture(PROMPT, spans={"answer": "number of a city"})


def test_heads_with_half_of_their_weights_on_the_answer_are_named(cap):
    reading = answer_heads(cap)
    share = reading.estimates["share"]
    d = np.stack([[cap.map("D", layer, head)[-1] for head in range(cap.n_heads)] for layer in cap.layer_numbers])
    at = list(cap.spans["answer"])
    np.testing.assert_allclose(share, np.abs(d[..., at]).sum(-1) / np.abs(d).sum(-1), rtol=1e-5)
    count = int((share >= 0.5).sum())
    assert 0 < count < share.size and reading.sentence.startswith(f"{count} of {share.size} heads give")
    best = share.isel(share.argmax(...))
    assert reading.sentence.partition("): ")[2].startswith(f"L{int(best['layer'])}H{int(best['head'])} ")
    np.testing.assert_allclose(reading.estimates["uniform"], len(at) / cap.n_tokens)


def test_where_none_finds_it_the_nearest_is_named(scope):
    cap = scope.capture(PROMPT, spans={"answer": [3]})
    reading = answer_heads(cap, 5)
    least = reading.estimates["share"].max() < 0.5
    assert reading.sentence.startswith("No head gives the answer half of its |D| at token 5; L") == bool(least)


def test_what_cannot_be_said_is_said(scope, cap):
    assert answer_heads(scope.capture(PROMPT)).sentence == "No answer is marked in this prompt."
    assert answer_heads(cap, 1).sentence == "No head sees the answer and other tokens at token 1."
    with scope.edit(edits.set_lambda(0.0)):
        assert "of |D|" in answer_heads(scope.capture(PROMPT, spans={"answer": "number"})).sentence
    with pytest.raises(DiffscopeError, match="outside the prompt"):
        answer_heads(cap, 1000)


def test_a_head_whose_weights_there_are_below_zero_takes_from_the_answer():
    scores = torch.zeros(4, 16, 16, dtype=torch.float64)
    scores[[0, 3], :, 4] = 9.0  # A1 of head 0 and A2 of head 1 have next to all of their weight on the answer
    reading = answer_heads(capture_of(layer_of(scores, lam=[0.2, 1.5]), spans={"answer": [4]}))
    assert reading.sentence.startswith("1 of 2 heads gives the answer half of |D| or more at the last token")
    assert reading.sentence.partition("): ")[2].startswith("L0H0 ")
    share, net = (float(reading.estimates[name].sel(layer=0, head=1)) for name in ("share", "net"))
    assert share > 0.5 and net < -1
    assert reading.sentence.endswith(
        f"1 head takes weight from the answer: L0H1 ({100 * share:.0f} % of |D|, all of it negative, D sums to −1.43 there)."
    )


def test_a_head_takes_weight_with_less_than_half_there_too():
    """Of 16 keys the answer is one: head 0 gives it a third and head 1 takes as much, head 2 takes what is no preference."""
    scores = torch.zeros(6, 16, 16, dtype=torch.float64)
    scores[:, :, 4] = torch.tensor([2.0, 0.0, 0.0, 0.0, 2.0, 0.2])[:, None]  # A1 of each head, then A2
    cap = capture_of(layer_of(scores, lam=[0.1, 0.9, 2.0]), spans={"answer": [4]})
    reading = answer_heads(cap)
    share, net = (reading.estimates[name].sel(layer=0).values for name in ("share", "net"))
    assert 2 / 16 < share[0] < 0.5 and 2 / 16 < share[1] < 0.5 and share[2] < 2 / 16 and net[0] > 0 > max(net[1:])
    assert reading.sentence == (
        f"No head gives the answer half of its |D| at the last token; L0H0 {100 * share[0]:.0f} % (all of it positive) "
        "gives most (uniform attention would give 6 %). 1 head takes weight from the answer: L0H1 "
        f"({100 * share[1]:.0f} % of |D|, all of it negative, D sums to −.{-100 * net[1]:.0f} there)."
    )
    words = [of_head(cap, layer=0, head=head).sentence for head in range(3)]
    assert [" takes weight from the answer" in each for each in words] == [False, True, False]
