"""A dashboard that runs, and a headless Chromium that looks at it: for screenshots, drives, timings and tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
#: pages by the last part of their address
PAGES = ("", "compare", "intervene", "amplifier", "training", "hypotheses", "your_model")


@contextmanager
def dashboard(
    *options: str, environment: dict[str, str] | None = None, script: Path = ROOT / "app" / "main.py"
) -> Iterator[tuple[str, subprocess.Popen]]:
    """Run the dashboard of this checkout, or another script; gives its address, without a slash at the end, and its process."""
    from diffscope.cli.app import SERVE  # what it needs is not there where tests for a GPU run

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = {"server.port": port, "server.address": "127.0.0.1", "server.headless": "true", "server.fileWatcherType": "none"}
    command = [sys.executable, "-c", SERVE, "run", str(script), *(f"--{k}={v}" for k, v in flags.items())]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {})
    server = subprocess.Popen([*command, *options], cwd=ROOT, env=variables, **quiet)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(server, address)
        yield address, server
    finally:
        server.terminate()
        server.wait(30)


def _wait(server: subprocess.Popen, address: str, seconds: float = 60) -> None:
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
def chromium(profile: Path | None = None) -> Iterator:
    """A function that opens a page of a browser: width, height, options; ``page.problems`` is what its console complains of.

    Each page is a visitor of its own, with options of Playwright's. With a folder for a profile all are one visitor, whose cache
    is kept there: to open the dashboard again is then a quarter less work.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        if profile is None:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=OFFLINE)
        else:
            browser = play.chromium.launch_persistent_context(profile, executable_path=CHROMIUM, args=OFFLINE)

        def new_page(width: int, height: int, **options):
            page = browser.new_page(**options)
            page.set_viewport_size({"width": width, "height": height})
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
    """Wait until the page's script is through; what is drawn after that takes another moment."""
    page.wait_for_selector("[data-testid=stApp]", timeout=seconds * 1000)
    page.wait_for_timeout(120)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=seconds * 1000)
    page.wait_for_timeout(120)


def faults(page) -> list[str]:
    """Red boxes of the page, and what its console complained of."""
    boxes = page.locator("[data-testid=stException]").all_inner_texts()
    return [*(f"red box: {text[:300]}" for text in boxes), *(f"console: {text[:300]}" for text in page.problems)]


def asked_elsewhere(page, home: str) -> list[str]:
    """A list that grows by what the page asks for from elsewhere, as it comes."""
    asked = []
    own = (home, home.replace("http", "ws", 1), "data:", "blob:", "about:")
    page.on("request", lambda request: None if request.url.startswith(own) else asked.append(request.url))
    page.on("websocket", lambda socket: None if socket.url.startswith(own) else asked.append(socket.url))
    return asked
