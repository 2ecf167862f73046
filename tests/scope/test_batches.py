"""Prompts of one length are proved and measured together: what comes out is what each gives by itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope.proof import fidelity
from diffscope.proof.fidelity import fidelities, other_pairings
from tests import tiny

KINDS = {
    **{
        name: lambda name=name: tiny.own(name, num_hidden_layers=3)
        for name in ("v1", "v2", "standard", "plus", "d_plus", "shared_a2")
    },
    "grouped": lambda: tiny.own("v2", kv_heads=2, num_hidden_layers=3),
    "window": lambda: tiny.standard("mistral"),
    "sinks": lambda: tiny.standard("gpt_oss"),
}
PROMPTS = [tiny.ids(33, seed=seed) for seed in range(2)]


SAME = {"answer": slice(3, 5)}
OWN = [{"answer": slice(3, 5)}, {"a": slice(6, 8), "answer": slice(1, 9)}]
SAMPLE = diffscope.QuerySample(8, seed=1)
#: every kind, with all queries and spans of each prompt; every choice of spans and queries, with two kinds
CHOICES = [(kind, OWN, None) for kind in KINDS]
CHOICES += [(kind, spans, queries) for kind in ("v2", "window") for spans in (SAME, OWN) for queries in ([-1], SAMPLE)]


@pytest.mark.parametrize("kind, spans, queries", [*CHOICES, ("v2", SAME, None)])
def test_statistics_of_a_batch_are_those_of_each_prompt(kind, spans, queries):
    scope = diffscope.load(KINDS[kind]())
    chosen = ["row", "span_mass", "cosine", "sink_rate", "lambda", "logit_outliers"]
    together = scope.measure(PROMPTS, chosen, spans=spans, queries=queries)
    for index, prompt in enumerate(PROMPTS):
        own = spans if isinstance(spans, dict) else spans[index]
        alone = scope.measure(prompt, chosen, spans=own, queries=queries)
        assert list(together) == list(alone)
        for name, values in alone.items():
            part = together[name].isel(prompt=index)
            part = part.sel(span=values["span"]) if "span" in values.dims else part
            assert part.attrs == values.attrs or "prompt" in str(part.attrs)
            np.testing.assert_allclose(part.transpose(*values.dims), values, rtol=2e-4, atol=2e-5, err_msg=name)


def _passages(kind, monkeypatch):
    """Layers of a batch and what entered their output projections."""
    taken = []
    monkeypatch.setattr("diffscope.proof.prove.fidelities", lambda *args: taken.append(args[:2]) or fidelities(*args))
    diffscope.load(KINDS[kind]()).capture(PROMPTS)
    (layers, observed), *others = taken
    assert len(layers) == 3 and not others  # all layers of all prompts in one proof
    return layers, [tensor.clone() for tensor in observed]


@pytest.mark.parametrize("kind", ["v1", "v2", "standard", "grouped"])
def test_one_wrong_row_of_one_prompt_is_found_in_its_layer(kind, monkeypatch):
    layers, observed = _passages(kind, monkeypatch)
    before = fidelities(layers, observed)
    assert all(proof.error <= proof.tolerance and proof.decided and proof.rows == 2 * 33 for proof in before)
    observed[1][1, 17, 5] += 0.01 * observed[1].abs().max()
    after = fidelities(layers, observed)
    assert [proof.error > proof.tolerance for proof in after] == [False, True, False]
    assert [proof.error for proof in after[::2]] == [proof.error for proof in before[::2]]


@pytest.mark.parametrize("kind", ["v1", "v2", "standard", "grouped"])
def test_together_or_one_by_one_proofs_are_the_same(kind, monkeypatch):
    layers, observed = _passages(kind, monkeypatch)
    together = fidelities(layers, observed)
    monkeypatch.setattr(fidelity, "STACKED", 0)
    for mine, its in zip(together, fidelities(layers, observed)):
        assert mine.error == pytest.approx(its.error, rel=0.5, abs=1e-7)  # both are rounding
        assert (mine.tolerance, mine.rows, mine.decided, mine.reason) == (its.tolerance, its.rows, its.decided, its.reason)


@pytest.mark.parametrize("kind", ["v1", "grouped"])
def test_another_pairing_of_a_batch_is_refused(kind, monkeypatch):
    layers, observed = _passages(kind, monkeypatch)
    for meaning, _ in other_pairings(layers[0].prompt(0)):
        wrong = [_paired(layer, meaning) for layer in layers]
        assert all(proof.error > 100 * proof.tolerance for proof in fidelities(wrong, observed)), meaning


def _paired(layer, meaning):
    """A layer of a batch under another pairing of its maps."""
    other = dict(other_pairings(layer.prompt(0)))[meaning]
    return replace(layer, pairing=other.pairing)


def test_where_lambda_is_zero_a_batch_is_undecided_as_well(monkeypatch):
    layers, _ = _passages("v1", monkeypatch)
    zero = [replace(layer, lam=torch.zeros_like(layer.lam)) for layer in layers]
    rebuilt = [torch.stack([_output(layer.prompt(index)) for index in range(len(PROMPTS))]) for layer in zero]
    assert all(not proof.decided and proof.reason for proof in fidelities(zero, rebuilt))


def _output(layer):
    """What enters the output projection, (query, head·width)."""
    return layer.output().transpose(0, 1).flatten(1)


def test_progress_of_a_batch_only_grows():
    told = []
    scope = diffscope.load(KINDS["v1"]())
    scope.measure(PROMPTS, ["entropy", "sink_rate"], progress=lambda done, total: told.append((done, total)))
    done = [done for done, _ in told]
    assert done == sorted(done) and told[-1] == (6, 6) and len(set(done)) > 2


@pytest.mark.parametrize("heads", [[], None])
def test_rows_of_no_head_are_no_rows(heads):
    layer = diffscope.load(KINDS["v1"]()).capture(PROMPTS[0]).layers[0]
    assert layer.rows(heads=heads).d.shape == (0 if heads == [] else 4, 33, 33)
