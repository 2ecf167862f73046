"""From names of models and folders of cohorts to what the tests are made on."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.board import run
from diffscope.hypotheses.declared import NEEDED, chosen
from diffscope.hypotheses.subjects import Asked, Pair, Progress, Subject
from diffscope.hypotheses.verdicts import Verdict
from diffscope.lab.training.cohort import DATASET, open_dataset
from diffscope.lab.training.run_folder import WEIGHTS
from diffscope.models.loading import checkpoints, locate
from diffscope.scope import Scope, load

ROUNDS = 8  # series of untrained models beside one of checkpoints
ROUNDS_OF_SEVERAL = 3  # beside each of several
SERIES_PROMPTS = 20


@dataclass
class Gathered:
    """What tests are to be made on; :meth:`run` makes them.

    Attributes
    ----------
    names : list of str
        Models, baselines, cohort: what the board is about.
    asked : Asked
    """

    names: list[str]
    asked: Asked
    model: Subject | None = None
    cohort: xr.Dataset | None = None
    pair: Pair | None = None
    checkpoints: list[Subject] = field(default_factory=list)

    def run(self, ids: Sequence[str] = (), progress: Progress | None = None, kept: MutableMapping | None = None) -> list[Verdict]:
        """The verdicts; see :func:`diffscope.hypotheses.board.run`."""
        how = dict(pair=self.pair, checkpoints=self.checkpoints, progress=progress, kept=kept)
        return run(ids, self.model, self.cohort, **how)


def gather(
    models: Sequence[str | Scope] = (),
    baselines: Sequence[str | Scope] = (),
    cohort: Path | None = None,
    *,
    seeds: Collection[int] | None = None,
    needs: Collection[str] = tuple(NEEDED),
    progress: Progress | None = None,
    opener: Callable[[str], Scope] = load,
    **asked,
) -> Gathered:
    """Open what the tests are to be made on.

    Parameters
    ----------
    models : sequence of str or Scope
        A model, or several seeds of one; those of a cohort where it is given and they are not.
    baselines : sequence of str or Scope
        The standard models that they are matched with, one each.
    cohort : path, optional
        Folder of a trained cohort.
    seeds : collection of int, optional
        Only these seeds of the cohort.
    needs : collection of {"model", "pair", "checkpoints", "cohort"}
        What the tests need; other things are not opened.
    progress : callable, optional
        Called with (done, total, what is read) whenever models are read.
    opener : callable
        Opens a model by its name.
    **asked
        Of :class:`Asked`: prompts, length, needles, seed, template, untrained.

    Raises
    ------
    DiffscopeError
        Nothing is named, or not as many baselines as models.
    """
    found = None
    if baselines and len(baselines) != len(models):
        raise DiffscopeError("--baseline is matched with --model one by one; give as many of each")
    if not models and cohort is None:
        raise DiffscopeError("nothing to test; name a model with --model, or a trained cohort with --cohort FOLDER")
    if cohort is not None:
        cohort = Path(cohort)
        found = open_cohort(cohort)
        if seeds is not None:
            found = found.sel(seed=_there(found, seeds))
        if not models:
            models, baselines = models_of(cohort, found, "diff", "standard")
            models = models or models_of(cohort, found, "diff")[0]
        asked["template"] = asked.get("template") or json.loads(found.attrs["recipe"])["grid"]["template"]
    asked = Asked(**{name: value for name, value in asked.items() if value is not None})
    opened: dict[str | Scope, Scope] = {}

    def scopes(names) -> list[Scope]:
        return [opened.setdefault(one, opener(one) if isinstance(one, str) else one) for one in names]

    def subject(names, asked=asked, **kind) -> Subject | None:
        return Subject(scopes(names), asked, progress, **kind) if names else None

    model = subject(models if {"model", "pair"} & set(needs) else [])
    standard = subject(baselines if "pair" in needs else [])
    several = [steps for one in models if "checkpoints" in needs and (steps := steps_of(one))]
    series = [subject(steps, _of_series(asked, len(steps), len(several), i), series=True) for i, steps in enumerate(several)]
    names = [one if isinstance(one, str) else one.name for one in (*models, *baselines)]
    pair = Pair(model, standard) if model and standard else None
    return Gathered([*names, *([str(cohort)] if cohort else [])], asked, model, found, pair, series)


def _of_series(asked: Asked, steps: int, several: int, number: int) -> Asked:
    """Fewer prompts, and untrained models of its own: what is the same in two trainings would count twice."""
    count = (ROUNDS if several == 1 else ROUNDS_OF_SEVERAL) * steps
    return replace(asked, prompts=min(asked.prompts, SERIES_PROMPTS), untrained=count, first=number * count)


def _there(cohort: xr.Dataset, seeds: Collection[int]) -> list[int]:
    if absent := set(seeds) - {int(seed) for seed in cohort["seed"].values}:
        raise DiffscopeError(f"the cohort has no seed {min(absent)}; it has {', '.join(map(str, cohort['seed'].values))}")
    return sorted(seeds)


def test(
    ids: Sequence[str] = (),
    model: str | Scope | Sequence[str | Scope] = (),
    baseline: str | Scope | Sequence[str | Scope] = (),
    cohort: str | Path | None = None,
    *,
    progress: Progress | None = None,
    **asked,
) -> list[Verdict]:
    """Test hypotheses of how differential attention works, and judge them by the rules they declared.

    Parameters
    ----------
    ids : sequence of str
        Names of tests, by default all; ``diffscope.hypotheses.TESTS`` has what they declare.
    model : str, Scope, or several
        A differential model, or several seeds of one.
    baseline : str, Scope, or several
        The standard model that each is matched with.
    cohort : path, optional
        Folder of a trained cohort; without `model` its DIFF models are tested too.
    progress : callable, optional
        Called with (done, total, words).
    **asked
        Of :class:`diffscope.hypotheses.Asked`: prompts, length, needles, seed, template, untrained.

    Returns
    -------
    list of Verdict
        One a test; what cannot be tested says what it needs.

    Raises
    ------
    DiffscopeError
        There is no such test, no such model, or nothing to test.
    """
    ids = [ids] if isinstance(ids, str) else list(ids)
    needs = {one.needs for one in chosen(ids)}
    one_or_more = ([one] if isinstance(one, (str, Scope)) else list(one) for one in (model, baseline))
    return gather(*one_or_more, cohort, needs=needs, progress=progress, **asked).run(ids)


test.__test__ = False  # it is not one of pytest's


def open_cohort(folder: Path) -> xr.Dataset:
    """What ``diffscope train`` measured of a cohort.

    Raises
    ------
    DiffscopeError
        There is none in the folder.
    """
    found = open_dataset(folder)
    if not ({"exact_match", "finished"} <= set(found) and "recipe" in found.attrs):
        raise DiffscopeError(f"{folder / DATASET} is not what diffscope train measures of a cohort")
    return found


def models_of(folder: Path, cohort: xr.Dataset, *arms: str) -> list[list[str]]:
    """For each arm the folders of its models, of those seeds that all of the arms have finished."""
    if set(arms) - set(cohort["arm"].values):
        return [[] for _ in arms]
    finished = (cohort["finished"].sel(arm=list(arms)) == 1).all("arm").values
    seeds = [int(seed) for seed in cohort["seed"].values[finished]]
    there = [seed for seed in seeds if all((folder / arm / f"seed-{seed}" / WEIGHTS).is_file() for arm in arms)]
    return [[str(folder / arm / f"seed-{seed}") for seed in there] for arm in arms]


def steps_of(model: str | Scope) -> list[str]:
    """The checkpoints that a training left beside a model, ``NAME@STEP`` in order; none of a hub id, a checkpoint or a Scope."""
    if isinstance(model, Scope):
        return []
    folder, weights = locate(model)
    return [f"{model}@{step}" for step in sorted(checkpoints(folder))] if folder is not None and folder == weights else []
