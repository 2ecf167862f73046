"""Several readers of one dashboard at once, some of whom edit the model, and what each of them would see alone."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from tools.browser import faults, settle

EDITS, NEXT, GRID = ".st-key-intervene-edits", ".st-key-intervene-next", ".st-key-intervene-grid"
LONGEST = 240  # seconds until a page shows what it asks for
View = tuple[str, tuple[str, ...]]


def readers_at_once(new_page, home: str, other: str, where: str, stacks: Sequence[str]) -> tuple[list[View], list[View]]:
    """What readers see who open the page Intervene at once, and what each sees where nobody else was.

    Parameters
    ----------
    new_page : callable
        Of ``tools.browser.chromium``.
    home, other : str
        Addresses of two dashboards: all readers are at the first, and one after the other at the second, which shares nothing
        with it.
    where : str
        The page and its query.
    stacks : sequence of str
        What each reader's address says of edits.

    Returns
    -------
    seen, alone : list of (str, tuple of str)
        For each reader the next tokens, as the page writes them, and the edits that it lists.

    Raises
    ------
    RuntimeError
        A page shows that something went wrong.
    """
    pages = [new_page(1200, 900) for _ in stacks]
    for page, stack in zip(pages, stacks):
        page.goto(f"{home}/{where}&edit={quote(stack)}", wait_until="commit", timeout=1000 * LONGEST)
    seen = [_view(page) for page in pages]
    alone = {}
    for stack in dict.fromkeys(stacks):
        page = new_page(1200, 900)
        page.goto(f"{other}/{where}&edit={quote(stack)}", timeout=1000 * LONGEST)
        alone[stack] = _view(page)
    return seen, [alone[stack] for stack in stacks]


def _view(page) -> View:
    page.wait_for_selector(f"{GRID} canvas", timeout=1000 * LONGEST)
    settle(page, LONGEST)
    view = page.locator(NEXT).inner_text(), tuple(page.locator(f"{EDITS} strong").all_inner_texts())
    problems = faults(page)
    page.close()
    if problems:
        raise RuntimeError("; ".join(problems))
    return view
