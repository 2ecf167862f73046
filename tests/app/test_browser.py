"""The dashboard in a real browser, one for all of these tests: what only a browser does with its pages."""

import re
from urllib.parse import quote, urlencode, urlsplit

import pytest
from small_models import HOSTILE, PROMPT

from tools.browser import faults, foreign_requests, settle

pytestmark = [pytest.mark.browser, pytest.mark.slow]
VIEW = ".st-key-view"
MAPS = f"{VIEW} canvas[data-map]"
EDITS, NEXT, GRID = ".st-key-change-edits", ".st-key-change-next", ".st-key-change-grid"
FOLDER, OWN = "a folder or a saved capture", "own text"


@pytest.fixture
def address(home, folders):
    """The address of a running dashboard, with a small model and a prompt of one's own."""
    path = quote(str(folders["small-diff"]), safe="")
    own = f"example={quote(OWN)}&prompt={quote(PROMPT)}&answer=7421"
    return f"{home}/?model={quote(FOLDER)}&path={path}&{own}"


@pytest.fixture
def page(new_page):
    page = new_page(1500, 1100)
    page.set_default_timeout(120_000)
    return page


def heading(page):
    return page.locator(f"{VIEW} strong").text_content()


def click(page, layer, head):
    """A click on a head in the grid, which its tooltip names."""
    box = page.locator(".st-key-heads [role=grid] canvas").first.bounding_box()
    for down in range(8, int(box["height"]), 8):
        for right in range(8, int(box["width"]), 24):
            page.mouse.move(box["x"] + right, box["y"] + down)
            if page.locator(".st-key-heads [data-tip]").inner_text().startswith(f"L{layer}H{head}\n"):
                page.mouse.click(box["x"] + right + 10, box["y"] + down + 10)  # not on the edge
                settle(page)
                page.wait_for_selector(f"{VIEW} strong:text('L{layer}H{head}')")
                return
    raise AssertionError(f"no cell of the grid is L{layer}H{head}")


def read_at(page, place, view=VIEW):
    """What a view says of the cell at the left, so high in its first map, when the pointer is there."""
    maps = page.locator(f"{view} canvas[data-map]").first
    maps.scroll_into_view_if_needed()  # what stands above it may push its last rows off the page
    box = maps.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + box["height"] * place)
    page.wait_for_selector(f"{view} [aria-live]:text('query')", state="attached")
    return page.locator(f"{view} [aria-live]").text_content()


def test_pointer_arrows_and_clicks_read_the_maps_and_the_address_restores_them(page, address):
    page.goto(f"{address}&layer=1&head=1")
    page.wait_for_selector(MAPS)
    for chart in ("row-chart", "lambda-chart"):  # which follow the maps
        page.wait_for_selector(f".st-key-{chart} .js-plotly-plot")
    settle(page)
    assert page.locator(MAPS).count() == 3  # D, and A1 and λ·A2 beside it
    words = read_at(page, 0.99)
    assert " is" in words and "A₁" in words and "D" in words
    page.locator(f"{VIEW} [role=application]").press("ArrowLeft")
    page.wait_for_selector(f"{VIEW} strong:text('L1H0')")
    page.locator(f"{VIEW} [role=application]").press("ArrowDown")
    page.wait_for_selector(f"{VIEW} strong:text('L2H0')")
    box = page.locator(MAPS).first.bounding_box()
    page.mouse.click(box["x"] + 4, box["y"] + box["height"] * 0.5)
    page.wait_for_function("() => /query=\\d+/.test(location.search)")
    assert "L2H0" in heading(page)
    click(page, 0, 1)
    page.wait_for_function("() => location.search.includes('layer=0') && location.search.includes('head=1')")
    page.reload()
    page.wait_for_selector(MAPS)
    assert "L0H1" in heading(page) and faults(page) == []
    assert page.locator("[role=dialog]").count() == 0


def test_a_prompt_of_ones_own_is_on_every_page_and_its_maps_are_taken_away(page, address, tmp_path):
    page.goto(address.partition("&example=")[0])
    page.wait_for_selector(MAPS)
    settle(page)
    page.get_by_label("Text", exact=True).fill(PROMPT)
    page.get_by_label("Text", exact=True).press("Control+Enter")
    settle(page)
    layer, head = (2, 0) if "L2H0" not in heading(page) else (0, 1)
    click(page, layer, head)
    page.get_by_role("button", name="Export the maps").click()
    for kind, start in {"PDF": b"%PDF", "HTML": b"<!doctype html>", "CSV": b"#"}.items():
        with page.expect_download() as started:
            page.get_by_role("button", name=kind, exact=True).click()
        path = tmp_path / started.value.suggested_filename
        started.value.save_as(path)
        assert path.read_bytes().startswith(start), kind
    page.keyboard.press("Escape")
    links, pages = page.locator("[data-testid=stTopNavLink]"), set()
    for number in range(links.count()):
        links.nth(number).click()
        settle(page, 120)
        assert faults(page) == []
        pages.add(urlsplit(page.url).path.strip("/"))
        if "/change" in page.url:
            assert page.get_by_label("Text", exact=True).input_value() == PROMPT and "example=own+text" in page.url
    assert "change" in pages
    links.first.click()
    settle(page)
    assert f"layer={layer}" in page.evaluate("location.search") and "prompt=" in page.evaluate("location.search")
    page.wait_for_selector(f"{VIEW} strong:text('L{layer}H{head}')")


def test_a_model_is_opened_in_a_panel_and_cursors_of_both_sides_of_a_comparison_are_linked(page, home):
    page.goto(f"{home}/compare?open=model&your_model-source=the+list")
    page.get_by_role("button", name="Open and check").click()
    page.get_by_role("button", name="Open in Explore").click()
    page.wait_for_function("() => !location.pathname.includes('compare')")
    page.locator(MAPS).first.wait_for()
    settle(page)
    assert page.get_by_role("dialog").count() == 0 and "open=" not in page.url
    page.get_by_role("link", name="Compare").first.click()
    page.get_by_text("with and without an edit", exact=True).first.click()
    page.wait_for_selector(".st-key-change-undo-0")  # an edit, which this comparison alone has
    settle(page)
    left, right = ".st-key-compare-left", ".st-key-compare-right"
    assert [page.locator(f"{side} canvas[data-map]").count() for side in (left, right)] == [1, 1]
    words = read_at(page, 0.99, left)
    page.wait_for_selector(f"{right} [aria-live]:text('query')", state="attached")
    others, where = page.locator(f"{right} [aria-live]").text_content(), words.partition("A₁")[0]
    assert "query" in where and others.startswith(where) and words != others
    layer, head = re.search(r"L(\d+)H(\d+)", page.locator(f"{left} strong").text_content()).groups()
    arrow, beside = ("ArrowRight", 1) if head == "0" else ("ArrowLeft", int(head) - 1)
    page.locator(f"{left} [role=application]").press(arrow)
    for side in (left, right):
        page.wait_for_selector(f"{side} strong:text('L{layer}H{beside}')")
    assert faults(page) == []


# Intervene: a slider, and heads ablated in the grid


@pytest.fixture
def change(home, folders):
    """The address of the page Intervene, with a small model and a prompt of one's own."""
    where = {
        "model": FOLDER,
        "path": str(folders["small-diff"]),
        "example": OWN,
        "prompt": PROMPT,
        "answer": "7421",
    }
    return f"{home}/change?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in where.items())


FIRST = {"x": 62, "y": 24}  # of the grid's canvas: L0H0


def opened(new_page, address):
    page = new_page(1440, 1200)
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector(f"{GRID} canvas")
    settle(page, 120)
    return page


def fine(page):
    assert not faults(page)


def edits(page):
    return page.locator(f"{EDITS} strong").all_inner_texts()


def test_the_slider_changes_what_is_said_the_grid_ablates_heads_and_the_address_keeps_both(new_page, change):
    page = opened(new_page, f"{change}&layer=1&head=1")
    assert edits(page) == ["λ × 0"]
    before = page.locator(NEXT).inner_text()
    for _ in range(3):
        page.locator(f"{EDITS} input[type=range]").first.press("ArrowRight")
    page.wait_for_selector(f"{EDITS} strong:text('λ × 0.15')")
    settle(page)
    assert page.locator(NEXT).inner_text() != before and "edit=scale_lambda%280.15%29" in page.url
    page.locator(f"{GRID} [role=grid]").press("x")
    page.wait_for_selector(f"{EDITS} strong:text('layer 1 · head 1')")
    settle(page)
    cells = page.locator(f"{GRID} canvas").last
    cells.click(position=FIRST, modifiers=["Shift"])  # the first head
    page.wait_for_selector(f"{EDITS} strong:text('layer 0 · head 0')")
    settle(page)
    assert len(edits(page)) == 3 and "edit=ablate_heads%28layers%3D%5B0%5D%2C+heads%3D%5B0%5D%29" in page.url
    assert page.locator(".st-key-change-without canvas[data-map]").count() == 1  # D, which is compared
    cells.click(position=FIRST, modifiers=["Shift"])
    page.wait_for_selector(f"{EDITS} strong:text('layer 0')", state="detached")
    settle(page)
    kept, after = edits(page), page.locator(NEXT).inner_text()
    assert kept == ["λ × 0.15", "heads ablated · layer 1 · head 1"]
    page.goto(page.url)
    page.wait_for_selector(f"{GRID} canvas")
    settle(page, 120)
    assert edits(page) == kept and page.locator(NEXT).inner_text() == after
    fine(page)


# Training


def test_a_picture_chooses_its_step_play_goes_on_from_there_and_a_training_is_followed(
    new_page, home, small_run, monitored, tmp_path
):
    page = new_page(1440, 1000)
    page.set_default_timeout(120_000)
    query = urlencode({"model": FOLDER, "path": small_run, "example": OWN, "prompt": PROMPT, "answer": "7421"})
    page.goto(f"{home}/training?{query}")
    page.locator(".st-key-training-view canvas[data-map]").first.wait_for()
    settle(page)
    picture = page.locator(".st-key-training-pictures .scatterlayer .trace").nth(1)
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 4)
    page.wait_for_timeout(500)  # the chart notices the pointer
    box = picture.bounding_box()  # it may have moved meanwhile
    page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 4)
    page.wait_for_function("() => location.search.includes('step=4')")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => location.search.includes('step=end')")  # without another click
    page.get_by_role("button", name="Play").wait_for()
    page.get_by_text("a training that is monitored", exact=True).click()
    page.get_by_label("Folder of the monitor").fill(str(tmp_path / "out"))
    page.get_by_label("Folder of the monitor").press("Enter")
    page.wait_for_selector("text=Looking for the first step")
    monitored(0, 1, 2)
    page.wait_for_selector("text=at step 2, loss 2")
    page.wait_for_selector(".st-key-training-of-monitor-lambda .js-plotly-plot")
    monitored(3)
    page.wait_for_selector("text=at step 3, loss 1")
    settle(page)
    assert not [problem for problem in faults(page) if "404" not in problem]


# A small screen


UNTOLD = """
window.Blob = class extends Blob {
  constructor(parts, options) { super(parts.map((part) => (`${part}`.includes('"drawn"') ? "throw Error()" : part)), options) }
}
"""


def test_a_phone_shows_the_page_first_and_charts_even_without_word_of_drawn_maps(new_page, address):
    page = new_page(420, 900)
    page.add_init_script(UNTOLD)
    page.goto(address)
    page.wait_for_selector(MAPS)
    settle(page)
    box = page.get_by_text("Maps", exact=True).first.bounding_box()
    on_top = page.evaluate("([x, y]) => document.elementFromPoint(x, y).textContent", [box["x"] + 5, box["y"] + 5])
    assert "Maps" in on_top
    for chart in ("row-chart", "lambda-chart"):
        page.wait_for_selector(f".st-key-{chart} .js-plotly-plot")
    assert page.locator("[data-testid=stException]").count() == 0


# what a reader writes


def test_markup_is_text_and_a_long_paste_stays_out_of_the_address(new_page, home):
    page = new_page(1300, 1000)
    asked = foreign_requests(page, home)
    page.goto(f"{home}/?example={quote(OWN)}&prompt={quote(HOSTILE)}&spans={quote('<b onclick=x>:1-2')}")
    settle(page)
    page.wait_for_selector(".st-key-view canvas[data-map]")
    assert "<script>" in page.get_by_label("Text", exact=True).input_value()
    assert page.evaluate("window.hit") is None and faults(page) == [] and asked == []
    box = page.get_by_label("Text", exact=True)
    box.focus()
    page.evaluate(
        "text => { document.execCommand('selectAll'); document.execCommand('insertText', false, text) }", "word " * 200_000
    )
    box.press("Control+Enter")
    page.wait_for_selector("[data-testid=stAlert] >> text=shorten it")
    assert len(page.url) < 9000 and faults(page) == []
