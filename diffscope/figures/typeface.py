"""The typeface of printed figures: it comes with the package, so that a figure has the same layout on every machine."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

ARIMO = Path(__file__).parent / "fonts" / "Arimo-Regular.ttf"  # as wide, letter by letter, as Arial and Helvetica
#: What only some machines have, for characters that neither Arimo nor DejaVu Sans has.
OTHER_SCRIPTS = ("Noto Sans CJK JP", "Noto Sans Arabic")
#: What an SVG asks its viewer for: Arimo, or what is as wide.
ON_THE_WEB = "Arimo, Arial, Helvetica, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans CJK JP', 'Noto Sans Arabic', sans-serif"


def families() -> list[str]:
    """Return the families of printed text, in the order in which a character is looked for.

    The first two are Arimo, which comes with the package, and DejaVu Sans, which comes with matplotlib. Matplotlib is told of
    their files under names of their own, since a machine may have other versions under the usual names.
    """
    from matplotlib import font_manager

    manager = font_manager.fontManager
    known = {entry.name for entry in manager.ttflist}
    for name, path in _files().items():
        if name not in known:
            manager.ttflist.append(replace(font_manager.ttfFontProperty(font_manager.get_font(path)), name=name))
    return [*_files(), *(name for name in OTHER_SCRIPTS if name in known)]


def for_the_web(svg: bytes) -> bytes:
    """Return an SVG of matplotlib's that names families which its viewer may have, the same ones on every machine."""
    return svg.replace(", ".join(map(repr, families())).encode(), ON_THE_WEB.encode())


@functools.lru_cache(maxsize=4096)
def drawable(code: int) -> bool:
    """Return whether any of the families has a glyph for a character."""
    return any(code in charmap for charmap in _charmaps())


def _files() -> dict[str, str]:
    """Return the fonts that are always there, by the name that matplotlib is told."""
    import matplotlib

    dejavu = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return {"diffscope Arimo": str(ARIMO), "diffscope DejaVu Sans": str(dejavu)}


@functools.lru_cache(maxsize=1)
def _charmaps() -> tuple[frozenset[int], ...]:
    from matplotlib import font_manager

    paths = [font_manager.findfont(name) for name in families()]
    return tuple(frozenset(font_manager.get_font(path).get_charmap()) for path in paths)
