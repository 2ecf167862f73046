"""The dashboard in a real browser: maps on the first page, a click on a head, an address that restores the view."""

from urllib.parse import quote

import pytest
from small_models import PROMPT

from tools.browser import faults, settle

pytestmark = [pytest.mark.browser, pytest.mark.slow]
VIEW = ".st-key-view"
MAPS = f"{VIEW} canvas[data-map]"


@pytest.fixture
def address(home, folders):
    """The address of a running dashboard, with a small model and a prompt of one's own."""
    path = quote(str(folders["small-diff"]), safe="")
    own = f"example={quote('own text')}&prompt={quote(PROMPT)}&answer=7421"
    return f"{home}/?model={quote('a folder or a saved capture')}&path={path}&{own}"


@pytest.fixture
def page(new_page):
    page = new_page(1500, 1100)
    page.set_default_timeout(60_000)
    return page


def heading(page):
    return page.locator(f"{VIEW} strong").text_content()


def click(page, layer, head):
    """A click on a head in the grid, which its tooltip names."""
    box = page.locator(".st-key-heads [role=grid] canvas").first.bounding_box()
    for down in range(8, int(box["height"]), 8):
        for right in range(8, int(box["width"]), 24):
            page.mouse.move(box["x"] + right, box["y"] + down)
            if page.locator(".st-key-heads [data-tip]").inner_text().startswith(f"layer {layer}, head {head}\n"):
                page.mouse.click(box["x"] + right + 10, box["y"] + down)  # not on the edge
                settle(page)
                page.wait_for_selector(f"{VIEW} strong:text('layer {layer} · head {head}')")
                return
    raise AssertionError(f"no cell of the grid is layer {layer}, head {head}")


def test_a_click_on_a_head_shows_its_maps_and_the_address_restores_them(page, address):
    page.goto(address)
    page.wait_for_selector(MAPS)
    settle(page)
    assert page.locator(MAPS).count() == 4
    assert page.locator("[data-testid=stException]").count() == 0
    click(page, 2, 0)
    click(page, 0, 1)
    page.wait_for_function("() => location.search.includes('layer=0') && location.search.includes('head=1')")
    page.goto(page.url)
    page.wait_for_selector(MAPS)
    assert "layer 0 · head 1" in heading(page)


def test_the_pointer_reads_tokens_and_values(page, address):
    page.goto(address)
    page.wait_for_selector(MAPS)
    settle(page)
    box = page.locator(MAPS).first.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + box["height"] - 4)
    page.wait_for_selector(f"{VIEW} [aria-live]:text('query')", state="attached")
    words = page.locator(f"{VIEW} [aria-live]").text_content()
    assert " is" in words and "A₁" in words and "D" in words


def test_arrows_move_between_heads_and_a_click_reads_the_row(page, address):
    page.goto(f"{address}&layer=1&head=1")
    page.wait_for_selector(MAPS)
    page.locator(f"{VIEW} [role=application]").press("ArrowLeft")
    page.wait_for_selector(f"{VIEW} strong:text('layer 1 · head 0')")
    page.locator(f"{VIEW} [role=application]").press("ArrowDown")
    page.wait_for_selector(f"{VIEW} strong:text('layer 2 · head 0')")
    box = page.locator(MAPS).first.bounding_box()
    page.mouse.click(box["x"] + 4, box["y"] + box["height"] * 0.5)
    page.wait_for_function("() => /query=\\d+/.test(location.search)")
    assert "layer 2 · head 0" in heading(page)
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
    page.wait_for_selector(f"{VIEW} strong:text('layer 2 · head 0')")


def test_cursors_of_both_sides_of_a_comparison_are_linked(page, address):
    side = ".st-key-compare-{} canvas[data-map]"
    page.goto(address.replace("/?", "/compare?tour=off&compare-by=with+and+without+an+edit&layer=1&head=0&"))
    page.wait_for_selector(side.format("right"))
    settle(page)
    assert page.locator(side.format("left")).count() == page.locator(side.format("right")).count() == 4
    box = page.locator(side.format("left")).first.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + box["height"] - 4)
    page.wait_for_selector(".st-key-compare-right [aria-live]:text('query')", state="attached")
    left, right = (page.locator(f".st-key-compare-{name} [aria-live]").text_content() for name in ("left", "right"))
    where = left.partition("A₁")[0]
    assert "query" in where and right.startswith(where) and left != right
    page.locator(".st-key-compare-left [role=application]").press("ArrowRight")
    for name in ("left", "right"):
        page.wait_for_selector(f".st-key-compare-{name} strong:text('layer 1 · head 1')")
    assert page.locator("[data-testid=stException]").count() == 0
