"""What readers of this dashboard may do: much on one's own machine, less where others come in."""

from __future__ import annotations

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
