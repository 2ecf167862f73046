"""A training recipe: one TOML file names the arms of a matched cohort and everything they share."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as fields_of
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

from diffscope.errors import DiffscopeError, PromptError
from diffscope.lab.training.grid import Grid, PlainText
from diffscope.lab.training.onsets import FORMED_BY
from diffscope.lab.training.parameter_matching import make_config, matching_width, parameters
from diffscope.lab.training.stages import BACKCOPY, Continued, Copying, Minor, Rule, Stage, Tuning
from diffscope.models import DiffConfig

PARTS = {
    "evaluation": Grid,
    "evaluation_text": PlainText,
    "copying": Copying,
    "grid": Grid,
    "plain_text": PlainText,
    "minor": Minor,
    "tuning": Tuning,
}
PRECISIONS = ("float32", "bfloat16")
UNTRAINED = ("arms", "seeds", "grid", "plain_text", "minor", "tuning", "then", "continued", "source", "keep_weights", "text")
# Fields that recipes were once written down without.
LATER = ("evaluation_text", "copying", "formed_by", "corpus", "keep_weights", "task", "planted", "spacing", "rule")
CLOSE = 0.005  # share of parameters by which arms may differ before their MLPs are made wider or narrower
BUNDLED = Path(__file__).parent / "recipes"


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
    evaluation : Grid, optional
        The prompts on which models are scored along the way; `prompts` is their number in all, over the cells in turn.
    grid : Grid, optional
        The prompts on which models are scored in the end; `prompts` is their number in each cell.
    evaluation_text : PlainText, optional
        The held-out text on which models are scored along the way.
    copying : Copying, optional
        The sequences of Bigram-Backcopy on which models of that task are scored along the way.
    plain_text : PlainText, optional
        The held-out text on which they are scored in the end; by default as long as the middle length of the grid.
    seeds : tuple of int
        A run is one arm with one seed, which gives the initial weights and the data; all arms of a seed see the same data.
    minor : Minor, optional
        Arms that are trained after all others, with other seeds.
    tuning : Tuning, optional
        How the learning rate of each arm is chosen; without it all have `learning_rate`.
    continued : dict of str to Continued
        Arms that begin where another arm's first stage ended. They have that arm's learning rate.
    then : str, optional
        The recipe of a cohort that is trained after this one.
    formed_by : {"twice", "mean of three"}
        When a run counts as formed: at the first of two evaluations in a row that each reach a share of right answers, or at the
        last of three whose mean does. That share is the stage's `formed`, or 0.95 and 0.90.
    corpus : str, optional
        The digest of the text that it trains on, by default the documentation strings of Python's standard library.
    keep_weights : bool
        Keep the weights of finished runs in half precision, in ``OUT/weights``. Evidence is then taken later, by
        ``--recompute-evidence``.
    words : tuple of str
        Additional words of the vocabulary, each with the space before it.
    precision : {"float32", "bfloat16"}
        Of the forward and backward pass; weights and their updates stay in float32.
    compiled : bool
        Whether ``torch.compile`` is used.
    match : str, optional
        The arm whose number of parameters the others get, as nearly as the width of their MLPs allows. An arm that differs from
        it by less than half a per cent, or has an ``intermediate_size`` of its own, keeps its width.
    learning_rate, weight_decay
        Of Muon and AdamW; how the rate rises and falls is said by each stage.
    checkpoints : tuple of int
        Steps after which one is kept; one is kept too at the beginning and at the end of each stage.
    evaluate_every : int
        Steps.
    """

    name: str
    seeds: tuple[int, ...]
    vocab_size: int
    model: dict
    arms: dict[str, dict]
    stages: tuple[Stage, ...]
    learning_rate: float
    weight_decay: float
    checkpoints: tuple[int, ...]
    evaluate_every: int
    evaluation: Grid | None = None
    words: tuple[str, ...] = ()
    precision: str = "float32"
    compiled: bool = False
    match: str | None = None
    grid: Grid | None = None
    plain_text: PlainText | None = None
    minor: Minor | None = None
    tuning: Tuning | None = None
    continued: dict[str, Continued] = field(default_factory=dict)
    then: str | None = None
    evaluation_text: PlainText | None = None
    copying: Copying | None = None
    formed_by: str = "twice"
    corpus: str | None = None
    keep_weights: bool = False
    source: str = field(default="", compare=False)
    text: Path | None = field(default=None, compare=False)  # the folder of the corpus

    @classmethod
    def load(cls, name: str) -> Recipe:
        """Read a bundled recipe by name, or any TOML file by path.

        Raises DiffscopeError if there is no such recipe, or a field is missing, unknown or wrong.
        """
        path = Path(name) if name.endswith(".toml") else BUNDLED / f"{name}.toml"
        if not path.is_file():
            bundled = ", ".join(sorted(file.stem for file in BUNDLED.glob("*.toml")))
            raise DiffscopeError(f"no recipe {name!r}; bundled are: {bundled}, or give a .toml file")
        try:
            source = path.read_text(encoding="utf-8")
            fields = {name: _frozen(value) for name, value in tomllib.loads(source).items()}
            stages = tuple(Stage(**stage) for stage in fields.pop("stages"))
            tables = {name: PARTS[name](**fields.pop(name)) for name in PARTS if name in fields}
            continued = {arm: Continued(**table) for arm, table in fields.pop("continued", {}).items()}
            recipe = cls(**fields, **tables, stages=stages, continued=continued, source=source)
            parts = (recipe, *stages, *tables.values(), *continued.values())
            for part in parts:
                _check_types(part)
            mistake = _mistake(*parts)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError, TypeError, KeyError, PromptError) as error:
            raise DiffscopeError(f"{path}: not a complete recipe ({error}); compare it with {BUNDLED / 'laptop.toml'}") from None
        if mistake:
            raise DiffscopeError(f"{path}: {mistake}")
        return recipe

    def rules(self) -> Iterator[Rule]:
        """Yield for each rule the message of a field that breaks it, and whether the field keeps it."""
        yield "there are no arms, or no stages", bool(self.arms and self.stages)
        names = [name for name in (self.name, *self.arms) if not name or set(name) & set(r"/\:") or name.startswith(".")]
        yield f"{names} are no names of folders; a recipe and its arms need such", not names
        yield f"match = {self.match!r} is none of its arms: {', '.join(self.arms)}", self.match in (None, *self.arms)
        yield f"seeds = {self.seeds!r} is no list of numbers from 0 on", bool(self.seeds) and min(self.seeds) >= 0
        yield f"precision = {self.precision!r} is neither float32 nor bfloat16", self.precision in PRECISIONS
        learned = self.corpus is None and self.task != BACKCOPY
        yield f"vocab_size = {self.vocab_size!r} has to be 300 or more", self.vocab_size >= (300 if learned else 1)
        yield f"learning_rate = {self.learning_rate!r} has to be above 0", 0 < self.learning_rate < math.inf
        yield f"weight_decay = {self.weight_decay!r} has to be 0 or more", 0 <= self.weight_decay < math.inf
        yield f"evaluate_every = {self.evaluate_every!r} has to be 1 or more", self.evaluate_every >= 1
        yield f"checkpoints = {self.checkpoints!r} have to be 0 or more", min(self.checkpoints, default=0) >= 0
        yield "the first stage needs a warmup of 1 or more", self.stages[0].warmup >= 1
        yield "formed needs an [evaluation]", self.evaluates or all(stage.formed is None for stage in self.stages)
        yield f"formed_by = {self.formed_by!r} is neither {' nor '.join(map(repr, FORMED_BY))}", self.formed_by in FORMED_BY
        yield from self._rules_of_the_task()
        minor, seeds = ((), ()) if self.minor is None else (self.minor.arms, self.minor.seeds)
        yield f"[minor] names arms that there are not: {', '.join(set(minor) - set(self.arms))}", set(minor) <= set(self.arms)
        for arm, continued in self.continued.items():
            yield (
                f"[continued] {arm!r} after {continued.arm!r}: both have to be arms, with a stage that is left",
                {arm, continued.arm} <= set(self.arms) and continued.arm not in self.continued and len(self.stages) > 1,
            )
            yield (
                f"[continued] {arm!r} is trained after {continued.arm!r} and with its seeds; name it in [minor], and not that",
                arm in minor and continued.arm not in minor and set(seeds) <= set(self.seeds),
            )
            yield f"[continued] {arm!r} has no top_keys that could fall", bool(self.arms.get(arm, {}).get("top_keys"))
        if self.tuning is not None:
            common = set(self.tuning.seeds) & {*self.seeds, *seeds}
            yield f"[tuning] uses seeds that are used again: {sorted(common)}", not common

    def _rules_of_the_task(self) -> Iterator[Rule]:
        tasks = {stage.task for stage in self.stages}
        yield (
            f"stages of task {BACKCOPY!r} have a vocabulary of their own, and go with no others",
            BACKCOPY not in tasks or len(tasks) == 1,
        )
        of_copies = tasks == {BACKCOPY}
        yield f"[copying] is of task {BACKCOPY!r}", of_copies or self.copying is None
        yield (
            f"task {BACKCOPY!r} is scored by [copying] alone, and has no corpus",
            not of_copies or (self.evaluation, self.evaluation_text, self.grid, self.plain_text, self.corpus) == (None,) * 5,
        )

    @property
    def task(self) -> str:
        """Return the task of the last stage."""
        return self.stages[-1].task

    @property
    def evaluates(self) -> bool:
        """Return whether models are scored during training by how many answers are right."""
        return self.evaluation is not None or self.copying is not None

    @property
    def steps(self) -> int:
        """Return the most steps of a run of any arm."""
        return sum(stage.steps for stage in self.stages)

    @property
    def scored(self) -> bool:
        """Return whether trained models are scored, and their scores collected."""
        return any(part is not None for part in (self.grid, self.plain_text, self.copying))

    @property
    def groups(self) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
        """(arms, seeds) in the order in which they are trained."""
        minor = () if self.minor is None else self.minor.arms
        groups = [(tuple(arm for arm in self.arms if arm not in minor), self.seeds)]
        return groups if self.minor is None else [*groups, (self.minor.arms, self.minor.seeds)]

    @property
    def of_text(self) -> bool:
        """Return whether all stages are plain text, which forms no lookup circuit."""
        return all(stage.plain_text for stage in self.stages)

    @property
    def length(self) -> int:
        """Return the length of the longest training prompt, in tokens."""
        return max(length for stage in self.stages for _, length in stage.shapes)

    def first_stage(self, arm: str) -> int:
        """Return the number of an arm's first stage: 0, or 1 if it continues another arm."""
        return 1 if arm in self.continued else 0

    def most_steps(self, arm: str) -> int:
        """Return the most steps of a run of an arm."""
        return sum(stage.steps for stage in self.stages[self.first_stage(arm) :])

    def with_rate(self, rate: float) -> Recipe:
        """Return the recipe with one learning rate for all arms, in place of those that are tried.

        Raises DiffscopeError if it is no number above 0.
        """
        changed = replace(self, learning_rate=rate, tuning=None)
        if mistake := _mistake(changed):
            raise DiffscopeError(mistake)
        return changed

    def tuned(self, rate: float) -> Recipe:
        """Return the recipe of a run that tries a learning rate: the first stage alone, without the criterion that ends it."""
        stage = replace(self.stages[0], steps=self.tuning.steps, formed=None)
        alone = dict(checkpoints=(), continued={}, keep_weights=False, seeds=self.tuning.seeds)
        return replace(self, stages=(stage,), learning_rate=rate, **alone)

    def config(self, arm: str, vocab_size: int) -> DiffConfig:
        """Return the model configuration of one arm.

        Raises DiffscopeError if the recipe has no such arm, or no model can be made of its fields.
        """
        if arm not in self.arms:
            raise DiffscopeError(f"recipe {self.name!r} has no arm {arm!r}; its arms are: {', '.join(self.arms)}")
        fields = {**self.model, **self.arms[arm], "vocab_size": vocab_size}
        make_config(arm, fields)
        if self.match not in (None, arm) and "intermediate_size" not in self.arms[arm]:
            target = parameters({**self.model, **self.arms[self.match], "vocab_size": vocab_size})
            if abs(parameters(fields) / target - 1) > CLOSE:
                fields["intermediate_size"] = matching_width(fields, target)
        return make_config(arm, fields)

    def table(self, vocab_size: int) -> list[dict]:
        """Return one row for each arm: heads, widths, parameters, and their ratio to those of the matched arm."""
        configs = {arm: self.config(arm, vocab_size) for arm in self.arms}
        counts = {arm: parameters(config.to_dict()) for arm, config in configs.items()}
        reference = counts[self.match or next(iter(counts))]
        shown = ("attention", "num_attention_heads", "head_dim", "intermediate_size")
        rows = {arm: {"arm": arm, **{name: getattr(config, name) for name in shown}} for arm, config in configs.items()}
        return [{**row, "parameters": counts[arm], "ratio": counts[arm] / reference} for arm, row in rows.items()]

    def as_dict(self) -> dict:
        """Return everything but the source text and the corpus' folder, ready for JSON; fields of ``LATER`` only if used."""
        values = _used(self) | {"stages": [_used(stage) for stage in self.stages]}
        values |= {} if self.tuning is None else {"tuning": _used(self.tuning)}
        return {key: value for key, value in values.items() if key not in ("source", "text")}

    def trains(self, arm: str) -> dict:
        """Return the arm's training configuration without defaults: two trainings are equal if and only if these dicts are."""
        usual = {part.name: part.default for part in fields_of(self)} | {"words": ()}
        values = {name: value for name, value in asdict(self).items() if name not in UNTRAINED and value != usual[name]}
        values["stages"] = [without_defaults(stage) for stage in self.stages]
        continued = self.continued.get(arm)
        before = None if continued is None else continued.arm
        arms = {name: self.arms[name] for name in (arm, self.match, before) if name is not None}
        return values | {"arms": arms} | ({} if continued is None else {"continued": asdict(continued)})


def without_defaults(part: Stage | Grid | PlainText) -> dict:
    """Return the fields of a part of a recipe that are not left at their default, so that a new field changes no old recipe."""
    usual = {each.name: each.default for each in fields_of(part)}
    return {name: value for name, value in asdict(part).items() if value != usual[name]}


def _used(part: Recipe | Stage | Tuning) -> dict:
    usual = {each.name: each.default for each in fields_of(part)}
    return {name: value for name, value in asdict(part).items() if name not in LATER or value != usual[name]}


def _mistake(*parts) -> str | None:
    """Return the message of the first rule that parts of a recipe break."""
    return next((mistake for part in parts for mistake, right in part.rules() if not right), None)


def _check_types(part) -> None:
    """Raise TypeError if a field is not of its type."""
    for name, kind in get_type_hints(type(part)).items():
        value = getattr(part, name)
        if not _is_of(value, kind):
            raise TypeError(f"{name!r} expected {kind.__name__ if kind in (int, float, str) else kind}, got {value!r}")


def _is_of(value: object, kind: object) -> bool:
    """Return whether a value is of a type as an annotation writes it; a whole number counts as a float."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_is_of(value, each) for each in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return isinstance(value, tuple) and all(_is_of(item, arguments[0]) for item in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(_is_of, value, arguments))
    if origin is dict:
        return isinstance(value, dict) and all(_is_of(item, arguments[1]) for item in value.values())
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return isinstance(value, kind)


def _frozen(value):
    """TOML's arrays as tuples, which compare as the defaults do."""
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
