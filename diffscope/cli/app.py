"""``diffscope app``: the dashboard, in the browser."""

import ipaddress
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.error import URLError
from urllib.request import urlopen

import typer

import diffscope
from diffscope.cli.output import STOPPED, say
from diffscope.errors import DiffscopeError

EXAMPLE = ("diffscope app --port 8600", "diffscope app --share --models ~/models")

SERVE = "from diffscope.cli.serve import main; main()"
PATIENCE = 5  # seconds that the server has to stop
PAUSE = 0.1  # seconds between two looks at the server
EVERYWHERE = "0.0.0.0"
UPLOAD_MB = 1000  # all files of a model together
SHARED_UPLOAD_MB = 100

Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where it listens: localhost; with --share all addresses.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Where the dashboard listens.")]
Share = Annotated[bool, typer.Option("--share", help="Let others in, by an address with a token, within limits.")]
Models = Annotated[Path | None, typer.Option(metavar="DIR", help="Offer the models below this folder by name.")]


def command(port: Port = 8501, host: Host = None, share: Share = False, models: Models = None):
    """Start the dashboard and print its address; Ctrl-C stops it. Nobody else can reach it unless it is shared."""
    host = host or (EVERYWHERE if share else "localhost")
    if not share and not is_own(host):
        raise DiffscopeError(f"others could open the dashboard at {host}; add --share, which lets in who has a token")
    if models is not None and not models.expanduser().is_dir():
        raise DiffscopeError(f"there is no folder {models}; --models takes the folder below which models lie")
    if not port_is_free(host, port):
        raise DiffscopeError(f"port {port} is taken; choose another with --port")
    token = secrets.token_urlsafe(24) if share else ""
    script = find_app("server.py" if share else "main.py")
    flags = [f"--{name}={value}" for name, value in server_options(host, port, share)]
    variables = os.environ | rules(token, models)
    stderr = 2  # for what the server says: stdout is for the address
    asked = ask_to_stop()
    server = subprocess.Popen([sys.executable, "-c", SERVE, "run", str(script), *flags], stdout=stderr, env=variables)
    try:
        if wait_until_up(server, f"{address_of(reachable(host), port)}/_stcore/health", asked):
            say(f"diffscope is at {address_of(shown(host), port)}{f'/?token={token}' if share else ''}  (Ctrl-C stops it)")
        while not asked and server.poll() is None:
            time.sleep(PAUSE)
    finally:
        if server.poll() is None:
            stop(server)
    if asked:
        raise typer.Exit(STOPPED if asked[0] == signal.SIGINT else 0)
    status = server.returncode
    if status not in (0, -signal.SIGTERM, -signal.SIGINT):
        how = f"was ended by signal {-status}" if status < 0 else f"stopped with status {status}"
        raise DiffscopeError(f"the dashboard {how}; what it printed above says why")


def ask_to_stop():
    """Return a list that grows with every signal that asks the command to end.

    A signal raises nothing, so that none can end the command between starting the server and stopping it. Ctrl-C is heard even if
    it was ignored, as in what a script starts in the background: the server hears it there too.
    """
    asked = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked.append(number))
    return asked


def stop(server):
    """Ask the server to stop, then tell it to: one that is just starting may not hear the first."""
    ask = server.terminate if sys.platform == "win32" else partial(server.send_signal, signal.SIGINT)
    for way in (ask, server.terminate, server.kill):
        way()
        with suppress(subprocess.TimeoutExpired):
            server.wait(PATIENCE)
            return


def server_options(host, port, share):
    """Return options of Streamlit by name, which overrule a person's own settings."""
    options = {
        "server.port": port,
        "server.address": host,
        "server.headless": "true",
        "server.maxUploadSize": SHARED_UPLOAD_MB if share else UPLOAD_MB,
        "server.enableXsrfProtection": "true",
        "server.enableCORS": "true",
        "server.enableAgentApi": "false",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "runner.magicEnabled": "false",  # no page relies on it, and every rerun would be rewritten for it
        "logger.hideWelcomeMessage": "true",
    }
    if share:
        options["client.showErrorDetails"] = "none"
        return list(options.items())
    # A page of somebody else's whose name is made to lead here is not let in.
    return [*options.items(), *(("server.allowedHosts", name) for name in ("localhost", "127.0.0.1", "::1", host))]


def rules(token, models):
    """Return the environment variables that tell the dashboard what its readers may do."""
    variables = {"DIFFSCOPE_TOKEN": token, "DIFFSCOPE_MODELS": str(models.expanduser().resolve()) if models else ""}
    return variables | ({"HF_HUB_OFFLINE": "1"} if token else {})


def find_app(name="main.py"):
    """Return the dashboard inside the installed package, or that of the checkout that diffscope is imported from."""
    package = Path(diffscope.__file__).parent
    for script in (package / "_app" / name, package.parent / "app" / name):
        if script.is_file():
            return script
    raise DiffscopeError(f"the dashboard is missing beside {package}; install diffscope-attention again")


def is_own(host):
    """Return whether an address is of this machine alone."""
    return all(ipaddress.ip_address(address[0].partition("%")[0]).is_loopback for *_, address in addresses(host))


def addresses(host, port=0):
    """Return what a name or address stands for, as sockets take it."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DiffscopeError(f"nothing goes by the address {host} ({error.strerror}); --host takes one of this machine") from None


def port_is_free(host, port):
    """Return whether nothing listens on this port of the machine."""
    for family, _, _, _, address in addresses(reachable(host), port):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(address) == 0:
                return False
    return True


def reachable(host):
    """Return the address by which this machine reaches what listens at a host."""
    return {EVERYWHERE: "127.0.0.1", "::": "::1"}.get(host, host)


def shown(host):
    """Return the address by which others reach what listens at a host."""
    if host not in (EVERYWHERE, "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # asked for a route, it sends nothing
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return probe.getsockname()[0]


def address_of(host, port):
    """Return the address of a page."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def wait_until_up(server, health, asked):
    """Wait until the server answers, and return True; False if it ended before, or the command was asked to end."""
    while not asked and server.poll() is None:
        try:
            with urlopen(health, timeout=5):
                return True
        except (URLError, OSError):
            time.sleep(PAUSE)
    return False
