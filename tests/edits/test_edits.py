"""An edit changes exactly what it says, everywhere the model is run, and leaves nothing behind."""

import math
import re
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diffscope
from diffscope import DiffscopeError, PromptError, UnsupportedModel, edits
from diffscope.attention.components import Mask
from diffscope.families.hooks import attention_passes
from tests import reference as slow
from tests import tiny
from tests.layouts import nanogpt
from tests.reference import Slow
from tools import definitions

PAGE = Path(__file__).parents[2] / "docs" / "edits.md"
BOUND = {torch.float64: 1e-10, torch.float32: 1e-5}
MODELS = {
    "v1": lambda: tiny.own("v1"),
    "v1-grouped": lambda: tiny.own("v1", kv_heads=2),
    "v2": lambda: tiny.own("v2"),
    "diffllama-grouped": lambda: tiny.diffllama(kv=4),
    "standard": lambda: tiny.own("standard", kv_heads=2),
    "mistral-window": lambda: tiny.standard("mistral"),
    "gemma2": lambda: tiny.gemma2(),
    "gpt-oss": lambda: tiny.gpt_oss(),
}
WINDOWED = ("mistral-window", "gemma2", "gpt-oss")
DIFFERENTIAL = ("v1", "v1-grouped", "v2", "diffllama-grouped")
IDS = tiny.ids(20)
OTHERS = [tiny.ids(20, seed=seed) for seed in (3, 4)]
UNEVEN = [tiny.ids(23, seed=5), tiny.ids(12, seed=6)]
TO = torch.randn(4, 16, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@cache
def opened(name, dtype=torch.float64):
    """A model whose λ is not λ_init and whose norm has a weight; tests must leave it as it is."""
    model, generator = MODELS[name](), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            if "subln" in label:
                parameter.uniform_(0.5, 2.0, generator=generator)
            elif "lambda_" in label and parameter.dim() == 1:
                parameter.normal_(0, 0.1, generator=generator)
    return diffscope.load(model.to(dtype))


def watched(scope, ids, *made):
    """Each layer as it was read, raw, and what really entered its output projection under edits."""
    seen, layers = [], []
    with scope.edit(*made):
        projections = [scope.family.output_projection(module) for module in scope.family.modules(scope.model)]
        handles = [at.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone())) for at in projections]
        try:
            with (
                torch.no_grad(),
                attention_passes(scope.model, scope.family, None, lambda p: layers.append(scope.family.read(p))),
            ):
                scope.model(torch.tensor([ids]))
        finally:
            for handle in handles:
                handle.remove()
    return [(Slow(layer), entered[0].double().numpy()) for layer, entered in zip(layers, seen)]


@cache
def plain_others(name, dtype, which):
    """The raw layers of other prompts without edits, by layer."""
    runs = [watched(opened(name, dtype), ids) for ids in (OTHERS if which == "others" else UNEVEN)]
    return [[run[layer][0] for run in runs] for layer in range(2)]


def with_a2(new):
    return lambda a1, a2, head: (a1, new(a2, head))


def mean_of_others(s, name, dtype):
    others = plain_others(name, dtype, "others")[s.number]
    return dict(maps=with_a2(lambda a2, head: np.mean([o.a2(head) for o in others], axis=0)[: s.n, : s.n]))


def positional_of_others(s, name, dtype):
    others = plain_others(name, dtype, "uneven")[s.number]
    return dict(maps=with_a2(lambda a2, head: slow.by_distance([o.a2(head) for o in others], s.n)))


def scalar_of_others(s, name, dtype):
    others = plain_others(name, dtype, "uneven")[s.number]

    def factor(head):
        rows = np.concatenate([o.plain(head) for o in others])
        return np.mean([1 / slow.rms(row, s.layer.norm.eps) for row in rows])

    return dict(norm=factor)


def in_levels(bits, per):
    def scores(table, head, branch):
        largest = np.abs(table[np.isfinite(table)]).max() if per == "map" else None
        return slow.quantised(table, bits, largest)[0]

    return lambda *_: dict(scores=scores)


def hiding(keys, queries=None, if_nothing_left="kept", branch=None):
    def scores(table, head, at):
        return slow.without(table, keys, queries, if_nothing_left) if branch in (None, at) else table

    return lambda *_: dict(scores=scores)


def with_noise(sigma, opposite=False, keys=None, seed=0):
    """Scores with one draw a key added, or on the second map subtracted."""

    def changes(s, *_):
        noise = sigma * np.random.default_rng([seed, s.number]).standard_normal(s.n)
        if keys is not None:
            noise[[key for key in range(s.n) if key not in keys]] = 0
        return dict(scores=lambda table, head, branch: table + (-noise if opposite and branch == 2 else noise))

    return changes


def by_sum(rows):
    """Rows divided by their sums, but for those of next to nothing."""
    totals = rows.sum(1, keepdims=True)
    return np.where(totals < 1e-3, rows, rows / totals)


def as_a2(new):
    return lambda *_: dict(maps=with_a2(new))


def as_a1(new):
    return lambda *_: dict(maps=lambda a1, a2, head: (new(a1), a2))


def as_much_on_each(a):
    """Rows spread over the keys that they see, with a window or without, and with their sums, below 1 beside a sink."""
    seen = a > 0
    return seen * a.sum(1, keepdims=True) / seen.sum(1, keepdims=True)


def as_d(new):
    return lambda *_: dict(difference=lambda d, head: new(d))


# name: (edit of (scope, **places), changes of the slow computation of (layer, name, dtype))
NEED_A2 = {
    "set λ": (lambda s, **at: edits.set_lambda(0.3, **at), lambda *_: dict(lam=lambda lam, head: np.full_like(lam, 0.3))),
    "scale λ": (lambda s, **at: edits.scale_lambda(-1.7, **at), lambda *_: dict(lam=lambda lam, head: -1.7 * lam)),
    "A2 added": (lambda s, **at: edits.plus(**at), lambda *_: dict(lam=lambda lam, head: -lam)),
    "zero A2": (lambda s, **at: edits.zero_a2(**at), as_a2(lambda a2, head: 0 * a2)),
    "uniform A2": (lambda s, **at: edits.uniform_a2(**at), as_a2(lambda a2, head: slow.uniform(len(a2)))),
    "A2 of head 2": (lambda s, **at: edits.a2_of_head(2, **at), lambda *_: dict(second=lambda head: 2)),
    "A2 shared": (
        lambda s, **at: edits.share_a2(**at),
        lambda s, *_: dict(maps=with_a2(lambda a2, head: np.mean([s.a2(each) for each in range(s.heads)], axis=0))),
    ),
    "A2 rank 3": (lambda s, **at: edits.low_rank_a2(3, **at), as_a2(lambda a2, head: slow.low_rank(a2, 3))),
    "A2 rank 3 normalised": (
        lambda s, **at: edits.low_rank_a2(3, normalise=True, **at),
        as_a2(lambda a2, head: by_sum(slow.low_rank(a2, 3))),
    ),
    "A2 mean": (lambda s, **at: edits.mean_a2(map(s.capture, OTHERS), **at), mean_of_others),
    "A2 positional": (lambda s, **at: edits.positional_a2(map(s.capture, UNEVEN), **at), positional_of_others),
    "no sink in A2": (lambda s, **at: edits.drop_sink(2, branch=2, **at), hiding([0, 1], branch=2)),
}
NEED_NORM = {
    "no norm": (lambda s, **at: edits.remove_norm(**at), lambda *_: dict(norm=None)),
    "scalar norm": (lambda s, **at: edits.scalar_norm(map(s.capture, UNEVEN), **at), scalar_of_others),
}
NEED_NOTHING = {
    "uniform A1": (lambda s, **at: edits.uniform_a1(**at), as_a1(as_much_on_each)),
    "A1 top-3": (lambda s, **at: edits.top_k_a1(3, **at), as_a1(lambda a: slow.top_k(a, 3))),
    "A1 top-3 as it is": (
        lambda s, **at: edits.top_k_a1(3, renormalise=False, **at),
        as_a1(lambda a: slow.top_k(a, 3, renormalise=False)),
    ),
    "|D|": (lambda s, **at: edits.absolute_d(**at), as_d(np.abs)),
    "D⁺": (lambda s, **at: edits.d_plus(**at), as_d(lambda d: np.where(d > 0, d, 0))),
    "D by sum": (lambda s, **at: edits.normalise_d(**at), as_d(lambda d: d / d.sum(1, keepdims=True))),
    "D by absolute": (
        lambda s, **at: edits.normalise_d("absolute", **at),
        as_d(lambda d: d / np.abs(d).sum(1, keepdims=True)),
    ),
    "no sink": (lambda s, **at: edits.drop_sink(**at), hiding([0])),
    "knock-out": (lambda s, **at: edits.knock_out([0, 3, 4], range(12), **at), hiding([0, 3, 4], range(12), "nothing")),
    "knock-out of A1": (
        lambda s, **at: edits.knock_out([0, 7], [0, 7, 9, 19], branch=1, **at),
        hiding([0, 7], [0, 7, 9, 19], "nothing", branch=1),
    ),
    "8 bits a map": (lambda s, **at: edits.quantise_logits(8, **at), in_levels(8, "map")),
    "4 bits a row": (lambda s, **at: edits.quantise_logits(4, per="row", **at), in_levels(4, "row")),
    "noise in both": (lambda s, **at: edits.inject_noise(1.5, **at), with_noise(1.5)),
    "noise of opposite signs": (
        lambda s, **at: edits.inject_noise(0.7, "differential", [0, 3, 4, 11], seed=5, **at),
        with_noise(0.7, True, [0, 3, 4, 11], 5),
    ),
    "heads ablated": (lambda s, **at: edits.ablate_heads(**at), lambda *_: dict(output=lambda out, head: 0 * out)),
}
CASES = {**NEED_A2, **NEED_NORM, **NEED_NOTHING}
HEADS = {**NEED_A2, **NEED_NOTHING}


def fits(name, case):
    """Whether a model has what an edit is about. A scaled λ beside 1 makes rows of D that sum to nothing at all."""
    return case in NEED_NOTHING or (name in DIFFERENTIAL and (case not in NEED_NORM or name != "v2"))


WITH_SINKS = [("gpt-oss", case) for case in ("A1 top-3", "knock-out", "no sink", "8 bits a map")]


BY_TOKEN = [("v2", case) for case in ("set λ", "scale λ")]  # λ has a value a token
#: an edit of each stage: what another model or precision changes, it changes for a whole stage; FULL has every edit
STAGES = ("set λ", "A2 of head 2", "no sink", "knock-out", "8 bits a map", "A1 top-3", "A2 rank 3", "D by sum", "no norm")
STAGES += ("noise in both", "heads ablated")
FULL = ("v1-grouped", "v2", "gpt-oss")
IN_PRECISIONS = [
    (name, torch.float64, case) for name in MODELS for case in (CASES if name in FULL else STAGES) if fits(name, case)
]
IN_PRECISIONS += [("v1", torch.float32, case) for case in STAGES]


def pairs(name):
    """Every edit of one model; those of a λ by token, those on which a window or sinks act."""
    of_window = [("mistral-window", case) for case in ("no sink", "knock-out", "8 bits a map", "noise in both")]
    return pytest.mark.parametrize("name, case", [*((name, case) for case in CASES), *BY_TOKEN, *of_window, *WITH_SINKS])


def edit_of(case, scope, **places):
    return CASES[case][0](scope, **places)


def between_levels(s, bits=8):
    """Rows of a map in which rounding of float32 may tip a score to another level."""
    tables = [s.scores(head, branch) for head in range(s.heads) for branch in (1, 2)[: 1 + s.layer.differential]]
    near = [slow.quantised(table, bits, np.abs(table[np.isfinite(table)]).max())[1].min(1) for table in tables]
    near += [slow.quantised(table, bits)[1].min(1) for table in tables]
    return np.min(near, axis=0) < 1e-3


def difference(s, expected, entered, dtype, case):
    if dtype == torch.float32 and "bits" in case:
        decided = ~between_levels(s, int(case[0]))
        assert decided.mean() > 0.4
        expected, entered = expected[decided], entered[decided]
    enlarged = 1 / np.abs(1 - s.lam).min() if case == "D by sum" else 1  # what is divided by carries its own rounding
    return np.abs(expected - entered).max() / (enlarged * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name, dtype, case", IN_PRECISIONS)
def test_what_enters_the_output_projection(name, dtype, case):
    scope = opened(name, dtype)
    for s, entered in watched(scope, IDS, edit_of(case, scope)):
        changes = CASES[case][1](s, name, dtype)
        expected = s.output(**changes)
        assert difference(s, expected, entered, dtype, case) < BOUND[dtype]
        idle = "D" in case and name not in DIFFERENTIAL  # D = A sums to 1 and is positive
        idle &= not (case.startswith("D by") and name == "gpt-oss")  # to less, with a sink logit
        idle |= case.startswith("D by") and s.layer.norm is not None  # a norm divides by a row's size anyhow
        assert (np.abs(expected - s.output()).max() > 1e-3) != idle, "this edit changes nothing here"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["v1", "v2", "diffllama-grouped"])
def test_in_half_precision_an_edited_output_is_rounded_once(name, dtype):
    """From the q, k, v and λ that the model rounded; no 0.4 % of bfloat16 a step comes in between."""
    scope = opened(name, dtype)
    for case in ("set λ", "scale λ", "zero A2", "uniform A2", "A2 positional", "|D|", "no norm", "no sink"):
        if not fits(name, case):
            continue
        for s, entered in watched(scope, IDS, edit_of(case, scope)):
            expected = s.output(**CASES[case][1](s, name, dtype))
            half_a_step = torch.finfo(dtype).eps / 2 * np.abs(expected)
            assert (np.abs(expected - entered) <= 1.01 * half_a_step + 1e-5).all()


@pytest.mark.parametrize("name, case", [*(("v1-grouped", case) for case in HEADS), *BY_TOKEN])
def test_other_heads_and_layers_are_untouched(name, case):
    scope, chosen = opened(name), (0, 3)
    (first, entered), (second, after) = watched(scope, IDS, edit_of(case, scope, layers=1, heads=chosen))
    assert np.abs(entered - first.output()).max() < 1e-10
    changed = second.output(**CASES[case][1](second, name, torch.float64)).reshape(20, 4, -1)
    plain, after = second.output().reshape(changed.shape), after.reshape(changed.shape)
    for head in range(4):
        assert np.abs(after[:, head] - (changed if head in chosen else plain)[:, head]).max() < 1e-10


@pytest.mark.parametrize("case", [*NEED_A2, *NEED_NORM])
def test_a_model_without_a_second_map_or_norm_is_refused(case):
    scope, words = (opened("standard"), "no second map") if case in NEED_A2 else (opened("v2"), "no (root-mean-square )?norm")
    with pytest.raises(UnsupportedModel, match=words), scope.edit(edit_of(case, scope)):
        scope.capture(IDS)


# What the model itself computes when it really is so


def logits_of(scope, ids, **more):
    with torch.no_grad():
        return scope.model(torch.tensor([ids]), **more).logits[0]


def logits_under(scope, ids, *made, **more):
    with scope.edit(*made):
        return logits_of(scope, ids, **more)


def same(a, b, bound=1e-9):
    return float((a - b).abs().max()) < bound


@pytest.fixture
def own_copy():
    """A model to break."""
    return lambda name: diffscope.load(MODELS[name]().double())


def test_lambda_really_set(own_copy):
    scope = own_copy("v1")
    edited = logits_under(scope, IDS, edits.set_lambda(0.9))
    for layer in scope.model.model.layers:
        at = layer.self_attn
        at.lambda_q1.data.zero_()[0] = 1.0
        at.lambda_k1.data.zero_()[0] = math.log(1 + 0.9 - at.lambda_init)
        at.lambda_q2.data.zero_()
    assert same(edited, logits_of(scope, IDS), 1e-4)  # the model takes its exponentials in float32
    assert not same(edited, logits_under(scope, IDS, edits.set_lambda(0.8)), 1e-2)


def test_norm_really_removed(own_copy):
    scope = own_copy("v1")
    edited = logits_under(scope, IDS, edits.remove_norm(layers=1))
    scope.model.model.layers[1].self_attn.subln = torch.nn.Identity()
    assert same(edited, logits_of(scope, IDS))


@pytest.mark.parametrize("to", [None, TO])
def test_head_really_ablated(own_copy, to):
    scope = own_copy("v2")
    edited = logits_under(scope, IDS, edits.ablate_heads(layers=0, heads=2, to=to))
    projection = scope.model.model.layers[0].self_attn.o_proj
    weight = projection.weight.data.clone()
    projection.weight.data[:, 32:48] = 0
    if to is not None:
        projection.bias = torch.nn.Parameter(weight[:, 32:48] @ to[2])
    assert same(edited, logits_of(scope, IDS))


@pytest.mark.parametrize("name", ["v1-grouped", "v2", "diffllama-grouped", "standard"])
def test_keys_really_masked(name):
    scope, visible = opened(name), torch.ones(20, 20, dtype=torch.bool).tril()
    visible[10:, 3:6] = False
    edited = logits_under(scope, IDS, edits.knock_out(range(3, 6), range(10, 20)))
    assert same(edited, logits_of(scope, IDS, attention_mask=visible[None, None]))


def test_second_map_really_of_another_head(own_copy):
    scope = diffscope.load(tiny.own("v2", kv_heads=1).double())  # one head of keys for all
    edited = logits_under(scope, IDS, edits.a2_of_head(3, layers=1))
    weight = scope.model.model.layers[1].self_attn.q_proj.weight.data.unflatten(0, (4, 2, 16))
    weight[:, 1] = weight[3, 1].clone()
    assert same(edited, logits_of(scope, IDS))


@pytest.mark.parametrize("case", ["set λ", "A2 rank 3", "D⁺", "8 bits a map", "scalar norm"])
def test_logits_follow_from_the_replaced_tensor(case):
    scope = opened("v1-grouped")
    edit = edit_of(case, scope, layers=0)
    ((s, _), _), edited = watched(scope, IDS, edit), logits_under(scope, IDS, edit)
    replaced = torch.tensor(s.output(**CASES[case][1](s, "v1-grouped", torch.float64)))[None]
    projection = scope.model.model.layers[0].self_attn.o_proj
    handle = projection.register_forward_pre_hook(lambda module, args: (replaced,))
    try:
        assert same(edited, logits_of(scope, IDS))
    finally:
        handle.remove()
    assert not same(edited, logits_of(scope, IDS), 1e-2)


# Captures


@pytest.mark.parametrize("name, case", [*(("v1-grouped", case) for case in CASES), *BY_TOKEN, *WITH_SINKS])
def test_a_capture_shows_the_edited_maps(name, case, tmp_path):
    scope = opened(name)
    edit = edit_of(case, scope)
    raw = watched(scope, IDS, edit)
    with scope.edit(edit):
        capture = scope.capture(IDS)
    assert float(capture.fidelity.error.max()) < 1e-12
    assert capture.facts["edits"] == str(edit)
    for layer, (s, _) in enumerate(raw):
        changes = {key: value for key, value in CASES[case][1](s, name, torch.float64).items() if key not in ("norm", "output")}
        for head in (0, 3):
            maps = zip(("A1", "A2", "D"), s.rows(head, **changes))
            for label, expected in ((label, a) for label, a in maps if a is not None):
                assert np.abs(capture.map(label, layer, head) - expected).max() < 1e-10
    window = dict(query=[17, 4, 9])  # some rows are those of the whole map
    assert np.abs(capture.map("D", 1, 2, queries=window["query"]) - capture.map("D", 1, 2).sel(window)).max() < 1e-12
    capture.save(tmp_path / "edited.dscope")
    again = diffscope.open(tmp_path / "edited.dscope")
    for label in ("A1", "A2", "D")[:: 1 if name in DIFFERENTIAL else 2]:
        assert np.array_equal(capture.map(label, 1, 2), again.map(label, 1, 2))
    assert torch.equal(capture.layers[1].prompt(0).output(), again.layers[1].prompt(0).output())
    assert again.measure("gini").identical(capture.measure("gini"))


def test_a_kept_capture_of_a_batch_under_many_edits(tmp_path):
    scope = opened("v1")
    with scope.edit(*(edit_of(case, scope, heads=i % 4) for i, case in enumerate(HEADS)), edit_of("scalar norm", scope)):
        capture = scope.capture([tiny.ids(9), IDS])
    capture.save(tmp_path / "edited.dscope")
    again = diffscope.open(tmp_path / "edited.dscope")
    assert len(again.layers[0].changes) == len(capture.layers[0].changes) > 10
    assert capture.lam.identical(again.lam) and capture.facts == again.facts
    for prompt in range(2):
        assert np.array_equal(capture[prompt].map("D", 1, 2), again[prompt].map("D", 1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["D by sum", "heads ablated", "8 bits a map", "A2 rank 3", "set λ"])
@pytest.mark.parametrize("name", ["v1", "v2"])
def test_an_edited_capture_proves_itself_in_every_precision(name, case, dtype):
    scope = diffscope.load(MODELS[name]().to(dtype))
    large = [edits.ablate_heads(heads=[1], to=1e3 * TO)] if case == "heads ablated" else []
    near_one = [edits.set_lambda(0.995)] if case == "D by sum" else []
    with scope.edit(*near_one, edit_of(case, scope), *large):
        proof = scope.capture(IDS).fidelity
    assert float((proof.error / proof.tolerance).max()) < 0.5


def test_statistics_use_the_edited_rows():
    scope = opened("v1")
    with scope.edit(edits.normalise_d("absolute")):
        capture = scope.capture(IDS, spans={"answer": slice(3, 6)})
    measured = capture.measure(["row_sum", "span_mass", "gini", "negative_share"]).sel(layer=1, head=2, map="D")
    d = capture.map("D", 1, 2).values
    assert np.allclose(measured.row_sum, d.sum(1)) and not np.allclose(d.sum(1), 1 - float(capture.lam[1, 2]))
    rows = slice(6, None)
    signed = measured.span_mass.sel(span="answer", normalisation="signed")[rows]
    assert np.allclose(signed, d[rows, 3:6].sum(1) / d[rows].sum(1), rtol=1e-9)
    assert np.allclose(measured.negative_share[1:], -np.where(d < 0, d, 0).sum(1)[1:])
    with scope.edit(edits.set_lambda(0.25, layers=1)):
        lam = scope.capture(IDS).measure(["lambda", "row_sum"]).sel(layer=1)
    assert np.allclose(lam["lambda"].sel(lambda_value=["used", "fp32"]), 0.25)
    assert np.allclose(lam.row_sum.sel(map="D"), 0.75)


# Composition


@pytest.mark.parametrize("edit", [edits.quantise_logits(4), edits.low_rank_a2(2)], ids=str)
def test_what_an_edit_computes_does_not_depend_on_autocast(edit):
    layer, both = opened("v1", torch.float32).capture(IDS).layers[1], [edits.inject_noise(0.1), edit]
    expected = edits.apply(both, layer).rows().d
    with torch.autocast("cpu", torch.bfloat16):
        edited = edits.apply(both, layer)
    assert torch.equal(edited.rows().d, expected)


def test_edits_act_in_the_order_of_the_computation():
    """Given in any order: first fields, then scores, maps, difference and output."""
    scope = opened("v1")
    some = [edit_of(case, scope) for case in ("set λ", "A2 of head 2", "no sink", "8 bits a map", "A2 rank 3", "D⁺")]
    shown = []
    for order in (some, [*some[4:], *some[:2], *some[2:4]]):
        for s, entered in watched(scope, IDS, *order):
            expected = s.output(
                lam=lambda lam, head: np.full_like(lam, 0.3),
                second=lambda head: 2,
                scores=lambda table, head, branch: in_levels(8, "map")()["scores"](slow.without(table, [0]), head, branch),
                maps=lambda a1, a2, head: (a1, slow.low_rank(a2, 3)),
                difference=lambda d, head: np.maximum(d, 0),
            )
            assert np.abs(entered - expected).max() < 1e-10
            shown.append(entered)
    assert np.array_equal(shown[1], shown[3])


def test_within_a_stage_the_order_given_counts():
    scope = opened("v2")
    scaled, fixed = edits.scale_lambda(2.0), edits.set_lambda(0.3)
    with scope.edit(fixed, scaled):
        assert np.allclose(scope.capture(IDS).lam, 0.6)
    with scope.edit(scaled, fixed):
        assert np.allclose(scope.capture(IDS).lam, 0.3)


@pytest.mark.parametrize(
    "pair", [("8 bits a map", "no sink"), ("D⁺", "D by absolute"), ("A2 uniform", "A2 rank 3"), ("no sink", "A1 top-3")]
)
def test_nested_edits_are_edits_of_one_call(pair):
    scope = opened("v1")
    first, second = (edit_of(case, scope) if case in CASES else edits.uniform_a2() for case in pair)
    together = logits_under(scope, IDS, first, second)
    with scope.edit(first):
        alone = logits_of(scope, IDS)
        with scope.edit(second):
            assert torch.equal(logits_of(scope, IDS), together)
            capture = scope.capture(IDS)
        assert torch.equal(logits_of(scope, IDS), alone)
    assert capture.facts["edits"] == f"{first}; {second}" and float(capture.fidelity.error.max()) < 1e-12
    assert not torch.equal(alone, together)


def test_an_edit_of_nothing_changes_nothing_and_may_hold_others():
    scope, plain = opened("v1"), logits_of(opened("v1"), IDS)
    assert torch.equal(logits_under(scope, IDS), plain)
    with scope.edit(), scope.edit(edits.set_lambda(0.3)):
        inside = logits_of(scope, IDS)
    assert torch.equal(inside, logits_under(scope, IDS, edits.set_lambda(0.3)))


def test_a_value_for_every_layer_and_head():
    scope, values = opened("v2"), np.arange(8).reshape(2, 4) / 10
    with scope.edit(*(edits.set_lambda(values[i, j], layers=i, heads=j) for i in range(2) for j in range(4))):
        assert np.allclose(scope.capture(IDS).lam.values, values[..., None])


# Nothing left behind


def traces(model):
    from transformers import AttentionInterface, AttentionMaskInterface

    return (
        [[len(hooks) for hooks in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)] for m in model.modules()],
        set(AttentionInterface._global_mapping),
        set(AttentionMaskInterface._global_mapping),
        model.config.to_json_string(),
        {part.config._attn_implementation for part in model.modules() if hasattr(part, "config")},
        [part.training for part in model.modules()],
        [(label, id(parameter), parameter._version) for label, parameter in model.named_parameters()],
    )


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_nothing_is_left_behind(implementation, own_copy):
    scope = own_copy("v1")
    scope.model.set_attn_implementation(implementation)
    scope.model.model.layers[1].mlp.train()
    before, plain = traces(scope.model), logits_of(scope, IDS)
    every = [edit_of(case, scope) for case in CASES]
    with scope.edit(*every):
        scope.capture(IDS), scope.loss(IDS), scope.generate(IDS[:9], 2)
    assert traces(scope.model) == before and torch.equal(logits_of(scope, IDS), plain)
    with pytest.raises(ZeroDivisionError), scope.edit(*every[:3]), scope.edit(every[3]):
        scope.capture(IDS)
        1 / 0  # noqa: B018
    assert traces(scope.model) == before and torch.equal(logits_of(scope, IDS), plain)
    with scope.edit(edits.set_lambda(0.3)):
        with pytest.raises(DiffscopeError), scope.edit(edits.zero_a2(layers=7)):
            pass
        with pytest.raises(DiffscopeError), scope.edit(edits.zero_a2(heads=7)):
            scope.capture(IDS)  # inside the forward
        inside = logits_of(scope, IDS)
    assert torch.equal(inside, logits_under(scope, IDS, edits.set_lambda(0.3)))
    assert traces(scope.model) == before and torch.equal(logits_of(scope, IDS), plain)
    assert "edits" not in scope.capture(IDS).facts


def test_what_an_edit_makes_is_a_constant_for_gradients(own_copy):
    """No gradient reaches the attention of an edited layer; the stream past it, its projection and other layers get theirs."""
    scope, generator = own_copy("v1"), torch.Generator().manual_seed(1)
    first, second = scope.model.model.layers
    given = scope.model.model.embed_tokens(torch.tensor([IDS])).detach().requires_grad_()
    wanted = torch.randn(20, tiny.VOCABULARY, generator=generator, dtype=torch.float64)
    step = torch.randn(given.shape, generator=generator, dtype=torch.float64) * 1e-4
    seen = []

    def value(x):
        return (scope.model(inputs_embeds=x).logits[0] * wanted).sum()

    with scope.edit(edits.ablate_heads(layers=1, heads=0)):
        handle = second.self_attn.o_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        loss = value(given)
        handle.remove()
    loss.backward()  # after the block: what was computed in it stays
    grads = {name: parameter.grad for name, parameter in second.self_attn.named_parameters()}
    assert [name for name, grad in grads.items() if grad is not None] == ["o_proj.weight"]
    assert second.input_layernorm.weight.grad is None and second.mlp.up_proj.weight.grad is not None
    assert all(parameter.grad is not None for parameter in first.parameters())
    handle = second.self_attn.o_proj.register_forward_pre_hook(lambda module, args: (seen[0],))
    with torch.no_grad():
        slope = float(value(given + step) - value(given - step)) / 2
    handle.remove()
    assert slope == pytest.approx(float((given.grad * step).sum()), rel=1e-3)  # norms are taken in float32


def test_another_thread_waits_and_sees_no_edit():
    first, second = opened("v1"), diffscope.load(opened("v1").model)
    plain, measured, inside = first.capture(IDS).lam, {}, threading.Event()

    def other():
        assert inside.wait(60)
        measured["lam"] = second.capture(IDS).lam

    thread = threading.Thread(target=other)
    thread.start()
    with first.edit(edits.set_lambda(0.3)):
        inside.set()
        thread.join(0.2)
        assert thread.is_alive()
        assert np.allclose(second.capture(IDS).lam, 0.3)  # one model: of this thread both scopes see the edit
        with second.edit(edits.scale_lambda(2.0)):
            assert np.allclose(first.capture(IDS).lam, 0.6)
    thread.join(60)
    assert measured["lam"].identical(plain)


def test_two_threads_edit_in_turns():
    scope, measured = opened("v1"), {}

    def run(value):
        for _ in range(3):
            with scope.edit(edits.set_lambda(value)):
                measured.setdefault(value, []).append(scope.capture(IDS).lam.values)

    threads = [threading.Thread(target=run, args=(value,)) for value in (0.1, 0.2, 0.3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.allclose(lam, value) for value, all_of in measured.items() for lam in all_of) and len(measured) == 3


# Running


@pairs("v1-grouped")
def test_generation_is_that_of_full_forwards(name, case):
    """Cached where an edit allows it; an edit that needs whole maps sees the whole text at every step."""
    scope, ids = opened(name), IDS[:12]
    edit = edit_of(case, scope)
    with scope.edit(edit):
        ahead = list(ids)
        for _ in range(3):
            ahead.append(int(logits_of(scope, ahead)[-1].argmax()))
        assert scope.generate(ids, 3) == " ".join(map(str, ahead[12:]))
        stepwise = scope.model.generate if not (edit.needs_full_map or (name in WINDOWED and edit.needs_positions)) else None
        if stepwise:
            ids = torch.tensor([ids])
            new = stepwise(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False, pad_token_id=1)
            assert new[0].tolist() == ahead


def test_what_a_cache_cannot_do_is_refused():
    ids = torch.tensor([IDS])
    for name, edit in (("v1", edits.low_rank_a2(2)), ("mistral-window", edits.drop_sink())):
        scope = opened(name)
        with pytest.raises(DiffscopeError, match="use_cache=False"), scope.edit(edit):
            scope.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False, pad_token_id=1)


def test_generation_stays_cached_where_it_can():
    scope, steps = opened("v1"), []
    handle = scope.model.model.embed_tokens.register_forward_hook(lambda m, args, out: steps.append(args[0].shape[1]))
    with scope.edit(edits.set_lambda(0.3)):
        scope.generate(IDS, 3)
    with scope.edit(edits.low_rank_a2(2)):
        scope.generate(IDS, 3)
    handle.remove()
    assert steps == [20, 1, 1, 20, 21, 22]


@pairs("v1")
def test_a_padded_batch_is_its_prompts_one_by_one(name, case):
    scope, prompts = opened(name), [tiny.ids(9), IDS]
    with scope.edit(edit_of(case, scope)):
        together, alone = scope.capture(prompts), [scope.capture(prompt) for prompt in prompts]
        loss = scope.loss(prompts)
        total = sum((len(prompt) - 1) * scope.loss(prompt) for prompt in prompts)
    assert math.isclose(loss, total / 27, rel_tol=1e-6)
    for index, item in enumerate(alone):
        assert np.abs(together[index].map("D", 1, 2) - item.map("D", 1, 2)).max() < 1e-9
        assert np.allclose([p for _, p in together.next[index]], [p for _, p in item.next], atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_nobody_spoke_of(side):
    """A bare call of the model on a padded batch: right, or refused."""
    scope, short = opened("v1"), tiny.ids(9)
    pad = [1] * 11
    ids = torch.tensor([pad + short if side == "left" else short + pad, IDS])
    mask = torch.tensor([[0] * 11 + [1] * 9 if side == "left" else [1] * 9 + [0] * 11, [1] * 20])
    places = (mask.cumsum(1) - 1).clamp_min(0)
    text = slice(11, None) if side == "left" else slice(9)
    for edit in (edits.uniform_a2(), edits.top_k_a1(3), edits.d_plus(), edits.quantise_logits(8, per="row")):
        alone = logits_under(scope, short, edit)
        with scope.edit(edit), torch.no_grad():
            together = scope.model(ids, attention_mask=mask, position_ids=places).logits
        assert same(together[0, text], alone, 1e-8) and same(together[1], logits_under(scope, IDS, edit), 1e-8)
    for edit in (edits.drop_sink(), edits.knock_out([1], [3]), edits.low_rank_a2(2), edits.mean_a2(map(scope.capture, OTHERS))):
        with pytest.raises(DiffscopeError, match="padding"), scope.edit(edit), torch.no_grad():
            scope.model(ids, attention_mask=mask, position_ids=places)


def text_by_itself(model, ids, count):
    batch = torch.tensor([ids])
    return model.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=count, do_sample=False)[0, len(ids) :]


@pytest.mark.parametrize("name", ["diffllama", "standard"])
def test_padding_on_the_left_of_eager_attention_stays_as_it_is(name):
    """Where its rows see no key they are uniform, and differ from what other implementations make of them."""
    model = tiny.diffllama() if name == "diffllama" else tiny.standard("qwen3")
    model.set_attn_implementation("eager")
    scope, short, entered = diffscope.load(model), tiny.ids(9), []
    edit = edits.set_lambda(0.3) if name == "diffllama" else edits.top_k_a1(3)
    ids, mask = torch.tensor([[1] * 11 + short, IDS]), torch.tensor([[0] * 11 + [1] * 9, [1] * 20])
    first = model.model.layers[0].self_attn
    with torch.no_grad():
        first.o_proj.register_forward_hook(lambda module, args, out: entered.append(args[0][0, :11]))
        model(ids, attention_mask=mask)
        assert entered[0].abs().min() > 0 and torch.allclose(entered[0][0], entered[0][5], atol=1e-5)
        with scope.edit(edit):
            model(ids, attention_mask=mask)
            together = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)[:, 20:]
            alone = [text_by_itself(model, prompt, 6) for prompt in (short, IDS)]
        plain = text_by_itself(model, short, 6)
    assert torch.equal(entered[1], entered[0])
    assert all(torch.equal(row, text) for row, text in zip(together, alone)) and not torch.equal(alone[0], plain)


def test_loss_is_cross_entropy():
    scope = opened("v1")
    with scope.edit(edits.set_lambda(0.3)):
        loss = scope.loss(IDS)
    logits = logits_under(scope, IDS, edits.set_lambda(0.3)).numpy()
    logp = [row[token] - np.log(np.exp(row - row.max()).sum()) - row.max() for row, token in zip(logits, IDS[1:])]
    assert math.isclose(loss, -np.mean(logp), rel_tol=1e-6)
    assert not math.isclose(loss, scope.loss(IDS), rel_tol=1e-4)


@pytest.mark.gpu
@pairs("v1-grouped")
def test_a_gpu_gives_the_same(name, case):
    on_gpu, scope = diffscope.load(MODELS[name]().double().cuda()), diffscope.load(MODELS[name]().double())
    maps = []
    for at in (scope, on_gpu):
        with at.edit(edit_of(case, at)):
            maps.append(at.capture([tiny.ids(9), IDS])[1].map("D", 1, 2))
    assert np.abs(maps[0] - maps[1]).max() < 1e-8


# Edges


@pytest.mark.parametrize("case", [c for c in CASES if c != "knock-out of A1"])
def test_a_prompt_of_one_token(case):
    scope = opened("v1")
    with scope.edit(edit_of(case, scope)):
        capture = scope.capture([5])
    raw = watched(scope, [5], edit_of(case, scope))
    for layer, (s, entered) in enumerate(raw):
        assert np.abs(entered - s.output(**CASES[case][1](s, "v1", torch.float64))).max() < 1e-10
        assert np.isfinite(capture.map("D", layer, 0)).all()


@pytest.mark.parametrize("name", DIFFERENTIAL)
def test_row_zero_of_every_map_is_its_one_key(name):
    scope = opened(name)
    for edit in (edits.uniform_a2(), edits.drop_sink(), edits.top_k_a1(1), edits.positional_a2(map(scope.capture, UNEVEN))):
        with scope.edit(edit):
            capture = scope.capture(IDS)
        assert float(capture.map("A1", 0, 1)[0, 0]) == float(capture.map("A2", 0, 1)[0, 0]) == 1


def test_more_than_there_is_changes_nothing():
    scope, plain = opened("v1"), logits_of(opened("v1"), IDS)
    for edit in (edits.low_rank_a2(10**9), edits.top_k_a1(10**9), edits.knock_out([19], [3]), edits.quantise_logits(16)):
        assert same(logits_under(scope, IDS, edit), plain, 1e-1 if "bits" in str(edit) else 1e-9)
    with scope.edit(edits.drop_sink(50)):  # every row sees nothing else, and so is kept
        assert np.array_equal(scope.capture(IDS).map("A1", 0, 0), scope.capture(IDS).map("A1", 0, 0))
    assert same(logits_under(scope, IDS, edits.drop_sink(50)), plain)


def test_an_edit_of_tokens_that_no_prompt_has_is_refused_and_one_of_tokens_to_come_is_not():
    scope = opened("v1")
    for edit, words in (
        (edits.knock_out([3], [20]), r"knock-out: layer 0 \(self\) has no query 20; choose from 0 to 19"),
        (edits.knock_out([20], [3], layers=1), r"layer 1 \(self\) has no key 20"),
        (edits.inject_noise(1.0, keys=[20, 25]), "has no key 20"),
    ):
        with scope.edit(edit), pytest.raises(PromptError, match=words):
            scope.capture(IDS)
        with scope.edit(edit), pytest.raises(PromptError, match=words):
            scope.loss(IDS)
    with scope.edit(edits.knock_out([3], [19, 40])):
        scope.capture([IDS, IDS[:12]])
    with scope.edit(edits.knock_out([3], [20])):
        scope.generate(IDS, 2)


def test_a_row_that_sees_nothing_gives_nothing():
    scope = opened("v1")
    with scope.edit(edits.knock_out(range(20), range(5, 20)), edits.normalise_d()):
        capture = scope.capture(IDS)
    assert (capture.map("D", 0, 0)[5:] == 0).all() and float(capture.fidelity.error.max()) < 1e-12


def test_rows_that_sum_to_nothing_are_not_divided_by_their_sum():
    scope = opened("v1")
    with (
        pytest.raises(DiffscopeError, match="layer 0: a row of D sums to less than"),
        scope.edit(edits.set_lambda(1.0), edits.normalise_d()),
    ):
        scope.capture(IDS)
    with scope.edit(edits.set_lambda(1.0), edits.normalise_d("absolute")):
        sizes = np.abs(scope.capture(IDS).map("D", 1, 1)).sum("key")
    assert np.allclose(sizes[1:], 1) and float(sizes[0]) == 0
    with scope.edit(edits.set_lambda(1.0, heads=2), edits.normalise_d(heads=[0, 1, 3])):  # only where it divides
        scope.capture(IDS)


def test_a_window_shorter_than_the_prompt():
    """Keys beyond the window take part in nothing, and dropping the first key changes only rows that see it."""
    scope = opened("mistral-window")
    with scope.edit(edits.drop_sink(), edits.top_k_a1(20)):
        a = scope.capture(IDS).map("A1", 0, 1).values
    plain = scope.capture(IDS).map("A1", 0, 1).values
    assert np.allclose(a[7:], plain[7:]) and (a[1:7, 0] == 0).all() and (plain[7:, 0] == 0).all() and a[0, 0] == 1
    assert np.allclose(a.sum(1), 1)


def test_a_call_with_a_causal_mask_of_its_own_gets_no_window_from_an_edit():
    scope, ids = opened("mistral-window"), torch.tensor([IDS])
    mask = torch.ones(1, 1, 20, 20, dtype=torch.bool).tril()
    with torch.no_grad():
        plain, windowed = scope.model(ids, attention_mask=mask).logits, scope.model(ids).logits
        with scope.edit(edits.top_k_a1(20)):  # all of them
            assert same(scope.model(ids, attention_mask=mask).logits, plain, 1e-9)
    assert not same(windowed, plain, 1e-3)


def test_a_mask_that_follows_no_rule_is_no_padding_where_lengths_are_known():
    visible = torch.rand(20, 20, generator=torch.Generator().manual_seed(0)).gt(0.5).tril() | torch.eye(20, dtype=torch.bool)
    visible[8, [1, 2]] = True
    model = nanogpt.tiny().double()
    for block in model.layers:
        block.attn.mask = visible
    scope = diffscope.load(model)
    plain = scope.capture(IDS).layers[0]
    assert plain.mask.kind == "given"
    source = scope.capture(tiny.ids(20, seed=9))
    rows = {}
    for edit in (edits.knock_out([1], [8]), edits.low_rank_a2(3), edits.patch("D", source, queries=[3])):
        with scope.edit(edit):
            rows[edit.label] = scope.capture(IDS).layers[0].rows()
            with pytest.raises(DiffscopeError, match="padding"), torch.no_grad():
                model(torch.tensor([IDS]))
    knocked_out, low_rank, patched = rows.values()
    first = plain.rows().a1.clone()
    first[:, 8, 1] = 0
    first[:, 8] /= first[:, 8].sum(-1, keepdim=True)
    torch.testing.assert_close(knocked_out.a1, first, rtol=0, atol=1e-9)
    assert not same(low_rank.a2, plain.rows().a2, 1e-3) and bool((low_rank.a2[:, ~visible] == 0).all())
    d = plain.rows().d.clone()
    d[:, 3] = source.layers[0].rows().d[:, 3]
    torch.testing.assert_close(patched.d, d, rtol=0, atol=1e-9)


def test_second_maps_with_a_window_or_all_keys():
    """No model here has them, so a layer is given another mask."""
    scope = opened("v1")

    def captured(prompt):
        capture = scope.capture(prompt)
        capture.layers = [replace(layer, mask=mask) for layer in capture.layers]
        return capture

    def rows(edit):
        return edits.apply([edit], captured(IDS).layers[1].prompt(0)).rows().a2[2].numpy()

    mask = Mask("window", 6)
    plain, seen = rows(edits.scale_lambda(1.0)), np.tril(np.ones((20, 20))) - np.tril(np.ones((20, 20)), -6)
    maps = [captured(ids).layers[1].prompt(0).rows().a2[2].numpy() for ids in UNEVEN]
    assert np.abs(rows(edits.uniform_a2()) - seen / seen.sum(1, keepdims=True)).max() < 1e-12
    assert np.abs(rows(edits.positional_a2(map(captured, UNEVEN))) - slow.by_distance(maps, 20, window=6)).max() < 1e-12
    assert np.abs(rows(edits.low_rank_a2(3)) - seen * slow.low_rank(plain, 3, np.ones_like(seen))).max() < 1e-12
    assert np.abs(rows(edits.mean_a2([captured(IDS)] * 2)) - plain).max() < 1e-12
    mask = Mask("full")
    assert np.allclose(rows(edits.uniform_a2()), 1 / 20) and (rows(edits.drop_sink())[:, 0] == 0).all()
    assert np.abs(rows(edits.mean_a2(captured(IDS))) - rows(edits.scale_lambda(1.0))).max() < 1e-12
    with pytest.raises(PromptError, match="mean map is of 23 tokens and cannot serve 20"):
        rows(edits.mean_a2(captured(UNEVEN[0])))
    with pytest.raises(DiffscopeError, match="causal maps"):
        rows(edits.positional_a2(map(captured, UNEVEN)))


def test_means_over_prompts_serve_what_they_were_made_for():
    scope = opened("v1")
    with (
        pytest.raises(PromptError, match="mean map is of 20 tokens and cannot serve 21"),
        scope.edit(edits.mean_a2(map(scope.capture, OTHERS))),
    ):
        scope.capture(tiny.ids(21))
    with (
        pytest.raises(PromptError, match="is of 23 tokens and cannot serve 24"),
        scope.edit(edits.positional_a2(map(scope.capture, UNEVEN))),
    ):
        scope.capture(tiny.ids(24))
    with pytest.raises(DiffscopeError, match="made from a model without attention in layer 0"):
        with (
            scope.edit(edits.mean_a2(map(scope.capture, OTHERS), layers=1)),
            opened("v1").edit(edits.Edit(**changed_layers(scope))),
        ):
            scope.capture(IDS)
    for make in (edits.mean_a2, edits.positional_a2, edits.scalar_norm):
        with pytest.raises(PromptError, match="needs a capture of a prompt at least"):
            make([])
        for wrong in (scope, IDS, "The code is 7421.", [scope.capture(IDS), None]):
            with pytest.raises(DiffscopeError, match="takes captures, such as scope.capture"):
                make(wrong)
    with pytest.raises(PromptError, match="one length, but has 23 and 12"):
        edits.mean_a2(map(scope.capture, UNEVEN))
    with pytest.raises(PromptError, match="at least two tokens"):
        edits.positional_a2(scope.capture([5]))
    wide = diffscope.load(tiny.own("v1", heads=2).double())
    with pytest.raises(DiffscopeError, match="made from a model of 4 heads, and layer 0 has 2"):
        with wide.edit(edits.mean_a2(map(scope.capture, OTHERS))):
            wide.capture(IDS)


def changed_layers(scope):
    """A mean of layer 1, said to be for all layers."""
    return {**vars(edits.mean_a2(map(scope.capture, OTHERS), layers=1)), "layers": None}


def test_means_are_of_the_model_as_it_is_edited_when_they_are_made():
    scope = opened("v1")
    with scope.edit(edits.uniform_a2()):
        mean = edits.mean_a2(map(scope.capture, OTHERS))
    assert same(logits_under(scope, IDS, mean), logits_under(scope, IDS, edits.uniform_a2()))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: edits.set_lambda(1.0, layers=2), "no layer 2; choose from 0, 1"),
        (lambda: edits.set_lambda(1.0, layers=-1), "no layer -1"),
        (lambda: edits.zero_a2(heads=4), "no head 4; choose from 0 to 3"),
        (lambda: edits.zero_a2(heads=[-1]), "no head -1"),
        (lambda: edits.a2_of_head(4), "a head from 0 to 3, and not 4"),
        (lambda: edits.low_rank_a2(0), "whole number from 1.*zero_a2"),
        (lambda: edits.low_rank_a2(2.5), "whole number from 1"),
        (lambda: edits.top_k_a1(0), "from 1; to silence heads use ablate_heads"),
        (lambda: edits.quantise_logits(1), "bits from 2 to 16, and not 1"),
        (lambda: edits.quantise_logits(17), "bits from 2 to 16"),
        (lambda: edits.quantise_logits(4.5), "bits from 2 to 16"),
        (lambda: edits.quantise_logits(8, per="head"), "per='head'"),
        (lambda: edits.normalise_d("max"), "choose 'sum' or 'absolute'"),
        (lambda: edits.drop_sink(0), "keys from 1"),
        (lambda: edits.drop_sink(branch=3), "branch 3"),
        (lambda: edits.knock_out([-1], [3]), "positions from 0"),
        (lambda: edits.knock_out([1], None), "of keys and of queries"),
        (lambda: edits.knock_out([1], []), "of keys and of queries.*not \\[\\]"),
        (lambda: edits.inject_noise(1.0, keys=[]), "positions from 0.*not \\[\\]"),
        (lambda: edits.inject_noise(1e39), "from 0 to 1e\\+30 nats, and not 1e\\+39"),
        (lambda: edits.zero_a2(layers=[]), "layers names none"),
        (lambda: edits.zero_a2(heads=()), "heads names none"),
        (lambda: edits.ablate_heads(to=torch.zeros(4, 15)), r"shape \(4, 15\), layer 0 needs \(4, 16\)"),
        (lambda: edits.ablate_heads(to=[[0.0] * 16] * 3), r"shape \(3, 16\)"),
        (lambda: edits.ablate_heads(to=[[0.0], [0.0, 1.0]]), "no array of numbers"),
        (lambda: edits.set_lambda(math.nan), "finite"),
        (lambda: edits.ablate_heads(to=np.full((4, 16), 1j)), "complex values; give finite real numbers"),
        (lambda: edits.ablate_heads(to=[[math.nan] * 16] * 4), "infinite or undefined values; give finite real numbers"),
        (lambda: "set_lambda(1.0)", "is not an edit"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(make, words):
    scope = opened("v1")
    with pytest.raises(DiffscopeError, match=words) as raised:
        with scope.edit(make()):
            scope.capture(IDS)
    assert "\n" not in str(raised.value)


def test_places_may_be_numpy_numbers_ranges_and_tensors():
    scope, expected = opened("v1"), logits_under(opened("v1"), IDS, edits.zero_a2(layers=1, heads=[1, 2]))
    for heads in (np.array([1, 2]), range(1, 3), torch.tensor([2, 1]), (np.int64(1), 2, 2)):
        assert torch.equal(logits_under(scope, IDS, edits.zero_a2(layers=np.int64(1), heads=heads)), expected)


@pytest.mark.parametrize("form", [torch.Tensor.numpy, torch.Tensor.tolist])
def test_what_heads_are_replaced_by_may_be_an_array_or_lists(form):
    scope = opened("v1")
    expected = logits_under(scope, IDS, edits.ablate_heads(to=TO))
    assert torch.equal(logits_under(scope, IDS, edits.ablate_heads(to=form(TO))), expected)


# Properties

texts = st.lists(st.integers(2, tiny.VOCABULARY - 1), min_size=1, max_size=24)
few = settings(max_examples=6)


@few
@given(texts, st.sampled_from(DIFFERENTIAL))
def test_edits_that_say_what_is_already_so(ids, name):
    scope = opened(name)
    plain = logits_of(scope, ids)
    lam = scope.capture(ids).lam.values
    neutral = [
        edits.scale_lambda(1.0),
        edits.low_rank_a2(len(ids), normalise=True),
        edits.top_k_a1(len(ids)),
        edits.scale_lambda(1),
    ]
    if name != "v2":
        neutral = [*neutral, *(edits.set_lambda(float(lam[i, 0]), layers=i) for i in range(2))]
    for edit in neutral:
        assert same(logits_under(scope, ids, edit), plain, 1e-5)  # Capture.lam is float32
    assert same(logits_under(scope, ids, *neutral[:-2]), plain, 1e-8)


@few
@given(texts, st.sampled_from(DIFFERENTIAL), st.floats(-2, 2, allow_subnormal=False))
def test_edits_that_come_to_the_same(ids, name, value):
    scope = opened(name)
    pairs = [
        ([edits.zero_a2()], [edits.set_lambda(0.0)]),
        ([edits.set_lambda(value)], [edits.set_lambda(1.0), edits.scale_lambda(value)]),
        ([edits.uniform_a2(), edits.low_rank_a2(len(ids))], [edits.uniform_a2()]),
        ([edits.absolute_d(), edits.d_plus()], [edits.absolute_d()]),
        ([edits.a2_of_head(0, heads=0)], []),
        ([edits.a2_of_head(1, heads=0), edits.a2_of_head(0, heads=1)], [edits.a2_of_head(1, heads=0)]),
        ([edits.drop_sink(1, branch=1), edits.drop_sink(1, branch=2)], [edits.drop_sink()]),
        ([edits.drop_sink(branch=2), edits.uniform_a2()], [edits.uniform_a2()]),
        ([edits.ablate_heads(heads=[0, 1]), edits.ablate_heads(heads=[2, 3])], [edits.ablate_heads()]),
    ]
    for item, other in pairs:
        assert same(logits_under(scope, ids, *item), logits_under(scope, ids, *other), 1e-8)


# The page


def test_the_page_says_what_edits_declare_and_its_example_runs(capsys):
    page = PAGE.read_text(encoding="utf-8")
    assert page == definitions.edits_page(), "run python tools/definitions.py"
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out


def test_outliers_of_the_scores_are_those_of_the_edited_scores():
    scope, prompt = diffscope.load(tiny.own("v1")), tiny.ids(40)
    plain = scope.capture(prompt)
    with scope.edit(edits.quantise_logits(3), edits.drop_sink(layers=0)):
        edited = scope.capture(prompt)
    for number in (0, 1):
        layer, values = plain.layers[0].prompt(0) if number == 0 else edited.layers[1].prompt(0), []
        for head, branch in ((head, branch) for head in range(4) for branch in (1, 2)):
            table = Slow(layer).scores(head, branch)
            step = np.abs(table[np.isfinite(table)]).max() / 3
            if number == 0:
                table[1:, 0] = -np.inf  # its only key is left to the first query
            seen = np.isfinite(table)
            values.append(np.abs(np.round(table[seen] / step) * step))
        values = np.concatenate(values)
        measured = edited.measure(["logit_outliers"]).logit_outliers.sel(layer=number)
        assert float(measured.sel(outlier="top_1")) == pytest.approx(values.max(), rel=1e-5)
        assert float(measured.sel(outlier="median")) == pytest.approx(np.median(values), rel=1e-5)


@pytest.mark.parametrize("name", ["v1", "diffllama"])
def test_fidelity_under_an_edit_is_that_of_the_model_before_it(name):
    """Compared with what an edit itself wrote, every reading would be exact."""
    model = tiny.own("v1") if name == "v1" else tiny.diffllama(kv=4)
    scope, prompt = diffscope.load(model), tiny.ids(40)
    plain = scope.capture(prompt).fidelity
    with scope.edit(edits.zero_a2()):
        edited = scope.capture(prompt).fidelity
    assert float(plain.error[0]) > 0 and float(edited.error[0]) == float(plain.error[0])  # the first layer's inputs are the same
    assert float(edited.error[1]) > 0 and edited.decided.all()
    with scope.edit(edits.zero_a2(layers=1)):
        assert float(scope.capture(prompt).fidelity.error[0]) == float(plain.error[0])


@pytest.mark.parametrize("number", ["x", None, [], True])
def test_a_lambda_that_is_no_number_is_refused_in_a_line(number):
    for edit in (edits.set_lambda, edits.scale_lambda):
        with pytest.raises(DiffscopeError, match="changed by a number"):
            edit(number)
