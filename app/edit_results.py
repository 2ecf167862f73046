"""What a model does under edits, computed once for all sessions that ask the same.

Nobody sees another's edits: an edit is on only while the model's lock is held (``scope.edit``), and a result goes by the text of
its edits. Nothing cached is asked for while the lock is held, so that no two sessions can wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st
from edit_catalog import Written, text_length
from sidebar import Subject

from diffscope.capture.capture import Capture
from diffscope.edits import Edit
from diffscope.readings import Prediction, Reading, effects, predict
from diffscope.scope import Scope
from diffscope.tasks import Prompt

NEW_TOKENS = 12
KEPT = 48  # results, of which a stack of edits has four or five
TEXTS = """import numpy

# held-out text, with room for what follows the prompt
texts, _ = diffscope.tasks.Recall(scope.tokenizer).rows({count}, {length}, numpy.random.default_rng(0))
texts = texts.tolist()
"""
LONG, FEW = 2048, 3  # tokens of a prompt beyond which so few are generated: under most edits each is another run of it all
Texts = tuple[str, ...]


@dataclass(frozen=True)
class Edited(Subject):
    """A model under edits, and what it is shown.

    Attributes
    ----------
    written : tuple of Written
    """

    written: tuple[Written, ...] = ()

    @property
    def key(self) -> tuple:
        """As of a Subject, with the edits."""
        return (*super().key, texts(self.written))

    def capture(self):
        """What every layer attends with under the edits."""
        return captured(self, super().capture(), self.written)

    def code(self) -> str:
        """Python that gives the same capture, and the edits as ``changes``."""
        plain = super().code()
        count = max((max(edit.values) for edit in self.written if edit.kind.declared.of_captures), default=0)
        held_out = TEXTS.format(count=count, length=text_length(self.scope(), super().capture())) if count else ""
        changes = "".join(f"\n    {edit.code}," for edit in self.written)
        return f"{plain}{held_out}changes = [{changes}\n]\nwith scope.edit(*changes):\n    {plain.splitlines()[-1]}\n"


def build_edits(subject, cap, written: tuple[Written, ...]) -> tuple[Edit, ...]:
    """Edits for a prompt, of which those that other texts are read for are made once."""
    scope = subject.scope()

    def made(edit: Written) -> Edit:
        if not edit.kind.reads:
            return edit.make(scope, cap)
        key = subject.key[:2] if edit.kind.declared.of_captures else subject.key  # of a patch the prompt too
        return _made(key, edit.text, cap.n_tokens, edit, scope, cap)

    return tuple(map(made, written))


@st.cache_resource(show_spinner="Reading other texts", max_entries=8)
def _made(key: tuple, text: str, tokens: int, _edit: Written, _scope, _cap) -> Edit:
    return _edit.make(_scope, _cap)


def _under(what: str, subject, cap, written: tuple[Written, ...], compute: Callable[[Scope], Any], *more) -> Any:
    """What a model gives under edits, once for all who ask; `what` and `more` say what that is beside subject and edits."""
    made = build_edits(subject, cap, written)
    scope = subject.scope()

    def computed() -> Any:
        with scope.edit(*made):
            return compute(scope)

    return _once(what, (subject.key, texts(written), *more), computed)


@st.cache_resource(show_spinner=False, max_entries=KEPT)
def _once(what: str, key: tuple, _compute: Callable[[], Any]) -> Any:
    return _compute()


def captured(subject, cap, written: tuple[Written, ...]) -> Capture:
    """What every layer attends with under edits."""
    known = spans(subject, cap)
    return _under("capture", subject, cap, written, lambda scope: scope.capture(subject.prompt, spans=known))


def predicted(subject, cap, written: tuple[Written, ...], question: Prompt | None) -> Prediction:
    """What the model says next under edits, and of an answer where there is one."""
    candidates = () if question is None else tuple(map(tuple, (question.answer, *question.distractors)))
    return _under("prediction", subject, cap, written, lambda scope: predict(scope, cap, question), candidates)


def continued(subject, cap, written: tuple[Written, ...]) -> str:
    """A few tokens that the model generates under edits."""
    tokens = new_tokens(subject, cap)
    return _under("continuation", subject, cap, written, lambda scope: scope.generate(subject.prompt, tokens), tokens)


def new_tokens(subject, cap) -> int:
    """How many tokens are generated: a few, as far as the model has positions."""
    longest = subject.scope().max_length
    count = NEW_TOKENS if cap.n_tokens <= LONG else FEW
    return count if longest is None else max(1, min(count, longest - cap.n_tokens + 1))


def changes(subject, cap, written: tuple[Written, ...]) -> Reading:
    """What edits do to every head."""
    after, made = captured(subject, cap, written), build_edits(subject, cap, written)
    return _once("changes", (subject.key, texts(written)), lambda: effects(cap, after, made))


def texts(written: tuple[Written, ...]) -> Texts:
    """Edits as they distinguish one result from another."""
    return tuple(edit.text for edit in written)


def spans(subject, cap) -> dict:
    """The spans of a subject; none where the prompt of its capture has them not."""
    return subject.spans if subject.spans.keys() <= cap.spans.keys() else {}
