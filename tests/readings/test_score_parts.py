"""The sentence about a score names what its table has largest, in either direction."""

import numpy as np
import xarray as xr

import diffscope
from diffscope import readings
from diffscope.attribution import score_attribution

PARTS = ["embedding", "L0H0 A1", "L0H0 A2", "L0 biases", "L0 MLP", "biases"]
CELL = {"layer": 1, "head": 3, "map": "A2", "query": 9, "key": 4}


def table(pairs, against="row"):
    score = xr.DataArray(np.zeros((6, 6)), {"query_part": PARTS, "key_part": PARTS}, ("query_part", "key_part"), "score")
    for (query, key), value in pairs.items():
        score.loc[{"query_part": query, "key_part": key}] = value
    parts = {"score": score, "of_query": score.sum("key_part"), "of_key": score.sum("query_part"), "total": score.sum()}
    return xr.Dataset(parts, attrs=CELL | {"against": against})


def test_the_largest_parts_are_named_with_their_signs():
    pairs = {("embedding", "L0H0 A2"): -3.0, ("L0 MLP", "L0H0 A2"): -1.0, ("L0 MLP", "L0H0 A1"): 2.5, ("biases", "biases"): 0.5}
    assert readings.score_parts(table(pairs)).sentence == (
        "A2 of L1H3 scores key 4 −1.0 at token 9, counted from the mean of its row: the largest part of its key is what A2 of "
        "L0H0 wrote (−4.0), the largest of its query the embedding (−3.0); the largest product is the embedding at the query "
        "with what A2 of L0H0 wrote at the key (−3.0)."
    )
    alone = readings.score_parts(table({("L0 biases", "L0 MLP"): 1.0}, against="nothing")).sentence
    assert alone.startswith("A2 of L1H3 scores key 4 +1.0 at token 9: the largest part of its key is the MLP of L0 (+1.0)")
    assert "the largest of its query the biases of L0 (+1.0)" in alone
    assert "at token 9, counted from key 2: " in readings.score_parts(table(pairs, against="key 2")).sentence


def test_the_bundled_model_finds_answers_by_what_a_second_map_wrote():
    """What docs/evidence/instruments.md says, of the examples with its least and its largest share, in every later head."""
    scope = diffscope.load("mini-diff")
    shares, examples = [], diffscope.tasks.examples()
    for example in (examples[1], examples[3]):
        (key, *_) = scope.encode(example.text, example.spans).spans["answer"]
        for layer, head in ((1, 0), (1, 1), (2, 0), (2, 1)):
            parts = score_attribution(scope, example.text, layer, head, -1, int(key), against="row")
            sentence = readings.score_parts(parts).sentence
            assert "part of its key is what A2 of L0H0 wrote" in sentence and "of its query what A1 of L0H0 wrote" in sentence
            shares.append(float(parts["of_key"].sel(key_part="L0H0 A2") / parts["total"]))
    assert len(shares) == 8 and round(100 * min(shares)) == 76 and round(100 * max(shares)) == 134
