"""A trained cohort by what is stored of it: its measurements, its models, and the evidence of its runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.evidence.heads import HEADS, mean_over_prompts, weighted
from diffscope.evidence.quantities import A2_OUT, KNOCK_OUT
from diffscope.evidence.run_file import EVIDENCE, at_step, open_evidence
from diffscope.hypotheses.cohort import MASSES, finished, formed
from diffscope.hypotheses.rules import KNOCK_OUT as BY_KNOCK_OUT
from diffscope.hypotheses.rules import Weights
from diffscope.hypotheses.subjects import WHOLE, Models, Pair
from diffscope.lab.training.cohort import DATASET, open_dataset
from diffscope.lab.training.run import WEIGHTS

REJECTION = "rejected_noise.over_paired"
Which = Callable[[xr.Dataset], xr.DataArray]  # from a cohort to whether each of its runs counts, (arm, seed)


def open_cohort(folder: Path) -> xr.Dataset:
    """Open what ``diffscope train`` measured of a cohort.

    Raises DiffscopeError if there is none in the folder.
    """
    dataset = open_dataset(folder)
    if not ({"exact_match", "finished"} <= set(dataset) and "recipe" in dataset.attrs):
        raise DiffscopeError(f"{folder / DATASET} is not what diffscope train measures of a cohort")
    return dataset


def with_seeds(cohort: xr.Dataset, seeds: Collection[int] | None) -> xr.Dataset:
    """Return the cohort with these seeds alone, all without any."""
    if seeds is None:
        return cohort
    if absent := set(seeds) - {int(seed) for seed in cohort["seed"].values}:
        raise DiffscopeError(f"the cohort has no seed {min(absent)}; it has {', '.join(map(str, cohort['seed'].values))}")
    return cohort.sel(seed=sorted(seeds))


def models_of(folder: Path, cohort: xr.Dataset, *arms: str, which: Which = finished) -> list[list[str]]:
    """Return for each arm the folders of its models, of those seeds that all of the arms have, finished or as `which` says."""
    return [[str(path.parent) for path in of_arm] for of_arm in _files_of(folder, cohort, arms, WEIGHTS, which)]


def _files_of(folder: Path, cohort: xr.Dataset, arms: Sequence[str], file: str, which: Which) -> list[list[Path]]:
    """Return for each arm a file of its runs, of those seeds that count in all of the arms and have it in all."""
    if set(arms) - set(cohort["arm"].values):
        return [[] for _ in arms]
    seeds = cohort["seed"].values[which(cohort).sel(arm=list(arms)).all("arm").values]
    by_seed = [[folder / arm / f"seed-{seed}" / file for arm in arms] for seed in seeds]
    complete = [paths for paths in by_seed if all(path.is_file() for path in paths)]
    return [[paths[place] for paths in complete] for place in range(len(arms))]


def open_runs(paths: Sequence[Path], weights: Weights = BY_KNOCK_OUT) -> Models:
    """Open the evidence of the ends of runs."""
    return Models([at_step(open_evidence(path)) for path in paths], [str(path.parent) for path in paths], weights=weights)


def open_checkpoints(path: Path, weights: Weights = BY_KNOCK_OUT) -> Models:
    """Open the evidence of the checkpoints of one run."""
    evidence = open_evidence(path)
    steps = evidence["step"].values.tolist()
    places = [at_step(evidence, place, place) for place in range(len(steps))]
    return Models(places, [f"{path.parent}@{step}" for step in steps], steps=steps, weights=weights)


def stored_models(
    folder: Path, cohort: xr.Dataset, weights: Weights = BY_KNOCK_OUT
) -> tuple[Models, Pair | None, list[Models]] | None:
    """Return a cohort's formed runs of DIFF by their evidence: their ends, beside those of standard attention, and their steps.

    None if no formed run of DIFF has any. Heads count with `weights`, as of :class:`~diffscope.hypotheses.Settings`.
    """
    (alone,) = _files_of(folder, cohort, ["diff"], EVIDENCE, formed)  # what has not formed answers with no head
    if not alone:
        return None
    diff, standard = _files_of(folder, cohort, ["diff", "standard"], EVIDENCE, formed)
    pair = Pair(open_runs(diff, weights), open_runs(standard, weights)) if standard else None
    return open_runs(alone, weights), pair, [open_checkpoints(path, weights) for path in alone]


def with_evidence(cohort: xr.Dataset, folder: Path) -> xr.Dataset:
    """Add to a cohort's dataset what its tests read of the evidence, over (arm, seed); NaN if a run has none."""
    opened = {
        (str(arm), int(seed)): open_evidence(path)
        for arm in cohort["arm"].values
        for seed in cohort["seed"].values
        if (path := folder / str(arm) / f"seed-{seed}" / EVIDENCE).is_file()
    }
    ends = {name: at_step(evidence) for name, evidence in opened.items()}
    known = all(f"{A2_OUT}.loss" in end for end in ends.values() if end.attrs["differential"])
    of = "A2" if known else WHOLE
    runs = {name: cohort_variables(end, of) for name, end in ends.items()}
    if not runs:
        return cohort
    missing = xr.full_like(next(iter(runs.values())), np.nan)
    rows = [
        xr.concat([runs.get((str(arm), int(seed)), missing) for seed in cohort["seed"].values], "seed", join="outer")
        for arm in cohort["arm"].values
    ]
    read = xr.concat(rows, "arm", join="outer").assign_coords(arm=cohort["arm"], seed=cohort["seed"])
    read["a2_cost"].attrs["of"] = of
    return cohort.merge(read.drop_vars([name for name in read.data_vars if name in cohort]))


def cohort_variables(end: xr.Dataset, of: str = WHOLE) -> xr.Dataset:
    """Return what the tests of a cohort read of one run at its end.

    Parameters
    ----------
    end : Dataset
        As :func:`diffscope.evidence.run_file.at_step` gives it.
    of : {"A2", "whole heads"}
        What ``a2_cost`` is of.

    Returns
    -------
    Dataset
        ``cmrr_over_paired``, in dB: common-mode rejection by injection on irrelevant tokens above that with another head's A2,
        heads weighted by A1's mass on the answer; ``cmrr_over_paired_by_cost``, the same weighted by what heads cost;
        ``cmrr_over_paired_by_head`` and ``answer_mass`` (layer, head); ``a2_cost``, what A2 costs in the heads that answer, in
        nats. All but the mass are NaN of standard attention. And what :func:`head_mean_masses` gives, as ``alike_NAME``.
    """
    end = end.assign_coords(layer=range(end.sizes["layer"]), head=range(end.sizes["head"]))  # arms differ in their heads
    mass = end["weight"]
    nothing = xr.full_like(mass, np.nan)
    of_heads = mean_over_prompts(end[REJECTION]) if REJECTION in end else nothing
    lost = mean_over_prompts(end[f"{A2_OUT if of == 'A2' else KNOCK_OUT}.loss"]) if end.attrs["differential"] else nothing
    read = {
        "cmrr_over_paired": weighted(of_heads, mass, HEADS),
        "cmrr_over_paired_by_cost": weighted(of_heads, head_costs(end), HEADS),
        "cmrr_over_paired_by_head": of_heads,
        "answer_mass": mass,
        "a2_cost": weighted(lost, mass, HEADS).assign_attrs(of=of),
    }
    return xr.Dataset(read | {f"alike_{name}": mass for name, mass in head_mean_masses(end).items()})


def head_costs(end: xr.Dataset) -> xr.DataArray:
    """Return by how much the answer's loss rises without each head, (layer, head) in nats; 0 where it does not."""
    return mean_over_prompts(end[f"{KNOCK_OUT}.loss"]).clip(min=0)


def head_mean_masses(end: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the unweighted mean masses on the answer, the distractors and the first token, (), by name.

    Means over heads, then layers, as a published table may have them; of the sum over 1 − λ, which has no bound, the median over
    all heads. What a head lacks is left out.
    """
    values = {name: mean_over_prompts(end[of]) for name, (of, _) in MASSES.items() if of in end}
    return {name: of.median(HEADS) if name == "signed" else of.mean("head").mean("layer") for name, of in values.items()}
