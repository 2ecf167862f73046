"""Token text made fit to be seen: whitespace visible, and escaped for whatever will interpret it."""

from __future__ import annotations

import functools
import html
import unicodedata

VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "": "∅"}


def visible(token: str) -> str:
    """The token with its whitespace and control characters made visible."""
    if token == "":
        return VISIBLE[""]
    return "".join(_visible_character(c) for c in str(token))


def _visible_character(c: str) -> str:
    if c in VISIBLE:
        return VISIBLE[c]
    if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"\\u{ord(c):04x}" if ord(c) > 0xFF else f"\\x{ord(c):02x}"
    return c


def shorten(text: str, longest: int = 12) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def for_html(text: str) -> str:
    """Escaped for plotly, whose labels and hover boxes read HTML, and read dollars as mathematics."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def for_print(text: str) -> str:
    """Characters that none of the fonts can draw become a box."""
    return "".join(c if c.isascii() or _drawable(ord(c)) else "□" for c in text)


@functools.lru_cache(maxsize=4096)
def _drawable(code: int) -> bool:
    return any(code in charmap for charmap in _charmaps())


@functools.lru_cache(maxsize=1)
def _charmaps() -> tuple[frozenset[int], ...]:
    from matplotlib import font_manager

    from diffscope.figures.theme import font_families

    paths = [font_manager.findfont(name) for name in font_families()]
    return tuple(frozenset(font_manager.get_font(path).get_charmap()) for path in paths)
