"""Which models readers may open: bundled ones, those below a folder, their own, and any other where paths may be named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from access import rules
from uploads import Upload, is_upload

from diffscope.errors import DiffscopeError, ModelNotFound
from diffscope.models import folders
from diffscope.models.folders import steps_of

DEEPEST = 4  # folders below the one that is offered
state = st.session_state


@dataclass(frozen=True)
class SessionModel:
    """A model that this session may open beside those that are offered to all.

    Attributes
    ----------
    name : str
        What it is opened by: a folder, or an id of the hub.
    upload : Upload or None
        The files, as long as the session lasts.
    trusted : bool
        Whether code that comes with it is run.
    """

    name: str
    upload: Upload | None = None
    trusted: bool = False


def session_models() -> dict[str, SessionModel]:
    """The models that this session opened or named in an address, by label; uploads as long as they are there."""
    models = state.setdefault("_own", {})
    for label in [label for label, model in models.items() if model.upload is not None and not model.upload.there]:
        del models[label]
    return models


def add_session_model(label: str, model: SessionModel) -> None:
    """Offer a model in this session; an upload takes the place of the one before."""
    if model.upload is not None:
        for name in [name for name, other in session_models().items() if other.upload is not None]:
            del session_models()[name]
    session_models()[label] = model


def trusts_code(name: str) -> bool:
    """Whether this session lets a model run its own code."""
    return any(model.trusted for model in session_models().values() if model.name == name)


@st.cache_resource(show_spinner=False)
def bundled() -> dict[str, dict]:
    """The models that came with the package, by name: path, and what is known about each."""
    from diffscope import models

    return {card["name"]: card for card in models.bundled()}


@st.cache_resource(show_spinner=False, ttl=20)
def scan(folder: Path) -> dict[str, dict]:
    """Cards of the models below a folder, whose names begin with its own; none with a link that leads out of it."""
    models = {}
    for place, inner, files in os.walk(folder):
        home = Path(place)
        depth = len(home.relative_to(folder).parts)
        inner[:] = [name for name in sorted(inner) if not name.startswith(".") and name != "checkpoints" and depth < DEEPEST]
        name = (Path(folder.name) / home.relative_to(folder)).as_posix()
        model = "config.json" in files and any(file.endswith(".safetensors") for file in files)
        if model and name.isprintable() and _stays_inside(home, folder):
            models[name] = {"name": name, "path": str(home), "checkpoints": list(steps_of(str(home)))}
    return models


def _stays_inside(home: Path, folder: Path) -> bool:
    """Whether all files of a model, those of its checkpoints too, lie below a folder, whatever links there are."""
    return all(file.resolve().is_relative_to(folder) for kind in ("*", "checkpoints/*/*") for file in home.glob(kind))


def cards() -> dict[str, dict]:
    """The models that are offered to everybody by name: what is known about each.

    A folder that is itself a model may be called like a bundled one, which it does not replace.
    """
    folder, known = rules().models, bundled()
    found = {} if folder is None else scan(folder)
    return known | {f"./{name}" if name in known else name: card for name, card in found.items()}


def resolve(name: str) -> str:
    """The name or path by which a model that a reader named is opened.

    Raises
    ------
    ModelNotFound
        It is none that readers of this dashboard may open.
    """
    offered = cards()
    base, at, step = (name, "", "") if name in offered else name.rpartition("@")
    if base in offered:
        opened_by = base if base in bundled() else offered[base]["path"]
        return f"{opened_by}{at}{step}"
    if rules().paths or is_upload(name):
        return name
    raise ModelNotFound("this dashboard opens the models that it lists, and those that you upload")


def without_step(name: str) -> str:
    """Return NAME of a checkpoint NAME@STEP of a model that is offered or of a folder, and any other name unchanged."""
    offered = cards()
    base = name.rpartition("@")[0]
    return base if name not in offered and base in offered else folders.without_step(name)


def step_of(name: str) -> str:
    """Return STEP of a checkpoint NAME@STEP; empty of any other name."""
    return name.removeprefix(without_step(name)).removeprefix("@")


def display_name(name: str) -> str:
    """What a model is called on pages: of an upload its folder alone."""
    return Path(name).name if name and is_upload(name) else name


@contextmanager
def hide_paths(name: str, path: str) -> Iterator[None]:
    """Errors that call a model as its reader does, and do not say where on this machine it lies."""
    try:
        yield
    except DiffscopeError as error:
        raise type(error)(str(error).replace(path, display_name(name))) from None
