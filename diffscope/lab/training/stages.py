"""Declare what a model is trained on: the stages of a training, and the arms and learning rates of a cohort."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.template import check_template
from diffscope.tasks.tokenizer import CITIES

Rule = tuple[str, bool]  # a message, and whether the field that it is about is right
LOG_EVERY = 10  # steps, between two losses that are written down
LOWEST = 0.05  # of the learning rate, at the end of a cool-down
RETRIEVAL = "retrieval"
BACKCOPY = "backcopy"
PLANTED = "planted"
TASKS = (RETRIEVAL, BACKCOPY, PLANTED)


@dataclass(frozen=True)
class Stage:
    """Steps of training on prompts of one kind.

    A stage with a warm-up begins with a fresh optimizer; one without goes on with that of the stage before.
    """

    steps: int  # the most
    shapes: tuple[tuple[int, int], ...]  # (prompts, tokens a prompt); each step draws one of them
    text_weight: float  # of the loss on text; the loss on answers that an earlier mention gives away has weight 1
    needles: tuple[int, int] = (0, 0)  # fewest and most cities a prompt; without any it is plain text
    mentions: int = 0  # sentences a prompt
    template: str = TEMPLATE  # the needle sentence
    near: float = 0.0  # share of prompts whose cities are near-duplicates
    unanswerable: float = 0.0  # share of prompts that end with a city whose number is unknown
    warmup: int = 0  # steps over which the learning rate rises
    cooldown: float = 0.0  # share of the steps over which it falls in the end, to a twentieth
    formed: float | None = None  # share of right answers at which the stage ends; a run that does not get there ends with it
    task: str = RETRIEVAL  # or "backcopy", or "planted": running text with lookups planted in a share of its windows
    planted: float = 0.0  # that share
    spacing: float = 0.0  # fewest tokens of a prompt a mention: in shorter prompts are fewer mentions, and cities in proportion

    def rules(self) -> Iterator[Rule]:
        check_template(self.template)
        fewest, most = self.needles
        shares = (self.near, self.unanswerable)
        yield f"steps = {self.steps} has to be 1 or more", self.steps >= 1
        yield f"shapes = {self.shapes} has to hold [prompts, tokens], each 1 or more", min(map(min, self.shapes), default=0) >= 1
        yield (
            f"needles = {self.needles} are neither the fewest and the most of 1 to {len(CITIES)}, nor 0 and 0 for plain text",
            1 <= fewest <= most <= len(CITIES) or self.needles == (0, 0),
        )
        yield f"text_weight = {self.text_weight} has to be 0 or more", 0 <= self.text_weight < math.inf
        yield (
            f"near = {self.near} and unanswerable = {self.unanswerable} are no shares from 0 to 1",
            0 <= min(shares) <= max(shares) <= 1,
        )
        yield (
            f"mentions = {self.mentions} leaves no number that an earlier mention gives away",
            self.mentions > most or self.needles == (0, 0) or self.task != RETRIEVAL,
        )
        yield (
            f"spacing = {self.spacing} leaves a shape with less than 3 mentions",
            (self.spacing == 0 or all(self.spacing > 0 and self._mentions(length) >= 3 for _, length in self.shapes)),
        )
        yield (
            f"spacing = {self.spacing} leaves a shape without a city; give longer ones, or more needles",
            self.spacing == 0 or self.plain_text or all(self._most_cities(length) for _, length in self.shapes),
        )
        yield f"warmup = {self.warmup} has to be 0 or more", self.warmup >= 0
        yield f"cooldown = {self.cooldown} is no share from 0 to 1", 0 <= self.cooldown <= 1
        yield f"formed = {self.formed} is no share above 0, up to 1", self.formed is None or 0 < self.formed <= 1
        yield "formed needs prompts with needles, and these are plain text", self.formed is None or not self.plain_text
        yield f"task = {self.task!r} is none of {', '.join(TASKS)}", self.task in TASKS
        yield (
            f"task {self.task!r} trains all tokens alike: text_weight has to be 1, and near, unanswerable and mentions 0",
            self.task == RETRIEVAL or (self.text_weight, *shares, self.mentions) == (1, 0, 0, 0),
        )
        yield (
            f"planted = {self.planted} is the share of windows, above 0 up to 1, of a stage with task = {PLANTED!r} and needles",
            (0 < self.planted <= 1 and fewest >= 1) if self.task == PLANTED else self.planted == 0,
        )
        yield (
            f"task {PLANTED!r} passes through a text in windows of one length; give one of shapes",
            (self.task != PLANTED or len(self.shapes) == 1),
        )
        yield f"task {BACKCOPY!r} has no needles", self.task != BACKCOPY or self.needles == (0, 0)

    @property
    def plain_text(self) -> bool:
        """Return whether it is text alone, with nothing to look up or to copy."""
        return self.task == RETRIEVAL and self.needles == (0, 0)

    def share_of_rate(self, step: int) -> float:
        """Return the factor of the learning rate at a step of the stage, counted from 0."""
        left = (self.steps - step) / max(1, self.cooldown * self.steps)
        return min(1.0, (step + 1) / max(1, self.warmup), max(LOWEST, left))

    def draw(self, task, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the rows of one step and the kind of each token, as ``training_rows`` of the stage's task returns them."""
        rows, length = self.shapes[int(rng.integers(len(self.shapes))) if len(self.shapes) > 1 else 0]
        if self.task != RETRIEVAL:
            return task.training_rows(rows, length, rng)
        if self.plain_text:
            texts = [task.filler.sample(length - len(task.prefix), rng)[0] for _ in range(rows)]
            ids = np.array([[*task.prefix, *text] for text in texts])
            return ids, np.zeros(ids.shape, dtype=np.int8)
        mentions = self._mentions(length)
        most = self._most_cities(length)
        needles = int(rng.integers(min(self.needles[0], most), most + 1))
        return task.training_rows(rows, length, needles, mentions, rng, self.near, self.unanswerable)

    def _mentions(self, length: int) -> int:
        """Return the number of sentences in a prompt of `length` tokens."""
        return min(self.mentions, int(length / self.spacing)) if self.spacing else self.mentions

    def _most_cities(self, length: int) -> int:
        """Return the most cities in a prompt of `length` tokens."""
        return self.needles[1] * self._mentions(length) // self.mentions


@dataclass(frozen=True)
class Copying:
    """Sequences of Bigram-Backcopy that a model is scored on during training."""

    length: int  # tokens of a sequence, the first one included
    rows: int

    def rules(self) -> Iterator[Rule]:
        yield f"length = {self.length} has to be 3 or more, and rows = {self.rows} 1 or more", self.length >= 3 and self.rows >= 1


LEAST_LOSS = "least loss"
FORMED_IN_ALL = "formed in all"


@dataclass(frozen=True)
class Tuning:
    """How the learning rate of each arm is chosen: by its first stage at each rate, with seeds that are not used again."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int
    rule: str = LEAST_LOSS  # or "formed in all": the least loss among the rates at which all seeds formed

    def rules(self) -> Iterator[Rule]:
        yield f"rates = {self.rates} has to hold numbers above 0", bool(self.rates) and min(self.rates) > 0
        yield (
            f"rates = {self.rates} has two that are equal to six digits, by which runs are named; leave out one",
            len({f"{rate:g}" for rate in self.rates}) == len(self.rates),
        )
        yield f"seeds = {self.seeds} has to hold numbers from 0 on", bool(self.seeds) and min(self.seeds) >= 0
        yield f"steps = {self.steps} has to be {LOG_EVERY} or more: losses are written down that often", self.steps >= LOG_EVERY
        yield f"rule = {self.rule!r} is neither {LEAST_LOSS!r} nor {FORMED_IN_ALL!r}", self.rule in (LEAST_LOSS, FORMED_IN_ALL)


@dataclass(frozen=True)
class Minor:
    """Arms that are trained after the others, with seeds of their own."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]

    def rules(self) -> Iterator[Rule]:
        yield f"seeds = {self.seeds} has to hold numbers from 0 on", bool(self.seeds) and min(self.seeds) >= 0


@dataclass(frozen=True)
class Continued:
    """An arm that begins with the weights of another arm of its seed, at the end of that arm's first stage.

    Its ``top_keys`` begins at the number of this declaration and falls geometrically to its own over the first half of its first
    stage.
    """

    arm: str
    top_keys: int

    def rules(self) -> Iterator[Rule]:
        yield f"top_keys = {self.top_keys} has to be 1 or more", self.top_keys >= 1

    def keys(self, step: int, steps: int, last: int) -> int:
        """Return ``top_keys`` at a step, counted from 0, of a stage of `steps` steps that ends at `last`."""
        share = min(1.0, 2 * step / steps)
        return round(self.top_keys * (last / self.top_keys) ** share)
