"""The process of the dashboard's server, which ``diffscope app`` starts."""

import asyncio
import gc
import logging
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from diffscope.cli.app import find_app

TURN = 0.001  # seconds that a thread computes while others wait, so that files of a page do not wait for what is computed


class UndelayedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers send at once.

    Streamlit opens its socket in a way in which asyncio leaves Nagle's algorithm on: each small file then waits 40 ms for the
    browser to confirm the one before, and a page consists of a hundred.
    """

    async def create_server(self, *arguments: Any, sock: socket.socket | None = None, **options: Any) -> asyncio.Server:
        """As of asyncio; connections that are accepted have the options of the socket that listens."""
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return await super().create_server(*arguments, sock=sock, **options)


class UndelayedPolicy(asyncio.DefaultEventLoopPolicy):
    """What gives such loops."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """As of asyncio."""
        return UndelayedLoop()


def main() -> None:
    """Compute the first view, so that nobody waits for libraries and the model; then run Streamlit on what was typed."""
    sys.path.insert(0, str(find_app().parent))
    logging.disable(logging.WARNING)  # Streamlit warns that no page asks
    with suppress(Exception):  # whatever it is, the page meets it too, and says so
        import_module("prepare").prepare_first_view()
    logging.disable(logging.NOTSET)
    # Streamlit collects garbage after every click: what libraries brought takes longer to look through than the page itself.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(TURN)
    if sys.platform != "win32":
        asyncio.set_event_loop_policy(UndelayedPolicy())
    import_module("streamlit.web.cli").main(prog_name="streamlit")
