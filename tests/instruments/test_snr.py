"""Answers and fillers exchanged: what stays, what every output is, what is undefined, and what is refused."""

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope import DiffscopeError, PromptError, SpanError, edits
from diffscope.instruments import snr
from diffscope.instruments.snr import crossed, mean_gain, over_prompts
from diffscope.tasks import Retrieval
from diffscope.tasks.exchanging import filler_of
from tests import tiny
from tests.reference import Slow

IDS = tiny.ids(20)
SPANS = {"answer": [4, 5], "query": [17, 18, 19]}
ANSWERS = [[31, 32], [41, 42]]
FILLERS = [tiny.ids(20, seed) for seed in (1, 2, 3, 4)]
GIVEN = dict(spans=SPANS, answers=ANSWERS, fillers=FILLERS, draws=4)
REAL = {
    "v1-grouped": lambda: tiny.own("v1", kv_heads=2),
    "v2": lambda: tiny.own("v2"),
    "diffllama-grouped": lambda: tiny.diffllama(kv=4),
    "gemma2": lambda: tiny.gemma2(),
}


@pytest.fixture(scope="module")
def scope():
    return diffscope.load(tiny.own("v1").double())


@pytest.fixture(scope="module")
def mini():
    return diffscope.load("mini-diff")


@pytest.fixture(scope="module")
def asked(mini):
    return Retrieval(mini.tokenizer).prompt(96, 3, np.random.default_rng(3))


def by_hand(scope, ids, query):
    """The output of every head for one prompt: A1·V, λA2·V and D·V, each with what the norm makes of it."""
    outputs = []
    for layer in scope.capture(ids).layers:
        slow = Slow(layer)
        heads = []
        for head in range(slow.heads):
            a1, a2, d = (None if rows is None else rows[query] for rows in slow.rows(head))
            value = slow.v[int(layer.pairing.value_of_head[head])]
            gain, lam = (float(x[0].expand(slow.heads, slow.n)[head, query]) for x in (layer.gain, layer.lam))
            heads.append([gain * a1 @ value, None if a2 is None else lam * a2 @ value, d @ value])
        outputs.append(heads)
    return outputs


@pytest.mark.parametrize("name", REAL)
def test_it_is_what_runs_one_by_one_give(name):
    """In float64: each answer in each filler, its heads' outputs by a slow computation, and variances by numpy."""
    scope = diffscope.load(REAL[name]().double())
    measured = diffscope.instruments.signal_to_noise(scope, IDS, **GIVEN)
    design = crossed(scope, IDS, SPANS, "answer", ANSWERS, FILLERS, False, (), (-1,), 4, 0)
    table = [[by_hand(scope, row.tolist(), 19) for row in rows] for rows in design.ids]
    for number, layer in enumerate(scope.capture(IDS).layers):
        for head in range(layer.n_heads):
            for at, output in enumerate(("A1", "lambda_A2", "D")):
                here = measured.sel(layer=layer.layer, head=head, output=output, stage="before")
                if output == "lambda_A2" and not layer.differential:
                    assert here["signal"].isnull()
                    continue
                values = np.array([[run[number][head][at] for run in row] for row in table], dtype=float)
                signal = values.var(0, ddof=1).sum(-1).mean()
                noise = values.var(1, ddof=1).sum(-1).mean()
                if signal < 1e-28:  # a window of 7 in layer 0
                    assert here["signal"] == 0 and here["snr"].isnull()
                    continue
                assert float(here["signal"]) == pytest.approx(signal, rel=1e-7)
                assert float(here["noise"]) == pytest.approx(noise, rel=1e-7)
                assert float(here["snr"]) == pytest.approx(10 * np.log10(signal / noise), abs=1e-6)
    difference = measured["snr"].sel(output="D", drop=True) - measured["snr"].sel(output="A1", drop=True)
    if layer.differential:
        xr.testing.assert_allclose(measured["snr_gain"].sel(a2="own", drop=True), difference)


def test_after_the_norm_every_output_has_the_norm_of_d(scope):
    measured = diffscope.instruments.signal_to_noise(scope, IDS, **GIVEN)
    design = crossed(scope, IDS, SPANS, "answer", ANSWERS, FILLERS, False, (), (-1,), 4, 0)
    values = []
    for rows in design.ids:
        layers = [scope.capture(row.tolist()).layers[1] for row in rows]
        rows = [layer.prompt(0).rows([19]) for layer in layers]
        values.append([layer.norm(row.a1 @ layer.v[0][layer.pairing.value_of_head])[2, 0] for layer, row in zip(layers, rows)])
    values = np.array([[each.detach().numpy() for each in row] for row in values])
    here = measured.sel(layer=1, head=2, output="A1", stage="after")
    assert float(here["noise"]) == pytest.approx(values.var(1, ddof=1).sum(-1).mean(), rel=1e-7)


def test_outputs_are_of_the_same_runs_and_controls_of_other_second_maps(scope):
    """D·V = A1·V − λA2·V run by run, so equal maps leave nothing; with A2 := uniform the control is the measurement."""
    measured = diffscope.instruments.signal_to_noise(scope, IDS, **GIVEN)
    with scope.edit(edits.uniform_a2(layers=1)):
        uniform = diffscope.instruments.signal_to_noise(scope, IDS, **GIVEN)
    own, control = uniform["snr_gain"].sel(layer=1, a2="own"), measured["snr_gain"].sel(layer=1, a2="uniform")
    np.testing.assert_allclose(own, control, rtol=1e-9)
    assert not np.allclose(measured["snr_gain"].sel(a2="own"), measured["snr_gain"].sel(a2="next head"))


def test_lengths_spans_and_what_leads_to_the_answer_stay(mini, asked):
    design = crossed(mini, asked.ids, asked.spans, "answer", None, None, False, (), (-1,), 5, 0)
    assert design.ids.shape == (5, 5, 96)
    needles, answer, query = (asked.spans[name] for name in ("needles", "answer", "query"))
    leading = list(range(answer[0] - len(query), answer[0]))
    assert asked.ids[leading[0] : answer[0]] == asked.ids[query[0] :]
    kept = [0, *needles, *leading, *query]
    assert (design.ids[..., kept] == np.array(asked.ids)[kept]).all()
    assert not set(design.filler) & {*kept, *answer}
    by_answer = design.ids[:, :, answer]
    assert (by_answer == by_answer[:, :1]).all() and len(np.unique(by_answer[:, 0], axis=0)) == 5
    texts = design.ids[..., design.filler]
    assert (texts == texts[:1]).all() and len(np.unique(texts[0], axis=0)) == 5
    numbers = [mini.tokenizer.decode(ids) for ids in by_answer[:, 0]]
    assert all(len(number.strip()) == 4 and number.strip().isdigit() for number in numbers)


def test_other_prompts_give_their_tokens_place_by_place(scope):
    design = crossed(scope, IDS, SPANS | {"needles": [8, 9]}, "answer", ANSWERS, FILLERS, False, (), (-1,), 4, 0)
    with_needles = crossed(scope, IDS, SPANS | {"needles": [8, 9]}, "answer", ANSWERS, FILLERS, True, (), (-1,), 4, 0)
    assert set(with_needles.filler) - set(design.filler) == {8, 9}
    for at in design.filler:
        assert design.ids[0, :, at].tolist() == [row[at] for row in FILLERS]
    assert (design.ids[..., [8, 9]] == np.array(IDS)[[8, 9]]).all()


def test_special_tokens_stay_wherever_they_stand(mini):
    """Of a chat they mark whose turn it is."""
    ids = [*mini.tokenize("It rained. The code is 7421. Nobody came."), *mini.tokenize("The code is")]
    second = len(ids) - len(mini.tokenize("The code is"))
    assert ids[second] == mini.tokenizer.bos_token_id
    answer = [at for at, token in enumerate(mini.encode(ids).tokens) if token.strip().isdigit()]
    design = crossed(mini, ids, {"answer": answer}, "answer", None, None, False, (), (-1,), 3, 0)
    assert second not in design.filler and (design.ids[..., second] == ids[second]).all()


def test_without_a_repeat_the_sentence_of_the_answer_stays(mini):
    text = "It rained for days. The code of the door is 7421 and no other. Nobody came by then. What is it that we want"
    encoded = mini.encode(text, {"answer": "7421", "query": "What is it that we want"})
    filler = filler_of(encoded, "answer", [len(encoded.ids) - 1], False, ())
    kept = "".join(encoded.pieces()[at] for at in range(len(encoded.ids)) if at not in filler)
    assert "The code of the door is 7421" in kept and "rained" not in kept and "Nobody" not in kept


def test_what_does_not_change_is_undefined_and_says_why(mini):
    """A window that does not reach the answer; a standard model; a draw in two parts has no error."""
    windowed = diffscope.load(tiny.standard("mistral").double())  # a window of 7
    measured = diffscope.instruments.signal_to_noise(windowed, IDS, **GIVEN).isel(layer=0)
    assert (measured["signal"].sel(output="A1", stage="before") == 0).all() and measured["snr"].isnull().all()
    assert "does not change with the answer" in measured["snr"].attrs["why"]
    standard = diffscope.instruments.signal_to_noise(diffscope.load(tiny.own("standard")), IDS, **GIVEN)
    assert standard["snr_gain"].isnull().all() and standard["snr"].sel(output="A1", stage="before").notnull().all()
    assert "standard attention subtracts nothing" in standard["snr_gain"].attrs["why"]


def test_prompts_are_put_together_by_their_variances(scope):
    each = [
        diffscope.instruments.signal_to_noise(scope, IDS, **GIVEN | dict(fillers=FILLERS[at:] + FILLERS[:at], draws=3))
        for at in (0, 1, 2)
    ]
    whole = over_prompts(each)
    signal, noise = (xr.concat([table[name] for table in each], "prompt").mean("prompt") for name in ("signal", "noise"))
    np.testing.assert_allclose(whole["snr"], 10 * np.log10(signal / noise).transpose(*whole["snr"].dims))
    assert whole.attrs["prompts"] == 3 and whole["snr_gain"].attrs["units"] == "dB"
    left = [over_prompts(each[:at] + each[at + 1 :])["snr_gain"] for at in range(3)]
    spread = xr.concat(left, "prompt")
    np.testing.assert_allclose(whole["snr_gain_error"], np.sqrt(2 / 3 * ((spread - spread.mean("prompt")) ** 2).sum("prompt")))
    assert over_prompts(each[:1])["snr_gain_error"].isnull().all()
    other = diffscope.instruments.signal_to_noise(diffscope.load(tiny.own("v1", heads=2)), IDS, **GIVEN)
    for wrong, words in (([], "nothing to put together"), ([each[0], other], "other layers or heads")):
        with pytest.raises(DiffscopeError, match=words):
            over_prompts(wrong)


def test_heads_are_averaged_with_the_weights_that_are_given(scope):
    measured = diffscope.instruments.signal_to_noise(scope, IDS, **GIVEN)
    gain = measured["snr_gain"]
    every = {"least": -np.inf}
    np.testing.assert_allclose(mean_gain(measured, **every)["snr_gain"], gain.mean(["layer", "head"]))
    weights = xr.zeros_like(gain.isel(a2=0, stage=0, drop=True))
    weights[1, 2], weights[0, 0], weights[0, 1] = 3.0, 1.0, -5.0
    expected = (3 * gain[1, 2] + gain[0, 0]) / 4
    np.testing.assert_allclose(mean_gain(measured, weights, **every)["snr_gain"], expected)
    lacking = measured.assign(snr_gain=gain.where((gain["layer"] != 0) | (gain["head"] != 0)))
    averaged = mean_gain(lacking, weights, **every)
    assert (averaged["counted"] == 0.75).all()
    np.testing.assert_allclose(averaged["snr_gain"], gain[1, 2])
    snr = xr.full_like(measured["snr"], -20.0)
    snr.loc[dict(layer=1, head=2, output="D")] = 3.0  # the only one that tells the answer, after the subtraction
    heard = mean_gain(measured.assign(snr=snr), weights)
    np.testing.assert_allclose(heard["snr_gain"], gain[1, 2])
    assert (heard["counted"] == 0.75).all()
    nobody = mean_gain(measured.assign(snr=snr - 99), weights)
    assert nobody["snr_gain"].isnull().all() and (nobody["counted"] == 0).all()
    with pytest.raises(DiffscopeError, match="no head has a weight above 0"):
        mean_gain(measured, -weights.clip(0))


@pytest.mark.parametrize(
    "more, error, words",
    [
        (dict(signal="number"), SpanError, "no span 'number' to exchange"),
        (dict(keep=("title",)), SpanError, "no span 'title' to exchange or keep"),
        (dict(spans={"query": [19]}), SpanError, "no span 'answer'"),
        (dict(answers=[[1]]), PromptError, "the answer has 2 tokens and .1. has 1"),
        (dict(answers=[IDS[4:6]]), PromptError, "there is no other answer"),
        (dict(answers=None), PromptError, "has no tokenizer, so other numbers are not known"),
        (dict(fillers=None), PromptError, "has no tokenizer; give other prompts"),
        (dict(fillers=[IDS[:9]] * 2), PromptError, "has 9 tokens, and 20 are needed"),
        (dict(fillers=FILLERS[:1]), PromptError, "two fillers at least"),
        (dict(queries=[20]), DiffscopeError, "outside the prompt"),
        (dict(queries=[]), DiffscopeError, "no query was chosen"),
        (dict(draws=1), DiffscopeError, "draws are a whole number from 2"),
        (dict(spans={"answer": [0, 1], "query": list(range(2, 20))}), PromptError, "no filler to exchange"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_line(scope, more, error, words):
    with pytest.raises(error, match=words) as raised:
        diffscope.instruments.signal_to_noise(scope, IDS, **GIVEN | more)
    assert "\n" not in str(raised.value)


def test_more_outputs_than_memory_holds_are_refused(scope, monkeypatch):
    monkeypatch.setattr(snr, "MOST", 1000)
    with pytest.raises(DiffscopeError, match="outputs at 3 queries do not fit into memory; give fewer"):
        diffscope.instruments.signal_to_noise(scope, IDS, **GIVEN | dict(queries="query"))


def test_an_answer_that_is_no_number_needs_others(mini):
    text = "The city is Paris. It rains. The city is"
    with pytest.raises(PromptError, match="no number, so other answers have to be given"):
        diffscope.instruments.signal_to_noise(mini, text, spans={"answer": " Paris"})
    measured = diffscope.instruments.signal_to_noise(mini, text, spans={"answer": " Paris"}, answers=["Rome", " Oslo"], draws=3)
    assert measured.attrs["answers"] == 3 and torch.isfinite(torch.tensor(measured["signal"].sel(output="D").values)).all()
