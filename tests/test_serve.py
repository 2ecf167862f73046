"""The process of the dashboard's server."""

import asyncio
import socket
import sys

import pytest

from diffscope.cli.serve import UndelayedLoop


@pytest.mark.skipif(sys.platform == "win32", reason="it has another event loop")
def test_what_the_server_accepts_sends_at_once():
    """As of Streamlit's socket, whose protocol is not named, so that asyncio by itself leaves the delay on."""

    async def option() -> int:
        accepted = asyncio.get_running_loop().create_future()

        class Peer(asyncio.Protocol):
            def connection_made(self, transport):
                made = transport.get_extra_info("socket")
                accepted.set_result(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        async with await asyncio.get_running_loop().create_server(Peer, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            found = await accepted
            writer.close()
            await writer.wait_closed()
        return found

    with asyncio.Runner(loop_factory=UndelayedLoop) as runner:
        assert runner.run(option())
