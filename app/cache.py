"""Where the app's captures come from: models, prompts and files, loaded once for all sessions.

What is cached here is shared between sessions and never changed by any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st
from access import rules
from catalog import cards, display_name, hide_paths, resolve, trusts_code, without_step

from diffscope import readings
from diffscope.capture.capture import open_capture
from diffscope.errors import DiffscopeError, ModelNotFound, PromptError
from diffscope.lab.training.run import Checkpoints, checkpoints_of
from diffscope.models import load_model
from diffscope.models.folders import locate, tokenizer_folder
from diffscope.models.loading import load_tokenizer
from diffscope.models.outline import outline
from diffscope.prompts.encoded import with_spans
from diffscope.readings.heads import of_heads
from diffscope.readings.reading import Part
from diffscope.scope import Scope
from diffscope.tasks.backcopy import Backcopy
from diffscope.views import attention as attention_view


def examples(model: str) -> list:
    """Return the prompts that come with diffscope for a model: those of its task, if these are in a vocabulary of their own."""
    task = cards().get(without_step(model), {}).get("task")
    copies = task == "copies" if task else reads_copies_alone(model)
    return [prompt for kind in (["copies"] if copies else ["retrieval", "text"]) for prompt in _examples_of(kind)]


def reads_copies_alone(name: str) -> bool:
    """Whether a model has the vocabulary of Bigram-Backcopy, in which no other example can be written.

    False of one that cannot be opened, and of one of the hub, which is not loaded yet.
    """
    with suppress(DiffscopeError):
        return _has_vocabulary_of_copies(name, stamp_of(name))
    return False


@st.cache_resource(show_spinner=False, max_entries=64)
def _has_vocabulary_of_copies(name: str, stamp: int) -> bool:
    home, _ = locate(resolve(name))
    return home is not None and Backcopy().speaks(load_tokenizer(home, trust_remote_code=False))


@st.cache_resource(show_spinner=False)
def _examples_of(kind: str) -> list:
    from diffscope import tasks

    return tasks.examples(kind)


def stamp_of(path: str, weights: bool = False) -> int:
    """Return a number that changes with the files of a model: one that was saved again under the same name is another model.

    Parameters
    ----------
    path : str
    weights : bool
        Look also at all weights and scores below the folder, such as those of checkpoints or a cohort.
    """
    try:
        name = resolve(path) if path else ""
        files: list[Path] = []
        with suppress(DiffscopeError) if weights else nullcontext():  # a cohort is no model
            files += _opened_from(name)
        place = Path(without_step(name)).expanduser()
        for kind in ("*.safetensors", "*.nc") if weights and path and place.is_dir() else ():
            files += place.rglob(kind)
        known = {(str(file), at.st_mtime_ns, at.st_size) for file in files if file.is_file() and (at := file.stat())}
        return hash(tuple(sorted(known)))
    except (OSError, RuntimeError):  # not a path, or not to be read: whoever opens it says so
        return 0
    except DiffscopeError:
        if not weights:
            raise
        return 0


def _opened_from(name: str) -> list[Path]:
    """Return the files that a model or a capture is opened from; of a model that is not there, none."""
    place = Path(name).expanduser()
    if place.is_file():
        return [place]
    with suppress(ModelNotFound):
        home, weights = locate(name)
        if home is not None and weights is not None:
            tokenizer = tokenizer_folder(home) or home  # a run of a cohort may have it beside the cohort
            return [home / "config.json", *weights.glob("*"), *tokenizer.glob("tokenizer*")]
    return []


def checkpoints(name: str) -> Checkpoints:
    """What was kept of the training of a model that readers may open, by names that they may open."""
    path = resolve(name)
    with hide_paths(name, path):
        kept = checkpoints_of(path)
    return replace(kept, names={step: f"{name}{by.removeprefix(path)}" for step, by in kept.names.items()})


@st.cache_resource(show_spinner="Reading what its files say", max_entries=64)
def outlined(name: str, stamp: int):
    """What a model's files say of it before it is loaded."""
    path = resolve(name)
    with hide_paths(name, path):
        return replace(outline(path), name=display_name(name))


def scope(name: str, stamp: int = 0):
    """A model that readers may open, by its name; code that comes with it is run only where this session trusts it."""
    return opened(name, stamp, trusts_code(name))


@st.cache_resource(show_spinner="Loading the model", max_entries=4)
def opened(name: str, stamp: int, trust: bool):
    """The same, for whoever says whether its code is trusted."""
    return _load(name, resolve(name), trust)


def _load(name: str, path: str, trust: bool) -> Scope:
    with hide_paths(name, path):
        model, tokenizer = load_model(path, trust_remote_code=trust)
        return Scope(model, tokenizer, display_name(name))


def opener(names: Iterable[str]) -> Callable[[str], Scope]:
    """A function that opens these models, by name, for one use; a thread that knows nothing of the session may call it."""
    places = {name: (resolve(name), trusts_code(name) or trusts_code(name.rpartition("@")[0])) for name in names}
    return lambda name: _load(name, *places[name])


@st.cache_resource(show_spinner="Capturing", max_entries=16)
def unmarked(name: str, stamp: int, prompt):
    """Return what every layer of a model attended with on a prompt, without spans."""
    return _captured(scope(name, stamp), prompt, {})


@st.cache_resource(show_spinner=False, max_entries=32)
def capture(name: str, stamp: int, prompt, spans: dict):
    """Return a capture with spans, of what cross-attention looks at if there is any; marking spans runs no model again."""
    cap = unmarked(name, stamp, prompt)
    if cap.key_prompts is not None:
        return replace(cap, key_prompts=[with_spans(cap.key_prompts[0], spans)])
    return replace(cap, prompts=[with_spans(cap.prompts[0], spans)])


@st.cache_resource(show_spinner=False, max_entries=32)
def capture_once(name: str, stamp: int, prompt, spans: dict):
    """The same of a model that is opened for this alone, as the many checkpoints of a training are."""
    return _captured(opener([name])(name), prompt, spans)


def _captured(model: Scope, prompt, spans: dict):
    """A capture of a prompt that is not longer than readers may give."""
    if isinstance(prompt, str) and len(prompt) > rules().characters:
        raise PromptError(f"the prompt has {len(prompt):,} characters, and {rules().characters:,} are taken here; shorten it")
    inputs = model.prepare(prompt, embedded=True)
    _check_length("the prompt", max([*inputs.lengths, *(inputs.key_lengths or ())]))
    return model.capture(prompt, spans=spans)


def check_lengths(model: Scope, prompts: Iterable) -> None:
    """Refuse prompts, as :func:`own_prompts` gives them, of which one is longer than readers may give."""
    for prompt in prompts:
        _check_length(f"the prompt {prompt.name!r}", len(model.tokenize(prompt.text)))


def _check_length(what: str, count: int) -> None:
    if count > rules().tokens:
        raise PromptError(f"{what} has {count:,} tokens, and {rules().tokens:,} are taken here; shorten it")


@st.cache_resource(show_spinner="Measuring", max_entries=128)
def once(what: str, key: tuple, _compute: Callable[[], Any]) -> Any:
    """What is computed of captures, once for all who ask the same; `key` says of which captures, and how."""
    return _compute()


@st.cache_resource(show_spinner="Reading the capture", max_entries=4)
def saved(path: str, stamp: int, kind: str = ""):
    """A capture from a file, or its layers of one kind; of a batch its first prompt."""
    return saved(path, stamp).of_kind(kind) if kind else open_capture(resolve(path))[0]


@st.cache_resource(show_spinner="Measuring", max_entries=64)
def measured(_cap, key: tuple, statistic: str, queries: tuple | None):
    """One statistic of a capture; `key` says which capture it is."""
    return _cap.measure([statistic], queries=None if queries is None else list(queries))


@st.cache_resource(show_spinner="Drawing every head", max_entries=16)
def thumbnails(_cap, key: tuple, name: str):
    """One map of every head as a small picture; `key` says of which capture."""
    return _cap.thumbnails(name=name)


def sentence_of(cap, key: tuple, query: int, layer: int, head: int) -> tuple[Part, ...]:
    """Return what is said of a head at a query, in parts; nothing of cross-attention. `key` says of which capture."""
    if cap.key_prompts is not None:
        return ()
    if attention_view.is_small(cap):  # the page holds all its heads, each with its sentence
        return _said_of_layer(cap, key, query, layer)[head]
    return readings.of_head(cap, layer, head, query).parts


@st.cache_resource(show_spinner=False, max_entries=64)
def _said_of_layer(_cap, key: tuple, query: int, layer: int) -> list[tuple[Part, ...]]:
    """Return what is said of every head of a layer at a query, which is read as a whole."""
    return [reading.parts for reading in of_heads(_cap, layer, range(_cap.layer(layer).n_heads), query)]


@st.cache_resource(show_spinner=False, max_entries=8)
def all_heads(_cap, key: tuple, query: int) -> bytes:
    """Return the views of all heads of a small capture, with what is said of each at a query; `key` says of which capture."""
    said = partial(sentence_of, _cap, key, query)
    return attention_view.bundle(_cap, attention_view.places_of(_cap), sentences=said, query=query)


@st.cache_resource(show_spinner="Reading the study", max_entries=4)
def study(name: str):
    """A study that is shipped, by its name."""
    from diffscope.hypotheses.study import open_study

    return open_study(name)
