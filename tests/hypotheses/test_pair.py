"""A pair is the difference of its models, and its baseline is plain standard attention."""

import numpy as np
import pytest

import diffscope
from diffscope.hypotheses import TESTS, Models, Pair, Settings, run
from tests import tiny


def test_a_pair_is_the_difference_of_its_models():
    scopes = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
    settings = Settings(prompts=5, length=96, needles=2, untrained=3, weights="answer")
    pair = Pair(*(Models.open([scope], settings) for scope in scopes))
    prompt = pair.diff.prompts[4]
    observed = TESTS["key-token-gain-pair"].measure(pair)["share"]
    shares = []
    for scope, models in zip(scopes, (pair.diff, pair.standard)):
        cap = scope.capture(prompt.ids)
        places = [(layer.layer, head) for layer in cap.layers for head in range(layer.n_heads)]
        rows = [cap.map("share", *place, queries=[-1]).values[0] for place in places]
        weights = models.evidence("last_query")[0]["weight"].values.ravel()
        shares.append(np.average([row[prompt.spans["answer"]].sum() for row in rows], weights=weights))
    assert observed.values[0, 4] == pytest.approx(shares[0] - shares[1], abs=1e-5)
    assert observed.values.shape == (1, 5) and observed.untrained.shape == (3,)
    (turned,) = run("sinks", pair=Pair(pair.standard, pair.diff))
    assert turned.shown == "needs a differential model beside the standard one"


@pytest.mark.parametrize(
    "attention, words",
    [
        ({"attention": "signed"}, "weights that are changed after the softmax"),
        ({"attention": "gated"}, "a gate of each head's output"),
        ({"attention": "standard", "head_norm": "rms"}, "a norm of each head's output"),
    ],
)
def test_a_baseline_that_is_more_than_standard_attention_is_refused(tokenizer, attention, words):
    settings = Settings(prompts=1, length=96, needles=2, untrained=1)
    other = diffscope.load(tiny.own(**attention, vocab_size=len(tokenizer)).eval(), tokenizer)
    (verdict,) = run("sinks", pair=Pair(Models.open([diffscope.load("mini-diff")], settings), Models.open([other], settings)))
    assert verdict.shown == f"needs a standard model to compare with: the one given has {words}"
