"""Every figure of the gallery at the width of every venue: what is asked of a printed figure is checked, and sheets show them.

    python -m tools.figure_sheet OUT            # all; OUT gets a sheet for each width, in colour and in grey
    python -m tools.figure_sheet OUT maps row   # some

Needs pdftotext (poppler-utils) to read the text of a PDF back; without it that one check is left out, which is said.
"""

import dataclasses
import io
import re
import runpy
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

from PIL import Image

from diffscope.figures import Figure, theme
from tools import printed_texts

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
LARGEST = 300_000  # bytes of a PDF
PLACES = [(venue, wide) for venue, widths in theme.VENUES.items() for wide in (False, True) if wide or widths[0] < widths[1]]
SHEET = 2600  # pixels a sheet is wide
DOTS = 110  # an inch


def main(out: Path, names: list[str]) -> int:
    """Draw and check; the number of faults is the exit status."""
    out.mkdir(parents=True, exist_ok=True)
    if shutil.which("pdftotext") is None:
        print("pdftotext is not installed: that text can be read back is not checked")
    faults = []
    pictures: dict[str, list[Image.Image]] = {}
    for script in sorted(GALLERY.glob("*.py")):
        figure = runpy.run_path(str(script)).get("figure") if not names or script.stem in names else None
        if not isinstance(figure, Figure):  # a table, or the view of a notebook
            continue
        for venue, wide in PLACES:
            placed = dataclasses.replace(figure, venue=venue, width=theme.width(venue, wide))
            place = f"{venue}-{'page' if wide else 'column'}"
            for fault in checked(placed, out, twice=(venue, wide) == PLACES[0]):
                faults.append(f"{script.stem}, {place}: {fault}")
                print(faults[-1], flush=True)
            with Image.open(io.BytesIO(placed.picture(DOTS))) as image:
                pictures.setdefault(place, []).append(image.convert("RGB"))
        print(script.stem, flush=True)
    for place, images in pictures.items():
        sheet = together(images)
        sheet.save(out / f"{place}.png")
        sheet.convert("L").save(out / f"{place}-grey.png")
    print(f"{len(PLACES)} widths, {len(next(iter(pictures.values()), []))} figures, {len(faults)} faults")
    return min(len(faults), 100)


def checked(figure, out: Path, twice: bool) -> list[str]:
    """What is wrong with a figure as a PDF; `twice`: whether another run of it is compared."""
    path = figure.save(out / "figure.pdf")
    content = path.read_bytes()
    faults = printed_texts.faults(figure.matplotlib())
    if twice and figure.to_bytes(".pdf") != content:
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


def together(images: list[Image.Image]) -> Image.Image:
    """Pictures beside and below each other on one sheet."""
    places, left, top, tall = [], 0, 0, 0
    for image in images:
        if left + image.width > SHEET:
            left, top, tall = 0, top + tall + 24, 0
        places.append((left, top))
        left += image.width + 24
        tall = max(tall, image.height)
    sheet = Image.new("RGB", (SHEET, top + tall), "#c8ccd4")
    for image, place in zip(images, places):
        sheet.paste(image, place)
    return sheet


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
