"""Types of heads: planted maps are of their type, and TransformerLens scores the heads of standard models alike."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformer_lens.head_detector import detect_head

import diffscope
from diffscope import DiffscopeError
from diffscope.instruments import head_types
from diffscope.prompts.encoded import Encoded
from tests import tiny
from tests.instruments.planted import capture_of, layer_of

IDS = [9, 3, 5, 7, 4, 3, 5, 7, 4]
N = len(IDS)
PLANTED = {
    "previous_token": lambda i: [i - 1],
    "duplicate_token": lambda i: [i - 4],
    "induction": lambda i: [i - 3],
    "sink": lambda i: [0],
}


def scores(keys, first):
    """Scores that put nearly all of a row on its keys, from query `first` on."""
    table = torch.zeros(N, N)
    for query in range(first, N):
        table[query, keys(query)] = 30.0
    return table


def of_ids(layer, ids=IDS):
    cap = capture_of(layer)
    prompt = Encoded(None, tuple(ids), tuple(map(str, ids)), tuple((0, 0) for _ in ids), {"sink": (0,)})
    return replace(cap, prompts=[prompt])


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_map_is_of_its_type(name):
    """As A2 it takes weight away in D: the row is A1 − λ·A2, A1 uniform, so with λ = 1 it sums to 0."""
    first = 1 if name in ("previous_token", "sink") else 5
    cap = of_ids(layer_of(torch.stack([torch.zeros(N, N), scores(PLANTED[name], first)]), lam=1.0))
    table = head_types(cap).sel(layer=0, head=0, type=name)
    assert float(table["queries"]) == N - first
    assert float(table["score"].sel(map="A2")) == pytest.approx(1, abs=1e-6)
    shares = [1 / (query + 1) for query in range(first, N)]
    assert (
        float(table["score"].sel(map="A1"))
        == pytest.approx(np.mean(shares))
        == pytest.approx(float(table["uniform"].sel(map="A1")))
    )
    assert float(table["score"].sel(map="D")) == pytest.approx(-0.5, abs=1e-6)  # 1/n − 1 there, and as much elsewhere
    assert table["shuffled"].isnull().all()


def test_the_control_scores_the_same_positions_of_other_tokens():
    """A map that goes by distance is no induction head: on shuffled tokens it scores the same."""
    by_distance = layer_of(scores(PLANTED["induction"], 5)[None], second=False)
    table = head_types(of_ids(by_distance), of_ids(by_distance, [9, 3, 4, 7, 3, 5, 4, 5, 7])).sel(
        map="A1", type="induction", layer=0, head=0
    )
    assert float(table["score"]) == pytest.approx(1) and float(table["shuffled"]) == pytest.approx(1)


def test_retrieval_counts_copied_tokens_whose_place_gets_the_largest_weight():
    table = torch.zeros(N, N)
    table[6, 2] = table[7, 3] = 1.0
    cap = of_ids(layer_of(table[None], second=False))
    found = head_types(cap, copied=[[(6, 2), (7, 3), (8, 1)]]).sel(map="A1", type="retrieval", layer=0, head=0)
    assert float(found["score"]) == pytest.approx(2 / 3) and float(found["queries"]) == 3
    assert float(found["uniform"]) == pytest.approx(np.mean([1 / 7, 1 / 8, 1 / 9]))
    assert head_types(cap)["score"].sel(type="retrieval").isnull().all()


def test_the_largest_weight_of_a_negative_row_is_one_that_it_sees():
    """The row sees keys 0 to 6; with A2 uniform and λ = 50 all of D is below 0 there, and 0 behind."""
    table = torch.zeros(N, N)
    table[6, 2] = 1.0
    cap = of_ids(layer_of(torch.stack([table, torch.zeros(N, N)]), lam=50.0))
    found = head_types(cap, copied=[[(6, 2)]]).sel(map="D", type="retrieval", layer=0, head=0)
    assert float(found["score"]) == 1


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3", "mistral"])
def test_standard_heads_score_as_transformerlens_detects_them(kind):
    ids = [5, *tiny.ids(12), *tiny.ids(12), 7, 7, 8, 7]
    model = tiny.standard(kind)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(torch.tensor([ids]), output_attentions=True).attentions
    config = SimpleNamespace(n_layers=len(maps), n_heads=maps[0].shape[1], n_ctx=256, device="cpu", dtype=torch.float32)
    oracle = SimpleNamespace(cfg=config, to_tokens=lambda ids: torch.tensor([ids]))
    cache = {("pattern", number, "attn"): a[0] for number, a in enumerate(maps)}
    table = head_types(diffscope.load(model).capture(ids)).sel(map="A1")
    own = table["score"] * _scored(table, ids, maps) / len(ids)
    for name in ("previous_token", "duplicate_token", "induction"):
        expected = detect_head(oracle, tuple(ids), f"{name}_head", cache=cache)
        np.testing.assert_allclose(own.sel(type=name), expected, atol=1e-6)


def _scored(table, ids, maps):
    """Queries that see such a key; a window hides some."""
    counts = table["queries"].broadcast_like(table["score"]).copy(deep=True)
    for layer in range(len(maps)):
        if (maps[layer][0, 0, -1] == 0).any():  # a window of 7
            same = np.equal.outer(ids, ids)
            near = np.tril(np.ones_like(same)) * ~np.tril(np.ones_like(same), -7)
            duplicate = np.tril(same, -1)
            after = np.roll(duplicate, 1, 1)
            after[:, 0] = False
            for name, keys in {"duplicate_token": duplicate, "induction": after}.items():
                counts.loc[dict(layer=layer, type=name)] = (keys * near).any(1).sum()
    return counts


def test_standard_attention_has_no_second_map_and_a_batch_is_that_of_its_prompts():
    scope = diffscope.load(tiny.standard("llama"))
    batch = head_types(scope.capture([tiny.ids(20), tiny.ids(13, seed=1)]))
    alone = head_types(scope.capture(tiny.ids(13, seed=1)))
    assert batch["score"].sel(map="A2").isnull().all()
    np.testing.assert_allclose(batch.isel(prompt=1)["score"], alone["score"], atol=1e-5)


def test_what_cannot_be_scored_is_refused():
    scope = diffscope.load(tiny.standard("llama"))
    cap = scope.capture(tiny.ids(9))
    with pytest.raises(DiffscopeError, match="other lengths, layers or heads; capture the same tokens"):
        head_types(cap, scope.capture(tiny.ids(8)))
    with pytest.raises(DiffscopeError, match="copied tokens are of 2 prompts, and the capture has 1"):
        head_types(cap, copied=[[], []])
    with pytest.raises(DiffscopeError, match=r"outside of it or after its query; give \(query, key\)"):
        head_types(cap, copied=[[(3, 5)]])
