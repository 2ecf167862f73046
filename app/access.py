"""Who is let in: where others can reach the dashboard, whoever has the token of this start."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
