"""Record the animation at the top of README: ``python -m tools.animation [FILE]``, by default ``docs/pictures/explore.webp``.

It shows the dashboard on the bundled model: some heads are looked at, then λ is drawn to 0 and the model no longer answers. Each
view is a screenshot; the pointer between two of them and the words below are painted on it, so that few pictures are taken and
what moves is small.
"""

from __future__ import annotations

import argparse
import io
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tools.browser import ROOT, chromium, dashboard, faults, settle

FILE = ROOT / "docs" / "pictures" / "explore.webp"
FONT = ROOT / "diffscope" / "figures" / "fonts" / "Arimo-Regular.ttf"
SIZE, SCALE = (1040, 730), 1.25  # of the page, and how many pixels each of its pixels becomes
BAR = 46  # pixels of the page below it, for words
LARGEST = 2_000_000  # bytes
#: layer and head that are looked at one after the other, and what is said of them
HEADS = (
    (2, 0, "Layer 2, head 0: what it looks at, in a sentence with its numbers"),
    (0, 0, "Layer 0, head 0: orange is attention with a minus sign"),
)
FACTORS = (0.8, 0.6, 0.4, 0.2, 0.0)  # of λ
MOVES, MOVE = 6, 50  # pictures of a pointer on its way, and milliseconds of each
LOOK, READ, END = 800, 2800, 4500  # milliseconds of a view
POINTER = ((0, 0), (0, 17), (4, 13.5), (7, 20), (10, 18.5), (7, 12.5), (12.5, 12.5))
GRID = "[role=grid]:visible"
MAPS = ".st-key-part-maps"
SLIDER = ".st-key-change-edits [data-testid=stSlider] input[type=range]"
HEADER = 56  # pixels of the page that its tabs lie over


@dataclass
class Scene:
    """A view of the dashboard, the words below it, how long it stays, and where on it the pointer is and then goes."""

    picture: Image.Image
    words: str
    milliseconds: int
    start: tuple[float, float]
    end: tuple[float, float]


class Recorder:
    """Recorder of scenes of one page."""

    def __init__(self, page) -> None:
        self.page = page
        self.pointer = (SIZE[0] * 0.62, SIZE[1] * 0.75)
        self.scenes: list[Scene] = []

    def open(self, address: str) -> None:
        """Go to an address and fold the column at the side away, unless it is."""
        self.page.goto(address)
        settle(self.page, 180)
        side = self.page.locator("[data-testid=stSidebar]")
        if side.is_visible():
            side.hover()
            self.page.locator("[data-testid=stSidebarCollapseButton] button").click()
        self.page.mouse.move(*self.pointer)
        self.rest()

    def rest(self, seconds: float = 2.5) -> None:
        """Wait until what the page draws after its script has been drawn; raise RuntimeError if something went wrong."""
        settle(self.page, 180)
        self.page.wait_for_timeout(1000 * seconds)
        if problems := faults(self.page):
            raise RuntimeError("; ".join(problems))

    def scroll_to(self, place: str) -> None:
        """Scroll so that a part of the page begins below the tabs."""
        far = self.page.locator(place).first.bounding_box()["y"] - HEADER
        self.page.evaluate("far => document.querySelector('[data-testid=stMain]').scrollBy(0, far)", far)
        self.page.wait_for_timeout(300)

    def show(self, words: str, milliseconds: int) -> None:
        """Add the page as it is now."""
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.scenes.append(Scene(picture, words, milliseconds, self.pointer, self.pointer))

    def point(self, place: tuple[float, float]) -> None:
        """Move the pointer on the last scene."""
        self.pointer = self.scenes[-1].end = place

    def head(self, layer: int, head: int, layers: int = 3, heads: int = 2) -> None:
        """Click a head among the small pictures."""
        box = self.page.locator(f"{GRID} canvas").last.bounding_box()
        left, top = 56, 18  # of the numbers of layers and heads, as in diffscope/views/head_grid.js
        x = box["x"] + left + (box["width"] - left) * (head + 0.5) / heads
        y = box["y"] + top + (box["height"] - top) * (layer + 0.5) / layers
        self.point((x, y))
        self.page.mouse.click(x, y)
        self.page.mouse.move(*SIZE)  # away, so that nothing pops up over the other heads
        self.rest()

    def handle(self) -> tuple[float, float]:
        """Return where the handle of λ's slider is."""
        box = self.page.locator(SLIDER).first.locator("xpath=../..").bounding_box()  # the field itself is out of sight
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def factor(self, value: float) -> None:
        """Draw λ's slider down to a value."""
        handle = self.page.locator(SLIDER).first
        while float(handle.input_value()) > value + 1e-6:
            handle.press("ArrowLeft")
        self.rest()
        self.point(self.handle())


def record(new_page, address: str) -> list[Scene]:
    """Look at heads, then take the second map away."""
    recorder = Recorder(new_page(*SIZE, color_scheme="light", device_scale_factor=SCALE))
    recorder.open(f"{address}/")
    recorder.scroll_to(MAPS)
    recorder.show("Explore: all heads of a small model, and the maps of one", READ)
    for layer, head, words in HEADS:
        recorder.head(layer, head)
        recorder.show(words, READ)
    recorder.open(f"{address}/change?edit=scale_lambda(1.0)")
    recorder.pointer = recorder.handle()
    recorder.show("Change: the same model, λ as it was trained", READ)
    for factor in FACTORS:
        recorder.factor(factor)
        words = f"λ × {factor:g}" if factor else "λ × 0: without the second map the answer is gone"
        recorder.show(words, END if not factor else LOOK)
    return recorder.scenes


def frames(scenes: list[Scene]) -> list[tuple[Image.Image, int]]:
    """Return the pictures of the animation with how long each stays, in milliseconds."""
    made = []
    for scene in scenes:
        made.append((paint(scene, scene.start), scene.milliseconds))
        for step in range(1, MOVES + 1) if scene.end != scene.start else ():
            share = step / MOVES
            share = share * share * (3 - 2 * share)  # slow at both ends
            place = tuple(a + (b - a) * share for a, b in zip(scene.start, scene.end))
            made.append((paint(scene, place), MOVE if step < MOVES else 4 * MOVE))
    return made


def paint(scene: Scene, pointer: tuple[float, float]) -> Image.Image:
    """Return the picture of a scene with its words below it and the pointer at a place of the page."""
    width, height = scene.picture.size
    bar = round(BAR * SCALE)
    picture = Image.new("RGB", (width, height + bar), "#1f2937")
    picture.paste(scene.picture)
    draw = ImageDraw.Draw(picture)
    font = ImageFont.truetype(str(FONT), round(21 * SCALE))
    draw.text((width / 2, height + bar / 2), scene.words, fill="white", font=font, anchor="mm")
    outline = [((pointer[0] + x) * SCALE, (pointer[1] + y) * SCALE) for x, y in POINTER]
    draw.polygon(outline, fill="black", outline="white", width=2)
    return picture


def save(made: list[tuple[Image.Image, int]], file: Path) -> None:
    """Write the animation, which begins again at its end; raise RuntimeError if it is too large."""
    pictures, milliseconds = zip(*made)
    options = {"lossless": True, "quality": 100, "method": 4} if file.suffix == ".webp" else {"optimize": True}
    buffer = io.BytesIO()
    more = {"save_all": True, "append_images": pictures[1:], "duration": list(milliseconds), "loop": 0}
    pictures[0].save(buffer, file.suffix[1:], **more, **options)
    if buffer.tell() > LARGEST:
        raise RuntimeError(f"the animation has {buffer.tell():,} bytes, and may have {LARGEST:,}; take fewer or smaller pictures")
    file.write_bytes(buffer.getvalue())


def main() -> int:
    """Record the animation into the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    file = parser.parse_args().file
    with dashboard() as (address, _), chromium() as new_page:
        made = frames(record(new_page, address))
    save(made, file)
    seconds = sum(milliseconds for _, milliseconds in made) / 1000
    print(f"{file}: {len(made)} pictures, {seconds:.0f} s, {file.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
