"""The linked view: its buffer holds the maps, and what a browser reads off it are their values."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

import diffscope
from diffscope import edits
from diffscope.figures.escaping import visible
from diffscope.readings.reading import Part
from diffscope.views import attention as attention_view
from diffscope.views.view_state import checked_state
from tests import encoder_decoders, tiny
from tests.buffers import unpacked, words_of
from tests.tiny import random_capture

NAMES = ("A1", "A2", "lambda_A2", "D")
SHORT = {"A1": "A₁", "A2": "A₂", "lambda_A2": "λ·A₂", "D": "D"}


@pytest.fixture(scope="module")
def capture():
    scope = diffscope.load(tiny.own("v1"))
    return scope.capture(tiny.ids(60), spans={"answer": slice(3, 6), "needles": [1, 2, 9, 10, 11]})


def test_the_buffer_holds_the_maps_with_their_edges(capture):
    data = attention_view.buffer(capture, 1, 2)
    tensors, about = load(data), words_of(data)
    maps = capture.pooled_maps(1, [2], marginals=True).isel(head=0)
    for name in NAMES:
        expected = np.where(np.tri(60), maps[name], np.nan)
        np.testing.assert_allclose(unpacked(data, name), expected, rtol=1e-3, atol=1e-9)  # small weights have their digits too
        mass = np.abs(maps[name]).sum("key")
        np.testing.assert_allclose(np.broadcast_to(tensors[f"mass_{name}"], 60), mass, rtol=1e-3)
    for name in ("received_D", "entropy_A1", "entropy_D"):
        np.testing.assert_allclose(tensors[name], maps[name], rtol=1e-3, atol=1e-3, equal_nan=True)
    assert tensors["mass_A1"].shape == (1,) and tensors["mass_D"].shape == (60,)
    assert [panel["name"] for panel in about["panels"]] == list(NAMES) and about["tokens"] == capture.tokens
    assert (about["bin"], about["queries"], about["keys"]) == (1, 60, 60) and "L1H2" in about["title"]
    ranges = {span["name"]: span["ranges"] for span in about["spans"]}
    assert ranges["answer"] == [[3, 6]] and ranges["needles"] == [[1, 3], [9, 12]]


@pytest.fixture(scope="module")
def rectangles():
    prompt = encoder_decoders.prompt("bart")
    scope = diffscope.load(encoder_decoders.model("bart"))
    return scope.capture(prompt, spans={"asked": [4]}, key_spans={"answer": [2, 3]})


def test_standard_attention_has_one_panel():
    standard = diffscope.load(tiny.own("standard")).capture(tiny.ids(20))
    data = attention_view.buffer(standard, 0, 1)
    assert [panel["title"] for panel in words_of(data)["panels"]] == ["A"] and "A2" not in load(data)
    assert words_of(data)["lines"]["map"] == "A"


def test_a_rectangle_has_tokens_and_spans_of_both_sides(rectangles):
    data = attention_view.buffer(rectangles, 3, 1, query=4)
    about = words_of(data)
    np.testing.assert_allclose(unpacked(data, "A1"), rectangles.map("A1", 3, 1), rtol=1e-3)  # all of it is seen
    assert (about["queries"], about["keys"], about["query"]) == (5, 9, 4)
    assert (about["tokens"], about["keyTokens"]) == (rectangles.tokens, rectangles.key_tokens)
    ranges = {side: {span["name"]: span["ranges"] for span in about[side]} for side in ("spans", "keySpans")}
    assert ranges == {"spans": {"sink": [[0, 1]], "asked": [[4, 5]]}, "keySpans": {"sink": [[0, 1]], "answer": [[2, 4]]}}
    encoder = words_of(attention_view.buffer(rectangles, 0, 1, query=4))
    assert encoder["tokens"] == rectangles.key_tokens and encoder["query"] is None and "keyTokens" not in encoder


def test_captures_of_other_keys_are_other_prompts_of_a_page(rectangles):
    of_keys = rectangles.key_prompts[0]
    other = replace(rectangles, key_prompts=[replace(of_keys, ids=of_keys.ids[::-1])])
    assert attention_view.prompt_name(other) != attention_view.prompt_name(rectangles)


def test_windows_go_by_the_tokens_of_each_side():
    place = {"top": 30, "left": 3, "size": 20}
    assert attention_view.window_of(place, 40, 10) == (slice(30, 40), slice(3, 10))
    assert attention_view.window_of(place, 40, 3) is None and attention_view.window_of(place, 30, 10) is None


def test_a_long_prompt_is_in_bins_and_its_window_exact():
    long = random_capture(2000, heads=3)
    window = (slice(1900, 2000), slice(3, 80))
    maps = attention_view.whole_maps(long, 0, 1, size=100)
    data = attention_view.buffer(long, 0, 1, maps=maps, window=window, lines=True)
    tensors, about = load(data), words_of(data)
    assert about["bin"] == 20 and about["shape"] == [100, 100]
    assert about["detail"] == {"top": 1900, "left": 3, "shape": [100, 77]}
    whole = long.maps(0, [1]).isel(head=0)
    for name in NAMES:
        np.testing.assert_allclose(unpacked(data, name, "detail."), whole[name][window], rtol=1e-3, atol=1e-9)
    shares = whole["D"].values / np.abs(whole["D"].values).sum(1, keepdims=True)
    parts = shares.reshape(100, 20, 100, 20).swapaxes(1, 2).reshape(100, 100, 400)
    largest = np.take_along_axis(parts, np.abs(parts).argmax(-1)[..., None], -1)[..., 0]
    np.testing.assert_allclose(unpacked(data, "share_D"), np.where(np.tri(100), largest, np.nan), rtol=1e-3, atol=1e-9)
    assert "share_A1" not in tensors and "share_lambda_A2" not in tensors  # they follow from the sums of rows
    links = long.strongest("D", 0, queries=range(1900, 2000))
    assert about["lines"] == {"top": 1900, "queries": 100, "count": 8, "map": "D"}
    assert np.array_equal(tensors["lines.key"], links["key"])
    np.testing.assert_allclose(tensors["lines.weight"].astype(float) * about["unit"], links["weight"], rtol=1e-3)
    assert "detail" not in words_of(attention_view.buffer(random_capture(50), 0, 0, window=window))
    assert "lines" not in words_of(attention_view.buffer(long, 0, 1, maps=maps, lines=True))  # of 2000 queries they are not small


def test_a_long_prompt_stays_small():
    capture = random_capture(8192, heads=32)
    maps = attention_view.whole_maps(capture, 0, 0)
    window = (slice(7000, 7256), slice(4000, 4256))
    assert len(attention_view.buffer(capture, 0, 0, maps=maps, window=window, lines=True)) < 2_000_000


def test_tokens_of_split_characters_can_be_read():
    capture = diffscope.load("mini-diff").capture("ab ك🙂")
    assert words_of(attention_view.buffer(capture, 0, 0))["tokens"][-6:] == [
        "ك‹part 1/2›",
        "ك‹part 2/2›",
        *(f"🙂‹part {part}/4›" for part in range(1, 5)),
    ]
    row = diffscope.figures.row(capture, layer=0, query=-5)
    assert row.data.attrs["query_token"] == "ك‹part 2/2›" and row.data["key_token"].values[-1] == "🙂‹part 4/4›"


NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["lines", "root", "share"]) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["top", "left", "size", "rows", "columns"]), inner, max_size=5)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(["mode", "scale", "robust", "sink", "parts", "a2", "window", "locked", "heads"])


@settings(max_examples=300)
@given(NONSENSE | st.dictionaries(FIELDS, NONSENSE))
def test_nonsense_in_an_address_is_no_state(state):
    checked = checked_state(state, 40, 60, 4)
    assert checked_state(json.loads(json.dumps(checked)), 40, 60, 4) == checked
    window = checked.get("window", {"top": 0, "left": 0, "size": 60})
    assert window["size"] >= 8 and max(window["top"], window["left"]) + window["size"] <= 60
    locked = checked.get("locked", {"rows": [], "columns": []})
    assert set(locked["rows"]) <= set(range(40)) and set(locked["columns"]) <= set(range(60))
    assert set(checked.get("heads", [])) <= set(range(4))


def test_nothing_of_a_prompt_stands_in_the_page_as_text():
    hostile = "</script><script>alert(1)</script>"
    scope = diffscope.load("mini-diff")
    capture = scope.capture(f"The code is {hostile} 7421.", spans={hostile: [1]})
    page = attention_view.page(capture, 0, 0)
    assert "alert(1)" not in page and not re.search(r"(src|href)=|https?://|import ", page)
    assert len(attention_view.page(random_capture(4096, heads=8), 0, 0)) < 1_000_000


@pytest.fixture
def page(new_page):
    return new_page(1300, 900)


def shown(page, tmp_path, *buffers):
    """Views of some buffers one above the other; what they say is in `events`, as view, name and value."""
    script = attention_view.COMPONENT.inline
    data = json.dumps([base64.b64encode(buffer).decode() for buffer in buffers])
    path = tmp_path / "views.html"
    path.write_text(
        f"""<!doctype html><meta charset="utf-8"><body><script type="module">{script}
        globalThis.events = [];
        globalThis.mount = mount;
        globalThis.views = {data}.map((text, at) => {{
          const place = document.body.appendChild(document.createElement("section"));
          const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
          return mount(place, bytes, (name, value) => events.push([at, name, value]));
        }});
        </script>""",
        encoding="utf-8",
    )
    page.goto(path.as_uri())
    page.wait_for_function("window.views && [...document.querySelectorAll('section canvas')].length")
    return [page.locator("section").nth(at) for at in range(len(buffers))]


def place_of(page, view, row, column, n, name="D"):
    view.locator(f"canvas[data-map={name}]").scroll_into_view_if_needed()
    box = view.locator(f"canvas[data-map={name}]").bounding_box()
    assert abs(box["width"] - box["height"]) < 1  # square
    return box["x"] + (column + 0.5) / n * box["width"], box["y"] + (row + 0.5) / n * box["height"]


def point(page, view, row, column, n, name="D"):
    page.mouse.move(*place_of(page, view, row, column, n, name))
    return read(view)


def read(view):
    return view.locator("[aria-live]").text_content()


def printed(words, name):
    """The value, and the share if there is one, that a readout has for a map."""
    value, share = re.search(rf"(?<![·\w]){re.escape(SHORT[name])} (−?[\d.e-]+)(?: · (−?[\d.e-]+) %)?", words).groups()
    return [None if text is None else float(text.replace("−", "-")) for text in (value, share)]


@pytest.mark.browser
def test_the_pointer_reads_tokens_values_and_shares(page, capture, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(attention_view.page(capture, 1, 2), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector("canvas[data-map=D]")
    view = page.locator("main")
    assert "answer" in view.inner_text() and "needles" in view.inner_text()
    for scale in ("root", "share"):
        page.get_by_label("Scale").select_option(scale)
        for name, row, column in (("D", 40, 7), ("A1", 59, 0), ("lambda_A2", 12, 12)):
            words = point(page, view, row, column, 60, name)
            assert f"({row}) → key" in words and f"({column}): weights" in words
            for map_name, values in capture.maps(1, [2], queries=[row]).isel(head=0, query=0).items():
                exact = float(values[column])
                value, share = printed(words, map_name)
                assert value == pytest.approx(exact, rel=0.06, abs=6e-5 if abs(exact) >= 0.001 else 0), map_name
                expected = 100 * exact / float(np.abs(values).sum())
                assert share == (None if scale == "root" else pytest.approx(expected, rel=0.01)), map_name
    assert "not visible" in point(page, view, 3, 40, 60)
    assert page.problems == []


@pytest.mark.browser
def test_keys_and_clicks_do_what_they_say(page, capture, tmp_path):
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 1, 2, state={}))
    page.mouse.click(*place_of(page, view, 40, 7, 60))
    page.mouse.move(5, 5)
    assert "locked: queries" in read(view)
    point(page, view, 30, 30, 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    root = page.locator("[role=application]")
    for key in ("+", "ArrowRight", "ArrowUp"):
        root.press(key)
    assert re.search(r"\((29|30|31)\) → key", point(page, view, 30, 30, 60))
    page.wait_for_function("events.some(([, name, value]) => name === 'state' && value.window?.size < 40)")
    events = page.evaluate("events")
    assert [value for _, name, value in events if name == "head"] == [{"layer": 1, "head": 3}, {"layer": 0, "head": 3}]
    assert [0, "locked", {"rows": [40], "columns": [7]}] in events
    last = [value for _, name, value in events if name == "state"][-1]
    assert last["locked"] == {"rows": [40], "columns": [7]} and 20 < last["window"]["size"] < 40
    root.press("Escape")
    assert "(40) → key" in point(page, view, 40, 7, 60)
    page.mouse.move(5, 5)
    assert read(view).startswith("Point at a cell")
    names = [control.get_attribute("aria-label") for control in view.locator("button, select").all()]
    assert all(names) and {"Zoom in", "Lines", "Scale"} <= set(names)
    assert all(control.get_attribute("title") for control in view.locator("button, select, label").all())
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.problems == []


@pytest.mark.browser
def test_the_wheel_scrolls_the_page_unless_it_is_to_zoom(page, capture, tmp_path):
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 1, 2))
    page.evaluate("document.body.style.paddingBottom = '3000px'")

    def turn(by, top, size):
        """Turn the wheel, wait until the page is at `top` and the window has `size` tokens, and see that both stay."""
        point(page, view, 30, 30, 60)
        page.mouse.wheel(0, by)
        page.wait_for_function("([top, size]) => scrollY === top && views[0].window.size === size", arg=[top, size])
        page.wait_for_timeout(300)
        assert page.evaluate("[scrollY, views[0].window.size]") == [top, size]
        page.evaluate("scrollTo(0, 0)")

    turn(100, 100, 60)
    turn(-100, 0, 60)
    page.keyboard.down("Control")
    turn(-100, 0, 48)
    page.keyboard.up("Control")
    turn(100, 100, 48)
    page.mouse.click(*place_of(page, view, 30, 30, 60))
    turn(100, 0, 60)
    turn(100, 100, 60)  # where the whole is shown there is nothing to zoom out of
    turn(-100, 0, 48)
    assert page.problems == []


@pytest.mark.browser
def test_the_heading_says_what_is_drawn_at_every_zoom(page, tmp_path):
    long = random_capture(2000, heads=3)
    window = (slice(1000, 1200), slice(1000, 1200))
    data = attention_view.buffer(long, 0, 1, maps=attention_view.whole_maps(long, 0, 1, size=100), window=window, lines=True)
    (view,) = shown(page, tmp_path, data)
    heading = lambda: view.locator("strong").first.text_content().partition("H1 · ")[2]  # noqa: E731
    bins = "largest |value| of each 20 × 20"
    assert heading().endswith(f"{bins}, every value where it is loaded")
    look = "([top, left, size]) => views[0].look(top, left, size)"
    page.evaluate(look, [1010, 1010, 150])
    assert heading().endswith("every value of this window") and "largest" not in heading()
    page.evaluate(look, [0, 0, 150])
    assert heading().endswith(bins)
    page.evaluate(look, [1010, 1010, 150])
    view.get_by_role("button", name="Lines").click()
    assert "largest" not in heading() and "every value" not in heading()
    assert page.problems == []


@pytest.mark.browser
def test_arrow_keys_of_a_page_of_a_small_model_show_other_heads(page, capture, tmp_path):
    path = tmp_path / "page.html"
    said = lambda layer, head: (Part(f"L{layer}H{head} says `<b>` "), Part(".30", "What <i>it</i> is."), Part("."))  # noqa: E731
    path.write_text(attention_view.page(capture, 1, 2, sentences=said), encoding="utf-8")
    assert len(path.read_bytes()) < 1_500_000
    page.goto(path.as_uri())
    page.wait_for_selector("canvas[data-map=D]")
    view, root = page.locator("main"), page.locator("[role=application]")
    assert read(view).endswith("press arrow keys for other heads.")
    assert view.locator(".prompt").text_content() == "".join(capture.tokens)
    for key, layer, head in [
        ("ArrowUp", 0, 2),
        ("ArrowRight", 0, 3),
        ("ArrowRight", 0, 3),
        ("ArrowUp", 0, 3),
        ("ArrowDown", 1, 3),
    ]:
        root.press(key)
        assert f"L{layer}H{head}" in view.locator("strong").first.text_content()
        assert view.locator(".sentence").text_content() == f"L{layer}H{head} says <b> .30."
    assert view.locator(".sentence code").text_content() == "<b>"
    number = view.locator(".sentence .number")
    number.focus()
    assert number.evaluate("node => getComputedStyle(node, '::after').content") == '"What <i>it</i> is."'
    words = point(page, view, 40, 7, 60)
    exact = float(capture.map("D", 1, 3).values[40, 7])
    assert printed(words, "D")[0] == pytest.approx(exact, rel=0.06, abs=6e-5)
    assert page.problems == []


@pytest.mark.browser
def test_arrow_keys_of_a_page_of_one_head_read_one_cell_after_the_other(page, capture, tmp_path, monkeypatch):
    monkeypatch.setattr(attention_view, "MOST_HEADS", 1)
    path = tmp_path / "page.html"
    path.write_text(attention_view.page(capture, 1, 2), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector("canvas[data-map=D]")
    view, root = page.locator("main"), page.locator("[role=application]")
    assert read(view).endswith("press arrow keys to read its neighbours.")
    title = view.locator("strong").first.get_attribute("title")
    assert "other heads" not in read(view) and "head beside" not in title and "arrows read the queries above and below" in title
    place = lambda: re.search(r"\((\d+)\) → key .*?\((\d+)\)", read(view)).groups()  # noqa: E731
    for key, row, column in [
        ("ArrowDown", "59", "0"),  # the last query and the first key
        ("ArrowUp", "58", "0"),
        ("ArrowRight", "58", "1"),
        ("ArrowLeft", "58", "0"),
        ("ArrowLeft", "58", "0"),
        ("ArrowDown", "59", "0"),
        ("ArrowDown", "59", "0"),
    ]:
        root.press(key)
        assert place() == (row, column)
    exact = float(capture.map("D", 1, 2).values[59, 0])
    assert printed(read(view), "D")[0] == pytest.approx(exact, rel=0.06, abs=6e-5)
    assert page.problems == []


@pytest.mark.browser
def test_scales_change_colours_and_never_values(page, capture, tmp_path):
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 1, 2))
    canvas = view.locator("canvas[data-map=A1]")
    picture = lambda: canvas.evaluate("canvas => canvas.toDataURL()")  # noqa: E731
    before, words = picture(), point(page, view, 40, 7, 60)
    assert "A₁, λ·A₂ and D share one colour scale: linear, up to ±" in view.inner_text()
    for scale, label in (("log", "log"), ("root", "root")):
        page.get_by_label("Scale").select_option(scale)
        assert picture() != before and point(page, view, 40, 7, 60) == words
        assert f"share one colour scale: {label}, up to" in view.inner_text()
    page.get_by_label("Scale").select_option(label="linear")
    assert picture() == before
    page.get_by_label("First key").uncheck()
    assert picture() != before
    light = picture()
    page.evaluate("document.body.style.color = 'white'")  # what a theme does, whatever the system prefers
    page.wait_for_function("views[0].dark")
    assert picture() != light
    assert page.problems == []


@pytest.mark.browser
def test_spans_are_marked_beside_the_maps_and_cover_no_cell(page, capture, tmp_path):
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 1, 2))
    page.mouse.move(5, 5)
    for name in ("D", "A1"):
        over = view.locator(f"canvas[data-map={name}] + canvas")
        assert not over.evaluate("node => node.getContext('2d').getImageData(0, 0, node.width, node.height).data.some(Boolean)")
        cells = view.locator(f"canvas[data-map={name}]").bounding_box()
        beside, beneath = (each.bounding_box() for each in view.locator(f"canvas[data-spans={name}]").all())
        assert beside["x"] + beside["width"] <= cells["x"] and beneath["y"] >= cells["y"] + cells["height"]
        assert beside["height"] == cells["height"] and beneath["width"] == cells["width"]
    opacity = "(node, key) => node.getContext('2d').getImageData((key + 0.5) / 60 * node.width, node.height / 2, 1, 1).data[3]"
    marks = view.locator("canvas[data-spans=D]").last
    assert [marks.evaluate(opacity, key) for key in (2, 3, 5, 6, 8, 9)] == [255, 255, 255, 0, 0, 255]
    assert page.problems == []


@pytest.mark.browser
def test_a_rectangle_fills_the_map_and_is_read_by_the_tokens_of_each_side(page, rectangles, tmp_path):
    (tmp_path / "page.html").write_text(attention_view.page(rectangles, 3, 1), encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    view = page.locator("main")
    box = view.locator("canvas[data-map=A1]").bounding_box()

    def named(tokens, at):
        return f"\u2068{json.dumps(tokens[at])}\u2069 ({at})"

    for row, column in ((0, 8), (4, 6), (2, 0)):
        page.mouse.move(box["x"] + (column + 0.5) / 9 * box["width"], box["y"] + (row + 0.5) / 5 * box["height"])
        query, key = named(rectangles.tokens, row), named(rectangles.key_tokens, column)
        assert read(view).startswith(f"query {query} → key {key}: weights:")
        exact = float(rectangles.map("A1", 3, 1)[row, column])
        assert float(re.search(r"weights:   A (\S+)", read(view))[1]) == pytest.approx(exact, rel=0.01)
    opacity = "(node, [x, y]) => node.getContext('2d').getImageData(x * node.width, y * node.height, 1, 1).data[3]"
    beside, beneath = view.locator("canvas[data-spans=A1]").all()
    assert [beside.evaluate(opacity, [0, (at + 0.5) / 5]) for at in (0, 1, 3, 4)] == [255, 0, 0, 255]
    assert [beneath.evaluate(opacity, [(at + 0.5) / 9, 0]) for at in (0, 1, 2, 3, 4, 8)] == [255, 0, 255, 255, 0, 0]
    root = page.locator("[role=application]")
    root.press("ArrowUp")  # the layer above, of other tokens
    page.mouse.move(*[box["x"] + 0.9 * box["width"], box["y"] + 0.9 * box["height"]])
    assert "L2H1" in view.inner_text() and read(view).startswith(f"query {named(rectangles.tokens, 4)}")
    root.press("ArrowDown")
    view.get_by_role("button", name="Lines").click()
    lines = view.locator("canvas[data-lines]").bounding_box()
    page.mouse.move(lines["x"] + lines["width"] - 10, lines["y"] + 8.5 / 9 * lines["height"])
    assert read(view).startswith(f"key {named(rectangles.key_tokens, 8)}, queries")
    assert page.problems == []


@pytest.mark.browser
def test_every_token_of_an_answer_has_its_name_and_line_and_so_has_the_one_pointed_at(page, tmp_path):
    long = diffscope.load(tiny.own("v1")).capture(tiny.ids(200), spans={"answer": slice(100, 103)})
    (view,) = shown(page, tmp_path, attention_view.buffer(long, 1, 2, query=150))
    arrow = "node => node.getContext('2d').getImageData(1, 150.5 / 200 * node.height, 1, 1).data[3]"
    assert view.locator("canvas[data-spans=D]").first.evaluate(arrow) == 255
    drawn = """(canvas, colour) => {
        const { width, height } = canvas;
        const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
        const of = (x, y) => { const at = 4 * (y * width + x);
          return data[at + 3] > 100 && colour.every((part, i) => Math.abs(part - data[at + i]) < 40); };
        return [...Array(height).keys()].filter((y) => [...Array(width - 8).keys()].some((x) => of(x, y))); }"""
    names = view.locator("canvas[title=queries]").first
    of_answer = names.evaluate(drawn, [0, 158, 115])
    places = view.locator("canvas[data-map=D]").bounding_box()["height"] / 200
    assert len(of_answer) >= 15 and 100 * places - 8 < min(of_answer) < max(of_answer) < 103 * places + 24  # three lines
    pictures = set()
    for row in (150, 151, 152, 153):  # not all of them have names if none is pointed at
        point(page, view, row, 7, 200)
        pictures.add(names.evaluate("node => node.toDataURL()"))
    assert len(pictures) >= 3
    assert page.problems == []


@pytest.mark.browser
def test_tokens_have_names_wherever_a_window_begins(page, capture, tmp_path):
    page.add_init_script(
        "globalThis.written = []; const write = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (...text) { written.push(text[0]); write.apply(this, text); };"
    )
    state = {"window": {"top": 20.7, "left": 40.7, "size": 10}}
    unseen = {25: "a\u200bb", 45: "\u202ec"}  # without a width; from right to left
    tokens = tuple(unseen.get(at, token) for at, token in enumerate(capture.tokens))
    capture = replace(capture, prompts=[replace(capture.prompts[0], tokens=tokens)])
    shown(page, tmp_path, attention_view.buffer(capture, 1, 2, state=state))
    page.wait_for_function("written.length >= 20")
    written = set(page.evaluate("written"))
    assert {visible(tokens[at]) for at in (*range(21, 31), *range(41, 51))} <= written
    assert page.problems == []


@pytest.mark.browser
def test_values_beyond_the_end_have_the_colour_of_the_end(page, capture, tmp_path):
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 1, 2))
    maps = capture.maps(1, [2]).isel(head=0)
    limit = page.evaluate("views[0].limit")
    sizes = np.abs(np.concatenate([maps[name].values[:, 1:].ravel() for name in NAMES if name != "A2"]))  # which is not drawn
    seen = sizes[np.tile(np.tri(60)[:, 1:].astype(bool).ravel(), 3)]
    assert (seen > limit * 1.001).sum() <= np.ceil(0.005 * (seen > 0).sum()) < (seen > limit * 0.9).sum()
    colour = """(canvas, [row, column]) => [...canvas.getContext("2d").getImageData(
        (column + 0.5) * canvas.width / 60, (row + 0.5) * canvas.height / 60, 1, 1).data].slice(0, 3)"""
    ends = (attention_view.LOOK["orange"][-1], attention_view.LOOK["blue"][-1])
    below, above = ([int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in ends)
    clipped = np.argwhere(np.abs(maps["D"].values) > limit * 1.01)
    assert len(clipped)
    page.mouse.move(5, 5)
    canvas = view.locator("canvas[data-map=D]")
    for row, column in clipped.tolist():
        expected = below if maps["D"].values[row, column] < 0 else above
        assert canvas.evaluate(colour, [row, column]) == expected
    bar = view.locator("figure", has_text="D = ").get_by_role("img").last
    assert "have the colour of the end" in bar.get_attribute("aria-label")
    page.get_by_label("Robust range").uncheck()
    row, column = min(clipped.tolist(), key=lambda place: abs(maps["D"].values[tuple(place)]))
    assert canvas.evaluate(colour, [row, column]) not in (below, above)
    assert "larger values" not in bar.get_attribute("aria-label")
    assert page.problems == []


@pytest.mark.browser
def test_lines_are_the_strongest_keys_of_the_heads_chosen(page, capture, tmp_path):
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 1, 2, state={}))
    view.get_by_role("button", name="Lines").click()
    links = capture.strongest("D", 1)
    assert f"The {links.sizes['rank']} strongest keys" in view.inner_text()
    canvas = view.locator("canvas[data-lines]")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + (50 + 0.5) / 60 * box["height"])
    words = read(view)
    assert "query" in words and "(50), its strongest keys" in words and "L1H2:" in words and "L1H0:" not in words
    keys = [int(at) for at in re.findall(r"\((\d+)\) −?\d", words.split("L1H2:")[1])]
    assert keys == links["key"].sel(head=2, query=50).values.tolist()
    page.mouse.move(5, 5)
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    view.get_by_role("button", name="Head 0").click()
    assert view.get_by_role("button", name="Head 0").get_attribute("aria-pressed") == "true"
    assert canvas.evaluate("canvas => canvas.toDataURL()") != before
    page.mouse.click(box["x"] + box["width"] - 20, box["y"] + (3 + 0.5) / 60 * box["height"])
    words = read(view)
    weights = np.abs(links["weight"]).where(links["key"] == 3).sel(head=0).max("rank")
    strongest = int(weights.fillna(0).values.argmax())
    assert "key" in words and f"({strongest})" in words.split("L1H0:")[1].split("   ")[1]
    page.wait_for_function("events.at(-1)[1] === 'state'")
    state = page.evaluate("events.at(-1)[2]")
    assert (state["mode"], state["heads"], state["locked"]) == ("lines", [0, 2], {"rows": [], "columns": [3]})
    assert page.problems == []


@pytest.mark.browser
def test_a_state_comes_back(page, capture, tmp_path):
    state = {
        "mode": "lines",
        "scale": "share",
        "robust": False,
        "sink": False,
        "a2": False,
        "window": {"top": 10, "left": 5, "size": 30},
        "locked": {"rows": [12], "columns": []},
        "heads": [1],
    }
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 1, 2, state=state))
    assert page.evaluate("views[0].state()") == state
    assert page.get_by_label("Scale").input_value() == "share" and not page.get_by_label("First key").is_checked()
    page.wait_for_timeout(500)
    assert page.evaluate("events") == []  # nothing has changed
    view.get_by_role("button", name="Maps").click()
    page.wait_for_function("events.length")
    assert page.evaluate("events") == [[0, "state", state | {"mode": "maps"}]]
    assert page.problems == []


@pytest.mark.browser
def test_views_of_a_group_are_looked_at_together(page, capture, tmp_path):
    scope = diffscope.load(tiny.own("v1"))
    with scope.edit(edits.set_lambda(3.0)):
        edited = scope.capture(tiny.ids(60))
    other = scope.capture(tiny.ids(40, seed=3))
    captures = (capture, edited, other)
    buffers = [attention_view.buffer(each, 1, 2, group="compare", state={}) for each in captures]
    alone = attention_view.buffer(capture, 1, 2)
    first, second, third, single = shown(page, tmp_path, *buffers, alone)
    limits = page.evaluate("views.map((view) => [view.own, view.limit])")
    assert [limit for _, limit in limits[:3]] == [max(own for own, _ in limits[:3])] * 3 and limits[3][1] == limits[3][0]
    assert limits[0][0] != limits[1][0]
    point(page, first, 40, 7, 60)
    assert printed(read(second), "D")[0] == pytest.approx(edited.map("D", 1, 2).values[40, 7], abs=1e-4)
    assert read(third) == "" and read(single).startswith("Point at a cell")
    page.mouse.click(*place_of(page, second, 30, 30, 60))
    page.mouse.wheel(0, -200)  # of a view that was clicked
    first.get_by_label("Scale").select_option("log")
    windows = page.evaluate("views.map((view) => [view.window.size, [...view.locked.rows], view.options.scale])")
    assert windows == [[48, [30], "log"], [48, [30], "log"], [40, [], "log"], [60, [], "raw"]]
    page.wait_for_function("events.filter(([, name]) => name === 'state').length >= 3")
    assert page.evaluate("events.filter(([, name]) => name === 'locked').map(([at]) => at)") == [1]  # one says it
    page.evaluate("views[1].leave()")
    assert page.evaluate("views[0].limit") == max(limits[0][0], limits[2][0])
    assert page.evaluate("window.diffscopeViews.size") == 3
    assert page.problems == []


@pytest.mark.browser
def test_a_group_compares_maps_of_one_size_and_has_its_controls_once(page, capture, tmp_path):
    standard = diffscope.load(tiny.own("standard")).capture(tiny.ids(40, seed=3))
    buffers = [attention_view.buffer(each, 1, 1, group="compare", state={}) for each in (standard, capture)]
    encoded = base64.b64encode(buffers[0]).decode()
    first, second = shown(page, tmp_path, *buffers)
    page.evaluate("views[0].host.style.width = '420px'")

    def drawn(view):
        return view.locator("canvas[data-map]").evaluate_all("all => all.map((map) => [map.dataset.map, map.clientWidth])")

    page.wait_for_function("new Set([...document.querySelectorAll('canvas[data-map]')].map((map) => map.clientWidth)).size === 1")
    (a, wide), (d, same) = *drawn(first), *drawn(second)
    assert (a, d) == ("A1", "D") and wide == same and 200 < wide < 420
    assert second.get_by_label("Scale").is_hidden() and first.get_by_label("Scale").is_visible()
    assert first.get_by_label("A₂", exact=True).is_hidden()
    lines = {first.get_by_label(name).bounding_box()["y"] for name in ("Zoom out", "Zoom in", "Whole map")}
    assert len(lines) == 1 and abs(lines.pop() - first.get_by_label("Scale").bounding_box()["y"]) < 4
    first.get_by_label("A₁ and λ·A₂").check()
    assert [name for name, _ in drawn(second)] == ["D", "A1", "lambda_A2"] and dict(drawn(second))["D"] == wide
    first.get_by_role("button", name="Lines").click()
    assert second.locator("canvas[data-lines]").is_visible()
    page.wait_for_function("events.filter(([, name]) => name === 'state').length >= 2")
    states = page.evaluate("views.map((view) => [view.state().parts, view.state().mode])")
    assert states == [[True, "lines"], [True, "lines"]]
    page.evaluate("views[0].leave()")
    assert second.get_by_label("Scale").is_visible()
    page.evaluate(
        """text => { const place = document.body.insertBefore(document.createElement("section"), views[1].host);
        mount(place, Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), () => {}); }""",
        encoded,
    )
    assert page.locator("section select:visible").count() == 1 and page.locator("section").nth(2).locator("select").is_hidden()
    assert page.problems == []


@pytest.mark.browser
def test_a_head_that_the_page_holds_is_shown_at_once_and_the_host_has_the_last_word(page, capture, tmp_path):
    """What the host sends of a head that was left meanwhile waits for the one that was asked for."""
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 1, 2))
    heading = view.locator("strong").first
    sent = {head: base64.b64encode(attention_view.buffer(capture, 0, head)).decode() for head in (1, 2)}
    page.evaluate(
        """text => { globalThis.bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        window.diffscopeHeld.set(`${views[0].data.prompt} 0 2`, bytes(text)); }""",
        sent[2],
    )
    page.locator("[role=application]").press("ArrowUp")
    assert "L0H2" in heading.text_content()
    held = page.evaluate(
        """text => { views[0].wanted.until = performance.now() + 400; views[0].update(bytes(text));
        return document.querySelector('strong').textContent; }""",
        sent[1],
    )
    assert "L0H2" in held
    page.wait_for_function("document.querySelector('strong').textContent.includes('L0H1')")
    page.evaluate("text => views[0].update(bytes(text))", sent[2])
    assert "L0H2" in heading.text_content() and page.problems == []


@pytest.mark.browser
def test_heads_beside_the_one_that_is_shown_are_asked_for_one_at_a_time(page, capture, tmp_path):
    (view,) = shown(page, tmp_path, attention_view.buffer(capture, 0, 1))
    heading, root = view.locator("strong").first, view.locator("[role=application]")

    def sent(places, at, about="token 3"):
        return base64.b64encode(attention_view.bundle(capture, places, beside=at, about=about)).decode()

    module = attention_view.HELD.module
    page.evaluate(
        """async ([module, data]) => {
        globalThis.bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        globalThis.wanted = [];
        const { mount } = await import(URL.createObjectURL(new Blob([module], { type: "text/javascript" })));
        globalThis.holder = mount(null, bytes(data), (name, { layer, head }) => wanted.push([name, layer, head]));
        }""",
        [module, sent([], (0, 1))],
    )
    asked = [(0, 2), (0, 0), (1, 1), (0, 3)]  # on either side, below, and one further
    for count, (layer, head) in enumerate(asked, 1):
        page.wait_for_function("count => wanted.length === count", arg=count)
        assert page.evaluate("wanted.at(-1)") == ["wanted", layer, head]
        page.evaluate("data => holder.update(bytes(data))", sent([(layer, head)], (0, 1)))
    root.press("ArrowRight")
    assert "L0H2" in heading.text_content() and not root.evaluate("node => node.matches('.stale')")
    root.press("ArrowDown")  # which the page does not hold
    assert "L0H2" in heading.text_content() and root.evaluate("node => node.matches('.stale')")
    root.press("ArrowRight")
    assert page.evaluate("events.filter(([, name]) => name === 'head').at(-1)[2]") == {"layer": 1, "head": 3}
    page.evaluate("data => views[0].update(bytes(data))", base64.b64encode(attention_view.buffer(capture, 1, 3)).decode())
    assert "L1H3" in heading.text_content() and not root.evaluate("node => node.matches('.stale')")
    page.evaluate("data => holder.update(bytes(data))", sent([], (1, 3), "token 4"))  # what was said was of another token
    assert page.evaluate("window.diffscopeHeld.size") == 0
    page.evaluate("holder.leave()")
    assert page.evaluate("window.diffscopeHolders.size") == 0 and page.problems == []
