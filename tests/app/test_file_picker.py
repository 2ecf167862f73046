"""Files of prompts: they stay while other pages are looked at, and are refused in a line where they cannot be read."""

import json
from dataclasses import replace

from looks import fine, shown
from small_models import PROMPT

FILE = "a file"


def given(app, name, content):
    test = app(example=FILE)
    test.file_uploader(key="prompts-file").set_value((name, content, "")).run()
    assert not test.exception
    return test


def test_a_file_stays_until_it_is_removed(app):
    lines = "".join(json.dumps({"prompt": f"{word} {PROMPT}", "answer": " 7421"}) + "\n" for word in ("First.", "Second."))
    test = given(app, "mine.jsonl", lines.encode())
    test.number_input(key="prompt-number").set_value(1).run()
    test.switch_page("app_pages/change.py").run()
    assert not test.exception and "mine.jsonl" in shown(test.caption) and test.number_input(key="prompt-number").value == 1
    test.switch_page("app_pages/explore.py").run()
    assert test.get("bidi_component") and any("Second." in code.value for code in test.code)
    test.button(key="prompts-file-remove").click().run()
    assert not test.get("bidi_component") and "Give a file of prompts" in shown(test.info)


def test_a_file_with_fewer_prompts_shows_its_last(app):
    lines = "".join(json.dumps({"prompt": f"{word} {PROMPT}"}) + "\n" for word in ("First.", "Second."))
    test = given(app, "mine.jsonl", lines.encode())
    test.number_input(key="prompt-number").set_value(1).run()
    test.file_uploader(key="prompts-file").set_value(("other.txt", PROMPT.encode("utf-8-sig"), "")).run()
    assert not test.exception and test.number_input(key="prompt-number").value == 0 and test.get("bidi_component")
    assert any(f"prompt = {PROMPT!r}" in code.value for code in test.code)  # without the mark at its begin


REFUSED = [
    ("a.txt", b"\xff\xfe", "is not UTF-8"),
    ("a.txt", b"\xef\xbb\xbf \r\n", "is empty"),
    ("a.jsonl", b"{", "broken JSON"),
    ("a.txt", b"long " * 30_000, "shorten it"),
    ("a.jsonl", json.dumps({"name": "big", "prompt": "long " * 30_000}).encode(), "the prompt 'big' has 150,000 characters"),
]


def test_what_cannot_be_taken_is_one_line(app, monkeypatch):
    import access
    import file_picker

    monkeypatch.setattr(file_picker, "rules", lambda: replace(access.rules(), characters=100_000))
    test = app(example=FILE)
    for name, content, words in REFUSED:
        fine(test.file_uploader(key="prompts-file").set_value((name, content, "")).run())
        assert words in shown(test.warning) and len(test.warning) == 1


def test_spans_are_written_as_python_reads_them(app):
    import sidebar

    import diffscope

    spans = {"answer": [diffscope.Chars(3, 8)], "it says Chars(": "Chars(1, 2)", "tokens": [1, 2]}
    written = sidebar.as_code(spans)
    assert eval(written, {"diffscope": diffscope}) == spans
