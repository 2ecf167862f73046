"""Gather what the tests are made on, from names of models and folders of cohorts, and test it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import xarray as xr
from torch import nn

from diffscope.errors import DiffscopeError, PromptError, check_choice, check_several
from diffscope.hypotheses.board import Result, run
from diffscope.hypotheses.cohort import formed
from diffscope.hypotheses.settings import Settings
from diffscope.hypotheses.stored import models_of, open_cohort, stored_models, with_evidence, with_seeds
from diffscope.hypotheses.subjects import Models, Pair, Progress
from diffscope.hypotheses.tests import NEEDED, chosen
from diffscope.hypotheses.verdict import Board
from diffscope.lab.accuracy import Accuracy, accuracy_of
from diffscope.models import folders
from diffscope.scope import Scope, load
from diffscope.stats.intervals import LEVEL
from diffscope.tasks.files import read_prompts
from diffscope.tasks.prompt import TextPrompt
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.training_sentence import template_mismatches, template_of

ROUNDS = 8  # series of untrained models beside one of checkpoints
ROUNDS_OF_SEVERAL = 3  # beside each of several
SERIES_PROMPTS = 20
FEW_MODELS = 4  # of each of which it is said how it answers

Model = str | Scope


def test(
    model: Model | Sequence[Model] | None = None,
    baseline: Model | Sequence[Model] | None = None,
    *,
    cohort: str | Path | None = None,
    tests: str | Sequence[str] | None = None,
    seeds: Collection[int] | None = None,
    own: str | Path | Sequence[TextPrompt] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Board:
    """Test hypotheses of how differential attention works, and judge them by the rules they declared.

    Parameters
    ----------
    model : str, Scope, or several
        A differential model, or several seeds of one.
    baseline : str, Scope, or several
        The standard model that each is matched with.
    cohort : path, optional
        Folder of a trained cohort; without `model` its DIFF models are tested too.
    tests : str or sequence of str, optional
        Ids of tests, by default all; ``diffscope.hypotheses.TESTS`` has what they declare.
    seeds : collection of int, optional
        Only these seeds of the cohort.
    own : path, or sequence of TextPrompt, optional
        A person's own prompts in place of retrieval prompts, as :func:`diffscope.tasks.read_prompts` reads them from a file; each
        has an answer, and a span ``answer`` where its text states it.
    progress : callable, optional
        Called with (tests done, tests in all, words); it never goes back.
    **settings
        Prompts, and how much is spent on them, as the fields of :class:`Settings`: by default ``prompts=40, length=160,
        needles=4, seed=50_000, template=None, untrained=24, first=0, weights="knock-out"``.

    Returns
    -------
    Board
        A list of Verdict, one a test; what cannot be tested says what it needs.

    Raises
    ------
    DiffscopeError
        There is no such test, no such model, no such setting, or nothing to test.
    """
    needs = {declared.needs for declared in chosen(tests)}
    for name in settings:
        check_choice("setting", name, [field.name for field in fields(Settings) if field.name != "own"])
    given = Settings(**settings)
    if own is not None:
        given = with_own(given, read_prompts(own) if isinstance(own, str | Path) else own)
    named = _several(model), _several(baseline), cohort
    subjects = gather(*named, seeds=seeds, needs=needs, settings=given, progress=progress)
    return subjects.run(tests)


def with_own(settings: Settings, prompts: Sequence[TextPrompt]) -> Settings:
    """Return settings with a person's own prompts in place of drawn ones."""
    return replace(settings, own=tuple(prompts), prompts=len(prompts))


test.__test__ = False  # it is not one of pytest's


def _several(models: Model | Sequence[Model] | None) -> list[Model]:
    if models is None:
        return []
    several = [models] if isinstance(models, str | Path | Scope) else models
    return [str(model) if isinstance(model, Path) else model for model in several]


class TestProgress:
    """Tells how many tests are done, and what is done within the next.

    Parameters
    ----------
    progress : callable, optional
        Called with (tests done, tests in all, words); what is done never goes back.
    """

    def __init__(self, progress: Progress | None):
        self._progress = progress
        self._at = (0, 1, "")

    def test(self, number: int, total: int, name: str) -> None:
        """Tell that a test begins, and those before it are over."""
        self._at = (number, total, f"{name}: ")
        self.words("")

    def within(self, done: int, total: int, words: str) -> None:
        """Tell how much of something is done within a test."""
        self.words(f"{words}, {done} of {total}")

    def words(self, words: str) -> None:
        """Tell what is done now."""
        done, total, name = self._at
        if self._progress:
            self._progress(done, total, f"{name}{words}".removesuffix(": "))

    def end(self) -> None:
        """Tell that all tests are over."""
        _, total, _ = self._at
        self._at = (total, total, "")
        self.words("")


@dataclass
class Subjects:
    """What tests are made on.

    Attributes
    ----------
    names : list of str
        Models, baselines, cohort: what the board is about.
    settings : Settings
    model, cohort, pair, checkpoints
        As :func:`diffscope.hypotheses.board.run` takes them.
    notes : list of str
        Which models were trained on another sentence than the one that they are asked in; which settings do not count.
    """

    names: list[str]
    settings: Settings
    model: Models | None = None
    cohort: xr.Dataset | None = None
    pair: Pair | None = None
    checkpoints: Sequence[Models] = field(default_factory=list)
    progress: TestProgress = field(default_factory=lambda: TestProgress(None), repr=False)
    notes: Sequence[str] = ()

    def run(self, tests: str | Sequence[str] | None = None, finished: MutableMapping[str, Result] | None = None) -> Board:
        """Return the verdicts; see :func:`diffscope.hypotheses.board.run`."""
        verdicts = run(
            tests,
            model=self.model,
            pair=self.pair,
            checkpoints=self.checkpoints,
            cohort=self.cohort,
            progress=self.progress.test,
            finished=finished,
        )
        self.progress.end()
        return verdicts

    @cached_property
    def accuracies(self) -> list[Accuracy]:
        """How the models, and those beside them, answer the prompts; none where these prompts cannot be made or asked."""
        standard = [] if self.pair is None else [self.pair.standard]
        accuracies = []
        for models in filter(None, (self.model, *standard)):
            for scope in models.scopes:
                self.progress.words(f"asking {scope.name}")
                with suppress(PromptError):  # the tests that need them say so
                    accuracies.append(accuracy_of(scope, models.prompts))
        return accuracies

    @property
    def statements(self) -> list[str]:
        """The same in words; of many models those that may answer at chance, and how many others there are."""
        if len(self.accuracies) <= FEW_MODELS:
            return [*self.notes, *[each.sentence for each in self.accuracies]]
        weak = [each.sentence for each in self.accuracies if not each.p <= LEVEL]  # NaN where chance is not known
        return [
            *self.notes,
            *weak,
            f"{len(self.accuracies) - len(weak)} of {len(self.accuracies)} models answer better than chance",
        ]


def gather(
    models: Sequence[Model] = (),
    baselines: Sequence[Model] = (),
    cohort: str | Path | None = None,
    *,
    seeds: Collection[int] | None = None,
    needs: Collection[str] = tuple(NEEDED),
    settings: Settings | None = None,
    progress: Progress | None = None,
    opener: Callable[[str], Scope] = load,
) -> Subjects:
    """Open what the tests are to be made on.

    Parameters
    ----------
    models : sequence of str or Scope
        A model, or several seeds of one; by default the DIFF models of the cohort.
    baselines : sequence of str or Scope
        The standard models that they are matched with, one each.
    cohort : path, optional
        Folder of a trained cohort. If evidence of its runs is stored, its DIFF models are tested by that, on the prompts that it
        was taken on.
    seeds : collection of int, optional
        Only these seeds of the cohort.
    needs : collection of {"model", "pair", "checkpoints", "cohort"}
        What the tests need; other things are not opened.
    settings : Settings, optional
        Prompts, and how much is spent on them.
    progress : callable, optional
        Called with (tests done, tests in all, words), first while models are opened, and then by :meth:`Subjects.run`.
    opener : callable
        Opens a model by its name.

    Raises
    ------
    DiffscopeError
        Nothing is named, baselines are not as many as models, or seeds are given without a cohort.
    """
    if seeds is not None:
        check_several("seeds", seeds, [0, 1])
        if cohort is None:
            raise DiffscopeError("seeds are chosen from a cohort, and none is given; give its folder as cohort")
    if baselines and len(baselines) != len(models):
        raise DiffscopeError("--baseline is matched with --model one by one; give as many of each")
    if not models and cohort is None:
        raise DiffscopeError("nothing to test; name a model with --model, or a trained cohort with --cohort FOLDER")
    settings = settings or Settings()
    shown = TestProgress(progress)
    dataset = None
    template = template_of(_model(models[0])) if models else TEMPLATE
    if cohort is not None:
        dataset = with_evidence(with_seeds(open_cohort(Path(cohort)), seeds), Path(cohort))
        template = json.loads(dataset.attrs["recipe"])["grid"]["template"]
        stored = None if models else stored_models(Path(cohort), dataset, settings.weights)
        if stored is not None:
            model, pair, series = stored
            usual = replace(settings, weights=Settings.weights) == Settings()
            notes = [] if usual else [f"models are read from the evidence in {cohort}, whose prompts and untrained models stand"]
            return Subjects([str(cohort)], settings, model, dataset, pair, series, shown, notes)
        if not models:
            models, baselines = _diff_models(Path(cohort), dataset)
    settings = replace(settings, template=settings.template or template)
    scopes: dict[Model, Scope] = {}
    standards = baselines if "pair" in needs else []
    trainings = [steps for name in models if "checkpoints" in needs and (steps := checkpoint_names(name))]

    def opened(names: Sequence[Model], settings: Settings = settings, series: bool = False) -> Models:
        for name in names:
            if name not in scopes:
                shown.words(f"opening {_name(name)}")
                scopes[name] = opener(name) if isinstance(name, str) else name
        return Models.open([scopes[name] for name in names], settings, shown.within, series)

    model = opened(models) if models and {"model", "pair"} & set(needs) else None
    standard = opened(standards) if standards else None
    series = [
        opened(steps, _of_series(settings, len(steps), len(trainings), number), series=True)
        for number, steps in enumerate(trainings)
    ]
    names = [_name(name) for name in (*models, *baselines)]
    beside = {} if settings.own else {_name(of): _model(of) for of in (*models, *baselines)}
    notes = template_mismatches(settings.template or TEMPLATE, beside)
    names += [] if cohort is None else [str(cohort)]
    pair = Pair(model, standard) if model and standard else None
    return Subjects(names, settings, model, dataset, pair, series, shown, notes)


def _name(model: Model) -> str:
    return model if isinstance(model, str) else model.name


def _model(model: Model) -> str | nn.Module:
    return model if isinstance(model, str) else model.model


def _of_series(settings: Settings, steps: int, trainings: int, number: int) -> Settings:
    """Fewer prompts, and untrained models of its own: what is the same in two trainings would count twice."""
    count = (ROUNDS if trainings == 1 else ROUNDS_OF_SEVERAL) * steps
    return replace(settings, prompts=min(settings.prompts, SERIES_PROMPTS), untrained=count, first=number * count)


def _diff_models(folder: Path, cohort: xr.Dataset) -> tuple[list[str], list[str]]:
    """Formed DIFF models and the standard ones of the same seeds; where there are none of these, the DIFF models alone."""
    models, baselines = models_of(folder, cohort, "diff", "standard", which=formed)
    if not models:
        (models,) = models_of(folder, cohort, "diff", which=formed)
    return models, baselines


def checkpoint_names(model: Model) -> list[str]:
    """Return the checkpoints that a training left beside a model, ``NAME@STEP``; none of a hub id, a checkpoint or a Scope."""
    if isinstance(model, Scope):
        return []
    folder, weights = folders.locate(model)
    return [f"{model}@{step}" for step in folders.steps_of(model)] if folder == weights else []
