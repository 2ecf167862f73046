"""The linked view: its buffer holds the maps, and what a browser reads off it are their values."""

import json
import re
import struct

import numpy as np
import pytest
from safetensors.numpy import load

import diffscope
from benchmarks.pictures import capture_of
from diffscope.figures import attention_view
from tests import tiny

NAMES = ("A1", "A2", "lambda_A2", "D")


def words_of(data):
    """What a buffer says beside its tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["view"])


@pytest.fixture(scope="module")
def capture():
    scope = diffscope.load(tiny.own("v1"))
    return scope.capture(tiny.ids(60), spans={"answer": (3, 6), "needles": [1, 2, 9, 10, 11]})


def test_the_buffer_holds_the_maps_with_their_edges(capture):
    data = attention_view.buffer(capture, 1, 2)
    tensors, about = load(data), words_of(data)
    maps = capture.pooled_maps(1, [2], marginals=True).isel(head=0)
    for name in NAMES:
        np.testing.assert_allclose(tensors[name], maps[name], rtol=1e-3, atol=1e-7)
    for name in ("received_D", "entropy_A1", "entropy_D"):
        np.testing.assert_allclose(tensors[name], maps[name], rtol=1e-3, atol=1e-3, equal_nan=True)
    assert (tensors["visible"] == np.tri(60)).all()
    assert [panel["name"] for panel in about["panels"]] == list(NAMES) and about["tokens"] == capture.tokens
    assert (about["bin"], about["queries"], about["keys"]) == (1, 60, 60) and "layer 1 · head 2" in about["title"]
    ranges = {span["name"]: span["ranges"] for span in about["spans"]}
    assert ranges["answer"] == [[3, 6]] and ranges["needles"] == [[1, 3], [9, 12]]


def test_standard_attention_has_one_panel():
    standard = diffscope.load(tiny.own("standard")).capture(tiny.ids(20))
    data = attention_view.buffer(standard, 0, 1)
    assert [panel["title"] for panel in words_of(data)["panels"]] == ["A"] and "A2" not in load(data)


def test_a_long_prompt_is_in_bins_and_its_window_exact():
    long = capture_of(2000)
    window = (slice(1900, 2000), slice(3, 80))
    data = attention_view.buffer(long, 0, 0, size=100, window=window)
    tensors, about = load(data), words_of(data)
    assert about["bin"] == 20 and tensors["D"].shape == (100, 100) and about["detail"] == {"top": 1900, "left": 3}
    exact = long.maps(0, [0], queries=window[0], keys=window[1]).isel(head=0)
    for name in NAMES:
        np.testing.assert_allclose(tensors[f"detail.{name}"], exact[name], rtol=1e-3, atol=1e-7)
    assert tensors["detail.visible"].shape == (100, 77) and tensors["detail.visible"].all()
    assert "detail" not in words_of(attention_view.buffer(capture_of(50), 0, 0, window=window))


def test_a_long_prompt_stays_small():
    assert len(attention_view.buffer(capture_of(16384), 0, 0)) < 2_000_000


def test_nothing_of_a_prompt_stands_in_the_page_as_text():
    hostile = "</script><script>alert(1)</script>"
    scope = diffscope.load("mini-diff")
    capture = scope.capture(f"The code is {hostile} 7421.", spans={hostile: [1]})
    page = attention_view.page(capture, 0, 0)
    assert "alert(1)" not in page and len(page) < 1_000_000
    assert not re.search(r"(src|href)=|https?://|import ", page)


@pytest.fixture
def page(new_page):
    page = new_page(1300, 700)
    page.set_default_timeout(60_000)
    return page


def shown(page, capture, tmp_path, layer=1, head=2):
    path = tmp_path / "view.html"
    path.write_text(attention_view.page(capture, layer, head), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector("canvas[data-map=D]")
    return page


def point(page, row, column, n, name="D"):
    box = page.locator(f"canvas[data-map={name}]").bounding_box()
    assert abs(box["width"] - box["height"]) < 1  # square
    page.mouse.move(box["x"] + (column + 0.5) / n * box["width"], box["y"] + (row + 0.5) / n * box["height"])
    return page.locator("[aria-live]").text_content()


@pytest.mark.browser
def test_the_pointer_reads_tokens_and_all_values(page, capture, tmp_path):
    shown(page, capture, tmp_path)
    assert "answer" in page.locator("main").inner_text() and "needles" in page.locator("main").inner_text()
    for name, row, column in (("D", 40, 7), ("A1", 59, 0), ("A2", 12, 12)):
        words = point(page, row, column, 60, name)
        assert f"({row}) → key" in words and f"({column}):" in words
        for map_name, value in capture.maps(1, [2], queries=[row], keys=[column]).items():
            title = {"A1": "A₁", "A2": "A₂", "lambda_A2": "λ·A₂", "D": "D = A₁ − λ·A₂"}[map_name]
            exact = float(value.squeeze())
            if abs(exact) < 1e-5:
                assert f"{title} |x| < 1e-5" in words
                continue
            printed = float(re.search(re.escape(title) + r" (-?[\d.e-]+)", words)[1])
            assert printed == pytest.approx(exact, rel=0.06, abs=1e-4), map_name
    assert "not visible" in point(page, 3, 40, 60)
    assert page.problems == []


@pytest.mark.browser
def test_clicks_lock_keys_zoom_and_escape_undoes(page, capture, tmp_path):
    shown(page, capture, tmp_path)
    point(page, 40, 7, 60)
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(5, 5)
    readout = page.locator("[aria-live]")
    assert "locked: queries" in readout.text_content()
    point(page, 30, 30, 60)
    page.mouse.wheel(0, -400)
    page.locator("[role=application]").press("+")
    words = point(page, 30, 30, 60)
    assert "(30) → key" in words or "(29) → key" in words or "(31) → key" in words
    page.locator("[role=application]").press("Escape")
    assert "(40) → key" in point(page, 40, 7, 60)
    page.mouse.move(5, 5)
    assert readout.text_content() == ""
    assert page.problems == []


@pytest.mark.browser
def test_scales_change_colours_and_never_values(page, capture, tmp_path):
    shown(page, capture, tmp_path)
    canvas = page.locator("canvas[data-map=A1]")
    before, words = canvas.evaluate("canvas => canvas.toDataURL()"), point(page, 40, 7, 60)
    page.get_by_label("Scale").select_option("log")
    assert canvas.evaluate("canvas => canvas.toDataURL()") != before and point(page, 40, 7, 60) == words
    page.get_by_label("Scale").select_option("root")
    assert canvas.evaluate("canvas => canvas.toDataURL()") == before
    page.get_by_label("First key").uncheck()
    assert canvas.evaluate("canvas => canvas.toDataURL()") != before
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("before => document.querySelector('canvas[data-map=A1]').toDataURL() !== before", arg=before)
    assert page.problems == []
