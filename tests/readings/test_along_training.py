"""Checkpoints of a planted training: the course of the answer's share, and no crossing told more finely than it is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from diffscope import DiffscopeError, readings
from diffscope.numbers import decimal
from diffscope.readings.training import lambda_in_words
from tests.instruments.planted import capture_of, layer_of

N = 16
SPANS = {"answer": [4], "query": [15]}


def checkpoint(share, spans=SPANS, second=True, lam=0.0):
    """Head 0 gives this share to the answer and head 1 looks at all alike; so do the second maps, which λ = 0 leaves out."""
    scores = torch.zeros(4 if second else 2, N, N, dtype=torch.float64)
    scores[0, :, 4] = np.log(share * (N - 1) / (1 - share))
    return capture_of(layer_of(scores, second=second, **({"lam": lam} if second else {})), spans=spans)


COURSE = {30: 0.9, 0: 0.1, 10: 0.3, 20: 0.7}  # in no order


def test_the_answer_is_followed_in_the_head_that_ends_with_most_of_it():
    reading = readings.along_training((step, checkpoint(share)) for step, share in COURSE.items())
    assert reading.estimates["step"].values.tolist() == [0, 10, 20, 30]
    np.testing.assert_allclose(reading.estimates["answer"].sel(layer=0, head=0), [0.1, 0.3, 0.7, 0.9])
    np.testing.assert_allclose(reading.estimates["answer"].sel(layer=0, head=1), 1 / N)
    assert (
        "at step 30 L0H0 gives the answer most, 90 % of |D|, all of it positive, at the last token, and 10 % at step 0"
        in reading.sentence
    )
    assert "uniform attention would give 6 %" in reading.sentence
    assert "It is first above 50 % at step 20; the checkpoint before is step 10." in reading.sentence
    assert "λ is .00 at step 0 and .00 at step 30, over heads." in reading.sentence
    assert (reading.estimates["controls"] == 1).all() and reading.estimates["overlap"].dims == (
        "step",
        "layer",
        "head",
        "control",
    )


@pytest.mark.parametrize(
    "steps, level, words",
    [
        ((0, 30), 0.95, "It is above 95 % at none of them."),
        ((20, 30), 0.5, "It is above 50 % at the first of them already."),
        (
            (30,),
            0.5,
            "One checkpoint, step 30: at step 30 L0H0 gives the answer most, 90 % of |D|, all of it positive, at the last",
        ),
    ],
)
def test_a_crossing_is_told_only_where_it_lies_between_checkpoints(steps, level, words):
    sentence = readings.along_training({step: checkpoint(COURSE[step]) for step in steps}, level=level).sentence
    assert words in sentence and "first above" not in sentence


def test_without_an_answer_or_a_second_map_that_is_said():
    plain = readings.along_training({step: checkpoint(0.5, spans={}) for step in (0, 1)})
    assert "no answer is marked" in plain.sentence and plain.estimates["answer"].isnull().all()
    standard = readings.along_training({step: checkpoint(0.5, second=False) for step in (0, 1)}).sentence
    assert "50 % of A at the last token" in standard and "λ" not in standard and "overlap" not in standard


def test_a_head_whose_weights_there_are_below_zero_is_not_said_to_give():
    scores = torch.zeros(4, N, N, dtype=torch.float64)
    scores[2, :, 4] = 9.0  # the second map of head 0 has next to all of its weight there
    cap = capture_of(layer_of(scores, lam=0.9), spans=SPANS)
    reading = readings.along_training({7: cap})
    np.testing.assert_allclose(reading.estimates["answer_net"].sel(layer=0, head=0), 1 / N - 0.9, atol=0.01)
    assert "L0H0 takes weight from the answer (D sums to −.84 there), " in reading.sentence
    assert "gives" not in reading.sentence


def test_checkpoints_that_do_not_belong_together_are_refused():
    for opened, words in (
        ({}, "there is no checkpoint"),
        ([(1, checkpoint(0.5)), (1, checkpoint(0.6))], "step 1 comes twice"),
        ([checkpoint(0.5)], "by their step of training"),
        ({0: checkpoint(0.5), 5: checkpoint(0.5, spans={"answer": [3]})}, "step 5 is of another prompt"),
    ):
        with pytest.raises(DiffscopeError, match=words):
            readings.along_training(opened)


def test_the_course_of_the_overlap_is_of_the_heads_that_its_ends_are_of():
    """Heads of layer 1 share one second map, so they have no control, and their overlap stays 1."""

    def opened(apart):
        scores = torch.zeros(4, N, N, dtype=torch.float64)
        scores[2:, :, 7] = apart  # on an irrelevant token, in the second maps of layer 0
        first, second = layer_of(scores), layer_of(torch.zeros(4, N, N))
        shared = replace(second, layer=1, pairing=replace(second.pairing, a2=torch.tensor([2, 2])))
        cap = capture_of(first, spans=SPANS)
        return replace(cap, layers=[first, shared], _proofs=2 * cap._proofs, layer_output_outliers=np.zeros((2, 1, 6)))

    reading = readings.along_training({step: opened(apart) for step, apart in {0: 0.0, 10: 9.0, 20: 0.0}.items()})
    low = float(reading.estimates["overlap"].sel(step=10, layer=0, head=0, control="as it is"))
    assert low < 0.9 and f"In between the overlap falls from 1.00 to {decimal(low)} at step 10 and rises" in reading.sentence


def test_what_rises_and_falls_between_the_ends_is_told():
    course = {0: (0.1, 0.2), 10: (0.9, 0.9), 20: (0.3, 0.4), 30: (0.33, 0.41)}
    sentence = readings.along_training({step: checkpoint(share, lam=lam) for step, (share, lam) in course.items()}).sentence
    assert "In between its share rises from 11 % to 53 % at step 10, falls to 46 % at step 20 and rises to 52 %." in sentence
    moved = readings.along_training({step: checkpoint(share, lam=lam) for step, (share, lam) in course.items()})
    assert lambda_in_words(moved.estimates) == "λ rises until step 10 and falls in layer 0 (at the end .41)."
    assert "In between, mean over heads: in layer 0 it rises from .20 to .90 at step 10 and falls to .41." in sentence
    steady = readings.along_training({step: checkpoint(0.5, lam=lam) for step, lam in enumerate((0.2, 0.5, 0.48, 0.9))}).sentence
    assert "in layer 0" not in steady
