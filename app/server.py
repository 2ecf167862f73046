"""The dashboard for others, behind its door: ``diffscope app --share``."""

import sys
from pathlib import Path

import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from access import REFUSAL, cookie, is_right  # noqa: E402

HEALTH = "/_stcore/health"  # says only that the server is up


class Door:
    """In front of the server: without the token nobody gets any of it, and nobody can send it anything.

    The token comes in the address first, and then in a cookie, which the browser sends with all that the page asks for.
    """

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") == HEALTH:
            await self.app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        given = asked.query_params.get("token", "")
        if is_right(given):
            await self.app(scope, receive, _with_cookie(send, given))
        elif is_right(asked.cookies.get(cookie(), "")):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await PlainTextResponse(REFUSAL, 403)(scope, receive, send)


def _with_cookie(send, token: str):
    """What sends an answer, with the cookie that lets the browser ask for the rest."""

    async def sent(message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).append("set-cookie", f"{cookie()}={token}; Path=/; HttpOnly; SameSite=Lax")
        await send(message)

    return sent


app = st.App(HERE / "main.py", middleware=[Middleware(Door)])
