"""Who is let in: where others can reach the dashboard, whoever has the token of this start."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from functools import cache
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

import streamlit as st

TOKEN = "DIFFSCOPE_TOKEN"
MODELS = "DIFFSCOPE_MODELS"


@dataclass(frozen=True)
class Rules:
    """What readers may do.

    Attributes
    ----------
    paths : bool
        Whether they may name folders and files of this machine.
    hub : bool
        Whether they may name models of the hub.
    characters, tokens : int
        The longest prompt.
    models : Path or None
        The folder whose models are offered by name.
    token : str
        What an address has to have to be let in; empty where nobody is kept out.
    """

    paths: bool = True
    hub: bool = True
    characters: int = 1_000_000
    tokens: int = 65_536
    models: Path | None = None
    token: str = ""

    @property
    def upload_bytes(self) -> int:
        """The most that all files of an upload may have; no single one is taken that has more."""
        return int(st.get_option("server.maxUploadSize")) * 2**20


@cache
def rules() -> Rules:
    """The rules that the dashboard was started with: ``diffscope app`` puts them into the environment."""
    folder = os.environ.get(MODELS, "")
    models = Path(folder).resolve() if folder else None
    token = os.environ.get(TOKEN, "")
    if not token:
        return Rules(models=models)
    return Rules(paths=False, hub=False, characters=50_000, tokens=4096, models=models, token=token)


REFUSAL = "This dashboard is opened by an address with its token; ask whoever started it for the whole address."
HEALTH = "/_stcore/health"  # says only that the server is up


def cookie() -> str:
    """The name of this start's cookie: another dashboard of the same machine has its own."""
    return f"diffscope-{hashlib.sha256(rules().token.encode()).hexdigest()[:8]}"


def is_right(token: str) -> bool:
    """Whether a token is the one of this start, in a time that says nothing of how much of it is right."""
    right = rules().token
    return bool(right) and hmac.compare_digest(token.encode(errors="replace"), right.encode())


def admitted() -> bool:
    """Whether this session is let in, whose address then keeps the token; where it is not, one line says so."""
    if not rules().token:
        return True
    state = st.session_state
    if not state.get("_admitted"):
        state["_admitted"] = is_right(st.query_params.get("token", "")) or is_right(str(st.context.cookies.get(cookie(), "")))
    if not state["_admitted"]:
        st.info(REFUSAL)
        return False
    st.query_params["token"] = rules().token
    return True


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
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if is_right(given):
            await self.app(scope, receive, _with_cookie(send, given))
        elif is_right(_cookie(headers.get("cookie", ""))):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _refuse(send)


def _cookie(header: str) -> str:
    try:
        kept = SimpleCookie(header).get(cookie())
    except CookieError:
        return ""
    return "" if kept is None else kept.value


def _with_cookie(send, token: str):
    """What sends an answer, with the cookie that lets the browser ask for the rest."""
    line = f"{cookie()}={token}; Path=/; HttpOnly; SameSite=Lax".encode()

    async def sent(message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"set-cookie", line)]}
        await send(message)

    return sent


async def _refuse(send) -> None:
    body = REFUSAL.encode()
    kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": kind})
    await send({"type": "http.response.body", "body": body})
