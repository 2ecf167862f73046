"""A training recipe: one TOML file names the arms of a matched cohort and everything they share."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_type_hints

import numpy as np
import torch
from huggingface_hub.dataclasses import type_validator
from huggingface_hub.errors import StrictDataclassError

from diffscope.errors import DiffscopeError, PromptError
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.tasks.retrieval import TEMPLATE, Retrieval, check_template
from diffscope.tasks.tokenizer import CITIES

PRECISIONS = ("float32", "bfloat16")
CLOSE = 0.005  # share of parameters by which arms may differ before their MLPs are made wider or narrower
BUNDLED = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Stage:
    """Steps of training on prompts of one kind."""

    steps: int
    shapes: tuple[tuple[int, int], ...]  # (prompts, tokens a prompt); each step draws one of them
    needles: tuple[int, int]  # fewest and most cities a prompt
    mentions: int  # sentences a prompt
    text_weight: float  # of the loss on text; the loss on answers that an earlier mention gives away has weight 1
    template: str = TEMPLATE  # the needle sentence
    near: float = 0.0  # share of prompts whose cities are near-duplicates
    unanswerable: float = 0.0  # share of prompts that end with a city whose number is unknown

    def rules(self) -> Iterator[tuple[str, bool]]:
        """For each rule the message for a field that breaks it, and whether the field keeps it."""
        check_template(self.template)
        fewest, most = self.needles
        yield f"steps = {self.steps} has to be 1 or more", self.steps >= 1
        yield f"shapes = {self.shapes} has to hold [prompts, tokens], each 1 or more", min(map(min, self.shapes), default=0) >= 1
        yield (
            f"needles = {self.needles} are not the fewest and the most of 1 to {len(CITIES)}",
            1 <= fewest <= most <= len(CITIES),
        )
        yield f"text_weight = {self.text_weight} has to be 0 or more", 0 <= self.text_weight < math.inf
        shares = (self.near, self.unanswerable)
        yield (
            f"near = {self.near} and unanswerable = {self.unanswerable} are no shares from 0 to 1",
            0 <= min(shares) <= max(shares) <= 1,
        )
        yield f"mentions = {self.mentions} leaves no number that an earlier mention gives away", self.mentions > most

    def draw(self, task: Retrieval, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The rows of one step, as :meth:`Retrieval.training_rows` gives them."""
        rows, length = self.shapes[int(rng.integers(len(self.shapes))) if len(self.shapes) > 1 else 0]
        needles = int(rng.integers(self.needles[0], self.needles[1] + 1))
        return task.training_rows(rows, length, needles, self.mentions, rng, self.near, self.unanswerable)


@dataclass(frozen=True)
class Grid:
    """Prompts that a model is scored on: every length with every number of distractors, at five depths in turn."""

    lengths: tuple[int, ...]
    distractors: tuple[int, ...]  # sentences beside the queried one
    prompts: int
    template: str = TEMPLATE

    def rules(self) -> Iterator[tuple[str, bool]]:
        """For each rule the message for a field that breaks it, and whether the field keeps it."""
        check_template(self.template)
        yield (
            f"lengths = {self.lengths} and distractors = {self.distractors} have to hold a number each",
            bool(self.lengths and self.distractors),
        )
        yield f"distractors = {self.distractors} have to be 0 or more", min(self.distractors) >= 0
        yield f"prompts = {self.prompts} has to be 1 or more", self.prompts >= 1

    @property
    def slots(self) -> int:
        """Distractors for which every prompt has room; see :meth:`~diffscope.tasks.Retrieval.controlled`."""
        return max(self.distractors)

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(length, distractors) of every cell."""
        return [(length, distractors) for length in self.lengths for distractors in self.distractors]


@dataclass(frozen=True)
class Recipe:
    """The fields that all arms of a cohort share, and those in which each differs.

    Attributes
    ----------
    model : dict
        Fields of :class:`~diffscope.models.DiffConfig` common to all arms.
    arms : dict of str to dict
        The fields in which each arm differs.
    stages : tuple of Stage
    evaluation : Grid
        The prompts on which models are scored along the way; `prompts` is their number in all, over the cells in turn.
    grid : Grid, optional
        The prompts on which models are scored in the end; `prompts` is their number in each cell.
    seeds : tuple of int
        A run is one arm with one seed, which gives the initial weights and the data; all arms of a seed see the same data.
    words : tuple of str
        Additional words of the vocabulary, each with the space before it.
    precision : {"float32", "bfloat16"}
        Of the forward and backward pass; weights and their updates stay in float32.
    compiled : bool
        Whether ``torch.compile`` is used.
    match : str, optional
        The arm whose number of parameters the others get, as nearly as the width of their MLPs allows. An arm that differs from
        it by less than half a per cent, or has an ``intermediate_size`` of its own, keeps its width.
    learning_rate, weight_decay, warmup, cooldown
        Muon and AdamW; the rate rises over `warmup` steps, and over the last `cooldown` share of all it falls to a twentieth.
    """

    name: str
    seeds: tuple[int, ...]
    vocab_size: int
    model: dict
    arms: dict[str, dict]
    stages: tuple[Stage, ...]
    evaluation: Grid
    learning_rate: float
    weight_decay: float
    warmup: int
    cooldown: float
    checkpoints: int
    evaluate_every: int
    words: tuple[str, ...] = ()
    precision: str = "float32"
    compiled: bool = False
    match: str | None = None
    grid: Grid | None = None
    source: str = field(default="", compare=False)

    @classmethod
    def load(cls, name: str) -> Recipe:
        """A bundled recipe by name, or any TOML file by path.

        Raises
        ------
        DiffscopeError
            There is no such recipe, or a field is missing, unknown or wrong.
        """
        path = Path(name) if name.endswith(".toml") else BUNDLED / f"{name}.toml"
        if not path.is_file():
            bundled = ", ".join(sorted(file.stem for file in BUNDLED.glob("*.toml")))
            raise DiffscopeError(f"no recipe {name!r}; bundled are: {bundled}, or give a .toml file")
        try:
            source = path.read_text(encoding="utf-8")
            fields = {name: _frozen(value) for name, value in tomllib.loads(source).items()}
            for name in ("evaluation", "grid"):
                if "noises" in fields.get(name, {}):
                    raise DiffscopeError(f"{path}: 'noises' of [{name}] is called 'distractors'; rename it")
            stages = tuple(Stage(**stage) for stage in fields.pop("stages"))
            grids = {name: Grid(**fields.pop(name)) for name in ("evaluation", "grid") if name in fields}
            recipe = cls(**fields, **grids, stages=stages, source=source)
            parts = (recipe, *stages, *grids.values())
            for part in parts:
                _check_types(part)
            mistake = next((mistake for part in parts for mistake, right in part.rules() if not right), None)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError, TypeError, KeyError, PromptError) as error:
            raise DiffscopeError(f"{path}: not a complete recipe ({error}); compare it with {BUNDLED / 'mini.toml'}") from None
        if mistake:
            raise DiffscopeError(f"{path}: {mistake}")
        return recipe

    def rules(self) -> Iterator[tuple[str, bool]]:
        """For each rule the message for a field that breaks it, and whether the field keeps it."""
        yield "there are no arms, or no stages", bool(self.arms and self.stages)
        names = [arm for arm in self.arms if not arm or set(arm) & set(r"/\:") or arm.startswith(".")]
        yield f"arms {names} are no names of folders", not names
        yield f"match = {self.match!r} is none of its arms: {', '.join(self.arms)}", self.match in (None, *self.arms)
        yield f"seeds = {self.seeds!r} is no list of numbers from 0 on", bool(self.seeds) and min(self.seeds) >= 0
        yield f"precision = {self.precision!r} is neither float32 nor bfloat16", self.precision in PRECISIONS
        yield f"vocab_size = {self.vocab_size!r} has to be 300 or more", self.vocab_size >= 300
        yield f"learning_rate = {self.learning_rate!r} has to be above 0", 0 < self.learning_rate < math.inf
        yield f"weight_decay = {self.weight_decay!r} has to be 0 or more", 0 <= self.weight_decay < math.inf
        yield f"cooldown = {self.cooldown!r} is no share from 0 to 1", 0 <= self.cooldown <= 1
        yield f"warmup = {self.warmup!r} and evaluate_every have to be 1 or more", min(self.warmup, self.evaluate_every) >= 1
        yield (
            f"checkpoints = {self.checkpoints!r} has to be 3 or more, the first and the last step among them",
            self.checkpoints >= 3,
        )

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def length(self) -> int:
        """The longest prompt trained on, in tokens."""
        return max(length for stage in self.stages for _, length in stage.shapes)

    def stage(self, step: int) -> Stage:
        """The stage that a step, counted from 0, belongs to."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        return self.stages[-1]

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        left = (self.steps - step) / max(1, self.cooldown * self.steps)
        return self.learning_rate * min(1.0, (step + 1) / self.warmup, max(0.05, left))

    def saved_steps(self) -> list[int]:
        """Steps after which a checkpoint is kept: 0, then evenly on a log scale up to the last."""
        last = self.steps
        count = self.checkpoints - 1
        first = min(50, max(1, last // 2))
        grid = [round(first * (last / first) ** (i / (count - 1))) for i in range(count)]
        return sorted({0, *grid})

    def config(self, arm: str, vocab_size: int) -> DiffConfig:
        """The model configuration of one arm.

        Raises
        ------
        DiffscopeError
            The recipe has no such arm, or no model can be made of its fields.
        """
        if arm not in self.arms:
            raise DiffscopeError(f"recipe {self.name!r} has no arm {arm!r}; its arms are: {', '.join(self.arms)}")
        fields = {**self.model, **self.arms[arm], "vocab_size": vocab_size}
        _config(arm, fields)
        if self.match not in (None, arm) and "intermediate_size" not in self.arms[arm]:
            target = parameters({**self.model, **self.arms[self.match], "vocab_size": vocab_size})
            if abs(parameters(fields) / target - 1) > CLOSE:
                fields["intermediate_size"] = _matching_width(fields, target)
        return _config(arm, fields)

    def table(self, vocab_size: int) -> list[dict]:
        """One row for each arm: heads, widths, parameters, and their ratio to those of the matched arm."""
        configs = {arm: self.config(arm, vocab_size) for arm in self.arms}
        counts = {arm: parameters(config.to_dict()) for arm, config in configs.items()}
        reference = counts[self.match or next(iter(counts))]
        shown = ("attention", "num_attention_heads", "head_dim", "intermediate_size")
        rows = {arm: {"arm": arm, **{name: getattr(config, name) for name in shown}} for arm, config in configs.items()}
        return [{**row, "parameters": counts[arm], "ratio": counts[arm] / reference} for arm, row in rows.items()]

    def as_dict(self) -> dict:
        """Everything but the source text, ready for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "source"}

    def trains(self, arm: str) -> dict:
        """The fields that the training of one arm depends on, beside the seed."""
        others = ("arms", "seeds", "grid")
        arms = {name: self.arms[name] for name in (arm, self.match) if name is not None}
        return {key: value for key, value in self.as_dict().items() if key not in others} | {"arms": arms}


def _check_types(part) -> None:
    """Raise TypeError where a field is not of its type; a whole number counts as a float."""
    for name, kind in get_type_hints(type(part)).items():
        type_validator(name, getattr(part, name), float | int if kind is float else kind)


def _frozen(value):
    """TOML's arrays as tuples, which compare as the defaults do."""
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def parameters(fields: dict) -> int:
    """The number of parameters that a model of these fields uses, counted without allocating them.

    Where λ is fixed at 0, the queries and keys of the second map exist and learn nothing: they are not counted.
    """
    config = DiffConfig(**fields)
    with torch.device("meta"):
        count = DiffForCausalLM(config).num_parameters()
    if config.fixed_lambda != 0:
        return count
    heads = config.num_attention_heads + config.num_key_value_heads
    width = config.second_dim or config.head_dim
    return count - config.num_hidden_layers * heads * width * (config.hidden_size + config.attention_bias)


def _config(arm: str, fields: dict) -> DiffConfig:
    """An arm's configuration, checked by making a model of it.

    A field that no model has is refused, since it would change nothing; so is dropout, with which no run could be repeated.
    """
    usual = DiffConfig()
    if unknown := [name for name in fields if not hasattr(usual, name)]:
        raise DiffscopeError(f"arm {arm!r}: models have no field {unknown[0]!r}")
    if fields.get("attention_dropout"):
        raise DiffscopeError(f"arm {arm!r}: with attention_dropout no run could be repeated; leave it out")
    try:
        config = DiffConfig(**fields)
        with torch.device("meta"):
            DiffForCausalLM(config)
    except (
        ValueError,
        TypeError,
        KeyError,
        ArithmeticError,
        RuntimeError,
        AssertionError,
        StrictDataclassError,
        DiffscopeError,
    ) as error:
        raise DiffscopeError(f"arm {arm!r}: {' '.join(str(error).split())}") from None
    return config


def _matching_width(fields: dict, target: int) -> int:
    """The width of the MLPs with which the number of parameters comes nearest to `target`; it is linear in the width."""
    narrow = parameters({**fields, "intermediate_size": 1})
    step = parameters({**fields, "intermediate_size": 2}) - narrow
    width = 1 + round((target - narrow) / step)
    if width < 1:
        raise DiffscopeError(f"the arm has {narrow} parameters without its MLPs, more than the {target} of the arm to match")
    return width
