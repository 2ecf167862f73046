"""The prompt as text: its colours are shares of one row, and what is clicked or marked is told."""

import json

import numpy as np
import pytest

import diffscope
from diffscope.figures import token_strip
from tests import tiny

TOKENS = ["<b>", " a", "\n", "\u202eright", "<script>window.hit = 1</script>", "é", " 7", "x"]


@pytest.fixture(scope="module")
def capture():
    from dataclasses import replace

    taken = diffscope.load(tiny.own("v1")).capture(tiny.ids(8), spans={"answer": (5, 7)})
    return replace(taken, prompts=[replace(taken.prompts[0], tokens=tuple(TOKENS))])


def test_the_colours_are_signed_shares_of_the_row(capture):
    data = token_strip.data(capture, 1, 2, 4)
    row = capture.map("D", 1, 2, queries=[4]).values[0]
    np.testing.assert_allclose(data["shares"][:5], row[:5] / np.abs(row[:5]).sum(), rtol=1e-5)
    assert data["shares"][5:] == [None] * 3  # keys that the query does not see are not zeros
    assert data["signed"] and json.dumps(data, allow_nan=False)
    standard = diffscope.load(tiny.own("standard")).capture(tiny.ids(5))
    shares = token_strip.data(standard, 0, 0, -1)["shares"]
    assert sum(shares) == pytest.approx(1, abs=1e-5) and min(shares) >= 0


PAGE = """<!doctype html><meta charset="utf-8"><body style="background:#0e1117;color:#e6e8ec"><main id="strip"></main>
<script type="module">{module}
window.events = [];
window.strip = mount(document.getElementById("strip"), {data}, (name, value) => window.events.push([name, value]));
</script>"""


@pytest.mark.browser
def test_tokens_are_text_and_what_is_clicked_and_marked_is_told(capture, new_page, tmp_path):
    page = new_page(900, 400)
    data = json.dumps(token_strip.data(capture, 1, 2, 7, markable=True)).replace("<", "\\u003c")
    module = token_strip.module().replace("export function", "function")
    path = tmp_path / "strip.html"
    path.write_text(PAGE.replace("{module}", module).replace("{data}", data), encoding="utf-8")
    page.goto(path.as_uri())
    tokens = page.locator("[data-at]")
    assert tokens.count() == 8 and tokens.nth(4).text_content() == "<script>window.hit·=·1</script>"
    assert page.evaluate("window.hit") is None and page.locator("script").count() == 1
    tokens.nth(6).click()
    assert page.evaluate("window.events") == [["query", 6]]
    first, last = tokens.nth(5).bounding_box(), tokens.nth(6).bounding_box()
    page.mouse.move(first["x"] + 3, first["y"] + 5)
    page.mouse.down()
    page.mouse.move(last["x"] + 3, last["y"] + 5)
    page.mouse.up()
    page.get_by_label("mark the selected tokens as needles").click()
    assert page.evaluate("window.events[1]") == ["marked", {"name": "needles", "first": 5, "last": 6}]
    tokens.nth(7).focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert page.evaluate("window.events[2]") == ["query", 6]
    assert page.problems == []
