"""Spans are the tokens that were meant, or are refused with both readings."""

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from diffscope.errors import PromptError, SpanError
from diffscope.prompts.encoded import Chars, Encoded, encode, find_span
from diffscope.prompts.spans import SpanExpr
from tests import tiny

TEXT = "The magic number of Paris is 7421. The magic number of Rome is 2174."


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


def said(encoded, name):
    return "".join(encoded.tokens[at] for at in encoded.spans[name])


def test_a_span_by_text_characters_tokens_and_slice_is_the_same(tokenizer):
    by_text = encode(tokenizer, TEXT, {"answer": "7421"})
    assert said(by_text, "answer") == " 7421"
    start, stop = by_text.spans["answer"][0], by_text.spans["answer"][-1] + 1
    at = TEXT.index("7421")
    for span in (Chars(at, at + 4), [Chars(at, at + 4)], slice(start, stop), list(range(start, stop)), " 7421"):
        assert encode(tokenizer, TEXT, {"answer": span}).spans["answer"] == by_text.spans["answer"]


def test_white_space_at_the_borders_of_a_span_may_be_left_out_or_included(tokenizer):
    start = TEXT.index("number")
    bare = encode(tokenizer, TEXT, {"x": Chars(start, start + 6)})
    following = bare.tokens[bare.spans["x"][-1] + 1]
    assert following.startswith(" ") and following.strip()  # the space after the span is part of the next word's token
    for first, stop in ((start - 1, start + 6), (start - 1, start + 7), (start, start + 7)):
        assert TEXT[first:stop].strip() == "number"
        assert encode(tokenizer, TEXT, {"x": Chars(first, stop)}).spans == bare.spans


def test_the_key_sets_partition_the_prompt(tokenizer):
    spans = {"answer": "7421", "needles": "of Rome", "query": "is 2174", "own": "number of Paris"}
    encoded = encode(tokenizer, TEXT, spans)
    sets = {name: set(at.tolist()) for name, at in encoded.key_sets().items()}
    parts = [sets[name] for name in ("answer", "needles", "query", "sink", "context")]
    assert sorted(i for part in parts for i in part) == list(range(len(encoded.ids)))
    assert sets["irrelevant"] == sets["needles"] | sets["context"]
    assert sets["sink"] == {0} and encoded.tokens[0] == "<bos>"


def test_the_answer_is_never_irrelevant(tokenizer):
    encoded = encode(tokenizer, TEXT, {"answer": slice(4, 6), "needles": slice(3, 9)})
    assert not set(encoded.key_sets()["irrelevant"].tolist()) & {0, 4, 5}
    assert {3, 6, 7, 8} <= set(encoded.key_sets()["irrelevant"].tolist())


def test_a_text_that_occurs_twice_is_refused_with_both_readings(tokenizer):
    with pytest.raises(SpanError, match=r"stands 2 times.*tokens \d+:\d+ in '…The magic.*; tokens \d+:\d+ in .*slice of tokens"):
        encode(tokenizer, TEXT, {"query": "magic number"})


def test_a_reading_that_no_token_covers_says_so():
    """Some tokenizers give no token to white space."""
    prompt = Encoded("x  y x", (1, 2), ("x", "y"), ((0, 0), (3, 4)), {})
    with pytest.raises(SpanError, match="'x' stands 2 times in the prompt: no token in '…x  y x…'"):
        find_span(prompt, "answer", "x")


def test_a_text_that_cuts_a_token_is_refused_with_both_readings(tokenizer):
    with pytest.raises(SpanError, match=r"'421' cuts a token; wider: tokens \d+:\d+ ' 7421'; narrower: tokens \d+:\d+ '21'"):
        encode(tokenizer, TEXT, {"answer": "421"})
    with pytest.raises(SpanError, match="narrower: no whole token"):
        encode(tokenizer, TEXT, {"answer": Chars(TEXT.index("7421") + 1, TEXT.index("7421") + 2)})


@pytest.mark.parametrize(
    "span, words",
    [
        ("Berlin", "not in the prompt"),
        ("", "is empty"),
        ([5, 500], "prompt has tokens 0 to"),
        (slice(4, 4), "asks for token"),
        (slice(5, 500), "prompt has tokens 0 to"),
        ((4, 6), r"is the tuple \(4, 6\); give slice\(start, stop\) for a range of tokens, or a list of positions"),
        (Chars(5, 900), "characters"),
        (Chars(5.0, 9.0), "characters 5.0 to 9.0"),
        ([Chars(0, 3), 5], "no whole number"),
    ],
)
def test_a_span_that_is_not_there_is_refused(tokenizer, span, words):
    with pytest.raises(SpanError, match=words):
        encode(tokenizer, TEXT, {"answer": span})


def test_derived_sets_cannot_be_given(tokenizer):
    with pytest.raises(SpanError, match="follows from"):
        encode(tokenizer, TEXT, {"context": slice(1, 3)})


def test_spans_are_made_of_other_spans(tokenizer):
    given = {
        "rest": SpanExpr("~(answer | sink)"),
        "answer": "7421",
        "ahead": SpanExpr("before(answer) - sink"),
        "behind": SpanExpr("after(answer)"),
        "both": SpanExpr("ahead | 'the rest'"),
        "the rest": SpanExpr("rest & ~ahead"),
    }
    encoded = encode(tokenizer, TEXT, given)
    everything = range(len(encoded.ids))
    (first, *_, last) = [*encoded.spans["answer"], encoded.spans["answer"][-1]]
    assert encoded.spans["ahead"] == tuple(range(1, first)) and encoded.spans["behind"] == tuple(everything[last + 1 :])
    outside = tuple(at for at in everything if at not in encoded.spans["answer"] and at)
    assert encoded.spans["rest"] == encoded.spans["both"] == outside
    assert encoded.spans["the rest"] == encoded.spans["behind"]
    assert list(encoded.spans) == ["sink", *given]
    assert encode(tokenizer, TEXT, {"answer": "7421", "sink": SpanExpr("answer")}).spans["sink"] == encoded.spans["answer"]


@pytest.mark.parametrize(
    "spans, words",
    [
        ({"x": "before(answer)"}, "made of 'answer', which is no span of this prompt; there are sink"),
        ({"x": "after(y)", "y": "~x"}, "span 'x' is made of itself"),
        ({"x": "before(sink)"}, "holds no token"),
        ({"x": "sink & ~sink"}, "holds no token"),
        ({"context": "~sink"}, "follows from"),
        ({"x": "irrelevant"}, "no span of this prompt"),
    ],
)
def test_spans_that_others_do_not_make_are_refused(tokenizer, spans, words):
    with pytest.raises(SpanError, match=words):
        encode(tokenizer, TEXT, {name: SpanExpr(text) for name, text in spans.items()})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "before()",
        "before(a, b)",
        "beside(a)",
        "not a",
        "a + b",
        "1",
        "a.b",
        "before(a",
        "a" * 9 + "(",
        "~" * 10**5 + "a",
    ],
)
def test_what_makes_no_span_is_refused(text):
    with pytest.raises(SpanError, match="it takes names of spans, before"):
        SpanExpr(text)


def test_ids_and_text_are_the_same_prompt(tokenizer):
    by_text = encode(tokenizer, TEXT, {"answer": "7421"})
    by_ids = encode(tokenizer, by_text.ids, {"answer": "7421"})
    assert by_ids.ids == by_text.ids and by_ids.spans == by_text.spans and by_ids.tokens == by_text.tokens


@pytest.mark.parametrize("prompt", ["", "  \n", []])
def test_an_empty_prompt_is_refused(tokenizer, prompt):
    with pytest.raises(PromptError, match="empty"):
        encode(tokenizer, prompt)


def test_text_spans_need_text():
    with pytest.raises(SpanError, match="without a tokenizer"):
        encode(None, [1, 2, 3], {"answer": "x"})


def test_a_text_that_a_tokenizer_does_not_know_is_refused():
    unigram = Tokenizer(models.Unigram([("a", -1.0)], unk_id=None))
    with pytest.raises(PromptError, match="cannot split this text .*unk_id.*give the prompt as token ids"):
        encode(PreTrainedTokenizerFast(tokenizer_object=unigram), "hello")
