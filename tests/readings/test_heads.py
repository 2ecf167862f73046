"""What is said of a head: planted maps are told for what they are, and every number is that of a slow computation."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope import DiffscopeError, edits, readings
from diffscope.attention.components import Pairing
from diffscope.readings.heads import of_heads
from tests import tiny
from tests.instruments.planted import capture_of, layer_of
from tests.layouts import grouped

N = 16
SPANS = {"answer": [4, 5], "query": [14, 15]}


def drawn(*seeds, n=N, size=1.5):
    """Scores of a map for each seed, (map, query, key)."""
    return torch.stack([torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double() * size for seed in seeds])


def high(*keys, score=20.0, n=N):
    """Scores of one map that looks at some keys, (1, query, key)."""
    scores = torch.zeros(1, n, n, dtype=torch.float64)
    scores[..., list(keys)] = score
    return scores


def said(scores, head=0, query=-1, spans=SPANS, **more):
    return readings.of_head(capture_of(layer_of(scores, **more), spans=spans), 0, head, query)


def help_of(reading, text):
    """What the first number of a sentence that is written so says of itself."""
    return next(part.help for part in reading.parts if part.text == text)


def test_a_copy_among_strangers_is_told_to_be_shared():
    """A2 of head 0 is its A1, the others' are not: λ of each of its weights is taken away."""
    reading = said(torch.cat([drawn(1, 2, 3), drawn(1, 8, 9)]), lam=0.6)
    assert "On these tokens its maps overlap by 1.00, more than A1 and 2 other heads' A2 (" in reading.sentence
    words = (
        r"On irrelevant tokens, which hold \d+ % of A1, A2 cancels more weight than it adds: \|D\| is 0\.40 × A1 \(other heads'"
    )
    assert re.search(words, reading.sentence), reading.sentence
    assert "λ·A2 takes away 60 % of A1 (with other heads' A2 " in help_of(reading, "0.40")
    estimates = reading.estimates
    own = estimates.sel(control="as it is")
    assert [float(own[name]) for name in ("overlap", "cosine", "taken", "noise_gain")] == pytest.approx([1, 1, 0.6, 0.4])
    assert int(estimates["controls"]) == 2 and float(estimates["overlap"].sel(control="other heads, largest")) < 0.7


def test_what_any_pair_of_the_layer_shares_is_not_a_heads_own():
    """All second maps are one and the same, held three times."""
    reading = said(torch.cat([drawn(1, 2, 3), drawn(7, 7, 7)]))
    assert "about as much as A1 and 2 other heads' A2" in reading.sentence
    assert np.ptp(reading.estimates["overlap"].values) == 0 and int(reading.estimates["controls"]) == 2


def test_a_stranger_among_copies_overlaps_less():
    """The second maps of the others are copies of head 0's first one; its own is not."""
    reading = said(torch.cat([drawn(1, 2, 3), drawn(9, 1, 1)]))
    assert "less than A1 and 2 other heads' A2 (1.00)" in reading.sentence


def test_between_its_controls_a_pair_overlaps_as_they_do():
    """One control is a copy and the other on a key of its own: more than one of them, less than the other."""
    reading = said(torch.cat([drawn(1, 2, 3), drawn(9, 1), high(9)]))
    assert "about as much as A1 and 2 other heads' A2" in reading.sentence and " to 1.00)" in reading.sentence


@pytest.mark.parametrize("lam, gain, taken", [(0.5, 2.0, 0.25), (-0.5, 1.0, 0.0), (3.0, 1.0, 1.0)])
def test_what_is_taken_away_is_of_what_there_is(lam, gain, taken):
    """A2 is A1: of a gain's A1, never more than all, and nothing where λ adds."""
    reading = said(torch.cat([drawn(1, 2), drawn(1, 2)]), lam=lam, gain=torch.full((1, 1, 1), gain).double())
    assert float(reading.estimates["taken"].sel(control="as it is")) == pytest.approx(taken)


@pytest.mark.parametrize("score", [20.0, 4.0])
def test_maps_on_different_keys_leave_next_to_nothing_to_cancel(score):
    """Where A1 has nothing on irrelevant tokens no ratio to it is told."""
    first, second = high(4, 5, score=score), high(9)
    words = said(torch.cat([first, first, second, second]), lam=0.5).sentence
    if score == 20:
        nothing = "A1 has next to no weight on irrelevant tokens (under 1 %): there is next to nothing to cancel"
        assert words.endswith(f"{nothing}, but A2 adds weight there: 33 % of |D|, all of it negative.")
        assert "× A1" not in words
        nowhere = said(torch.cat([first, first, first, first]), lam=0.5).sentence  # A2 is on the answer, too
        assert nowhere.endswith(f"{nothing}.")
    else:
        assert "overlap by .01, about as much as A1 and another head's A2 (.01): there is next to nothing to cancel." in words
        assert re.search(r"On irrelevant tokens, which hold \d+ % of A1, A2 adds more weight than it cancels: \|D\| is ", words)


def test_without_a_marked_answer_the_token_that_is_found_is_said_to_count_as_irrelevant():
    """What that head gives to the answer would else be read as noise that is not cancelled."""
    found, even = torch.cat([high(4), high(4), high(9), high(9)]), torch.zeros(4, N, N)
    layer = layer_of(found, lam=0.5)
    bare = {"query": SPANS["query"]}
    words = readings.of_head(capture_of(layer, spans=bare), 0, 0).sentence
    assert "weight on `0` (token 4): " in words
    assert "On all tokens but the first token and the question, with `0` among them, which" in words
    marked = readings.of_head(capture_of(layer, spans=SPANS), 0, 0).sentence
    assert "among them" not in marked
    assert "among them" not in readings.of_head(capture_of(layer_of(even, lam=0.5), spans=bare), 0, 0).sentence


def test_a_head_that_finds_the_answer_says_so():
    reading = said(torch.cat([high(4, 5), high(4, 5), high(9), high(9)]), lam=0.5)
    answer = "finds the answer: 67 % of |D| is on it (uniform attention: 12 %). D is +0.50 on `0` (token 4) and +0.50 on `0`"
    assert answer in reading.sentence and "takes weight" not in reading.sentence
    assert "D at token 4: a positive weight adds" in help_of(reading, "+0.50")


@pytest.mark.parametrize(
    "lam, gain, words",
    [
        (0.5, 2.0, "A2 cancels more weight than it adds: |D| is 1.5 × A1 (2.0 × without A2; another head's A2 in its place: "),
        (-0.5, 1.0, "A2 adds more weight than it cancels: |D| is 1.5 × A1 (another head's A2 in its place: "),
        (0.0, 1.0, "A2 adds about as much weight as it cancels: |D| is 1.0 × A1 (another"),
    ],
)
def test_more_is_added_than_cancelled_only_if_more_comes_out_than_went_in(lam, gain, words):
    """A2 is A1. With a gain of 2 a quarter of what goes in is cancelled; with λ below 0 there is more than A1."""
    reading = said(torch.cat([drawn(1, 2), drawn(1, 2)]), lam=lam, gain=torch.full((1, 1, 1), gain).double())
    assert words in reading.sentence
    assert ("D = 2.0 × A1" in help_of(reading, "1.5" if lam else "1.0")) == (gain == 2)


def test_maps_of_different_size_may_cancel_though_they_overlap_little():
    """A2 is a twentieth of A1 on irrelevant tokens, in the same proportions, and λ makes up for it."""
    first = torch.log(torch.tensor([1e-6] + [0.02] * 3 + [0.01] * 2 + [0.09] * 8 + [1e-6] * 2)).expand(1, N, N).double()
    second = torch.log(torch.tensor([1e-6] + [0.001] * 3 + [0.4] * 2 + [0.0045] * 8 + [1e-6] * 2)).expand(1, N, N).double()
    words = said(torch.cat([first, first, second, second]), lam=15.0).sentence
    assert "there is next to nothing to cancel" not in words and re.search(r"\|D\| is 0\.\d+ × A1 \(", words), words


@pytest.mark.parametrize("maps", [{"heads": 1}, {"heads": 3, "seconds": 1}])
def test_without_another_second_map_nothing_is_compared(maps):
    heads = maps["heads"]
    pairing = replace(Pairing.grouped(heads, maps.get("seconds", 1)), key_of_map=torch.arange(heads + 1))
    layer = replace(layer_of(drawn(*range(heads + 1)), second=False), pairing=pairing, lam=torch.full((1, 1, 1), 0.5))
    reading = readings.of_head(capture_of(replace(layer, v=layer.v[:, :1]), spans=SPANS), 0, 0)
    assert "there is no control: its layer has no other A2." in reading.sentence and "in its place" not in reading.sentence
    assert "more than" not in reading.sentence and int(reading.estimates["controls"]) == 0
    assert reading.estimates["overlap"].isel(control=slice(1, None)).isnull().all()


WHERE = {
    "a sink": (high(0), "rests on a sink: the first token has over 99 % of A (uniform attention: 6 %)"),
    "itself": (torch.eye(N)[None] * 20, "has its largest weight on the token itself: 1.00 (over 99 % of A)"),
    "the token before": (torch.eye(N).roll(-1, 1)[None] * 20, "on the token before: 1.00"),
    "another token": (high(9), "does not single out the answer (under 1 % of A; uniform attention: 12 %)"),
    "all alike": (torch.zeros(1, N, N), "spreads A nearly evenly: its entropy is 100 % of a uniform row's"),
    "the answer": (
        high(4),
        "finds the answer: over 99 % of A is on it (uniform attention: 12 %). A is 1.00 on `0` (token 4) and 0.00 on ",
    ),
    "the answer and another": (
        high(5, 9, 10),
        "gives weight to the answer: 33 % of A is on it (uniform attention: 12 %). A is 0.33 on `0` (token 5) and 0.00 on `0` "
        "(token 4). It has its",
    ),
}


def test_weight_that_is_taken_from_a_sink_is_not_called_resting_on_it():
    """A2 is on the first token, and A1 alike on all: D is 1/16 − 2 there."""
    even = torch.zeros(1, N, N).double()
    words = said(torch.cat([even, even, high(0), high(0)]), lam=2.0).sentence
    assert "takes weight from the first token, which has 67 % of |D|, all of it negative (uniform attention: 6 %)" in words
    assert "rests on" not in words


@pytest.mark.parametrize("planted", WHERE)
def test_where_a_row_looks_is_told(planted):
    scores, words = WHERE[planted]
    reading = said(scores, second=False)
    assert words in reading.sentence and reading.sentence.endswith("from which nothing is subtracted.")
    assert reading.estimates["overlap"].isnull().all()


def test_a_sink_of_two_tokens_is_none():
    """The first of two visible keys has 88 % of the row, where each would have half."""
    assert "rests on a sink" not in said(high(0, score=2.0), second=False, query=1).sentence


def test_a_head_that_subtracts_from_the_answer_does_not_find_it():
    """|D| is on the answer, but below zero there."""
    reading = said(torch.cat([high(9), high(4)]), lam=1.0)
    words = "takes weight from the answer: 50 % of |D| is on it, all of it negative (uniform attention: 12 %). D is −1.00 on `0` "
    assert words in reading.sentence and ", and sums to −1.00." in reading.sentence


def test_rows_of_which_there_is_nothing_to_say():
    same = torch.cat([drawn(1), drawn(1)])
    assert said(same, lam=1.0).sentence == "At the last token L0H0 gives nothing: its D is zero on every token."
    assert "sees one token alone" in said(same, query=0).sentence
    assert said(drawn(1, n=1)[:, :1, :1], spans={}, second=False).sentence.startswith(
        "At the last token L0H0 sees one token alone"
    )
    assert "cannot see the answer and" in said(same, query=2).sentence
    assert "sees nothing but the answer" in said(same, spans={"answer": list(range(N))}).sentence
    assert "sees no irrelevant token" in said(same, spans={"answer": list(range(1, N))}).sentence
    unmarked = said(same, spans={}).sentence
    assert "no answer is marked" in unmarked and "On all tokens but the first token, with `0` among them, which hold " in unmarked
    assert (
        "On all tokens but the span marked as sink, with `0` among them, which hold "
        in said(same, spans={"sink": [0, 1]}).sentence
    )


def test_what_a_sink_logit_takes_is_told():
    """A sink logit as high as the scores of sixteen keys together."""
    words = said(torch.zeros(1, N, N), second=False, sink_logit=torch.full((1,), float(np.log(N)))).sentence
    assert "Its sink logit takes 50 % of A." in words


@pytest.mark.parametrize(
    "text, shown",
    [
        (" Paris", "`Paris`"),
        (" \n", "token 4"),
        ("a\nb", "token 4"),
        ("a`b", "token 4"),
        ("\u202eevil", "token 4"),
        ("x" * 40, "`xxxxxxxxxxx…`"),
        ("سلام", "\u2068`سلام`\u2069"),
        ("<b>", "`<b>`"),
    ],
)
def test_tokens_are_quoted_in_one_printable_line(text, shown):
    cap = capture_of(layer_of(high(4), second=False), spans={"answer": [4]})
    cap.prompts[0] = replace(cap.prompts[0], tokens=("0",) * 4 + (text,) + ("0",) * 11)
    assert f". A is 1.00 on {shown}. It" in readings.of_head(cap, 0, 0).sentence


def test_of_an_answer_of_many_tokens_the_largest_are_listed():
    words = said(high(4, 5, 6, 7, 8, 9), second=False, spans={"answer": [4, 5, 6, 7, 8, 9]}).sentence
    assert words.count("(token ") == 4 and " and less on 2 other tokens. It is" in words


def test_every_number_says_what_it_is():
    """All numbers but the names of heads and tokens, and the numbers in the words."""
    for scores, more in ((torch.cat([drawn(1, 2, 3), drawn(4, 5, 6)]), {"lam": 0.6}), (drawn(1, 2), {"second": False})):
        for query in (-1, 2, 9):
            reading = said(scores, query=query, **more)
            assert "".join(part.text for part in reading.parts) == reading.sentence
            bare = " ".join(part.text for part in reading.parts if not part.help)
            bare = re.sub(r"L0H0|[AD]\d?\b|`[^`]*`|\btoken \d+|\d other heads", "", bare)
            assert not re.search(r"\d", bare), bare
            assert all(part.help.endswith(".") and "\n" not in part.help for part in reading.parts if part.help)


def by_hand(cap, layer, head, other):
    """Overlap, noise gain and what λ·A2 takes away on irrelevant tokens at the last query, with another head's second map."""
    keys = cap.key_sets["irrelevant"]
    a1 = cap.map("A1", layer, head).values[-1, keys].astype(float)
    a2 = cap.map("A2", layer, other).values[-1, keys].astype(float)
    lam = float(cap.lam.sel(layer=layer, head=head) if "query" not in cap.lam.dims else cap.lam.sel(layer=layer, head=head)[-1])
    overlap = 1 - abs(a1 - a2).sum() / (a1 + a2).sum()
    return overlap, abs(a1 - lam * a2).sum() / a1.sum(), np.minimum(a1, lam * a2).sum() / a1.sum()


@pytest.mark.parametrize("model", [tiny.own("v1"), tiny.own("v2", kv_heads=2), grouped.tiny()], ids=["v1", "v2", "grouped"])
def test_controls_are_all_other_second_maps_of_the_layer_once(model):
    cap = diffscope.load(model).capture(tiny.ids(20), spans={"answer": [4, 5], "query": [17, 18, 19]})
    layer = cap.layers[1]
    second = layer.pairing.a2.tolist()
    for head in (0, layer.n_heads - 1):
        estimates = readings.of_head(cap, 1, head).estimates
        others = {index: other for other, index in enumerate(second) if index != second[head]}
        expected = np.array([by_hand(cap, 1, head, other) for other in others.values()])
        assert int(estimates["controls"]) == len(others) == len(set(second)) - 1
        for at, (name, middle) in enumerate({"overlap": np.mean, "noise_gain": np.median, "taken": np.mean}.items()):
            column = expected[:, at]
            values = [by_hand(cap, 1, head, head)[at], middle(column), column.min(), column.max()]
            np.testing.assert_allclose(estimates[name], values, rtol=1e-4)


@pytest.mark.parametrize("model", [tiny.own("v1", kv_heads=2), tiny.diffllama(kv=4), tiny.standard("llama")])
def test_heads_that_are_read_together_are_each_as_read_alone(model):
    cap = diffscope.load(model).capture(tiny.ids(30), spans={"answer": slice(3, 6)})
    together = of_heads(cap, 1, range(cap.n_heads), 20)
    for head, reading in enumerate(together):
        alone = readings.of_head(cap, 1, head, 20)
        xr.testing.assert_identical(reading.estimates, alone.estimates)
        assert reading.parts == alone.parts


def test_every_number_of_a_sentence_is_defined_whatever_is_read():
    """Windows, sink logits, shared maps, λ a token, edits and rows of one key; no infinity of a ratio without a bound either."""
    models = [tiny.own("v1", heads=1), tiny.own("v2"), tiny.own("standard"), tiny.gpt_oss(), tiny.gemma2(), grouped.tiny()]
    for model in models:
        scope = diffscope.load(model)
        changes = [edits.top_k_a1(2), edits.absolute_d()] if model is models[1] else []
        with scope.edit(*changes):
            for spans, queries in (({}, (0, -1)), ({"answer": [4, 5]}, (0, 1, 5)), ({"answer": [0], "query": [11]}, (0, 5, -1))):
                cap = scope.capture(tiny.ids(12), spans=spans)
                for query in queries:
                    sentence = str(readings.of_head(cap, 1, 0, query))
                    assert not re.search(r"\b(nan|inf|None)\b", sentence), sentence
                    assert "\n" not in sentence and sentence.endswith(".")


def test_the_capture_stays_as_it_was_and_others_are_refused():
    cap = capture_of(layer_of(drawn(1, 2)), spans=SPANS)
    prompt, layers = cap.prompts[0], list(cap.layers)
    readings.of_head(cap, 0, 0)
    assert cap.prompts == [prompt] and all(mine is its for mine, its in zip(cap.layers, layers))
    batch = capture_of(layer_of(drawn(1, 2)), layer_of(drawn(3, 4)))
    for arguments, words in (
        ((cap, 3, 0), "there is no layer 3"),
        ((cap, 0, 2), "there is no head 2"),
        ((cap, 0, 0, N), "outside the prompt"),
        ((batch, 0, 0), "choose one, such as batch"),
        ((None, 0, 0), "not of a NoneType"),
    ):
        with pytest.raises(DiffscopeError, match=words):
            readings.of_head(*arguments)
