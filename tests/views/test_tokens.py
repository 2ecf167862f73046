"""The prompt as text: its colours are shares of one row, and what is clicked or marked is told."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope.figures import theme
from diffscope.views import tokens as token_strip
from tests import tiny

TOKENS = ["<b>", " a", "\n", "\u202eright", "<script>window.hit = 1</script>", "é", " 7", "x"]


@pytest.fixture(scope="module")
def capture():
    taken = diffscope.load(tiny.own("v1")).capture(tiny.ids(8), spans={"answer": slice(5, 7)})
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


def shown(page, data, tmp_path):
    path = tmp_path / "strip.html"
    text = json.dumps(data).replace("<", "\\u003c")
    module = token_strip.COMPONENT.inline
    path.write_text(PAGE.replace("{module}", module).replace("{data}", text), encoding="utf-8")
    page.goto(path.as_uri())
    return page


@pytest.mark.browser
def test_tokens_are_text_and_what_is_clicked_and_marked_is_told(capture, new_page, tmp_path):
    page = shown(new_page(900, 400), token_strip.data(capture, 1, 2, 7, markable=True), tmp_path)
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
    assert page.evaluate("window.events[1]") == ["marked", [{"name": "needles", "first": 5, "last": 6}]]
    assert [span["name"] for span in page.evaluate("strip.data.spans")].count("needles") == 1
    assert "0px 2.5px" in page.evaluate("getComputedStyle(strip.cells[6]).boxShadow")  # before the host answers
    tokens.nth(7).focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert page.evaluate("window.events[2]") == ["query", 6]
    assert (
        page.evaluate("document.activeElement.dataset.at")
        == "6"
        == page.locator("[data-at][tabindex='0']").get_attribute("data-at")
    )
    assert page.get_by_role("option", selected=True).get_attribute("data-at") == "7"  # until other data says so
    page.evaluate("data => strip.update(data)", token_strip.data(capture, 1, 2, 6))
    assert page.get_by_role("option", selected=True).get_attribute("data-at") == "6"
    layer = capture.layer(1)
    equal = replace(layer, q=torch.zeros_like(layer.q), lam=torch.ones_like(layer.lam))  # A1 = A2 in every row
    page.evaluate("data => strip.update(data)", token_strip.data(replace(capture, layers=[capture.layer(0), equal]), 1, 2, 6))
    said = page.evaluate("[strip.about(3), strip.about(7)]")
    assert said == ["token 3: no share, as the whole row is 0", "token 7: not seen by this query"]
    assert page.problems == []


@pytest.mark.browser
def test_marks_are_told_until_the_host_has_answered_and_taken_back_if_it_refuses(capture, new_page, tmp_path):
    data = token_strip.data(capture, 1, 2, 7, markable=True)
    page = shown(new_page(900, 400), data, tmp_path)
    page.evaluate("window.addEventListener('diffscope-spans', ({detail}) => (window.spans = detail))")

    def mark(name, at):
        page.evaluate("at => strip.select(at, at)", at)
        page.get_by_label(f"mark the selected tokens as {name}").click()
        return [(each["name"], each["first"]) for each in page.evaluate("window.events.at(-1)[1]")]

    assert mark("needles", 2) == [("needles", 2)]
    assert mark("query", 3) == [("needles", 2), ("query", 3)]
    page.evaluate("strip.update({...strip.data})")  # both are taken
    assert mark("query", 4) == [("query", 4)]
    page.evaluate("data => strip.update(data)", data)
    drawn = {span["name"] for span in page.evaluate("window.spans.spans")}
    assert drawn == {"sink", "answer"} and page.evaluate("window.spans.measured")


def contrast(first, second):
    """Of two colours as CSS has them, by WCAG 2."""

    def luminance(colour):
        parts = np.array([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.browser
def test_tokens_and_marks_can_be_seen_on_any_share_when_the_page_turns_light_or_dark(capture, new_page, tmp_path):
    data = token_strip.data(capture, 1, 2, 7)
    count = 401
    shares = np.linspace(-1, 1, count).tolist()
    sink = {"name": "sink", "colour": theme.SPAN_COLOURS["sink"], "ranges": [[3, 4]]}
    many = {"tokens": ["x"] * count, "shown": ["x"] * count, "shares": [*shares[:-1], None], "spans": [sink]}
    page = shown(new_page(900, 400), data | many, tmp_path)
    looks = """() => [...document.querySelectorAll("[data-at]")].map((cell) => getComputedStyle(cell))
        .map((style) => [style.color, style.backgroundColor, style.boxShadow])"""
    before = page.evaluate(looks)
    assert contrast(before[3][2], "rgb(14, 17, 23)") >= 3
    assert min(contrast(ink, ground) for ink, ground, _ in before) >= 4.5
    page.evaluate("Object.assign(document.body.style, {background: 'white', color: '#31333f'})")
    page.wait_for_function("before => getComputedStyle(strip.cells[3]).boxShadow !== before", arg=before[3][2])
    after = page.evaluate(looks)
    assert contrast(after[3][2], "rgb(255, 255, 255)") >= 3
    assert min(contrast(ink, ground) for ink, ground, _ in after) >= 4.5
    assert after[200][1] == "rgb(255, 255, 255)" != before[200][1]  # zero is the page's colour
    assert page.problems == []
