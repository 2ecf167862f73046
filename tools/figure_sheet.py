"""Check every figure of the gallery at the width of every venue, and draw sheets that show them.

    python -m tools.figure_sheet OUT            # all; OUT gets a sheet for each width, in colour and in grey
    python -m tools.figure_sheet OUT maps row   # some

Texts have to lie inside the figure and apart from each other, a colour has to mean what docs/figures_and_tables.md says, fonts
have to be embedded as outlines, and files have to be small.
Without pdftotext (poppler-utils) it is not checked that the text of a PDF can be read back.
"""

import dataclasses
import io
import re
import runpy
import shutil
import subprocess
import sys
import zlib
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from PIL import Image

from diffscope.figures import Figure, theme
from diffscope.figures.escaping import for_print

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
LARGEST = 300_000  # bytes of a PDF
PLACES = [(venue, wide) for venue, widths in theme.VENUES.items() for wide in (False, True) if wide or widths[0] < widths[1]]
SHEET = 2600  # pixels, width of a sheet
MARGIN = 24  # pixels between figures on a sheet
DOTS = 110  # per inch
CONTROLS = ("uniform attention", "uniform map", "permuted", "initialisation", "of other", "of the next", "unedited", "tolerance")
SLACK = 0.5  # points that a text may lie outside of the figure, or overlap another along its line
LEADING = 1.5  # points that the boxes of two lines may overlap across their lines: boxes are higher than letters


class Text(NamedTuple):
    """A text of a drawing, its box (left, bottom, right, top) in points, and whether it is turned upright."""

    words: str
    box: np.ndarray
    upright: bool


class _Recorder(RendererAgg):
    """Renderer that notes every text instead of drawing it."""

    def __init__(self, drawing) -> None:
        super().__init__(*drawing.bbox.size, drawing.dpi)
        self.artists: dict = {}
        self.lines: list = []

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        if mtext is not None:
            self.artists[id(mtext)] = mtext
            return
        width, height, _ = self.get_text_width_height_descent(s, prop, ismath)  # a line of several, from its lower left
        across, up = (height, width) if angle == 90 else (width, height)
        left = x - across if angle == 90 else x
        self.lines.append((s, (left, self.height - y, left + across, self.height - y + up), angle == 90))

    def extent(self, text) -> tuple[float, ...]:
        """Return the box of a text in pixels; of a slanted one that of its end, since its whole box covers its neighbours."""
        left, low, right, high = text.get_window_extent(self).extents
        return (left, low, right, high) if text.get_rotation() % 90 == 0 else (right - 4, high - 4, right, high)


def texts(drawing) -> list[Text]:
    """Return every text that a matplotlib figure draws; ticks beyond the ends of an axis are not drawn."""
    recorder = _Recorder(drawing)
    with theme.styled():  # as it is when the figure is saved
        drawing.draw(recorder)
    whole = [(text.get_text(), recorder.extent(text), text.get_rotation() == 90) for text in recorder.artists.values()]
    return [Text(words, np.array(box) * 72 / drawing.dpi, upright) for words, box, upright in whole + recorder.lines]


def text_faults(drawing) -> list[str]:
    """Return what is wrong with the texts of a matplotlib figure, a line each."""
    width, height = drawing.get_size_inches() * 72
    drawn = texts(drawing)
    faults = [] if drawn else ["there is no text"]
    for words, (left, low, right, high), _ in drawn:
        if "mathdefault" in words:
            faults.append(f"{words!r} is mathematics")
        if left < -SLACK or low < -SLACK or right > width + SLACK or high > height + SLACK:
            faults.append(f"{words!r} is outside")
    return faults + [f"{one.words!r} is on {other.words!r}" for one, other in combinations(drawn, 2) if _overlap(one, other)]


def colour_faults(drawing) -> list[str]:
    """Return which colours of a matplotlib figure mean something else than docs/figures_and_tables.md says, a line each."""
    from matplotlib.colors import to_hex

    faults = []
    hues = [*theme.SERIES, *theme.SPAN_COLOURS.values(), *theme.OTHER_SPANS]
    neutral = {*theme.CONTROLS, theme.INK, theme.RULE, theme.PAPER, theme.UNSEEN}
    signs = {theme.BLUES[6], theme.ORANGES[5]}  # of estimates without a name, as on a board
    for ax in drawing.axes:
        named = {id(part): label for artist, label in zip(*ax.get_legend_handles_labels()) for part in _parts(artist)}
        for artist in [*ax.lines, *ax.patches]:
            label = named.get(id(artist), "")
            colour = to_hex(artist.get_facecolor() if hasattr(artist, "get_facecolor") else artist.get_color())
            if colour not in {*_colours_of(label), *neutral} | ({*hues, *signs} if not label else set()):
                faults.append(f"{label or 'something without a name'!r} is {colour}")
    return faults


def _parts(artist) -> list:
    """Return the lines and bars of what has one name."""
    from matplotlib.container import BarContainer, ErrorbarContainer

    if isinstance(artist, BarContainer):
        return list(artist.patches)
    return [artist[0]] if isinstance(artist, ErrorbarContainer) else [artist]


def _colours_of(label: str) -> set[str]:
    """Return which colours that are not neutral a name may have: those of its map or span, none if it is a control, or a hue."""
    maps = {for_print(name): colour for name, colour in theme.SYMBOL_COLOURS.items()}
    if label in maps:
        return {maps[label], theme.BLUES[4], theme.ORANGES[3]}  # lighter ones behind the D of a row
    if any(word in label for word in CONTROLS):
        return set()
    return {theme.SPAN_COLOURS[label]} if label in theme.SPAN_COLOURS else {*theme.OTHER_SPANS, *theme.SERIES}


def _overlap(one: Text, other: Text) -> bool:
    """Whether two texts overlap by more than the room above and below their letters."""
    across = min(one.box[2], other.box[2]) - max(one.box[0], other.box[0])
    up = min(one.box[3], other.box[3]) - max(one.box[1], other.box[1])
    return up > SLACK and across > LEADING if one.upright and other.upright else across > SLACK and up > LEADING


def pdf_faults(figure: Figure, path: Path, repeat: bool) -> list[str]:
    """Save a figure as a PDF and return what is wrong with it; `repeat`: whether it is drawn again and compared."""
    content = figure.save(path).read_bytes()
    drawing = figure.matplotlib()
    faults = text_faults(drawing) + colour_faults(drawing)
    if repeat and figure.to_bytes(".pdf") != content:
        faults.append("two runs differ")
    left, _, right, _ = map(float, re.search(rb"/MediaBox \[([^]]+)\]", content)[1].split())
    if abs((right - left) / 72 - figure.width) > 0.01:
        faults.append(f"{(right - left) / 72:.3f} in wide instead of {figure.width}")
    if len(content) > LARGEST:
        faults.append(f"{len(content) // 1000} kB")
    parts = [zlib.decompress(part) for part in re.findall(rb"stream\r?\n(.*?)endstream", content, re.S) if part[:1] == b"x"]
    if b"/Type3" in b"".join([content, *parts]):
        faults.append("Type 3 fonts")
    if shutil.which("pdftotext"):
        text = subprocess.run(["pdftotext", str(path), "-"], capture_output=True, text=True, check=True).stdout
        if len(text.split()) < 3:
            faults.append("its text cannot be read back")
        if "mathdefault" in text:
            faults.append("raw mathematics")
    return faults


def sheet_of(images: list[Image.Image]) -> Image.Image:
    """Return one picture with all images in rows."""
    places, left, top, tall = [], 0, 0, 0
    for image in images:
        if left + image.width > SHEET:
            left, top, tall = 0, top + tall + MARGIN, 0
        places.append((left, top))
        left += image.width + MARGIN
        tall = max(tall, image.height)
    sheet = Image.new("RGB", (SHEET, top + tall), "#c8ccd4")
    for image, place in zip(images, places):
        sheet.paste(image, place)
    return sheet


def main(out: Path, names: list[str]) -> int:
    """Draw and check; the number of faults is the exit status."""
    out.mkdir(parents=True, exist_ok=True)
    if shutil.which("pdftotext") is None:
        print("pdftotext is not installed: it is not checked that text can be read back")
    faults = []
    pictures: dict[str, list[Image.Image]] = {}
    for script in sorted(GALLERY.glob("*.py")):
        figure = runpy.run_path(str(script)).get("figure") if not names or script.stem in names else None
        if not isinstance(figure, Figure):  # a table, or the view of a notebook
            continue
        for venue, wide in PLACES:
            placed = dataclasses.replace(figure, venue=venue, width=theme.width(venue, wide))
            place = f"{venue}-{'page' if wide else 'column'}"
            for fault in pdf_faults(placed, out / "figure.pdf", repeat=(venue, wide) == PLACES[0]):
                faults.append(f"{script.stem}, {place}: {fault}")
                print(faults[-1], flush=True)
            with Image.open(io.BytesIO(placed.picture(DOTS))) as image:
                pictures.setdefault(place, []).append(image.convert("RGB"))
        print(script.stem, flush=True)
    for place, images in pictures.items():
        sheet = sheet_of(images)
        sheet.save(out / f"{place}.png")
        sheet.convert("L").save(out / f"{place}-grey.png")
    print(f"{len(PLACES)} widths, {len(next(iter(pictures.values()), []))} figures, {len(faults)} faults")
    return min(len(faults), 100)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
