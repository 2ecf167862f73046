"""Objects show themselves: in a few lines of a terminal, and as HTML in which no text of a prompt is markup."""

import re
from html import unescape
from xml.etree import ElementTree

import pytest

import diffscope
from diffscope import hypotheses, readings
from diffscope import render as display
from diffscope.prompts.encoded import encode
from tests import tiny
from tests.study_data import estimate
from tests.tokenizers_of_kinds import KINDS, tokenizer

TEXT = 'A naïve <script>alert("1 & 2")</script> 🙂 日本\n\n  The number: 7421. Ask <b>who</b>'
SPANS = {"needle": "The number: 7421.", "answer": "7421"}
MARKED = re.compile(r'<mark title="(\w+)"[^>]*>([^<]*)</mark>')


def plain(html):
    return unescape(re.sub(r"<[^>]*>", "", html))


@pytest.fixture(scope="module")
def scope():
    return diffscope.load(tiny.own(), tokenizer("llama3"))


@pytest.fixture(scope="module")
def shown(scope):
    """One object of every kind that shows itself."""
    capture = scope.capture(TEXT, spans=SPANS)
    with scope.edit(diffscope.edits.set_lambda(1.0)):
        edited = scope.capture([TEXT, "Another <i>text</i>"])
    measured = {name: estimate(0.1, 5) for name in hypotheses.TESTS["noise-symmetry"].quantities}
    verdicts = hypotheses.run(["noise-symmetry", "sinks"], finished={"noise-symmetry": measured})  # the other says what it needs
    return {
        "scope": scope,
        "capture": capture,
        "batch": edited,
        "comparison": diffscope.compare(scope, scope, TEXT, SPANS),
        "reading": readings.answer_heads(capture),
        "report": diffscope.check(scope),
        "board": verdicts,
        "verdict": verdicts[0],
    }


KINDS_OF_OBJECT = ("scope", "capture", "batch", "comparison", "reading", "report", "board", "verdict")


@pytest.mark.parametrize("kind", KINDS_OF_OBJECT)
def test_an_object_shows_itself_in_a_few_lines_and_as_whole_elements(shown, kind):
    lines = repr(shown[kind]).splitlines()
    assert lines[0].startswith("<") and len(lines) <= 30 and max(map(len, lines)) <= 130
    html = shown[kind]._repr_html_()
    ElementTree.fromstring(f"<div>{html}</div>")  # raises where an element is left open or a text is not escaped
    assert "<script" not in html and "<b>" not in html and "<i>" not in html


def test_a_capture_shows_its_proof_its_edits_and_its_text(shown):
    html = plain(shown["capture"]._repr_html_())
    assert TEXT in html and "rebuilt, off by" in html and f"{shown['capture'].n_tokens} tokens" in html
    assert "λ = 1" in repr(shown["batch"]) and "λ = 1" in plain(shown["batch"]._repr_html_())


def test_tokens_are_marked_by_the_smallest_span_that_holds_them(shown):
    text, _, legend = shown["capture"]._repr_html_().rpartition("<p>")
    marks = [(name, unescape(words)) for name, words in MARKED.findall(text)]
    assert marks == [("sink", "<s>"), ("needle", " The number: "), ("answer", "7421"), ("needle", ".")]
    assert [name for name, _ in MARKED.findall(legend)] == ["sink", "answer", "needle"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_a_prompt_are_its_text(kind):
    encoded = encode(tokenizer(kind), f"{TEXT}  \n")
    bos = "<s>" if encoded.offsets[0] == (0, 0) else ""
    assert "".join(encoded.pieces()) == f"{bos}{TEXT}  \n"


def test_of_a_long_text_the_ends_are_shown_with_their_marks():
    pieces = [f"{number} " for number in range(2000)]
    html = display.marked(pieces, {"early": [3, 4], "middle": [1000], "late": [1999]})
    text, _, legend = html.rpartition("<p>")
    shown = plain(text).split()
    assert shown[:2] == ["0", "1"] and shown[-1] == "1999" and "1000" not in shown and "1400 more tokens" in plain(text)
    assert MARKED.findall(text) == [("early", "3 4 "), ("late", "1999 ")]
    assert "1000" in plain(legend)


def test_positions_are_told_as_stretches():
    assert display.places([7, 3, 4, 5]) == "3–5, 7"
    assert display.places(range(0, 20, 2)) == "10 tokens from 0 to 18"
