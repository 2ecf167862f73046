"""Run a dashboard and look at it with a headless Chromium: for screenshots, drives, timings and tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OFFLINE = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Note the order in which a page last asked its server for something and last heard from it, and when that was.
ASKED = """(() => {
  let order = 0;
  window.asked = window.heard = window.heardAt = 0;
  const { send } = WebSocket.prototype;
  const listening = new WeakSet();
  WebSocket.prototype.send = function (...data) {
    window.asked = ++order;
    const hear = () => ([window.heard, window.heardAt] = [++order, performance.now()]);
    if (!listening.has(this)) this.addEventListener("message", hear);
    listening.add(this);
    return send.apply(this, data);
  };
})()"""
#: Tell whether a page has heard from its server since it last asked, nothing for a moment now, and its script is through.
THROUGH = """() => window.asked < window.heard && performance.now() - window.heardAt > 120
  && document.querySelector("[data-testid=stApp][data-test-script-state=notRunning]")"""
#: pages by the last part of their address
PAGES = ("", "compare", "change", "training", "tests")
EDITS, NEXT, GRID = ".st-key-change-edits", ".st-key-change-next", ".st-key-change-grid"
LONGEST = 240  # seconds until a page shows what it asks for
View = tuple[str, tuple[str, ...]]  # the next tokens, as the page writes them, and the edits that it lists


@contextmanager
def dashboard(
    *options: str, environment: dict[str, str] | None = None, script: Path = ROOT / "app" / "main.py"
) -> Iterator[tuple[str, subprocess.Popen]]:
    """Run the dashboard of this checkout, or another script; yield its address, without a slash at the end, and its process."""
    from diffscope.cli.app import SERVE  # what it needs is not there where tests for a GPU run

    port = free_port()
    flags = {"server.port": port, "server.address": "127.0.0.1", "server.headless": "true", "server.fileWatcherType": "none"}
    command = [sys.executable, "-c", SERVE, "run", str(script), *(f"--{k}={v}" for k, v in flags.items())]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {})
    server = subprocess.Popen([*command, *options], cwd=ROOT, env=variables, **quiet)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(server, address)
        yield address, server
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_up(server: subprocess.Popen, address: str, seconds: float = 300) -> None:
    """Wait until a dashboard answers; raise RuntimeError if it ended or took too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the dashboard ended with status {server.returncode} before it was up")
        try:
            with urlopen(f"{address}/_stcore/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the dashboard was not up after {seconds:g} seconds")


@contextmanager
def chromium() -> Iterator:
    """Yield a function that opens a page of a browser: width, height, options; ``page.problems`` lists errors of its console.

    Each page is a visitor of its own, and takes options of Playwright's.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=OFFLINE)

        def new_page(width: int, height: int, **options):
            page = browser.new_page(**options)
            page.set_viewport_size({"width": width, "height": height})
            page.add_init_script(ASKED)
            page.problems = []
            page.on("pageerror", lambda error: page.problems.append(str(error)))
            page.on("console", lambda message: page.problems.append(message.text) if _is_fault(message) else None)
            return page

        yield new_page
        browser.close()


def _is_fault(message) -> bool:
    """Whether a message of the console is an error; Streamlit first looks for its server below the address of a page."""
    return message.type == "error" and "/_stcore/" not in message.location.get("url", "")


def settle(page, seconds: float = 60) -> None:
    """Wait until the script of a page of :func:`chromium` is through; what is drawn after that takes another moment."""
    page.wait_for_selector("[data-testid=stApp]", timeout=seconds * 1000)
    page.wait_for_timeout(120)
    page.wait_for_function(THROUGH, timeout=seconds * 1000)
    page.wait_for_timeout(120)


def faults(page) -> list[str]:
    """Return the red boxes of the page and the errors of its console, a line each."""
    boxes = page.locator("[data-testid=stException]").all_inner_texts()
    return [*(f"red box: {text[:300]}" for text in boxes), *(f"console: {text[:300]}" for text in page.problems)]


def foreign_requests(page, home: str) -> list[str]:
    """Return a list that grows with every address elsewhere that the page requests."""
    addresses = []
    own = (home, home.replace("http", "ws", 1), "data:", "blob:", "about:")
    page.on("request", lambda request: None if request.url.startswith(own) else addresses.append(request.url))
    page.on("websocket", lambda socket: None if socket.url.startswith(own) else addresses.append(socket.url))
    return addresses


def concurrent_views(new_page, home: str, other: str, where: str, stacks: Sequence[str]) -> tuple[list[View], list[View]]:
    """Open the page Intervene for several visitors at once, and for each of them alone on another dashboard.

    Parameters
    ----------
    new_page : callable
        As :func:`chromium` yields it.
    home, other : str
        Addresses of two dashboards, which share nothing: all visitors are at the first at once, and one after the other at the
        second.
    where : str
        The page and its query.
    stacks : sequence of str
        What each visitor's address says of edits.

    Returns
    -------
    together, alone : list of View
        What each visitor sees beside the others, and alone.

    Raises
    ------
    RuntimeError
        A page shows that something went wrong.
    """
    pages = [new_page(1200, 900) for _ in stacks]
    for page, stack in zip(pages, stacks):
        page.goto(f"{home}/{where}&edit={quote(stack)}", wait_until="commit", timeout=1000 * LONGEST)
    together = [_view(page) for page in pages]
    alone = {}
    for stack in dict.fromkeys(stacks):
        page = new_page(1200, 900)
        page.goto(f"{other}/{where}&edit={quote(stack)}", timeout=1000 * LONGEST)
        alone[stack] = _view(page)
    return together, [alone[stack] for stack in stacks]


def _view(page) -> View:
    page.wait_for_selector(f"{GRID} canvas", timeout=1000 * LONGEST)
    settle(page, LONGEST)
    view = page.locator(NEXT).inner_text(), tuple(page.locator(f"{EDITS} strong").all_inner_texts())
    problems = faults(page)
    page.close()
    if problems:
        raise RuntimeError("; ".join(problems))
    return view
