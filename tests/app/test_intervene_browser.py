"""The Intervene page in a real browser: a slider, heads ablated in the grid, and readers at once."""

from urllib.parse import quote

import pytest
from small_models import PROMPT

from tools.browser import dashboard, faults, settle
from tools.readers import readers_at_once

pytestmark = [pytest.mark.browser, pytest.mark.slow]
EDITS, NEXT, GRID = ".st-key-intervene-edits", ".st-key-intervene-next", ".st-key-intervene-grid"


@pytest.fixture
def address(home, folders):
    """The address of the page, with a small model and a prompt of one's own."""
    where = {
        "tour": "off",
        "model": "a folder or a saved capture",
        "path": str(folders["small-diff"]),
        "example": "own text",
        "prompt": PROMPT,
        "answer": "7421",
    }
    return f"{home}/intervene?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in where.items())


FIRST = {"x": 62, "y": 24}  # of the grid's canvas: layer 0, head 0


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


def test_the_slider_changes_what_is_said_and_the_address_keeps_it(new_page, address):
    page = opened(new_page, address)
    assert edits(page) == ["λ × 0"]
    before = page.locator(NEXT).inner_text()
    for _ in range(3):
        page.locator(f"{EDITS} input[type=range]").first.press("ArrowRight")
    page.wait_for_selector(f"{EDITS} strong:text('λ × 0.15')")
    settle(page)
    after = page.locator(NEXT).inner_text()
    assert after != before and "edit=scale_lambda%3A0.15" in page.url
    page.goto(page.url)
    page.wait_for_selector(f"{GRID} canvas")
    settle(page, 120)
    assert edits(page) == ["λ × 0.15"] and page.locator(NEXT).inner_text() == after
    fine(page)


def test_heads_are_ablated_in_the_grid(new_page, address):
    page = opened(new_page, f"{address}&edit=none&layer=1&head=1")
    page.locator(f"{GRID} [role=grid]").press("x")
    page.wait_for_selector(f"{EDITS} strong:text('layers 1 · heads 1')")
    settle(page)
    cells = page.locator(f"{GRID} canvas").last
    cells.click(position=FIRST, modifiers=["Shift"])  # the first head
    page.wait_for_selector(f"{EDITS} strong:text('layers 0 · heads 0')")
    settle(page)
    assert len(edits(page)) == 2 and "edit=ablate_heads%3Alayers%3D0%3Aheads%3D0" in page.url
    assert page.locator(".st-key-intervene-without canvas[data-map]").count() == 4
    cells.click(position=FIRST, modifiers=["Shift"])
    page.wait_for_selector(f"{EDITS} strong:text('layers 0')", state="detached")
    settle(page)
    assert edits(page) == ["heads ablated · layers 1 · heads 1"]
    fine(page)


def test_readers_at_once_see_their_own_edits(new_page, home):
    """Two edit the same model at the same time in their own ways; ``benchmarks.dashboard`` does the same with ten readers."""
    with dashboard() as (other, _):
        stacks = ["zero_a2", "set_lambda:0.9:layers=1"]
        seen, alone = readers_at_once(new_page, home, other, "intervene?tour=off", stacks)
    assert seen == alone and len({text for text, _ in seen}) == 2
