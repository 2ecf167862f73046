"""The grid of heads: its buffer holds what was measured, and a browser shows, reads and asks for the right head."""

import base64

import numpy as np
import pytest
import xarray as xr
from safetensors.numpy import load

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.figures.by_head import over_heads
from diffscope.views import heads as head_grid
from tests import tiny
from tests.buffers import words_of

PAGE = """<!doctype html><meta charset="utf-8"><main></main><script type="module">
{module}
const bytes = Uint8Array.from(atob("{data}"), (letter) => letter.charCodeAt(0));
window.events = [];
window.grid = mount(document.querySelector("main"), bytes.buffer, (name, value) => events.push([name, value.layer, value.head]));
</script>"""
LAYERS = [2, 3, 5]  # of which 4 has no attention
VALUES = np.array([[0.5, -0.25, np.nan, 0.01], [0.1, 0.2, 0.3, 40.0], [0.0, 0.6, -0.6, 0.25]])


def planted(values=VALUES, layers=LAYERS, **attrs):
    """A statistic as it comes from ``measure``, by layer and head."""
    about = {"units": "1", "long_name": "gain", "definition": "out over in", "undefined": "empty rows", "averaged": "median"}
    coordinates = {"layer": layers, "head": range(values.shape[1])}
    return over_heads(xr.DataArray(values, coordinates, ("layer", "head"), "gain", about | attrs))


def test_the_buffer_holds_the_statistic_and_the_pictures(tiny_capture):
    statistic = over_heads(tiny_capture.measure(["span_mass"])["span_mass"], model=tiny_capture.model_name)
    thumbnails = tiny_capture.thumbnails(size=30)
    data = head_grid.buffer(statistic, thumbnails, (1, 2), [(0, 1)], switching=True)
    tensors, about = load(data), words_of(data)
    np.testing.assert_array_equal(tensors["values"], statistic["span_mass"])
    picture = about["picture"]
    assert picture["signed"] and picture["scale"] == "diverging"
    position = (tensors["thumbnails"].astype(float) - 127) / 127
    drawn = position * picture["limit"]
    np.testing.assert_allclose(drawn, np.clip(thumbnails, -picture["limit"], picture["limit"]), atol=picture["limit"] / 100)
    assert (tensors["visible"] == np.tri(30)).all() and tensors["there"].all()
    assert about["chosen"] == {"layer": 1, "head": 2} and about["off"] == [{"layer": 0, "head": 1}] and about["switching"]
    assert about["statistic"]["definition"] == "Σ_X |x| / Σ |x|" and "D, answer" in about["title"]


def test_the_colours_of_a_ratio_end_before_what_one_denominator_decides():
    ratio = words_of(head_grid.buffer(planted()))["statistic"]
    assert ratio["unbounded"] and ratio["robust"] == pytest.approx(0.6) and ratio["largest"] == 40
    few = np.full((1, 8), 0.01)
    few[0, 3] = 0.9  # a head that does what others do not is no mistake
    assert not words_of(head_grid.buffer(planted(few, [0], averaged="mean")))["statistic"]["unbounded"]
    infinite = words_of(head_grid.buffer(planted(np.array([[np.inf, 2.0, 1.0]]), [0])))["statistic"]
    assert infinite["largest"] == 2


def test_what_is_not_there_is_not_undefined():
    there = load(head_grid.buffer(planted(), heads={2: 2, 3: 4, 5: 4}))["there"]
    assert there.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    standard = diffscope.load(tiny.own("standard")).capture(tiny.ids(20))
    measured = standard.measure(["cosine", "span_mass"])
    second = over_heads(measured["cosine"], choices={"span": "sink"})
    assert "no second map" in words_of(head_grid.buffer(second))["statistic"]["undefined"]
    first = over_heads(measured["span_mass"], choices={"span": "sink"})
    assert "no second map" not in words_of(head_grid.buffer(first))["statistic"]["undefined"]


def test_a_grid_of_nothing_or_of_two_models_is_refused(tiny_capture):
    with pytest.raises(DiffscopeError, match="a statistic, thumbnails or both"):
        head_grid.buffer(None)
    with pytest.raises(DiffscopeError, match="not of the same"):
        head_grid.buffer(planted(), tiny_capture.thumbnails())


@pytest.fixture
def page(new_page):
    return new_page(1000, 700)


def shown(page, data, tmp_path):
    path = tmp_path / "grid.html"
    path.write_text(PAGE.format(module=head_grid.COMPONENT.module, data=base64.b64encode(data).decode()), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_function("() => window.grid?.place")
    return page


def centre(page, row, column):
    """Where a cell is, in the page and in the pixels of the canvas."""
    box = page.evaluate(f"() => grid.box({{row: {row}, column: {column}}})")
    frame = page.locator("[role=grid] canvas").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    return {"page": (frame["x"] + x, frame["y"] + y), "pixel": (x, y), "box": box}


def point(page, row, column):
    page.mouse.move(*centre(page, row, column)["page"])
    return page.locator("[aria-live]").text_content(), page.locator("[data-tip]").inner_text()


def pixel(page, x, y):
    return page.evaluate(f"() => [...grid.cells.getContext('2d').getImageData({x}, {y}, 1, 1).data]")[:3]


@pytest.mark.browser
def test_the_pointer_reads_values_reasons_and_empty_rows(page, tmp_path):
    shown(page, head_grid.buffer(planted(), chosen=(5, 1)), tmp_path)
    assert page.locator("[aria-live]").text_content() == "L5H1, in the frame: 0.6"
    for row, layer in enumerate(LAYERS):
        for head in range(4):
            value = VALUES[row, head]
            words, tip = point(page, layer - 2, head)
            text = "undefined: empty rows" if np.isnan(value) else f"{value:g}".replace("-", "−")
            assert words == f"L{layer}H{head}: {text}" and "out over in" in tip
            assert ("beyond the colours" in tip) == (value == 40)
    assert "no attention" in point(page, 2, 0)[0]
    notes = page.locator("main").inner_text()
    assert "beyond the colours: 1 head" in notes and "undefined: empty rows" in notes
    page.get_by_label("Robust range").uncheck()
    assert "beyond the colours" not in page.locator("main").inner_text()
    assert page.problems == []


@pytest.mark.browser
def test_clicks_and_keys_ask_for_heads(page, tmp_path):
    shown(page, head_grid.buffer(planted(), chosen=(2, 0), switching=True), tmp_path)
    page.mouse.click(*centre(page, 1, 3)["page"])
    page.mouse.click(*centre(page, 2, 1)["page"])  # a layer without attention
    page.keyboard.down("Shift")
    page.mouse.click(*centre(page, 3, 2)["page"])
    page.keyboard.up("Shift")
    for key in ("ArrowDown", "ArrowLeft", "ArrowDown", "Enter", "x"):  # over the empty row, and not out of the grid
        page.keyboard.press(key)
    assert page.evaluate("events") == [["chosen", 3, 3], ["off", 5, 2], ["chosen", 5, 2], ["off", 5, 2]]
    grid = page.get_by_role("grid")
    assert grid.get_attribute("aria-rowcount") == "4" and "gain" in grid.get_attribute("aria-label")
    active = page.locator(f"#{grid.get_attribute('aria-activedescendant')}")
    assert active.text_content() == "L5H2" and active.get_attribute("aria-selected") == "true"
    assert page.problems == []


@pytest.mark.browser
def test_what_cannot_be_switched_off_is_not_asked_for_and_a_new_buffer_is_shown(page, tmp_path):
    shown(page, head_grid.buffer(planted(), chosen=(2, 0)), tmp_path)
    page.keyboard.down("Shift")
    page.mouse.click(*centre(page, 0, 1)["page"])
    page.keyboard.press("x")
    page.keyboard.up("Shift")
    assert page.evaluate("events") == [["chosen", 2, 1]]
    data = base64.b64encode(head_grid.buffer(planted(2 * VALUES), chosen=(2, 1), off=[(2, 1)])).decode()
    page.evaluate("data => grid.update(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)))", data)
    assert point(page, 0, 1)[0] == "L2H1 (off): −0.5"
    assert page.problems == []


@pytest.mark.browser
def test_colours_say_sign_size_and_what_has_none_in_light_and_dark(page, tmp_path):
    shown(page, head_grid.buffer(planted()), tmp_path)

    def corner(row, column):  # beside the number
        box = centre(page, row, column)["box"]
        return pixel(page, box["x"] + 2, box["y"] + box["height"] - 3)

    blue, orange, zero = corner(3, 1), corner(3, 2), corner(3, 0)
    assert blue == [0x08, 0x30, 0x6B] and orange == [0x7F, 0x27, 0x04] and zero == [255, 255, 255]
    assert corner(1, 3) == blue  # clipped
    nowhere = pixel(page, *centre(page, 2, 1)["pixel"])
    assert nowhere == [0, 0, 0]  # nothing is drawn
    page.evaluate("() => (document.body.style.color = '#e6e8ec')")
    page.wait_for_function("() => grid.dark")
    assert corner(3, 0) == [0x14, 0x17, 0x1D] and sum(corner(3, 1)) > sum(blue)
    assert page.problems == []


@pytest.mark.browser
@pytest.mark.parametrize("by_layer", [False, True])  # whether layers see different keys
def test_pictures_are_square_and_show_each_head_its_own(page, tmp_path, by_layer):
    size = 40
    maps = np.zeros((2, 3, size, size), dtype=np.float32)
    for layer in range(2):
        for head in range(3):
            maps[layer, head, 20:, 5 * head + layer : 5 * head + layer + 4] = 0.5 if layer else -0.5
    maps[1, 2] = np.nan  # a layer with fewer heads
    causal = np.tri(size, dtype=bool)
    dims = ("layer", "head", "query", "key")
    seen = (("layer", *dims[2:]), np.stack([causal, causal | True])) if by_layer else (dims[2:], causal)
    thumbnails = xr.DataArray(maps, {"layer": [0, 1], "head": range(3), "visible": seen}, dims, "D", {"title": "D = A₁ − λ·A₂"})
    shown(page, head_grid.buffer(None, thumbnails), tmp_path)
    for width in (320, 1000):
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_function(f"() => grid.place.startsWith(`${{document.querySelector('main').clientWidth}} `) && {width}")
        for layer, head in ((0, 0), (0, 2), (1, 1)):
            box = centre(page, layer, head)["box"]
            assert abs(box["width"] - box["height"]) <= 1
            bin_ = box["width"] / size
            inside = [box["x"] + (5 * head + layer + 2) * bin_, box["y"] + 30 * bin_]
            outside = [box["x"] + 30 * bin_, box["y"] + 10 * bin_]
            between = [box["x"] + (5 * head + layer + 6) * bin_, box["y"] + 30 * bin_]
            red, _, blue = pixel(page, *inside)
            assert (blue > red) == bool(layer) and pixel(page, *between) == [255, 255, 255]
            assert pixel(page, *outside) == ([255, 255, 255] if by_layer and layer else [0xEE, 0xF0, 0xF3])
    assert point(page, 1, 2)[0] == "layer 1: there is no head 2"
    assert page.problems == []


@pytest.mark.browser
def test_a_large_model_fits(page, tmp_path):
    values = np.arange(48 * 64, dtype=float).reshape(48, 64)
    page.set_viewport_size({"width": 420, "height": 900})
    shown(page, head_grid.buffer(planted(values, list(range(48)), averaged="mean")), tmp_path)
    for layer, head in ((0, 0), (47, 63), (31, 7)):
        assert point(page, layer, head)[0] == f"L{layer}H{head}: {values[layer, head]:g}"
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert page.problems == []


@pytest.mark.browser
def test_the_frame_of_a_head_that_was_left_is_not_shown_again(page, tmp_path):
    """On a page that holds heads the host follows the reader, and may be a head behind."""
    shown(page, head_grid.buffer(planted(), chosen=(2, 0)), tmp_path)
    page.evaluate("window.diffscopeHolders.add({})")
    sent = {head: base64.b64encode(head_grid.buffer(planted(), chosen=(2, head))).decode() for head in (0, 1, 3)}
    host = "data => grid.update(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)))"
    now = "[grid.named(grid.chosen).head, Boolean(grid.wanted?.awaited)]"
    announce = "detail => window.dispatchEvent(new CustomEvent('diffscope-head', { detail }))"
    page.evaluate(announce, {"layer": 2, "head": 1, "awaited": False})
    page.evaluate(announce, {"layer": 2, "head": 3, "awaited": True})
    assert page.evaluate(now) == [3, True]
    page.evaluate(host, sent[1])
    assert page.evaluate(now) == [3, True]
    page.evaluate(host, sent[3])
    assert page.evaluate(now) == [3, False]
    page.evaluate(host, sent[0])  # chosen elsewhere
    assert page.evaluate(now) == [0, False]
    page.evaluate(announce, {"layer": 2, "head": 1, "awaited": True})
    page.evaluate("grid.settle()")  # the host did not follow
    assert page.evaluate(now) == [0, False] and page.problems == []


def test_pictures_of_standard_attention_are_of_its_one_map():
    cap = diffscope.load(tiny.own("standard")).capture(tiny.ids(12))
    picture = words_of(head_grid.buffer(None, cap.thumbnails(size=8)))["picture"]
    assert picture["title"] == "A" and picture["scale"] == "blue" and not picture["signed"]
