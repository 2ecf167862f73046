"""The conformance report passes what is right and names what is wrong."""

import json
import re
from dataclasses import replace

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM
from transformers.cache_utils import DynamicSlidingWindowLayer

import diffscope
from diffscope import DiffscopeError, UnsupportedModel, edits
from diffscope.attention.fidelity import Fidelity
from diffscope.cli import main
from diffscope.conformance.description import differences, schedule_offset
from diffscope.conformance.prompts import declared_window
from diffscope.conformance.rebuilding import LayerProof, judge
from diffscope.conformance.report import Report
from diffscope.families.diffllama import DiffLlama
from diffscope.models import lambda_init_schedule
from diffscope.scope.runners import LanguageModel
from tests import tiny
from tests.families.test_keys import prompt_by_prompt
from tests.layouts import phi4flash, planted
from tests.scope.test_runners import HubForCausalLM

RIGHT = {
    "v1": lambda: tiny.own("v1", kv_heads=2),
    "v2": lambda: tiny.own("v2", kv_heads=2),
    **{arm: lambda arm=arm: tiny.own(arm, kv_heads=2) for arm in ("plus", "d_plus", "shared_a2")},
    "diffllama": lambda: tiny.diffllama(kv=4),
    "llama": lambda: tiny.standard("llama"),
    "mistral-window": lambda: tiny.standard("mistral"),
    "a plain module": lambda: planted.tiny(),
}


def said(report, *verdicts):
    return [f"{finding.check}: {finding.says}" for finding in report.findings if finding.verdict in verdicts]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(name):
    report = diffscope.check(RIGHT[name]())
    assert report.passed and not said(report, "fail", "warn")
    passed = " ".join(said(report, "pass"))
    assert "two prompts" in passed
    assert ("cached decoding" in passed) == (name != "a plain module")
    if report.layers[0]["λ"] is not None:
        assert "changing A2 changes the logits" in passed and "every other pairing" in passed
    if name == "mistral-window":
        assert report.layers[0]["mask"] == "window of 7"


def test_differences_are_of_the_layers_with_two_maps_and_the_others_are_named():
    layers = [diffscope.load(model).capture(tiny.ids(9)).layers[0] for model in (tiny.standard("llama"), tiny.own("v1"))]
    mixed, alone = differences(layers, [None, None]), differences(layers[1:], [None])
    assert mixed == ["one softmax map a head in layer 0", *alone] and alone
    assert differences(layers[:1], [None])[0] == "one softmax map a head: no A2, no λ"


class UnreadCacheForCausalLM(HubForCausalLM):
    """One whose cache diffscope does not read."""

    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, use_cache=None):
        if use_cache:
            raise UnsupportedModel("diffscope does not read what it keeps")
        return super().forward(input_ids, attention_mask, use_cache)


def test_a_cache_that_is_not_read_leaves_the_rest_of_the_report():
    report = diffscope.check(UnreadCacheForCausalLM(tiny.standard("llama")))
    assert "cached decoding: diffscope does not read what it keeps" in said(report, "undecided") and said(report, "pass")


def test_a_model_that_takes_its_batch_apart_is_reported_on():
    model = tiny.own("v2")
    for layer in model.model.layers:
        layer.forward = prompt_by_prompt(layer.forward)
    undecided = said(diffscope.check(model), "undecided")
    assert any(line.startswith("order of tokens: ") and "takes its batch apart" in line for line in undecided)


@pytest.mark.parametrize("mistake", [name for name in planted.MISTAKES if name != "none"])
def test_a_planted_mistake_is_found(mistake):
    report = diffscope.check(planted.tiny(mistake, layers=1))
    assert not report.passed
    assert re.search(planted.MISTAKES[mistake], " ".join(said(report, "fail"))), said(report, "fail")
    others = [words for name, words in planted.MISTAKES.items() if name not in ("none", mistake)]
    assert not any(re.search(words, line) for words in others for line in said(report, "fail", "warn"))


def test_a_missing_norm_module_is_found():
    model = planted.tiny("norm missing")
    for layer in model.layers:
        del layer.subln
    assert said(diffscope.check(model), "fail") == ["norm: the norm of the heads' outputs is missing"]


def test_a_model_that_asks_for_its_attention_implementation_and_then_computes_otherwise_is_found():
    model = tiny.standard("llama")

    class Asking(type(model.model)):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            if self.config._attn_implementation not in ("eager", "sdpa"):
                out.last_hidden_state = 0.5 * out.last_hidden_state
            return out

    model.model.__class__ = Asking
    fails = said(diffscope.check(model), "fail")
    assert any(line.startswith("observation: the model computes something else when it is observed") for line in fails)


class OtherLambda(DiffLlama):
    name = "other-lambda"
    off = 0.5

    def read(self, attention_pass):
        layer = super().read(attention_pass)
        return replace(layer, lam_fp32=layer.lam_fp32 + self.off)


@pytest.mark.parametrize("dtype, verdict", [(torch.float32, "fail"), (torch.bfloat16, "warn")])
def test_a_lambda_in_float32_that_is_another_is_found(dtype, verdict):
    report = diffscope.check(diffscope.load(tiny.diffllama().to(dtype), family=OtherLambda()))
    assert any(line.startswith("λ in float32: lam_fp32 is up to 0.5") for line in said(report, verdict))
    assert report.passed == (verdict == "warn")


def test_a_model_under_edits_is_not_checked():
    scope = diffscope.load(tiny.own("v1"))
    with scope.edit(edits.set_lambda(0.1)), pytest.raises(DiffscopeError, match="leave the edits that are on"):
        diffscope.check(scope)


def test_two_mistakes_at_once_are_both_named():
    model = planted.tiny("(1 − λ_init) missing", layers=1)
    for layer in model.layers:
        layer.subln.forward = lambda x: x
    cause = " ".join(said(diffscope.check(model), "fail"))
    assert "norm" in cause and "factor (1 − λ_init)" in cause


def test_a_second_map_without_effect_is_found():
    model = tiny.own("v1")
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
    report = diffscope.check(model)
    dead = next(finding for finding in report.findings if finding.check == "second map" and finding.verdict == "fail")
    assert dead.layers == (1,) and "does not change the logits" in dead.says


def test_a_second_map_with_lambda_0_is_left_undecided():
    report = diffscope.check(tiny.own("v1", fixed_lambda=0.0))
    assert report.passed and any(finding.check == "second map" for finding in report.findings if finding.verdict == "undecided")


def test_a_window_of_one_key_has_nothing_to_tell_maps_apart_by():
    report = diffscope.check(phi4flash.tiny(sliding_window=1))
    assert report.passed
    idle = next(finding for finding in report.findings if finding.says.startswith("every query sees one key"))
    assert (idle.verdict, idle.check, idle.layers) == ("undecided", "second map", (1, 3))
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    model = tiny.awake(MistralForCausalLM(MistralConfig(**tiny.SHAPE, **heads, sliding_window=1)))
    failed = said(diffscope.check(model), "fail")
    assert len(failed) == 1 and "a cache for a window of one key lets go of none" in failed[0]


def test_broken_cached_decoding_is_found():
    """A model whose cached steps forget the newest key decodes wrongly, though one pass is right."""
    model = tiny.own("v1")
    attention = model.model.layers[0].self_attn
    plain = attention.project

    def forgetful(x, position_embeddings, past_key_values):
        q, k, v = plain(x, position_embeddings, past_key_values)
        return (q, k[:, :, :-1], v[:, :, :-1]) if x.shape[1] == 1 else (q, k, v)

    attention.project = forgetful
    assert any(line.startswith("cached decoding") for line in said(diffscope.check(model), "fail"))


def test_attention_that_is_not_run_is_said():
    model = planted.tiny()
    model.layers.append(planted.DifferentialAttention(64, 2, 4, 2, "none"))  # zip leaves it out
    report = diffscope.check(model)
    assert [finding.layers for finding in report.findings if finding.verdict == "undecided"] == [(2,)]


def test_attention_whose_forward_is_called_past_its_hooks_is_refused(monkeypatch):
    monkeypatch.setattr(planted.DifferentialAttention, "__call__", planted.DifferentialAttention.forward)
    with pytest.raises(DiffscopeError, match="only its forward"):
        diffscope.check(planted.tiny())
    with pytest.raises(DiffscopeError, match="only its forward"):
        diffscope.load(planted.tiny()).capture([5, 17, 3])


def test_a_model_of_few_positions_is_checked_on_short_prompts():
    report = diffscope.check(tiny.own("v1", max_position_embeddings=16))
    assert report.passed and "a prompt of 16 tokens" in " ".join(said(report, "pass"))


def test_a_length_beyond_what_is_checked_is_refused():
    scope = diffscope.load(tiny.own("v1", max_position_embeddings=64))
    for length in (65, 4097):
        with pytest.raises(diffscope.DiffscopeError, match=f"positions for 64 tokens, and prompts of {length:,} .* at most 64"):
            diffscope.check(scope, length=length)
    with pytest.raises(diffscope.DiffscopeError, match="of 4,097 tokens were asked for, and at most 4,096 are checked"):
        diffscope.check(tiny.own("v1", max_position_embeddings=10_000), length=4097)


def test_long_prompts_are_checked_without_all_their_logits(monkeypatch):
    """Of 4,096 tokens and 150,000 words they would take 2.5 GB."""
    requested, plain = [], LanguageModel.logits

    def logits(self, ids, mask, columns=None):
        requested.append((ids.shape[1], columns))
        return plain(self, ids, mask, columns)

    monkeypatch.setattr(LanguageModel, "logits", logits)
    diffscope.check(tiny.own("v1"), length=200)
    lengths = [len(columns) for n, columns in requested if n == 200]
    assert len(lengths) == 3 and max(lengths) < 50


def test_cached_decoding_goes_beyond_the_window(monkeypatch):
    """A cache that keeps one key too few is only wrong once the window is full."""
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    model = tiny.awake(MistralForCausalLM(MistralConfig(**tiny.SHAPE, **heads, sliding_window=110)))
    assert diffscope.check(model).passed
    initialise = DynamicSlidingWindowLayer.__init__

    def short(self, *args, **kwargs):
        initialise(self, *args, **kwargs)
        self.sliding_window -= 1

    monkeypatch.setattr(DynamicSlidingWindowLayer, "__init__", short)
    assert any(line.startswith("cached decoding") for line in said(diffscope.check(model), "fail"))


@pytest.mark.parametrize("length", [0, -3, 2.5])
def test_a_length_that_is_none_is_refused(length):
    with pytest.raises(DiffscopeError, match=f"the length of prompts is a whole number from 1, and not {length}"):
        diffscope.check(tiny.own("v1"), length=length)


def test_what_is_left_is_counted_in_words():
    report = Report("m", "f", "", "", "", "")
    for verdict in ("warn", "undecided", "undecided"):
        report.add(verdict, "order", "")
    assert report.sentence == "1 warning is below. 2 points are left undecided."


def test_the_worst_error_stands_beside_its_own_tolerance():
    report = Report("m", "f", "", "", "", "", layers=[{}])
    judge(report, "a prompt", [LayerProof(0, Fidelity(1e-5, 2e-5, 1, True)), LayerProof(1, Fidelity(5e-5, 8e-5, 1, True))])
    assert report.findings[0].says == "a prompt: rebuilt to 5.0e-05 (tolerance 8e-05)"
    report.note(1, 5e-5, 8e-5)  # its scores are large on this prompt
    report.note(1, 1e-5, 2e-5)
    assert "off by 5e-05 at most (8e-05 is allowed there)" in report.sentence


@pytest.mark.filterwarnings("ignore:.*without attention:diffscope.DiffscopeWarning")  # of its Mamba layers
def test_windows_may_be_listed_by_layer():
    windows = [None, 6, None, 3, None, None, None, None]
    assert declared_window(diffscope.load(phi4flash.tiny(sliding_window=windows))) == 6


def test_facts_are_those_of_the_model():
    model = tiny.own("v1", num_hidden_layers=3)
    report = diffscope.check(model)
    assert [layer["λ_init is that of layer"] for layer in report.layers] == [0, 1, 2]
    for layer, attention in zip(report.layers, (part.self_attn for part in model.model.layers)):
        assert layer["λ in float32"][0] == pytest.approx(attention.lam().item(), abs=1e-6)
        assert layer["post-scale"] == pytest.approx(1 - lambda_init_schedule(layer["layer"]))
    rounded = diffscope.check(tiny.own("v1").to(torch.bfloat16))
    assert rounded.layers[0]["λ"] != rounded.layers[0]["λ in float32"]


def test_a_schedule_is_told_from_its_neighbours():
    assert [schedule_offset(4, lambda_init_schedule(4 + k)) for k in (-2, -1, 0, 1, 2)] == [-2, -1, 0, 1, 2]
    assert schedule_offset(4, 0.8) is None


def test_a_constant_lambda_init_is_said_and_no_mistake():
    model = planted.tiny()
    for layer in model.layers:
        layer.lambda_init = 0.5
    report = diffscope.check(model)
    assert report.passed and any("not the paper's" in line for line in said(report, "warn"))


def test_a_seed_beyond_what_torch_takes_is_one_line(capsys):
    assert main(["check", "--model", "mini-diff", "--seed", str(10**24)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_tells_pass_from_fail(tmp_path, capsys, monkeypatch):
    tiny.own("v1", num_hidden_layers=1).save_pretrained(tmp_path / "right")
    assert main(["check", "--model", str(tmp_path / "right"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] and report["layers"][0]["λ formula"].startswith("exp(") and len(report["layers"]) == 1
    assert main(["check", "--model", str(tmp_path / "right")]) == 0
    assert "every other pairing of the maps is refused" in capsys.readouterr().out

    from diffscope.families.bundled import Bundled

    read = Bundled.read
    wrong = lambda self, passage: replace(read(self, passage), scale=1.0)  # noqa: E731
    monkeypatch.setattr(Bundled, "read", wrong)
    monkeypatch.setattr("diffscope.proof.diagnosis.likely_cause", lambda *_: "")  # which other tests are about
    assert main(["check", "--model", str(tmp_path / "right")]) == 1
    assert "fail" in capsys.readouterr().out


@pytest.mark.parametrize("order", ["backwards", "two swapped", "by content"])
@pytest.mark.parametrize("make", [lambda: tiny.standard("llama"), tiny.diffllama])
def test_a_model_that_attends_in_another_order_is_named(make, order):
    model = make()

    def permutation(hidden):
        numbers = torch.arange(hidden.shape[1])
        orders = {"backwards": numbers.flip(0), "two swapped": torch.cat([numbers[:-2], numbers[-2:].flip(0)])}
        return hidden[0].sum(-1).argsort() if order == "by content" else orders[order]

    def shuffled(forward):
        def run(hidden_states, **options):
            there = permutation(hidden_states)
            out, *others = forward(hidden_states[:, there], **options)
            return (out[:, there.argsort()], *others)

        return run

    attention = model.model.layers[1].self_attn
    attention.forward = shuffled(attention.forward)
    report = diffscope.check(model)
    failed = {finding.check: finding.layers for finding in report.findings if finding.verdict == "fail"}
    assert not report.passed and failed["order of tokens"] == (1,)  # steps from the cache come in another order as well
