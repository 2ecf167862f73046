"""A matched cohort: its runs, how far they are, and all that finished ones measured as one labelled dataset."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.lab.items import Item, Outcome
from diffscope.lab.training.formation import SHARES, formation_limit
from diffscope.lab.training.onsets import Criterion, onsets_of
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import METRICS, read_metrics, revision
from diffscope.lab.training.runs import (
    chosen_rates,
    diverged_runs,
    results,
    run_folder,
    run_label,
    scored_run,
    source_arm,
    tuning_run,
)
from diffscope.numbers import counted
from diffscope.storage.provenance import other_versions
from diffscope.storage.statistics import open_statistics, without_attrs

DATASET = "cohort.nc"
CURVES = "metrics.parquet"
ONSETS = (0.5, 0.8, 0.9)  # shares of right answers, each reached once
COPIES = ("copied", "copy_loss", "bigram_excess")  # of Bigram-Backcopy, at each evaluation


@dataclass(frozen=True)
class Cohort:
    """A cohort that is trained, or part of it.

    Attributes
    ----------
    recipe : Recipe
    out : Path
        Its folder.
    arms, seeds : tuple
        Those that are trained; by default all of the recipe.
    device : str

    Raises
    ------
    DiffscopeError
        The recipe has no such arm, or no model can be made of one, or a seed is one of those that choose its rates.
    """

    recipe: Recipe
    out: Path
    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    device: str = "cpu"

    def __post_init__(self):
        for arm in self.arms or self.recipe.arms:
            self.recipe.config(arm, self.recipe.vocab_size)
        if self.recipe.tuning is not None and (used := sorted({*self.seeds} & {*self.recipe.tuning.seeds})):
            raise DiffscopeError(f"seeds {used} choose the rates in [tuning], and are not used again; give others")

    def tuning_runs(self) -> list[Item]:
        """Return the runs that choose a rate, none of a recipe without tuning."""
        tuning = self.recipe.tuning
        if tuning is None:
            return []
        each = product(self._tuned_arms(), tuning.rates, tuning.seeds)
        return [tuning_run(self.recipe, arm, rate, seed) for arm, rate, seed in each]

    def _tuned_arms(self) -> list[str]:
        """Return the arms whose rate is chosen: one that continues another has that one's rate."""
        return list(dict.fromkeys(source_arm(self.recipe, arm) for arm in self.arms or self.recipe.arms))

    def tuning(self) -> xr.Dataset | None:
        """Tabulate the results of the runs that choose a rate; None of a recipe without tuning.

        Returns
        -------
        xarray.Dataset
            ``tuning_area`` (arm, rate, tuning_seed), the mean over steps of the loss that is lowered (on answers, or on text
            where there are none), in nats: infinite where it diverged, NaN where the run is missing; ``tuning_formation``, the
            step at which it formed, NaN where it did not.
        """
        tuning = self.recipe.tuning
        if tuning is None:
            return None
        coords = {"arm": self._tuned_arms(), "rate": list(tuning.rates), "tuning_seed": list(tuning.seeds)}
        shape = tuple(len(values) for values in coords.values())
        table = {name: np.full(shape, np.nan) for name in ("area", "formation")}
        planned = self.tuning_runs()
        opened = results(self.out, planned)
        for index, run in enumerate(planned):
            if run.place in opened:
                for name, values in table.items():
                    values.flat[index] = float(opened[run.place][name])
        return xr.Dataset({f"tuning_{name}": (tuple(coords), values) for name, values in table.items()}, coords)

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each arm for which it is known."""
        table = self.tuning()
        if table is None:
            return dict.fromkeys(self.recipe.arms, self.recipe.learning_rate)
        return chosen_rates(table, self.recipe.tuning.rule)

    def planned(self) -> list[Item]:
        """Return all runs, those that choose a rate first; runs whose rate is not known yet have the recipe's."""
        rates = dict.fromkeys(self.recipe.arms, self.recipe.learning_rate) | self.rates()
        return [*self.tuning_runs(), *self._runs(rates)]

    def runs(self) -> list[Item]:
        """Return the runs whose rates are known, without those that choose them."""
        return self._runs(self.rates())

    def _runs(self, rates: Mapping[str, float]) -> list[Item]:
        """Return the runs of arms whose rate is given, group by group, all arms of a seed before those of the next seed."""
        planned = []
        for group, usual in self.recipe.groups:
            known = {arm: rates.get(source_arm(self.recipe, arm)) for arm in group if arm in (self.arms or group)}
            for seed in dict.fromkeys(self.seeds or usual):
                planned += [scored_run(self.recipe, arm, rate, seed) for arm, rate in known.items() if rate is not None]
        return planned

    def outcome(self) -> Outcome:
        """Return which of :meth:`planned` are done."""
        return Outcome.of(self.planned(), self.out)

    def results(self) -> dict[str, xr.Dataset]:
        """Open the results of finished runs by place, those that choose a rate too.

        Raises DiffscopeError if the folder holds runs of another recipe.
        """
        return results(self.out, [*self.tuning_runs(), *self.runs()])

    def other_versions(self) -> str:
        """Return which versions and revision finished runs were made with, if these are not the ones that run here."""
        made = [result.attrs for result in self.results().values()]
        facts = (each for attrs in made for each in json.loads(attrs.get("made_by", "null")) or [])
        return other_versions([*made, *({"revision": each["revision"]} for each in facts)], revision=revision())

    def groups(self) -> list[Cohort]:
        """Return its arms in the groups in which they are trained."""
        groups = ([arm for arm in group if arm in (self.arms or group)] for group, _ in self.recipe.groups)
        return [replace(self, arms=tuple(group)) for group in groups if group]


def collect(cohort: Cohort) -> xr.Dataset:
    """Join all finished runs in one dataset over (arm, seed), NaN where a run is missing.

    Raises DiffscopeError if no run is finished, or the folder holds runs of another recipe.

    Returns
    -------
    xarray.Dataset
        The variables of :func:`diffscope.lab.training.scores.score`, with ``formation_limit``, the step at which runs that have
        not formed end; ``onset`` (arm, seed, share), the first step with that share of right answers; ``finished`` (arm, seed),
        0 where the run is missing; ``rate`` and ``parameters`` (arm); and, of a recipe with tuning, ``tuning_area`` and
        ``tuning_formation`` (arm, rate_tried, tuning_seed).
    """
    recipe = cohort.recipe
    everything = replace(cohort, arms=(), seeds=tuple(sorted({*_all_seeds(recipe), *cohort.seeds, *seeds_in(cohort.out)})))
    planned = everything.runs()
    opened = results(cohort.out, planned)
    if not opened:
        raise DiffscopeError(f"no run in {cohort.out} is finished yet; train with: diffscope train RECIPE --out {cohort.out}")
    finished = {(run.spec["arm"], run.spec["seed"]): opened[run.place] for run in planned if run.place in opened}
    dataset = _over_runs(recipe, finished)
    dataset["formation_limit"] = float(formation_limit(recipe))
    if (shares := next((dataset[name] for name in SHARES if name in dataset), None)) is not None:
        reached = [onsets_of(shares, Criterion(share)).assign_coords(share=share) for share in ONSETS]
        steps = xr.concat(reached, "share").transpose("arm", "seed", "share")
        dataset["onset"] = steps.where(np.isfinite(steps))
    rates = everything.rates()
    dataset["rate"] = "arm", [rates.get(source_arm(recipe, arm), np.nan) for arm in recipe.arms]
    table = everything.tuning()
    if table is not None:
        dataset = dataset.merge(table.rename(rate="rate_tried").reindex(arm=list(recipe.arms)))
    causes = Outcome.of(planned, cohort.out).failed
    failed = "; ".join(f"{run_label(run)}: {causes[run.place]}" for run in planned if run.place in causes)
    made_by = {
        f"{arm}/seed-{seed}": json.loads(result.attrs["made_by"])
        for (arm, seed), result in finished.items()
        if "made_by" in result.attrs
    }
    attrs = {"recipe": json.dumps(recipe.as_dict()), "made_by": json.dumps(made_by, sort_keys=True), "failed": failed}
    return dataset.assign_attrs({key: text for key, text in attrs.items() if text})


def _all_seeds(recipe: Recipe) -> set[int]:
    return {seed for _, seeds in recipe.groups for seed in seeds}


def _over_runs(recipe: Recipe, results: dict[tuple[str, int], xr.Dataset]) -> xr.Dataset:
    """Put the results of runs side by side over (arm, seed), NaN where there is none."""
    seeds = sorted({*_all_seeds(recipe), *(seed for _, seed in results)})
    fullest = max(results.values(), key=lambda result: len(result.data_vars))
    missing = xr.full_like(without_attrs(fullest).astype(float), np.nan)
    rows = []
    for arm in recipe.arms:
        of_arm = [without_attrs(results.get((arm, seed), missing)).astype(float) for seed in seeds]
        rows.append(xr.concat([_filled(result, missing) for result in of_arm], "seed", join="outer"))
    dataset = xr.concat(rows, "arm", join="outer").assign_coords(arm=list(recipe.arms), seed=seeds)
    dataset["finished"] = (("arm", "seed"), [[int((arm, seed) in results) for seed in seeds] for arm in recipe.arms])
    counts = dataset.get("parameters", xr.full_like(dataset["formation"], np.nan))  # unknown of runs that diverged
    dataset["parameters"] = counts.max("seed")  # equal for all finished seeds
    return dataset


def _filled(result: xr.Dataset, missing: xr.Dataset) -> xr.Dataset:
    """Fill up the result of a run: variables that it lacks, because it was not scored, are NaN."""
    return result.merge(missing.drop_vars([name for name in missing.data_vars if name in result]), join="outer")


def open_dataset(folder: Path) -> xr.Dataset:
    """Open the dataset that :func:`collect` made and ``diffscope train`` wrote into a folder.

    Raises DiffscopeError if the folder holds none.
    """
    path = folder / DATASET
    if not path.is_file():
        raise DiffscopeError(f"{folder} holds no {DATASET}; make a trained cohort with: diffscope train laptop --out {folder}")
    return open_statistics(path)


def seeds_in(out: Path) -> set[int]:
    """Return the seeds of the runs in a folder."""
    return {int(folder.name.removeprefix("seed-")) for folder in out.glob("*/seed-*") if folder.name[5:].isdecimal()}


def summary(cohort: xr.Dataset) -> list[dict]:
    """Summarise each arm with finished runs in a row of means over prompts, cells and finished seeds that were scored.

    Those are the seeds that came to their last stage. If no stage comes after the one that has to form, they may never have
    formed. ``formation`` gives the step by seed, None where the lookup circuit never formed; ``missing`` the seeds without a
    finished run.
    """
    rows = []
    for arm in cohort["arm"].values:
        finished = cohort["finished"].sel(arm=arm) == 1
        runs = cohort.sel(arm=arm, seed=finished.values)
        if runs.sizes["seed"]:
            missing = [int(seed) for seed in cohort["seed"].values[~finished.values]]
            rows.append({"arm": str(arm), **_formation_of(runs), "missing": missing, **_means(runs)})
    return rows


def copies_at_the_end(cohort: Cohort, dataset: xr.Dataset) -> xr.Dataset:
    """Return :data:`COPIES` at the last evaluation of each run of Bigram-Backcopy, (arm, seed); NaN of one that diverged.

    A run may end when it has formed, so that the last evaluations of two runs are of other steps.
    """
    evaluated = dataset["step"].where(dataset["copied"].notnull())  # (arm, seed, step)
    ends = dataset[list(COPIES)].where(evaluated == evaluated.max("step")).max("step")
    arms, seeds = (ends[dim].values.tolist() for dim in ("arm", "seed"))
    diverged = diverged_runs(cohort.out, replace(cohort, seeds=tuple(seeds)).runs())
    whole = xr.DataArray([[(arm, seed) not in diverged for seed in seeds] for arm in arms], dims=("arm", "seed"))
    return ends.where(whole)


def _formation_of(runs: xr.Dataset) -> dict:
    steps = runs["formation"].to_series()
    return {
        "parameters": int(runs["parameters"]) if runs["parameters"].notnull() else None,
        "rate": float(runs["rate"]),
        "formation": {int(seed): None if np.isnan(step) else int(step) for seed, step in steps.items()},
    }


def _means(runs: xr.Dataset) -> dict:
    """Average the scores of an arm over prompts, cells and seeds."""
    if "text" not in runs:  # no run was scored
        return {}
    means = {f"text_{token}": float(runs["text"].sel(token=token).mean()) for token in ("hit", "other")}
    if "exact_match" not in runs:
        return means
    for variable in ("exact_match", "log_odds"):
        means[variable] = runs[variable].mean(("length", "distractors", "prompt")).to_series().to_dict()
        means[f"{variable}_by_distractors"] = runs[variable].mean(("seed", "length", "prompt")).to_series().to_dict()
        means[f"{variable}_by_length"] = runs[variable].mean(("seed", "distractors", "prompt")).to_series().to_dict()
    if "exact_match_near" not in runs:
        return means
    return means | {
        "near": float(runs["exact_match_near"].sel(near=runs["near"] > 0).mean()),
        "unknown_when_unanswerable": float(runs["says_unknown"].sel(question="unanswerable").mean()),
        "unknown_when_answerable": float(runs["says_unknown"].sel(question="answerable").mean()),
    }


# How far it is


class UnderWay(NamedTuple):
    """A run that has begun and not ended; whether a process works on it now, its files do not say."""

    run: Item
    step: int  # done
    steps: int  # the most
    minutes: float  # since it last logged anything


class ArmProgress(NamedTuple):
    """How far the runs of one arm are: either those that choose its rate (`tuning`) or the others."""

    arm: str
    tuning: bool
    done: int
    left: int  # those under way included
    under_way: list[UnderWay]
    seconds: float  # that one process needs for the rest; NaN as long as no run has logged anything
    step: float  # mean seconds of a step


def progress_by_arm(cohort: Cohort, step: float = np.nan) -> list[ArmProgress]:
    """Read from the files of a cohort, without any lock, how far each arm is and how long the rest takes.

    A run is expected to take as long as the finished ones of its arm did, or all its steps where there is none.

    Parameters
    ----------
    step : float
        Seconds of a step, expected of all arms as long as no run has logged one.
    """
    planned = cohort.planned()
    logged = {run.place: _last_row(run_folder(cohort.out, run)) for run in planned}
    usual = _seconds_a_step(logged.values())
    usual = step if np.isnan(usual) else usual
    rows = []
    for tuning in (True, False):
        of_kind = [run for run in planned if ("tuning" in run.spec) == tuning]
        for arm in dict.fromkeys(run.spec["arm"] for run in of_kind):
            alike = [run for run in of_kind if run.spec["arm"] == arm]
            rows.append(_arm_progress(cohort, arm, tuning, alike, logged, usual))
    return rows


def _arm_progress(
    cohort: Cohort, arm: str, tuning: bool, alike: Sequence[Item], logged: dict[str, dict | None], usual: float
) -> ArmProgress:
    recipe = cohort.recipe
    most = recipe.tuning.steps if tuning else recipe.most_steps(arm)
    step = _seconds_a_step(logged[run.place] for run in alike)
    step = usual if np.isnan(step) else step
    left = [run for run in alike if not run.result(cohort.out).exists()]
    finished = [logged[run.place]["seconds"] for run in alike if run not in left and logged[run.place]]
    expected = float(np.mean(finished)) if finished else most * step
    seconds = 0.0
    under_way = []
    for run in left:
        last = logged[run.place]
        seconds += float(np.maximum(0.0, expected - (last["seconds"] if last else 0.0)))
        if last:
            minutes = (time.time() - (run_folder(cohort.out, run) / METRICS).stat().st_mtime) / 60
            under_way.append(UnderWay(run, last["step"], most, minutes))
    return ArmProgress(arm, tuning, len(alike) - len(left), len(left), under_way, seconds, step)


def remaining_in_words(rows: Sequence[ArmProgress], processes: int = 1) -> str:
    """Say how many runs are left, and how long they take so many processes."""
    left = sum(row.left for row in rows)
    if not left:
        return "nothing is left"
    words = f"{counted(left, 'run')} {'is' if left == 1 else 'are'} left"
    seconds = sum(row.seconds for row in rows)
    if np.isnan(seconds):
        return words
    hours = seconds / processes / 3600
    duration = f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    return f"{words}, about {duration}" + (f" of {processes} processes" if processes > 1 else "")


def _last_row(folder: Path) -> dict | None:
    """Return the last row that a run has logged."""
    rows = read_metrics(folder) if (folder / METRICS).is_file() else []
    return rows[-1] if rows else None


def _seconds_a_step(rows: Iterable[dict | None]) -> float:
    """Return the mean seconds of a step of some runs, given their last rows."""
    logged = [row for row in rows if row is not None]
    steps = sum(row["step"] for row in logged)
    return sum(row["seconds"] for row in logged) / steps if steps else np.nan
