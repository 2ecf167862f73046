"""A training recipe: one TOML file names the arms of a matched family and everything they share."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from diffscope.errors import DiffscopeError
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.tasks.retrieval import TEMPLATE

BUNDLED = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Stage:
    """A stretch of training on prompts of one shape: `steps` steps of `rows` prompts of `length` tokens."""

    steps: int
    length: int
    rows: int
    needles: tuple[int, int]  # fewest and most cities a prompt
    mentions: int  # sentences a prompt
    text_weight: float  # of the loss on text; the loss on numbers that an earlier mention gives away has weight 1
    template: str = TEMPLATE  # the needle sentence


@dataclass(frozen=True)
class Recipe:
    """What every arm of a family shares, and what tells the arms apart.

    Attributes
    ----------
    model : dict
        Fields of :class:`~diffscope.models.DiffConfig` common to all arms.
    arms : dict of str to dict
        The fields in which each arm differs.
    stages : tuple of Stage
    match : str, optional
        The arm whose number of parameters the others get, as nearly as the width of their MLPs allows; an arm with an
        ``intermediate_size`` of its own keeps it.
    learning_rate, weight_decay, warmup, cooldown
        Muon and AdamW; the rate rises over `warmup` steps, and over the last `cooldown` share of all it falls to a twentieth.
    """

    name: str
    seed: int
    vocab_size: int
    model: dict
    arms: dict[str, dict]
    stages: tuple[Stage, ...]
    learning_rate: float
    weight_decay: float
    warmup: int
    cooldown: float
    checkpoints: int
    evaluate_every: int
    match: str | None = None
    source: str = field(default="", compare=False)

    @classmethod
    def load(cls, name: str) -> Recipe:
        """A bundled recipe by name, or any TOML file by path.

        Raises
        ------
        DiffscopeError
            No such recipe, or one with a field missing or too many.
        """
        path = Path(name) if name.endswith(".toml") else BUNDLED / f"{name}.toml"
        if not path.is_file():
            bundled = ", ".join(sorted(file.stem for file in BUNDLED.glob("*.toml")))
            raise DiffscopeError(f"no recipe {name!r}; bundled are: {bundled}, or give a .toml file")
        source = path.read_text(encoding="utf-8")
        try:
            fields = tomllib.loads(source)
            stages = tuple(Stage(**{**stage, "needles": tuple(stage["needles"])}) for stage in fields.pop("stages"))
            recipe = cls(**fields, stages=stages, source=source)
        except (tomllib.TOMLDecodeError, TypeError, KeyError) as error:
            raise DiffscopeError(f"{path}: not a complete recipe ({error}); compare it with {BUNDLED / 'mini.toml'}") from None
        if recipe.match is not None and recipe.match not in recipe.arms:
            raise DiffscopeError(f"{path}: match = {recipe.match!r} is none of its arms: {', '.join(recipe.arms)}")
        return recipe

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def length(self) -> int:
        """The longest prompt trained on, in tokens."""
        return max(stage.length for stage in self.stages)

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
        last, count = self.steps, self.checkpoints - 1
        first = min(50, max(1, last // 2))
        grid = [round(first * (last / first) ** (i / (count - 1))) for i in range(count)]
        return sorted({0, *grid})

    def config(self, arm: str, vocab_size: int) -> DiffConfig:
        """The model configuration of one arm."""
        if arm not in self.arms:
            raise DiffscopeError(f"recipe {self.name!r} has no arm {arm!r}; its arms are: {', '.join(self.arms)}")
        fields = {**self.model, **self.arms[arm], "vocab_size": vocab_size}
        if self.match not in (None, arm) and "intermediate_size" not in self.arms[arm]:
            wanted = parameters({**self.model, **self.arms[self.match], "vocab_size": vocab_size})
            fields["intermediate_size"] = _matching_width(fields, wanted)
        return DiffConfig(**fields)

    def table(self, vocab_size: int | None = None) -> list[dict]:
        """What every arm is made of: heads, widths, parameters, and these over those of the matched arm."""
        configs = {arm: self.config(arm, vocab_size or self.vocab_size) for arm in self.arms}
        counts = {arm: parameters(config.to_dict()) for arm, config in configs.items()}
        reference = counts[self.match or next(iter(counts))]
        shown = ("attention", "num_attention_heads", "head_dim", "intermediate_size")
        rows = {arm: {"arm": arm, **{name: getattr(config, name) for name in shown}} for arm, config in configs.items()}
        return [{**row, "parameters": counts[arm], "ratio": counts[arm] / reference} for arm, row in rows.items()]

    def as_dict(self) -> dict:
        """Everything but the source text, ready for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "source"}


def parameters(fields: dict) -> int:
    """How many parameters a model of these fields has; it takes no memory to tell."""
    with torch.device("meta"):
        return DiffForCausalLM(DiffConfig(**fields)).num_parameters()


def _matching_width(fields: dict, wanted: int) -> int:
    """The width of the MLPs with which a model comes nearest to so many parameters, which grow evenly with it."""
    narrow = parameters({**fields, "intermediate_size": 1})
    step = parameters({**fields, "intermediate_size": 2}) - narrow
    width = 1 + round((wanted - narrow) / step)
    if width < 1:
        raise DiffscopeError(f"the arm has {narrow} parameters without its MLPs, more than the {wanted} of the arm to match")
    return width
