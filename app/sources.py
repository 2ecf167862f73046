"""Where the app's captures come from: models, prompts and files, loaded once for all sessions.

What is cached here is shared between sessions and never changed by any of them.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import streamlit as st

import diffscope
from diffscope import readings
from diffscope.capture import open_capture
from diffscope.errors import DiffscopeError
from diffscope.models.loading import tokenizer_folder


@dataclass(frozen=True)
class Rules:
    """What readers of this dashboard may do.

    Attributes
    ----------
    paths : bool
        Whether they may name folders and files of this machine.
    characters, tokens : int
        The longest prompt.
    """

    paths: bool = True
    characters: int = 1_000_000
    tokens: int = 65_536


@cache
def rules() -> Rules:
    """The rules that the dashboard was started with."""
    return Rules()


@st.cache_resource(show_spinner="Starting")
def bundled() -> list[dict]:
    """The models that came with the package: name, path, and what is known about each."""
    from diffscope import models

    return list(models.bundled())


@st.cache_resource(show_spinner=False)
def examples() -> list:
    """The prompts that come with diffscope."""
    from diffscope import tasks

    return list(tasks.examples())


def age(path: str) -> float:
    """When a folder's newest file was written: a model saved again under the same name is another model."""
    place = Path(path).expanduser()
    tokenizer = tokenizer_folder(place) or place  # a run of a cohort may have it beside the cohort
    files = [place] if place.is_file() else (*place.glob("*"), *tokenizer.glob("tokenizer*"))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def written(path: str) -> float:
    """When anything that can be tested was last written below a folder: weights, checkpoints, a cohort's scores."""
    folder = Path(path).expanduser()
    files = (file for kind in ("*.safetensors", "*.nc") for file in folder.rglob(kind)) if path and folder.is_dir() else ()
    return max((file.stat().st_mtime for file in files), default=0.0)


@st.cache_resource(show_spinner="Loading the model", max_entries=4)
def scope(name: str, written: float = 0.0):
    """A model by its bundled name or its folder."""
    return diffscope.load(name)


@st.cache_resource(show_spinner="Capturing", max_entries=16)
def capture(name: str, written: float, prompt: str, spans: dict):
    """What every layer of a model attended with on a prompt."""
    return scope(name, written).capture(prompt, spans=spans)


@st.cache_resource(show_spinner=False, max_entries=32)
def capture_once(name: str, written: float, prompt, spans: dict):
    """The same of a model that is opened for this alone, as the many checkpoints of a training are."""
    return diffscope.load(name).capture(prompt, spans=spans)


@st.cache_resource(show_spinner="Reading the training", max_entries=16)
def along_training(_captures: dict, key: tuple, query: int):
    """What is said of captures by step of training; `key` says of which."""
    return readings.along_training(_captures, query)


@st.cache_resource(show_spinner="Reading the capture", max_entries=4)
def saved(path: str, written: float):
    """A capture from a file; of a batch its first prompt."""
    return open_capture(path)[0]


@st.cache_resource(show_spinner="Measuring", max_entries=64)
def measured(_cap, key: tuple, statistic: str, queries: tuple | None):
    """One statistic of a capture; `key` says which capture it is."""
    return _cap.measure([statistic], queries=None if queries is None else list(queries))


@st.cache_resource(show_spinner="Drawing every head", max_entries=16)
def thumbnails(_cap, key: tuple, name: str):
    """One map of every head as a small picture; `key` says of which capture."""
    return _cap.thumbnails(name=name)


@st.cache_resource(show_spinner="Reading the study", max_entries=4)
def study(name: str):
    """A study that is shipped, by its name."""
    from diffscope.hypotheses.study import open_study

    return open_study(name)


@st.cache_resource(show_spinner=False, max_entries=16)
def own_prompts(name: str, content: bytes) -> tuple:
    """The prompts of a file that a person gave, by its name and what is in it; its errors name the file as the person does."""
    from diffscope.tasks import read_prompts

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        path.write_bytes(content)
        try:
            return read_prompts(path)
        except DiffscopeError as error:
            raise type(error)(str(error).replace(f"{folder}{os.sep}", "")) from None
