"""Use every control of every page in a headless Chromium: ``python -m tools.drive_dashboard [--pages compare …]``.

After each step the page must show no red box, and its console no error. Controls are found on the page, so that new ones are
driven without being named here. What changes the model or the prompt for all that follows is set back. At last every choice is
made another one, and the address of the page is opened in a browser that has never been there: its controls must say the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from playwright.sync_api import TimeoutError as TookTooLong

from diffscope.errors import first_line
from tools.browser import PAGES, chromium, dashboard, faults, settle

OPTIONS = 8  # of a select box that are tried
CONTROLS = """
() => {
  const kinds = "Selectbox MultiSelect NumberInput Slider Checkbox Radio ButtonGroup TextInput TextArea".split(" ");
  const said = {};
  for (const kind of kinds)
    for (const box of document.querySelectorAll(`[data-testid=st${kind}]`)) {
      if (!box.checkVisibility()) continue;
      const label = `${kind} ${box.querySelector("label")?.innerText || box.getAttribute("aria-label") || ""}`.trim();
      const inputs = [...box.querySelectorAll("input, textarea")];
      const chosen = [...box.querySelectorAll("[aria-checked=true], [aria-selected=true]")].map((node) => node.innerText);
      const values = inputs.map((input) => (["checkbox", "radio"].includes(input.type) ? input.checked : input.value));
      const text = ["Selectbox", "MultiSelect", "Slider"].includes(kind) ? box.innerText : "";
      (said[label] ||= []).push(JSON.stringify([text, values, chosen]));
    }
  return said;
}
"""
SHARED = ("Model", "Prompt", "Training step")  # driven on the first page only, and set back by going there again


class Driver:
    """Driver of the controls of one page, which notes what goes wrong after each step."""

    def __init__(self, page, address: str, where: str) -> None:
        self.page = page
        self.address = f"{address}/{where}"
        self.where = where or "explore"
        self.steps = 0
        self.restored = 0
        self.wrong: list[str] = []

    def open(self) -> None:
        self.page.goto(self.address)
        settle(self.page, 180)
        self.after("opened")

    def after(self, step: str) -> None:
        """Wait for the page, and note what is wrong."""
        self.steps += 1
        try:
            settle(self.page, 180)
        except Exception as error:
            self.wrong.append(f"{self.where}: {step}: the page does not come to rest ({first_line(error)})")
            self.open()
            return
        problems = faults(self.page)
        self.wrong += [f"{self.where}: {step}: {problem}" for problem in problems]
        self.page.problems.clear()
        if problems:
            self.page.goto(self.address)
            settle(self.page, 180)

    def labels(self, kind: str) -> list[str]:
        """Return the labels of the controls of a kind, in the order of the page."""
        boxes = self.page.locator(f"[data-testid={kind}]:visible")
        return [boxes.nth(at).locator("label").first.inner_text() for at in range(boxes.count())]

    def boxes(self, kind: str) -> Iterator[tuple[str, object]]:
        """Yield the controls of a kind with their labels; those that vanish meanwhile are left out."""
        for label in dict.fromkeys(self.labels(kind)):
            if self.where != "explore" and label in SHARED:
                continue
            box = self.page.locator(f"[data-testid={kind}]:visible").filter(has_text=label).first
            if box.count():
                yield label, box

    def unfold(self, box) -> None:
        """Open a select box; what is drawn late may move it away and so close it again."""
        for _ in range(3):
            box.locator("input, [role=combobox]").first.click()
            with suppress(TookTooLong):
                self.page.wait_for_selector("[role=option]", timeout=5000)
                return
        raise RuntimeError("a select box does not stay open")

    def selects(self) -> None:
        for label, box in self.boxes("stSelectbox"):
            self.unfold(box)
            names = self.page.locator("[role=option]").all_inner_texts()[:OPTIONS]
            self.page.keyboard.press("Escape")
            for name in [*names[1:], *names[:1]]:
                again = self.page.locator("[data-testid=stSelectbox]:visible").filter(has_text=label).first
                if not again.count():
                    break
                self.unfold(again)
                option = self.page.get_by_role("option", name=name, exact=True).first
                if not option.count():
                    self.page.keyboard.press("Escape")
                    continue
                option.click()
                self.after(f"{label} = {name}")

    def numbers(self) -> None:
        for label, box in self.boxes("stNumberInput"):
            for step in ("stNumberInputStepUp", "stNumberInputStepDown"):
                button = box.locator(f"[data-testid={step}]")
                if button.count() and button.is_enabled():
                    button.click()
                    self.after(f"{label}: {step}")

    def sliders(self) -> None:
        for label, box in self.boxes("stSlider"):
            for key in ("ArrowRight", "ArrowLeft", "Home", "End"):
                box.locator("input[type=range]").first.press(key)
                self.after(f"{label}: {key}")

    def ticks(self) -> None:
        for label, box in self.boxes("stCheckbox"):
            for _ in range(2):
                box.locator("label").first.click()
                self.after(f"{label} ticked")

    def groups(self) -> None:
        for kind in ("stButtonGroup", "stRadio"):
            for label, box in self.boxes(kind):
                for at in range(min(OPTIONS, box.locator("button, [role=radio]").count())):
                    box.locator("button, [role=radio]").nth(at).click()
                    self.after(f"{label}: option {at}")

    def texts(self) -> None:
        for kind in ("stTextInput", "stTextArea"):
            for label, box in self.boxes(kind):
                field = box.locator("input, textarea").first
                before = field.input_value()
                for words in ("<b>no such</b> $x$", before):
                    field.fill(words)
                    field.press("Control+Enter" if kind == "stTextArea" else "Enter")
                    self.after(f"{label} = {words!r:.40}")

    def popovers(self) -> None:
        for at in range(self.page.locator("[data-testid=stPopover] button:visible").count()):
            button = self.page.locator("[data-testid=stPopover] button:visible").nth(at)
            words = button.inner_text()
            button.click()
            downloads = self.page.locator("[data-testid=stPopoverBody] [data-testid=stDownloadButton] button")
            for number in range(downloads.count()):
                name = downloads.nth(number).inner_text()
                with self.page.expect_download(timeout=120_000) as started:
                    downloads.nth(number).click()
                if started.value.failure():
                    self.wrong.append(f"{self.where}: {words}: {name}: {started.value.failure()}")
            self.page.keyboard.press("Escape")
            self.after(f"{words}: {downloads.count()} downloads")

    def expanders(self) -> None:
        for at in range(min(OPTIONS, self.page.locator("[data-testid=stExpander] summary").count())):
            self.page.locator("[data-testid=stExpander] summary").nth(at).click()
            self.after(f"expander {at}")

    def canvases(self) -> None:
        count = self.page.locator("canvas[data-map]:visible").count()
        for at in range(min(count, 4)):
            canvas = self.page.locator("canvas[data-map]:visible").nth(at)
            canvas.scroll_into_view_if_needed()
            box = canvas.bounding_box()
            if not box:
                continue
            self.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.6)
            self.page.keyboard.down("Control")  # without it the wheel scrolls the page
            self.page.mouse.wheel(0, -400)
            self.page.keyboard.up("Control")
            self.page.mouse.down()
            self.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.7)
            self.page.mouse.up()
            self.page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.6)
            self.after(f"canvas {at}")
        for view in range(self.page.locator("[role=application]:visible").count()):
            for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "+", "-", "Escape"):
                self.page.locator("[role=application]:visible").nth(view).press(key)
                self.after(f"view {view}: {key}")

    def buttons(self) -> None:
        for words in dict.fromkeys(self.page.locator("[data-testid=stButton] button:visible:enabled").all_inner_texts()):
            button = self.page.locator("[data-testid=stButton] button:visible:enabled").filter(has_text=words).first
            if words and button.count() and button.is_enabled():
                button.click()
                self.page.wait_for_timeout(1000)
                self.after(f"button {words!r}")

    def alter(self) -> None:
        """Make every choice another one, as far as the page offers one."""
        for label, box in self.boxes("stSelectbox"):
            self.unfold(box)
            options = self.page.locator("[role=option]")
            options.nth(1 if options.count() > 1 else 0).click()
            self.after(f"{label}: another")
        for label, box in self.boxes("stNumberInput"):
            button = box.locator("[data-testid=stNumberInputStepUp]")
            other = box.locator("[data-testid=stNumberInputStepDown]")
            (button if button.is_enabled() else other).click()
            self.after(f"{label}: another")
        for label, box in self.boxes("stSlider"):
            box.locator("input[type=range]").first.press("ArrowLeft")
            self.after(f"{label}: another")

    def permalink(self, new_page) -> None:
        """Open the address of the page, with other choices than at first, in another browser, and compare all controls."""
        self.open()
        self.alter()
        here = self.page.evaluate(CONTROLS)
        fresh = new_page(self.page.viewport_size["width"], self.page.viewport_size["height"])
        fresh.goto(self.page.url)
        there: dict = {}
        for _ in range(60):  # controls come one by one, and nothing says which is the last
            settle(fresh, 180)
            there = fresh.evaluate(CONTROLS)
            if there == here:
                break
            fresh.wait_for_timeout(500)
        fresh.close()
        self.restored = sum(len(values) for label, values in here.items() if there.get(label) == values)
        self.wrong += [
            f"{self.where}: the address does not bring back {label}: {there.get(label)} instead of {values}"
            for label, values in here.items()
            if there.get(label) != values
        ]

    def drive(self, new_page, addresses: bool) -> None:
        if addresses:
            return self.permalink(new_page)
        self.open()
        for use in (
            self.expanders,
            self.canvases,
            self.numbers,
            self.sliders,
            self.ticks,
            self.groups,
            self.selects,
            self.texts,
            self.popovers,
            self.buttons,
        ):
            try:
                use()
            except Exception as error:
                self.wrong.append(f"{self.where}: {use.__name__}: {first_line(error)}")
                self.open()
        self.permalink(new_page)


def main() -> int:
    """Drive what the command line says; 1 where anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", nargs="+", default=list(PAGES), help="parts of addresses, such as compare")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--addresses", action="store_true", help="only compare what addresses bring back")
    chosen = parser.parse_args()
    wrong = []
    with dashboard() as (address, _), chromium() as new_page:
        for where in chosen.pages:
            start = time.monotonic()
            page = new_page(chosen.width, 1100)
            page.set_default_timeout(20_000)
            driver = Driver(page, address, "" if where == "explore" else where)
            driver.drive(new_page, chosen.addresses)
            page.close()
            wrong += driver.wrong
            print(
                f"{driver.where}: {driver.steps} steps, {driver.restored} controls restored by the address, "
                f"{len(driver.wrong)} faults, {time.monotonic() - start:.0f} s",
                flush=True,
            )
            for words in driver.wrong:
                print(f"  {words}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
