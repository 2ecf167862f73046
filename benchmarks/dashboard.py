"""Measure how fast the dashboard is in a headless Chromium, and whether it keeps its memory: ``python -m benchmarks.dashboard``.

Bundled model and first example, a server of its own. Times are from the moment of a click, a key or a movement to the first frame
after which the page shows what it asks for, by the page's own clock; medians of several. The prompt of 2,000 tokens is read by a
copy of the bundled model that has more positions; that of 16,384 tokens is a capture of random queries and keys.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from benchmarks import results
from benchmarks.meter import memory
from benchmarks.results import LOAD, Section, table
from diffscope.cards import BUNDLED
from diffscope.views import attention as attention_view
from tests.tiny import random_capture
from tools.browser import chromium, concurrent_views, dashboard, faults, settle

VIEW = ".st-key-view"
MAPS = f"{VIEW} canvas[data-map]"
PLOT = ".js-plotly-plot"
STRIP = ".st-key-strip"
#: pages, and parts of Explore, in the order in which they are visited: what leads there, and what is there then
PLACES = {
    "Compare": ("header a", f".st-key-compare-bars {PLOT}"),
    "Change": ("header a", ".st-key-change-next table"),
    "Training": ("header a", ".st-key-training-view canvas[data-map]"),
    "Tests": ("header a", ".st-key-primaries p"),
    "Explore": ("header a", MAPS),
    "Numbers": (".st-key-part button", f".st-key-amplifier-anatomy {PLOT}"),  # the last of its charts
    "Logits": (".st-key-part button", f".st-key-amplifier-branches {PLOT}"),
    "Maps": (".st-key-part button", MAPS),
}
#: the most of each, in milliseconds; bytes; or the share by which memory may change
LIMITS = {
    "first maps": 2000,
    "next head, held": 50,
    "next head, 2,000 tokens": 300,
    "pointer to readout": 32,
    "λ slider to next tokens": 500,
    **{f"{name}: first visit": 3000 for name in PLACES},
    **{f"{name}: later visit": 1000 for name in PLACES},
    "2,000 tokens: coarse maps": 3000,
    "2,000 tokens: new span": 300,
    "16,384 tokens: overview": 2000,
    "16,384 tokens: zoom step": 300,
    "16,384 tokens: payload": 2_000_000,
    "300 interactions: memory of the server": 0.05,
    "300 interactions: memory of the page": 0.05,
    "ten readers, three editing: see other than alone": 0,
}
#: edits in the addresses of ten readers
STACKS = (
    "none",
    "zero_a2()",
    "none",
    "none",
    "set_lambda(0.9, layers=[1])",
    "none",
    "ablate_heads(layers=[0])",
    "none",
    "none",
    "none",
)

REST = 4000  # milliseconds in which a browser has drawn the charts of a long prompt, and heads beside are fetched
READ = 15_000  # milliseconds in which a reader looks at Explore, and what other pages need is prepared

# Frame by frame, since Playwright looks for a selector every half second, and leaves a handle in the page's memory.
SHOWN = """
const frame = () => new Promise(requestAnimationFrame);
const roots = (node) => [node, ...[...node.querySelectorAll("*")].map((inner) => inner.shadowRoot).filter(Boolean)];
const shown = async (selector, start) => {
  const [outer, inner] = selector.split(/ (.*)/);
  const seen = (node) => [...node.querySelectorAll(inner)].some((found) => found.getClientRects().length);
  while (![...document.querySelectorAll(outer)].some((node) => roots(node).some(seen))) await frame();
  await frame();
  return performance.now() - start;
};
"""
OPENED = f"{{ {SHOWN} window.opened = shown({json.dumps(MAPS)}, 0); }}"
CLICK = f"""
async (node, selector) => {{
  {SHOWN}
  const start = performance.now();
  node.click();
  return shown(selector, start);
}}
"""
MARK = """
async (button, bar) => {
  const before = bar.textContent;
  const start = performance.now();
  button.click();
  while (bar.textContent === before) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}
"""
NEXT = """
async (view, key) => {
  const title = view.querySelector("strong");
  const before = title.textContent;
  const start = performance.now();
  view.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  while (title.textContent === before && performance.now() - start < 60000) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}
"""
POINTER = """
async ([selector, count]) => {
  const canvas = document.querySelector(selector) || [...document.querySelectorAll("*")].map((e) => e.shadowRoot).filter(Boolean)
    .map((root) => root.querySelector("canvas[data-map]")).find(Boolean);
  const over = canvas.nextElementSibling;
  const readout = canvas.getRootNode().querySelector("[role=application] [aria-live]");
  const box = over.getBoundingClientRect();
  const times = [];
  for (let i = 0; i < count; i++) {
    const before = readout.textContent;
    const place = { clientX: box.left + box.width * (i % 2 ? 0.4 : 0.1), clientY: box.top + box.height * (0.95 - 0.002 * i) };
    const start = performance.now();
    over.dispatchEvent(new PointerEvent("pointermove", { ...place, bubbles: true }));
    while (readout.textContent === before && performance.now() - start < 1000) await new Promise(requestAnimationFrame);
    times.push(performance.now() - start);
  }
  return times;
}
"""


def milliseconds(act, until) -> float:
    """Measure from an act to what it leads to."""
    start = time.perf_counter()
    act()
    until()
    return 1000 * (time.perf_counter() - start)


def change_of(locator, value: str):
    """Return what waits until a value of an element, a JavaScript function of it, is another one than now."""
    before = [locator.element_handle(), locator.evaluate(value)]
    return lambda: locator.page.wait_for_function(f"([node, before]) => ({value})(node) !== before", arg=before)


def open_maps(new_page, address: str):
    """Open a page that shows maps; return it when its script is through, and after how many milliseconds they were there."""
    page = new_page(1440, 900)
    page.add_init_script(OPENED)
    page.goto(address)
    taken = page.evaluate("window.opened")
    settle(page, 120)
    return page, taken


def first_maps(new_page, address: str) -> float:
    """Measure how long the first page takes to show maps, and let the server do what it does while one reads."""
    page, taken = open_maps(new_page, f"{address}/?tour=off")
    page.wait_for_timeout(READ)
    page.close()
    return taken


def next_head(page, count: int, rest: int = 0) -> list[float]:
    """Press an arrow key in the view and wait until the next head's maps are drawn; `rest` milliseconds later the next one."""
    view = page.locator(f"{VIEW} [role=application]")
    times = []
    for number in range(count):
        times.append(view.evaluate(NEXT, "ArrowRight" if number % 2 == 0 else "ArrowLeft"))
        settle(page)
        page.wait_for_timeout(rest)
    return times


def slider_to_tokens(new_page, address: str, count: int) -> list[float]:
    """Step the λ slider on the page Change, and wait for what the model says next."""
    page = new_page(1440, 1000)
    page.goto(f"{address}/change?tour=off")
    settle(page, 120)
    slider = page.locator(".st-key-change-edits input[type=range]").first
    table = page.locator(".st-key-change-next")
    times = []
    for _ in range(count):
        changed = change_of(table, "node => node.innerText")
        times.append(milliseconds(lambda: slider.press("ArrowLeft"), changed))
        settle(page)
    page.close()
    return times


def visits(new_page, address: str, count: int) -> dict[str, float]:
    """Measure how long each page takes at its first visit, after a reader has looked at Explore, and later."""
    page, _ = open_maps(new_page, f"{address}/?tour=off")
    page.wait_for_timeout(READ)
    times: dict[str, list[float]] = {}
    for _ in range(1 + count):
        for name, (way_there, there) in PLACES.items():
            way = page.locator(way_there, has_text=name).first
            times.setdefault(name, []).append(way.evaluate(CLICK, there))
            settle(page, 120)
    page.close()
    first = {f"{name}: first visit": of[0] for name, of in times.items()}
    return first | {f"{name}: later visit": statistics.median(of[1:]) for name, of in times.items()}


def save_wide(folder: Path) -> Path:
    """Save a copy of the bundled model that has 4,096 positions."""
    wide = folder / "wide"
    shutil.copytree(BUNDLED / "mini-diff", wide, ignore=shutil.ignore_patterns("checkpoints", "SHA256SUMS"))
    config = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return wide


def two_thousand(new_page, address: str, folder: Path, count: int) -> dict[str, float]:
    """Measure a prompt of about 2,000 tokens: its maps after it was named, a span that is marked, and the next head."""
    model = quote(str(save_wide(folder)), safe="")
    facts = " ".join(f"The magic number of town {number} is {7 * number + 1000}." for number in range(170))
    own = quote("own text")
    where = f"{address}/?tour=off&model={model}&example={own}&prompt="
    open_maps(new_page, where + quote("The magic number of Oslo is 7421."))[0].close()  # which opens the model
    page, coarse = open_maps(new_page, where + quote(f"{facts} The magic number of town 3 is"))
    page.wait_for_timeout(REST)
    heads = next_head(page, count, REST)
    spans = []
    for number, name in enumerate(("answer", "needles")):
        tokens = [page.locator(f"{STRIP} [data-at='{40 * number + at}']") for at in (10, 12)]
        tokens[0].scroll_into_view_if_needed()
        boxes = [token.bounding_box() for token in tokens]
        places = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
        page.mouse.move(*places[0])
        page.mouse.down()
        page.mouse.move(*places[1], steps=3)
        page.mouse.up()
        bar = page.locator(f"{VIEW} .bar").last.element_handle()
        spans.append(page.locator(f"{STRIP} button", has_text=name).evaluate(MARK, bar))
        settle(page, 120)
    page.close()
    return {
        "2,000 tokens: coarse maps": coarse,
        "next head, 2,000 tokens": statistics.median(heads),
        "2,000 tokens: new span": statistics.median(spans),
    }


def long_prompt(new_page, address: str, folder: Path) -> dict[str, float]:
    """Measure the view of a prompt of 16,384 tokens: its overview after the capture, and a step of the zoom."""
    page = new_page(1440, 1000)
    where = f"model={quote('a folder or a saved capture')}&path={quote(str(folder / 'long.dscope'), safe='')}"
    page.goto(f"{address}/?tour=off&{where}")
    page.wait_for_selector(MAPS, timeout=120_000)
    settle(page, 120)
    page.wait_for_timeout(REST)
    overviews = next_head(page, 6, REST)
    zooms = []
    page.locator(MAPS).first.scroll_into_view_if_needed()
    box = page.locator(MAPS).first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.8)
    canvas = page.locator(MAPS).first
    page.keyboard.down("Control")  # without it the wheel scrolls the page
    for _ in range(6):
        changed = change_of(canvas, "canvas => canvas.toDataURL()")
        zooms.append(milliseconds(lambda: page.mouse.wheel(0, -200), changed))
        page.wait_for_timeout(100)
    page.keyboard.up("Control")
    pointer = page.evaluate(POINTER, [MAPS, 50])
    page.close()
    return {
        "16,384 tokens: overview": statistics.median(overviews),
        "16,384 tokens: zoom step": statistics.median(zooms),
        "16,384 tokens: pointer to readout": statistics.median(pointer),
    }


def save_long(folder: Path) -> int:
    """Save a capture of 16,384 tokens; return how many bytes the view of one head gets."""
    capture = random_capture(16384, heads=4, layers=2)
    capture.save(folder / "long.dscope")
    return len(attention_view.buffer(capture, 0, 0))


def interactions(page, server, count: int) -> dict[str, float]:
    """Measure the change of memory over many steps, after a third as many to warm up."""
    session = page.context.new_cdp_session(page)

    def heap() -> float:
        for _ in range(3):  # what one collection lets go another can collect
            session.send("HeapProfiler.collectGarbage")
            page.wait_for_timeout(300)
        return session.send("Runtime.getHeapUsage")["usedSize"]

    next_head(page, count // 3)
    held, pages = memory("VmRSS", server.pid), heap()
    next_head(page, count)
    return {
        "300 interactions: memory of the server": memory("VmRSS", server.pid) / held - 1,
        "300 interactions: memory of the page": heap() / pages - 1,
    }


def ten_readers(new_page, address: str) -> dict[str, float]:
    """Open the page Change ten times at once, three with edits; count those that show other than they would alone."""
    with dashboard() as (other, _):
        start = time.perf_counter()
        seen, alone = concurrent_views(new_page, address, other, "change?tour=off", STACKS)
        taken = time.perf_counter() - start
    if len({text for text, _ in alone}) != len(set(STACKS)):
        raise RuntimeError("edits change nothing that the page says, so that readers could not be told apart")
    return {
        "ten readers, three editing: see other than alone": sum(one != other for one, other in zip(seen, alone)),
        "ten readers, three editing: all pages of both": 1000 * taken,
    }


def measure(count: int, steps: int) -> dict[str, float]:
    """Measure everything, by its name in ``LIMITS``."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, dashboard() as (address, server), chromium() as new_page:
        found["first maps"] = first_maps(new_page, address)
        found["first maps, server warm"] = first_maps(new_page, address)
        page, _ = open_maps(new_page, f"{address}/?tour=off")
        found["next head, held"] = statistics.median(next_head(page, count))
        found["pointer to readout"] = statistics.median(page.evaluate(POINTER, [MAPS, 100]))
        found |= interactions(page, server, steps)
        problems = faults(page)
        page.close()
        found["λ slider to next tokens"] = statistics.median(slider_to_tokens(new_page, address, count))
        with dashboard() as (fresh, _):
            found |= visits(new_page, fresh, max(2, count // 5))
        found |= two_thousand(new_page, address, Path(name), max(3, count // 3))
        found["16,384 tokens: payload"] = save_long(Path(name))
        found |= long_prompt(new_page, address, Path(name))
        found |= ten_readers(new_page, address)
    if problems:
        raise RuntimeError("; ".join(problems))
    return found


def in_words(name: str, value: float) -> str:
    """Return a measurement, or a limit, in its unit."""
    if "payload" in name:
        return f"{value / 1e6:.2f} MB"
    if "see other" in name:
        return str(value)
    return f"{100 * value:+.1f} %" if "memory" in name else f"{value:.0f} ms"


def main() -> None:
    """Measure everything."""
    parser = results.parser(__doc__)
    parser.add_argument("--count", type=int, default=20, help="of each interaction")
    parser.add_argument("--steps", type=int, default=300, help="over which memory is watched")
    options = parser.parse_args()
    numbers = measure(3, 9) if options.quick else measure(options.count, options.steps)
    rows = [
        [name, in_words(name, value), in_words(name, LIMITS[name]) if name in LIMITS else None] for name, value in numbers.items()
    ]
    caption = "Medians of several; memory is after a third as many steps of warming up."
    shown = table(caption, ("", "measured", "at most"), rows)
    command, words = (
        "python -m benchmarks.dashboard",
        "mini-diff as it is bundled, and with 4,096 positions; for the longest prompt a random model",
    )
    text = "Headless Chromium and the server on the same machine, first example."
    section = Section("dashboard", "The dashboard in a browser", command, words, [shown], text, numbers, load=LOAD)
    results.keep("dashboard", [section], options)


if __name__ == "__main__":
    main()
