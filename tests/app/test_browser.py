"""The dashboard in a real browser, one for all of these tests: what only a browser does with its pages."""

from urllib.parse import quote, urlencode

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
    return new_page(1500, 1100)


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


def test_a_click_on_a_head_shows_its_maps_and_the_address_restores_them(page, address):
    page.goto(address)
    page.wait_for_selector(MAPS)
    settle(page)
    assert page.locator(MAPS).count() == 3  # D, and A1 and λ·A2 beside it
    assert page.locator("[data-testid=stException]").count() == 0
    click(page, 2, 0)
    click(page, 0, 1)
    page.wait_for_function("() => location.search.includes('layer=0') && location.search.includes('head=1')")
    page.goto(page.url)
    page.wait_for_selector(MAPS)
    assert "L0H1" in heading(page)


def test_a_prompt_of_ones_own_is_on_the_next_page_after_a_click_on_a_head(page, address):
    page.goto(address.partition("&example=")[0])
    page.wait_for_selector(MAPS)
    settle(page)
    page.get_by_label("Text", exact=True).fill(PROMPT)
    page.get_by_label("Text", exact=True).press("Control+Enter")
    settle(page)
    shown = heading(page)
    click(page, *((2, 0) if "L2H0" not in shown else (0, 1)))
    page.get_by_role("link", name="Change").first.click()
    page.wait_for_selector(EDITS)
    settle(page, 120)
    assert page.get_by_label("Text", exact=True).input_value() == PROMPT and "example=own+text" in page.url


def test_the_pointer_reads_tokens_and_values(page, address):
    page.goto(address)
    page.wait_for_selector(MAPS)
    settle(page)
    page.locator(MAPS).first.scroll_into_view_if_needed()  # what stands above it may push its last rows off the page
    box = page.locator(MAPS).first.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + box["height"] - 4)
    page.wait_for_selector(f"{VIEW} [aria-live]:text('query')", state="attached")
    words = page.locator(f"{VIEW} [aria-live]").text_content()
    assert " is" in words and "A₁" in words and "D" in words


def test_arrows_move_between_heads_and_a_click_reads_the_row(page, address):
    page.goto(f"{address}&layer=1&head=1")
    page.wait_for_selector(MAPS)
    page.locator(f"{VIEW} [role=application]").press("ArrowLeft")
    page.wait_for_selector(f"{VIEW} strong:text('L1H0')")
    page.locator(f"{VIEW} [role=application]").press("ArrowDown")
    page.wait_for_selector(f"{VIEW} strong:text('L2H0')")
    box = page.locator(MAPS).first.bounding_box()
    page.mouse.click(box["x"] + 4, box["y"] + box["height"] * 0.5)
    page.wait_for_function("() => /query=\\d+/.test(location.search)")
    assert "L2H0" in heading(page)
    assert page.locator("[data-testid=stException]").count() == 0


def test_the_maps_are_taken_away(page, address, tmp_path):
    page.goto(address)
    page.wait_for_selector(MAPS)
    page.get_by_role("button", name="Export the maps").click()
    for kind, start in {"PDF": b"%PDF", "SVG": b"<?xml", "HTML": b"<!doctype html>", "CSV": b"#", "NetCDF": b"CDF"}.items():
        with page.expect_download() as started:
            page.get_by_role("button", name=kind, exact=True).click()
        path = tmp_path / started.value.suggested_filename
        started.value.save_as(path)
        assert path.read_bytes().startswith(start), kind
    code = page.locator("[data-testid=stPopoverBody] [data-testid=stCode]").first.inner_text()
    exec(code.replace("maps.pdf", str(tmp_path / "own.pdf")), {})
    assert (tmp_path / "own.pdf").read_bytes().startswith(b"%PDF")


def test_every_page_opens_and_the_reader_keeps_the_place(page, address):
    page.goto(f"{address}&layer=2&head=0")
    settle(page)
    links = page.locator("[data-testid=stTopNavLink]")
    for number in range(links.count()):
        links.nth(number).click()
        settle(page, 120)
        assert faults(page) == []
    links.first.click()
    settle(page)
    assert "layer=2" in page.evaluate("location.search") and "prompt=" in page.evaluate("location.search")
    page.wait_for_selector(f"{VIEW} strong:text('L2H0')")


UNTOLD = """
window.Blob = class extends Blob {
  constructor(parts, options) { super(parts.map((part) => (`${part}`.includes('"drawn"') ? "throw Error()" : part)), options) }
}
"""


@pytest.mark.parametrize("told", [True, False])
def test_charts_follow_the_maps_whether_or_not_the_browser_tells_that_it_has_drawn_them(page, address, told):
    if not told:
        page.add_init_script(UNTOLD)
    page.goto(address)
    for chart in ("row-chart", "lambda-chart"):
        page.wait_for_selector(f".st-key-{chart} .js-plotly-plot")


def test_cursors_of_both_sides_of_a_comparison_are_linked(page, address):
    side = ".st-key-compare-{} canvas[data-map]"
    page.goto(address.replace("/?", "/compare?compare-by=with+and+without+an+edit&layer=1&head=0&"))
    page.wait_for_selector(side.format("right"))
    settle(page)
    assert page.locator(side.format("left")).count() == page.locator(side.format("right")).count() == 1
    box = page.locator(side.format("left")).first.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + box["height"] - 4)
    page.wait_for_selector(".st-key-compare-right [aria-live]:text('query')", state="attached")
    left, right = (page.locator(f".st-key-compare-{name} [aria-live]").text_content() for name in ("left", "right"))
    where = left.partition("A₁")[0]
    assert "query" in where and right.startswith(where) and left != right
    page.locator(".st-key-compare-left [role=application]").press("ArrowRight")
    for name in ("left", "right"):
        page.wait_for_selector(f".st-key-compare-{name} strong:text('L1H1')")
    assert page.locator("[data-testid=stException]").count() == 0


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


def test_the_slider_changes_what_is_said_and_the_address_keeps_it(new_page, change):
    page = opened(new_page, change)
    assert edits(page) == ["λ × 0"]
    before = page.locator(NEXT).inner_text()
    for _ in range(3):
        page.locator(f"{EDITS} input[type=range]").first.press("ArrowRight")
    page.wait_for_selector(f"{EDITS} strong:text('λ × 0.15')")
    settle(page)
    after = page.locator(NEXT).inner_text()
    assert after != before and "edit=scale_lambda%280.15%29" in page.url
    page.goto(page.url)
    page.wait_for_selector(f"{GRID} canvas")
    settle(page, 120)
    assert edits(page) == ["λ × 0.15"] and page.locator(NEXT).inner_text() == after
    fine(page)


def test_heads_are_ablated_in_the_grid(new_page, change):
    page = opened(new_page, f"{change}&edit=none&layer=1&head=1")
    page.locator(f"{GRID} [role=grid]").press("x")
    page.wait_for_selector(f"{EDITS} strong:text('layer 1 · head 1')")
    settle(page)
    cells = page.locator(f"{GRID} canvas").last
    cells.click(position=FIRST, modifiers=["Shift"])  # the first head
    page.wait_for_selector(f"{EDITS} strong:text('layer 0 · head 0')")
    settle(page)
    assert len(edits(page)) == 2 and "edit=ablate_heads%28layers%3D%5B0%5D%2C+heads%3D%5B0%5D%29" in page.url
    assert page.locator(".st-key-change-without canvas[data-map]").count() == 1  # D, which is compared
    cells.click(position=FIRST, modifiers=["Shift"])
    page.wait_for_selector(f"{EDITS} strong:text('layer 0')", state="detached")
    settle(page)
    assert edits(page) == ["heads ablated · layer 1 · head 1"]
    fine(page)


# Training


def test_a_click_on_a_picture_chooses_its_step_and_play_goes_on_from_there(new_page, home, small_run):
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
    page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 4)
    page.wait_for_function("() => location.search.includes('step=4')")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.wait_for_function("() => location.search.includes('step=end')")  # without another click
    page.get_by_role("button", name="Play").wait_for()
    assert not [problem for problem in faults(page) if "404" not in problem]


# A small screen


def test_on_a_phone_the_page_is_seen_first_and_not_its_sidebar(new_page, address):
    page = new_page(420, 900)
    page.goto(address)
    page.wait_for_selector(MAPS)
    settle(page)
    box = page.get_by_text("Maps", exact=True).first.bounding_box()
    on_top = page.evaluate("([x, y]) => document.elementFromPoint(x, y).textContent", [box["x"] + 5, box["y"] + 5])
    assert "Maps" in on_top
    fine(page)


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
    page.reload()
    settle(page)
    assert faults(page) == []


# Opening a model


def test_a_model_is_opened_in_a_panel_over_a_page_and_looked_at_in_explore(new_page, home):
    page = new_page(1440, 900)
    page.set_default_timeout(120_000)
    page.goto(f"{home}/compare?open=model&your_model-source=the+list")
    page.get_by_role("button", name="Open and check").click()
    page.get_by_role("button", name="Open in Explore").click()
    page.wait_for_function("() => !location.pathname.includes('compare')")
    page.locator("[data-testid=stMain] canvas[data-map]").first.wait_for()
    settle(page)
    assert page.get_by_role("dialog").count() == 0 and "open=" not in page.url
    fine(page)
