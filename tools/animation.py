"""Record the animation at the top of README: ``python -m tools.animation [FILE]``, by default ``docs/pictures/explore.webp``.

It shows the dashboard on the bundled model: the head whose second map the answer needs, then the control, a layer without whose
second map the model answers as before, then λ of the first layer drawn to 0, and the model no longer answers. Each view is a
screenshot; the pointer between two of them and the words below are painted on it, so that few pictures are taken and what moves
is small.
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
DRAWN = 2500  # milliseconds in which a page draws what comes after its script
FACTORS = (0.8, 0.6, 0.4, 0.2, 0.0)  # of λ of layer 0, whose second map the answer needs
CONTROL = "scale_lambda(0.0, layers=1)"  # changes nothing
LOSS = "scale_lambda(1.0, layers=0)"
MOVES, MOVE = 6, 50  # pictures of a pointer on its way, and milliseconds of each
LOOK, READ, END = 800, 2800, 4500  # milliseconds of a view
POINTER = ((0, 0), (0, 17), (4, 13.5), (7, 20), (10, 18.5), (7, 12.5), (12.5, 12.5))
NEEDING = ".st-key-needing button"
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

    def rest(self) -> None:
        """Wait until what the page draws after its script has been drawn; raise RuntimeError if something went wrong."""
        settle(self.page, 180)
        self.page.wait_for_timeout(DRAWN)
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

    def click(self, place: str) -> None:
        """Click a button of the last scene."""
        box = self.page.locator(place).first.bounding_box()
        self.point((box["x"] + box["width"] / 2, box["y"] + box["height"] / 2))
        self.page.mouse.click(*self.pointer)
        self.page.mouse.move(*SIZE)  # away, so that nothing pops up
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
    """Look at the head that needs its second map, then take the second map of another layer away, then that of its own."""
    recorder = Recorder(new_page(*SIZE, color_scheme="light", device_scale_factor=SCALE))
    recorder.open(f"{address}/")
    recorder.show("Explore: in which layer the answer needs the second map, and in which it does not", READ)
    recorder.click(NEEDING)
    recorder.scroll_to(MAPS)
    recorder.show("Layer 0, head 0: A2 looks from the number at the word before it, with a minus sign (orange)", READ)
    recorder.open(f"{address}/change?edit={CONTROL}")
    recorder.show("Change, the control: without the second map of layer 1 the answer is the same", READ)
    recorder.open(f"{address}/change?edit={LOSS}")
    recorder.pointer = recorder.handle()
    recorder.show("Now layer 0: λ as it was trained", READ)
    for factor in FACTORS:
        recorder.factor(factor)
        words = f"λ of layer 0 × {factor:g}" if factor else "λ of layer 0 × 0: without its second map the answer is gone"
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
