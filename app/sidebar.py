"""What a page looks at: a model, a prompt and its spans, chosen in the sidebar and the same on every page."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import streamlit as st
from access import rules
from cache import capture, examples, saved, scope, stamp_of
from catalog import SessionModel, add_session_model, bundled, cards, display_name, session_models, trusts_code, without_step
from file_picker import choose_file, own_prompts
from messages import escape_markdown
from uploads import is_upload
from url_state import OPENED, PANEL, bound, fits_address

from diffscope import Chars
from diffscope.cards import is_standard, size_of, trained_on
from diffscope.errors import DiffscopeError, ModelNotFound, PromptError, SpanError
from diffscope.figures.escaping import short_name

OTHER = "a folder or a saved capture"
OPEN = "open a model…"
OWN = "own text"
FILE = "a file"
CHAT = "a chat"
LAST_STEP = "end of training"
EXAMPLES = "How long an example is, how many numbers it states (needles), and how far into it the answer stands."
NO_MODEL = "No model is installed with this package. Train one with `diffscope train`, or give the folder of a model below."
UNMARKED = "not marked"
LAYERS = {"self": "self-attention", "encoder": "the encoder", "cross": "cross-attention"}  # by kind
SIDES = "In cross-attention the prompt's tokens look at tokens of another side; in the encoder these look at one another."
SEVERAL, PLACES = 2, 12  # places of an answer: from how many on one is chosen, and how many are offered
AROUND = 16  # characters
TOO_LONG = "This text is too long for the page's address, which does not bring it back."
MARK = re.compile(r"(.+):\s*(\d{1,7})\s*(?:-\s*(\d{1,7})\s*)?", re.ASCII | re.DOTALL)
Given = tuple[object, dict, str, tuple[str, ...]]  # prompt, spans, answer, distractors
state = st.session_state


@dataclass(frozen=True)
class Subject:
    """A model and what it is shown, or a capture that was saved.

    Attributes
    ----------
    model : str
        Bundled name, folder, or the path of a saved capture.
    saved : bool
        Whether it is a saved capture: it has maps, and no model to run.
    prompt : str or list
        A text, or the messages of a chat.
    spans : dict
        As ``Scope.capture`` takes them.
    answer : str
        The answer's text, where it was given as text.
    distractors : tuple of str
        Other answers that the prompt is known to state.
    kind : str
        Of which layers it is, where there is cross-attention; else empty.
    decoder : str
        The decoder's text, if the prompt is that of an encoder; its start token alone if that is empty.
    """

    model: str
    saved: bool = False
    prompt: object = ""
    spans: dict = field(default_factory=dict)
    answer: str = ""
    distractors: tuple[str, ...] = ()
    kind: str = ""
    decoder: str = ""
    _opened: tuple[str, int] = field(default=("", 0), repr=False)

    def __post_init__(self) -> None:
        if self._opened[0] != self.model:
            object.__setattr__(self, "_opened", (self.model, stamp_of(self.model)))

    @property
    def stamp(self) -> int:
        """The stamp of its model's files when it was chosen, so that nothing that is cached mixes two models of one name."""
        return self._opened[1]

    @property
    def asked(self) -> object:
        """What the model is run on: the prompt, or a text each for its encoder and its decoder."""
        return {"input_ids": self.prompt, "decoder_input_ids": self.decoder} if self.decoder else self.prompt

    @property
    def key(self) -> tuple:
        """What distinguishes it from any other, for caches; a file that was written again is another one."""
        return (self.model, self.stamp, json.dumps([self.asked, self.kind]), repr(self.spans))

    def scope(self):
        """The model, opened."""
        if self.saved:
            raise DiffscopeError("a saved capture has maps but no model to run; choose a model for this")
        return scope(self.model, self.stamp)

    def capture(self):
        """What every layer attends with; where a span cannot be marked it says so, and looks without spans."""
        if self.saved:
            return saved(self.model, self.stamp, self.kind)
        try:
            cap = capture(self.model, self.stamp, self.asked, self.spans)
        except SpanError as error:
            st.warning(escape_markdown(self._missing() or str(error)))
            cap = capture(self.model, self.stamp, self.asked, {})
        return cap.of_kind(self.kind) if self.kind else cap

    def marked_spans(self) -> dict:
        """Its spans, as its capture has them: none where they cannot be marked."""
        try:
            capture(self.model, self.stamp, self.asked, self.spans)
        except SpanError:
            return {}
        return self.spans

    def _missing(self) -> str:
        """What is to be done if the answer does not stand in the text, as one that is left of the prompt before."""
        if not isinstance(self.prompt, str) or self.spans.get("answer") != self.answer or self.answer in self.prompt:
            return ""
        return f"“{self.answer}” is not in your text: type the answer as it stands in your text, or leave it empty."

    def code(self) -> str:
        """Python that gives the same capture."""
        kind = f".of_kind({self.kind!r})" if self.kind else ""
        if self.saved:
            return f"import diffscope\n\ncap = diffscope.open({self.model!r})[0]{kind}\n"
        return (
            "import diffscope\n\n"
            f"scope = {as_loaded(self.model)}{'  # the folder with the files' if is_upload(self.model) else ''}\n"
            f"prompt = {self.asked!r}\n"
            f"cap = scope.capture(prompt, {'key_spans' if self.kind else 'spans'}={as_code(self.marked_spans())}){kind}\n"
        )


def as_loaded(model: str) -> str:
    """Python that opens a model; an upload by what it is called, as a folder of its reader."""
    trust = trusts_code(model)
    return f"diffscope.load({display_name(model)!r}{f', trust_remote_code={trust}' if trust else ''})"


def as_code(spans: dict) -> str:
    """Spans as Python writes them."""
    return f"{{{', '.join(f'{name!r}: {_written(value)}' for name, value in spans.items())}}}"


def _written(span) -> str:
    """A span, of which one or several may be ranges of characters."""
    if isinstance(span, Chars):
        return f"diffscope.{span!r}"
    return f"[{', '.join(map(_written, span))}]" if isinstance(span, (list, tuple)) else repr(span)


def choose_subject(at_step: bool = True, two_sides: bool = False) -> Subject | None:
    """The model and prompt that the reader chose in the sidebar; None while something is missing, which is said.

    With `two_sides` the model may have an encoder whose text the decoder's tokens look at.
    """
    name = choose_model(at_step=at_step)
    if name is None:
        return None
    if is_saved(name):
        return Subject(name, saved=True, kind=choose_kind(name))
    prompt, spans, answer, distractors = choose_prompt(name)
    if not prompt:
        st.info("Give a file of prompts to look at." if state["example"] == FILE else "Write a prompt to look at.")
        return None
    if not two_sides:
        refuse_encoder(name)
    decoder, kind = choose_side() if has_encoder(name) else ("", "")
    marks = {} if kind else marked(name, prompt)
    if "answer" in marks:  # tokens that are marked as the answer are asked for, whatever was written
        answer = ""
    spans |= marks
    subject = Subject(name, prompt=prompt, spans=spans, answer=answer, distractors=distractors, kind=kind, decoder=decoder)
    state["_subject"] = subject
    return subject


def is_saved(name: str) -> bool:
    """Whether a name is that of a saved capture's file; a model's folder may be called like one."""
    is_model = name in cards() or os.path.isdir(os.path.expanduser(name))
    return name.endswith((".dscope", ".safetensors")) and not is_model


def has_encoder(name: str) -> bool:
    """Whether a prompt of the model is a text for its encoder; of one that does not open it is not known, and false."""
    try:
        return without_step(name) not in bundled() and scope(name, stamp_of(name)).has_encoder
    except DiffscopeError:
        return False  # whoever looks at it says so


def refuse_encoder(name: str) -> None:
    """Raise DiffscopeError if a model has an encoder, on a page that shows none."""
    if has_encoder(name):
        raise DiffscopeError(
            f"{short_name(display_name(name))} has an encoder and a decoder: Explore shows its maps, and Compare those of saved "
            "captures"
        )


def choose_side() -> tuple[str, str]:
    """Choose the text of a decoder, and the kind of layers that is shown."""
    kinds = [*LAYERS][::-1]
    with st.sidebar:
        text = st.text_input("The decoder's text", **bound("decoder"), placeholder="none: its start token alone")
        check_length(text)
        kind = st.selectbox("Layers", kinds, **bound("kind", options=kinds), format_func=LAYERS.__getitem__, help=SIDES)
    return text, kind


def choose_kind(name: str) -> str:
    """Choose the kind of layers of a saved capture with cross-attention; of others, and of what does not open, it is empty."""
    try:
        cap = saved(name, stamp_of(name))
    except DiffscopeError:
        return ""  # whoever looks at it says so
    kinds = list(dict.fromkeys(cap.kinds))
    if cap.key_prompts is None:
        return ""
    return st.sidebar.selectbox("Layers", kinds, **bound("kind", options=kinds), format_func=LAYERS.__getitem__, help=SIDES)


def choose_model(key: str = "model", label: str = "Model", saved_too: bool = True, at_step: bool = True) -> str | None:
    """A model that is offered, at a step of its training where these are kept, one of the reader's own, or a path.

    A page with two models gives each a key. Without `at_step` it is the model that was trained, whatever the step.
    """
    offered = cards()
    first = key == "model"
    _offer_folder(st.query_params.get(key, ""), offered)
    options = [*offered, *session_models(), *([OTHER] if rules().paths else []), *([OPEN] if first else [])]
    if state.get(key) not in options:  # of an upload that was replaced
        state.pop(key, None)
    with st.sidebar:
        if not offered:
            st.info(NO_MODEL)
        name = st.selectbox(label, options, **bound(key, options=options), on_change=_keep_model if first else None)
        if name == OPEN:  # there is no other, or a reader wrote it into the address
            st.button("Open a model", key="model-open", on_click=open_panel)
            return None
        state["_model-before"] = name
        if name in offered:
            if "attention" in offered[name]:  # a folder that is offered has no card
                st.caption(_described(offered[name]))
            return _at_step(name, offered[name], key) if at_step else name
    return _choose_path(label, "path" if first else f"{key}-path", saved_too) if name == OTHER else session_models()[name].name


def _offer_folder(asked: str, offered: dict[str, dict]) -> None:
    """Offer the folder that an address names as its model: an address may name a folder, and nothing to fetch."""
    if rules().paths and asked and asked not in offered and Path(asked).is_dir():
        add_session_model(asked, session_models().get(asked, SessionModel(asked)))


def _choose_path(label: str, key: str, saved_too: bool) -> str | None:
    """The path of a model's folder, or of a saved capture; None while there is none, which is said."""
    what, give = ("its folder, or the file of a capture", ", or the file of a saved capture") if saved_too else ("its folder", "")
    path = st.sidebar.text_input(f"{label}: {what}", **bound(key), placeholder="/path/to/model").strip()
    if not path:
        st.info(f"Give the folder of a model{give}.")
        return None
    place = os.path.expanduser(path)
    if not (os.path.exists(place) or os.path.exists(place.rpartition("@")[0])):  # FOLDER@STEP is a checkpoint
        raise ModelNotFound(f"there is no folder or file {path!r}; models of the hub are opened by the last entry of the list")
    return path


def _keep_model() -> None:
    """Leave the choice of model as it was if another one is to be opened."""
    if state["model"] == OPEN and "_model-before" in state:
        state["model"] = state["_model-before"]
        open_panel()


def open_panel() -> None:
    """Have the panel that opens a model lie over the page: its address says so."""
    st.query_params[PANEL] = OPENED


def _described(card: dict) -> str:
    """Return what kind of attention a model has, its size, and what it was trained on, as far as its card says."""
    kind = "Standard attention" if is_standard(card) else "Differential attention"
    return f"{', '.join(filter(None, (kind, size_of(card), trained_on(card))))}."


def _at_step(name: str, card: dict, key: str) -> str:
    """The model at the end of its training, or at a checkpoint."""
    steps = list(card.get("checkpoints") or [])
    if not steps:
        return name
    options = [*map(str, steps), LAST_STEP]
    step = st.select_slider(
        "Training step", options, **bound("step" if key == "model" else f"{key}-step", options=options, default=LAST_STEP)
    )
    return name if step == LAST_STEP else f"{name}@{step}"


def choose_prompt(model: str) -> Given:
    """The prompt, its spans by name, the answer's text, and other answers that it is known to state."""
    known = {example.name: example for example in examples(model)}
    with st.sidebar:
        options = [*known, OWN, FILE, CHAT]
        chosen = st.selectbox("Prompt", options, **bound("example", options=options), format_func=_short, help=EXAMPLES)
        if chosen == FILE:
            return _of_file()
        if chosen == CHAT:
            return _chat()
        return _text(chosen, known.get(chosen))


def _short(name: str) -> str:
    """Shorten the name of an example so that it fits into the sidebar."""
    return name.replace(", answer at ", ", at ")


def _text(chosen: str, example) -> Given:
    """A text with its answer: an example, or the reader's own."""
    places = {"text": f"_text-{chosen}", "answer": f"_answer-{chosen}"} if example else {"text": "prompt", "answer": "answer"}
    usual = {"text": example.text, "answer": example.answer} if example else {"text": "", "answer": ""}

    def make_own() -> None:
        """An example that was changed is the reader's own prompt, and its address says it all."""
        state["prompt"] = state[places["text"]]
        state["answer"] = state.get(places["answer"], usual["answer"])
        state["example"] = OWN

    def options(part: str) -> dict:
        return {"key": places[part], "value": usual[part], "on_change": make_own} if example else bound(places[part])

    text = st.text_area("Text", **options("text"), height="content", placeholder="a prompt of your own")
    answer = st.text_input("Answer", **options("answer"), placeholder="the answer as it stands in the prompt")
    if not text.strip():
        return "", {}, "", ()
    check_length(text)
    if not fits_address(text):
        st.caption(TOO_LONG)
    if example:
        return text, dict(example.spans), answer, example.distractors
    return text, answer_span(text, answer), answer, ()


def answer_span(text: str, answer: str, key: str = "answer-at") -> dict:
    """Return where an answer stands in a text; one that stands there several times is marked by choosing a place."""
    starts = [at for at in range(len(text)) if text.startswith(answer, at)] if answer.strip() else []
    if len(starts) < SEVERAL:
        return {"answer": answer} if answer.strip() else {}
    places = {UNMARKED: UNMARKED} | {str(at): _around(text, at, at + len(answer)) for at in starts[:PLACES]}
    chosen = st.radio(
        f"The answer stands {len(starts)} times: which one is it?",
        list(places),
        **bound(key, options=list(places)),
        format_func=places.__getitem__,
    )
    return {} if chosen == UNMARKED else {"answer": Chars(int(chosen), int(chosen) + len(answer))}


def _around(text: str, start: int, stop: int) -> str:
    """Return a place of a text in bold, with a few characters around it, as Markdown."""
    before, after = text[max(0, start - AROUND) : start], text[stop : stop + AROUND]
    return f"… {escape_markdown(before)}**{escape_markdown(text[start:stop].strip())}**{escape_markdown(after)} …"


def check_length(text: str) -> None:
    """Refuse a text that is longer than users may give, instead of cutting it."""
    if len(text) > rules().characters:
        raise PromptError(f"the text has {len(text):,} characters, and {rules().characters:,} are taken here; shorten it")


def _of_file() -> Given:
    """One prompt of a file that the reader gave."""
    file = choose_file("File of prompts", "prompts-file", "txt")
    if file is None:
        return "", {}, "", ()
    prompts = own_prompts(file.name, file.content)
    last = len(prompts) - 1
    if (state.get("prompt-number") or 0) > last:  # of a file with more prompts
        state["prompt-number"] = last
    number = st.number_input("Prompt of the file", 0, last, **bound("prompt-number", default=0))
    prompt = prompts[number or 0]
    return prompt.text, dict(prompt.spans), prompt.answer or "", prompt.distractors


def _chat() -> Given:
    """A chat: lines that begin with who speaks."""
    text = st.text_area(
        "Chat",
        **bound("chat"),
        height=190,
        placeholder="user: What is the number?\nassistant: It is 7421.\nuser: Again?",
        help="A line a message: system, user or assistant, a colon, and what is said. Other lines continue the message before.",
    )
    check_length(text)
    answer = st.text_input("Answer", **bound("chat-answer"), placeholder="the answer as it stands in the chat")
    if not fits_address(text):
        st.caption(TOO_LONG)
    messages = as_messages(text)
    return messages, {"answer": answer} if answer.strip() else {}, answer, ()


def as_messages(text: str) -> list[dict[str, str]]:
    """The messages of a chat from its lines."""
    messages: list[dict[str, str]] = []
    for line in text.strip().splitlines():
        role, colon, words = line.partition(":")
        if colon and role.strip().lower() in ("system", "user", "assistant"):
            messages.append({"role": role.strip().lower(), "content": words.strip()})
        elif messages:
            messages[-1]["content"] += f"\n{line}"
        else:
            raise PromptError("a chat begins with who speaks: a line like 'user: What is the number?'")
    return messages


def marked(model: str, prompt: object) -> dict:
    """Spans that were marked token by token, each as the positions it holds."""
    subject = json.dumps([without_step(model), prompt])
    if state.setdefault("_spans-of", subject) != subject:  # positions of another prompt, or of another tokenizer
        state["spans"] = []
    state["_spans-of"] = subject
    with st.sidebar:
        marks = st.multiselect(
            "Spans by token",
            state.get("spans") or [],
            **bound("spans"),
            accept_new_options=True,
            placeholder="name:first-last",
            help="Mark tokens in the strip of the prompt, or write name:first-last, such as answer:12-15.",
        )
    spans: dict[str, list[int]] = {}
    for mark in marks:
        try:
            name, positions = read_mark(mark)
        except SpanError as error:
            st.sidebar.warning(escape_markdown(f"{error}. The page is shown without it."))
            continue
        spans.setdefault(name, []).extend(positions)
    return spans


def read_mark(mark: str) -> tuple[str, list[int]]:
    """The name and the positions of name:first-last."""
    match = MARK.fullmatch(mark)
    if match is None or not match[1].strip():
        raise SpanError(f"a span is written name:first-last, such as answer:12-15, and not {mark!r}")
    start = int(match[2])
    stop = int(match[3] or start)
    if stop < start:
        raise SpanError(f"the span {mark!r} ends before it begins")
    if stop >= rules().tokens:
        raise SpanError(f"the span {mark!r} ends beyond the longest prompt, of {rules().tokens:,} tokens")
    return match[1].strip(), list(range(start, stop + 1))
