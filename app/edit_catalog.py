"""Every edit of ``diffscope.edits``: what it takes, how an address and Python write it, and how it is made.

In an address an edit is a call in Python, ``set_lambda(1.0, layers=[0, 2])``, of a name and literals: it is parsed and never
evaluated. What is left out is as the table has it, layers and heads are all.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

import numpy as np

from diffscope import edits
from diffscope.edits.base import Stage
from diffscope.edits.declared import PLACES, Declared
from diffscope.edits.patching import STAGES
from diffscope.errors import DiffscopeError, PromptError, SpanError
from diffscope.figures.escaping import shorten, visible
from diffscope.numbers import numbered
from diffscope.tasks import Recall

LAST = "last token"
ALL = "all"
ROOM = 32  # tokens
MOST = 1e6  # of a number whose bounds the edit alone knows
EXAMPLE = "set_lambda(1.0, layers=[0, 2])"
LONGEST = 2000  # characters of an edit in an address
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class Control:
    """What an edit is given, as a widget, an address and Python have it."""

    def words(self, value) -> str:
        """The value as a person reads it."""
        return str(value)

    def code(self, value) -> str:
        """As Python writes it, beside a Scope `scope` and a capture `cap`."""
        return repr(self.argument(value, None))

    def argument(self, value, cap) -> object:
        """What the edit is given for the prompt of a capture."""
        return value


@dataclass(frozen=True)
class Number(Control):
    """A number between bounds."""

    name: str
    label: str
    first: float
    low: float
    high: float
    step: float
    whole: bool = False

    @property
    def typed(self) -> bool:
        """Whether it is typed, and not chosen by a slider."""
        return self.whole or self.high == MOST

    def read(self, text: str) -> float:
        """The number that a text is."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            value = None
        if value is None or not self.low <= value <= self.high:
            kind = "a whole number" if self.whole else "a number"
            raise DiffscopeError(f"{self.label} is {kind} from {self.low:g} to {self.high:g}, and not {text!r}")
        return value

    def words(self, value: float) -> str:
        """In a few digits."""
        return f"{value:g}"


@dataclass(frozen=True)
class Choice(Control):
    """One of a few, each by the word that an address has for it."""

    name: str
    label: str
    options: dict[str, object]

    @property
    def first(self) -> str:
        """What is chosen to begin with."""
        return next(iter(self.options))

    def read(self, text: str) -> str:
        """The word itself."""
        if text not in self.options:
            raise DiffscopeError(f"{self.label} is {' or '.join(self.options)}, and not {text!r}")
        return text

    def argument(self, value: str, cap) -> object:
        """What the word stands for."""
        return self.options[value]


@dataclass(frozen=True)
class Tokens(Control):
    """Some tokens of the prompt: a span by its name, ``12-15``, the last, or all."""

    name: str
    label: str
    first: str

    @property
    def may_be_all(self) -> bool:
        """Whether it may be all tokens."""
        return self.first == ALL

    def read(self, text: str) -> str:
        """The words themselves; whether the prompt has them, it says."""
        if not text.strip():
            raise DiffscopeError(f"{self.label}: give a span of the prompt, or tokens such as 12-15")
        return text

    def words(self, value: str) -> str:
        """The words themselves."""
        return f"tokens {value}" if RANGE.fullmatch(value) else value

    def code(self, value: str) -> str:
        """As Python finds them."""
        if value == ALL:
            return "None"
        if value == LAST:
            return "[cap.n_tokens - 1]"
        positions = _range(value)
        return f"cap.key_sets[{value!r}]" if positions is None else repr(positions)

    def argument(self, value: str, cap) -> object:
        """Their positions; None for all."""
        if value == ALL:
            return None
        if value == LAST:
            return [cap.n_tokens - 1]
        positions = _range(value)
        if positions is not None:
            if not positions or positions[-1] >= cap.n_tokens:
                raise SpanError(f"{self.label}: the prompt has tokens 0 to {cap.n_tokens - 1}, and not {value}")
            return list(positions)
        if value not in cap.key_sets:
            raise SpanError(f"{self.label}: the prompt has no span {value!r}; give one of {', '.join(cap.key_sets)}, or 12-15")
        return cap.key_sets[value]


def _range(text: str) -> range | None:
    """The positions that are written as 12 or 12-15; None of other texts."""
    place = RANGE.fullmatch(text)
    return range(int(place[1]), int(place[2] or place[1]) + 1) if place else None


@dataclass(frozen=True)
class Source(Control):
    """Another prompt of as many tokens, as text; its capture is made with the model."""

    name: str
    label: str
    first: str = ""

    def read(self, text: str) -> str:
        """The text itself."""
        if not text.strip():
            raise DiffscopeError(f"{self.label}: write a prompt of as many tokens as this one")
        return text

    def words(self, value: str) -> str:
        """The text, shortened."""
        return f"“{shorten(visible(value))}”"

    def code(self, value: str) -> str:
        """Its capture."""
        return f"scope.capture({value!r})"


@dataclass(frozen=True)
class Kind:
    """An edit of the library, as the app shows it.

    Attributes
    ----------
    declared : Declared
        What the library says of it.
    name : str
        Of its function in ``diffscope.edits``.
    title : str
        As it is chosen.
    words : str
        As it is listed; names in braces stand for what it takes.
    takes : tuple of Control
    """

    declared: Declared
    name: str
    title: str
    words: str
    takes: tuple = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Where it can be told to act."""
        return PLACES if self.declared.of_heads else PLACES[:1]

    @property
    def reads(self) -> bool:
        """Whether the model runs on other texts to make it."""
        return self.declared.of_captures or self.declared.of_source


BRANCH = Choice("branch", "Map", {"both": None, "A1": 1, "A2": 2})
COUNT = Number("prompts", "Texts", 16, 1, 64, 1, whole=True)
SWITCH = {"no": False, "yes": True}
#: of an edit its title, how it is listed, and what it takes; an edit that is not here has what `plain` gives
WORDED: dict[str, tuple[str, str, tuple]] = {
    "set_lambda": ("λ = value", "λ = {value}", (Number("value", "λ", 1.0, -1.0, 2.0, 0.05),)),
    "scale_lambda": ("λ × factor", "λ × {factor}", (Number("factor", "Factor", 0.5, -1.0, 3.0, 0.05),)),
    "plus": ("A₂ added", "A₁ + λ·A₂", ()),
    "a2_of_head": ("A₂ of another head", "A₂ of head {of}", (Number("of", "Of head", 0, 0, 4095, 1, True),)),
    "remove_norm": ("norm removed", "no norm", ()),
    "scalar_norm": ("norm → one number a head", "norm → one number a head", (COUNT,)),
    "knock_out": (
        "knock-out of keys for queries",
        "{keys} hidden from {queries} ({branch})",
        (Tokens("keys", "Keys", "answer"), Tokens("queries", "Queries", LAST), BRANCH),
    ),
    "drop_sink": ("sink dropped", "first keys dropped: {count} ({branch})", (Number("count", "Keys", 1, 1, 64, 1, True), BRANCH)),
    "inject_noise": (
        "noise injected",
        "{mode} noise of σ = {sigma} on {keys} (draw {seed})",
        (
            Number("sigma", "σ", 0.5, 0.0, 4.0, 0.05),
            Choice("mode", "Sign", {"common": "common", "differential": "differential"}),
            Tokens("keys", "Keys", ALL),
            Number("seed", "Draw", 0, 0, 9999, 1, True),
        ),
    ),
    "quantise_logits": (
        "logits quantised",
        "logits of {bits} bits a {per}",
        (Number("bits", "Bits", 6, 2, 16, 1, True), Choice("per", "Largest of a", {"map": "map", "row": "row"})),
    ),
    "zero_a2": ("A₂ → zero", "A₂ → 0", ()),
    "uniform_a2": ("A₂ → uniform", "A₂ → uniform", ()),
    "share_a2": ("A₂ → mean over heads", "A₂ → mean over heads", ()),
    "low_rank_a2": (
        "A₂ → rank r",
        "A₂ → rank {rank} (rows scaled: {normalise})",
        (Number("rank", "Rank", 4, 1, 4096, 1, True), Choice("normalise", "Scale rows", SWITCH)),
    ),
    "mean_a2": ("A₂ → mean over texts", "A₂ → mean over {prompts} texts", (COUNT,)),
    "positional_a2": ("A₂ → positional mean", "A₂ → positional mean over {prompts} texts", (COUNT,)),
    "uniform_a1": ("A₁ → uniform", "A₁ → uniform", ()),
    "top_k_a1": (
        "top-k of A₁",
        "A₁ → top {k} (rows scaled: {renormalise})",
        (Number("k", "k", 8, 1, 4096, 1, True), Choice("renormalise", "Scale rows", {"yes": True, "no": False})),
    ),
    "patch": (
        "patched from another prompt",
        "{what} ← {source} (queries: {queries}; keys: {keys})",
        (
            Choice("what", "What", {name: name for name in STAGES}),
            Source("source", "Other prompt"),
            Tokens("queries", "Queries", ALL),
            Tokens("keys", "Keys", ALL),
        ),
    ),
    "absolute_d": ("|D|", "D → |D|", ()),
    "d_plus": ("D⁺", "D → D⁺", ()),
    "normalise_d": (
        "normalised D",
        "D divided by its row's {by}",
        (Choice("by", "By the row's", {"sum": "sum", "absolute sum": "absolute"}),),
    ),
    "ablate_heads": ("heads ablated", "heads ablated", ()),
}
#: where in the computation edits act, as it is said
STAGE_WORDS = {
    Stage.FIELD: "λ, pairing, norm",
    Stage.SCORES: "scores",
    Stage.MAPS: "maps",
    Stage.DIFFERENCE: "difference",
    Stage.OUTPUT: "output",
}


def plain(name: str, declared: Declared) -> tuple[str, str, tuple]:
    """The words and controls of an edit by its declaration alone: numbers and flags as its example has them, else by default."""
    first = {name: declared.example.get(name, parameter.default) for name, parameter in declared.parameters.items()}
    takes = [COUNT] if declared.of_captures else []
    for key, value in first.items():
        if isinstance(value, bool):
            takes.append(Choice(key, key, dict(sorted(SWITCH.items(), key=lambda item: item[1] != value))))
        elif isinstance(value, int | float):
            whole = isinstance(value, int)
            takes.append(Number(key, key, value, -MOST, MOST, 1 if whole else 0.1, whole))
    title = name.replace("_", " ")
    return title, ", ".join([title, *(f"{each.name} {{{each.name}}}" for each in takes)]), tuple(takes)


KINDS = {
    name: Kind(declared, name, *(WORDED.get(name) or plain(name, declared)))
    for name, declared in sorted(edits.EDITS.items(), key=lambda item: item[1].stage)
}


@dataclass(frozen=True)
class Written:
    """An edit as it is chosen: its kind, what it is given, and the layers and heads that it acts on, all if there are none."""

    kind: Kind
    values: tuple
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """As an address has it."""
        places = (f"{name}={list(at)}" for name, at in self._places())
        return f"{self.kind.name}({', '.join([*map(repr, self.values), *places])})"

    @property
    def words(self) -> str:
        """As it is listed."""
        given = {takes.name: takes.words(value) for takes, value in zip(self.kind.takes, self.values)}
        where = [numbered(name.removesuffix("s"), at) for name, at in self._places()]
        return " · ".join([self.kind.words.format(**given), *where])

    @property
    def code(self) -> str:
        """As Python writes it, beside a Scope `scope`, a capture `cap` and lists of token ids `texts`."""
        if self.kind.declared.of_captures:
            given = [f"map(scope.capture, texts[:{self.values[0]}])"]
        else:
            given = [f"{takes.name}={takes.code(value)}" for takes, value in zip(self.kind.takes, self.values)]
        where = [f"{name}={list(at)}" for name, at in self._places()]
        return f"diffscope.edits.{self.kind.name}({', '.join([*given, *where])})"

    @property
    def of_prompt(self) -> bool:
        """Whether it names tokens of the prompt, or is made from another one: of other prompts it would mean nothing."""
        given = zip(self.kind.takes, self.values)
        return any(isinstance(takes, Source) or (isinstance(takes, Tokens) and value != ALL) for takes, value in given)

    @property
    def stage(self) -> Stage:
        """Where in the computation it acts."""
        return STAGES[self.values[0]] if self.kind.declared.of_source else self.kind.declared.stage

    def make(self, scope, cap) -> edits.Edit:
        """The edit, for the prompt of a capture."""
        given = {takes.name: takes.argument(value, cap) for takes, value in zip(self.kind.takes, self.values)}
        where = {name: list(at) for name, at in self._places()}
        function = self.kind.declared.function
        if self.kind.declared.of_source:
            given["source"] = _captured(scope, cap, given["source"])
        if self.kind.declared.of_captures:
            return function(map(scope.capture, plain_texts(scope, given["prompts"], text_length(scope, cap))), **where)
        return function(**given, **where)

    def _places(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, at) for name in PLACES if (at := getattr(self, name))]


def first(name: str, cap) -> Written:
    """Return an edit with its first values; where they name the answer and none is marked, the sink takes its place."""
    own = cap.prompts[0].text or ""  # of a patch: from where the reader goes on
    given = [own if isinstance(takes, Source) else takes.first for takes in KINDS[name].takes]
    return Written(KINDS[name], tuple("sink" if value == "answer" and value not in cap.spans else value for value in given))


def read(text: str) -> Written:
    """The edit that a text of an address is.

    Raises
    ------
    DiffscopeError
        It is none; the message says what is wrong with it.
    """
    name, given, places = _parsed_call(text)
    if name not in KINDS:
        raise DiffscopeError(f"there is no edit {name[:40]!r}; an edit is written like {EXAMPLE}")
    kind = KINDS[name]
    if len(given) > len(kind.takes):
        raise DiffscopeError(f"{name} takes {len(kind.takes)} values, and not {len(given)}")
    values = [takes.read(part) for takes, part in zip(kind.takes, given)]
    values += [takes.first for takes in kind.takes[len(given) :]]
    if unknown := places.keys() - set(kind.places):
        raise DiffscopeError(f"{name} does not take {min(unknown)[:40]!r}; it takes {' and '.join(kind.places)}")
    return Written(kind, tuple(values), *(_numbers(name, places.get(dim, "")) for dim in PLACES))


def _parsed_call(text: str) -> tuple[str, list[str], dict[str, str]]:
    """Return name, values and places of a call that is written in Python; only literals are read, and nothing is evaluated."""
    try:
        call = ast.parse(text[:LONGEST], mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        given = [str(ast.literal_eval(value)) for value in call.args]
        places = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise DiffscopeError(f"{text[:40]!r} is no edit; an edit is written like {EXAMPLE}") from None
    listed = {name: at if isinstance(at, (list, tuple)) else [at] for name, at in places.items()}
    return call.func.id, given, {name: ",".join(map(str, at)) for name, at in listed.items()}


def _numbers(name: str, text: str) -> tuple[int, ...]:
    """Layers or heads; none for all."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise DiffscopeError(f"{name}: layers and heads are whole numbers from 0, such as layers=[0, 2], and not {text[:40]!r}")
    return tuple(sorted({int(part) for part in parts}))


def _captured(scope, cap, text: str):
    """Capture another prompt that has as many tokens as that of a capture."""
    other = scope.capture(text)
    if other.n_tokens != cap.n_tokens:
        raise PromptError(f"the other prompt has {other.n_tokens} tokens and this one {cap.n_tokens}; write one of as many")
    return other


def text_length(scope, cap) -> int:
    """Tokens of the texts that edits are made from: those of the prompt, with room for what the model says next."""
    length = cap.n_tokens + ROOM
    return length if scope.max_length is None else min(length, scope.max_length)


def plain_texts(scope, count: int, length: int) -> list[list[int]]:
    """Texts that no bundled model has seen, as token ids, each of so many tokens; the same ones every time."""
    if scope.tokenizer is None:
        raise PromptError(f"{scope.name} came without a tokenizer, so that it cannot read other texts")
    ids, _ = Recall(scope.tokenizer).rows(count, length, np.random.default_rng(0))
    return ids.tolist()
