"""``diffscope app``: the dashboard, in the browser."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated
from urllib.error import URLError
from urllib.request import urlopen

import typer

import diffscope
from diffscope.cli.output import say
from diffscope.errors import DiffscopeError

EXAMPLE = ("diffscope app --port 8600",)

# The libraries are loaded before the server is up, so that nobody's first page waits for them.
SERVE = "import diffscope, plotly.graph_objects; diffscope.load; from streamlit.web.cli import main; main(prog_name='streamlit')"

Port = Annotated[int, typer.Option(min=1, max=65535, help="Where the dashboard listens.")]


def command(port: Port = 8501):
    """Start the dashboard on the bundled models and print its address; Ctrl-C stops it."""
    script = find_app()
    if not port_is_free(port):
        raise DiffscopeError(f"port {port} is taken; choose another with --port")
    options = {
        "server.port": port,
        "server.address": "localhost",
        "server.headless": "true",
        "browser.gatherUsageStats": "false",
        "logger.hideWelcomeMessage": "true",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    stderr = 2  # for what the server says: stdout is for the address
    server = subprocess.Popen([sys.executable, "-c", SERVE, "run", str(script), *flags], stdout=stderr)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    try:
        address = f"http://localhost:{port}"
        if wait_until_up(server, f"{address}/_stcore/health"):
            say(f"diffscope is at {address}  (Ctrl-C stops it)")
        status = server.wait()
    except KeyboardInterrupt:
        server.send_signal(signal.SIGINT if sys.platform != "win32" else signal.SIGTERM)
        server.wait()
        raise
    if status > 0:
        raise DiffscopeError(f"the dashboard stopped with status {status}; what it printed above says why")


def find_app():
    """The dashboard inside the installed package, or the one of the checkout that diffscope is imported from."""
    package = Path(diffscope.__file__).parent
    for script in (package / "_app" / "main.py", package.parent / "app" / "main.py"):
        if script.is_file():
            return script
    raise DiffscopeError(f"the dashboard is missing beside {package}; install diffscope-attention again")


def port_is_free(port):
    """Whether nothing listens on this port of the machine."""
    for family, _, _, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(address) == 0:
                return False
    return True


def wait_until_up(server, health):
    """Wait until the server answers; False if it ended before it did."""
    while server.poll() is None:
        try:
            with urlopen(health, timeout=5):
                return True
        except (URLError, OSError):
            time.sleep(0.1)
    return False
