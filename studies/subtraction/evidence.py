"""What is taken of every finished run of the study, and a part's dataset of all of them.

    python -m studies.subtraction.evidence sinks runs/subtraction
    python -m studies.subtraction.evidence text runs/subtraction --text CORPUS

takes the evidence of finished runs that have none yet, or one that other code took, and writes
``studies/subtraction/evidence/PART.nc`` over (arm, seed), their scores included. It prints how many runs there are and none of
their numbers: those are read by ``studies.subtraction.read``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr

from diffscope import edits
from diffscope.edits import Edit
from diffscope.errors import DiffscopeError
from diffscope.evidence.ablations import answers
from diffscope.evidence.costs import lost_without_a2
from diffscope.evidence.signs import previous_token_share
from diffscope.instruments.injection import cmrr_by_injection
from diffscope.instruments.snr import mean_gain, over_prompts, signal_to_noise, tells
from diffscope.lab.training.cohort import Cohort, collect
from diffscope.lab.training.initialisation import corpus_of
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import WEIGHTS
from diffscope.lab.training.runs import run_folder
from diffscope.scope import Scope, load
from diffscope.storage.statistics import open_statistics, save_statistics, without_attrs
from diffscope.tasks import Backcopy, PlantedLookups
from diffscope.tasks.exchanging import redrawn
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.text import TextStream
from diffscope.tasks.text_folder import HELD_OUT
from studies.subtraction.train import cohort as cohort_of

HERE = Path(__file__).parent
FILE = "evidence.nc"  # in a run's folder
FORMAT = 1  # one more whenever something else is taken, so that evidence of two kinds is never put together
PROMPT_SEED = 60_000  # with the seed of a run, the seed of the prompts that its evidence is taken on
COUNT = 24
FEW = 8  # prompts of what runs the model many times on each
DISTRACTORS = 24
LENGTH = {"mechanism": 160, "lookup": 384, "text": 384, "sinks": 64, "sinks-tied": 64}
COPYING = ("sinks", "sinks-tied")
SIGMA = 0.5
MAPS = ("A1", "A2", "D", "net D")


class Task(NamedTuple):
    """The prompts that the evidence of a run is taken on.

    Attributes
    ----------
    prompts : list of Prompt
    exchanged : callable
        Of a prompt, the answers and fillers that :func:`~diffscope.instruments.signal_to_noise` exchanges, as its arguments.
    """

    prompts: list[Prompt]
    exchanged: Callable[[Prompt], dict]


def task_of(part: str, scope: Scope, seed: int, texts=None) -> Task:
    """Return the prompts of a part's evidence, fresh for every seed; `texts` is held-out text for running text."""
    rng = np.random.default_rng([PROMPT_SEED, seed])
    length = LENGTH[part]
    if part in COPYING:
        task = Backcopy()
        characters = [[token] for token in range(1, len(task.transitions)) if token not in task.trigger_ids]

        def exchanged(prompt: Prompt) -> dict:
            fillers = [task.prompt(len(prompt.ids), rng).ids for _ in range(FEW)]
            return {"answers": characters, "fillers": fillers}

        return Task([task.prompt(length, rng) for _ in range(COUNT)], exchanged)
    if part == "text":
        planted = PlantedLookups(scope.tokenizer, texts)

        def held_out(prompt: Prompt) -> dict:
            return {"fillers": [redrawn(planted.retrieval, prompt, rng) for _ in range(FEW)]}

        return Task([planted.prompt(length, rng, distractors=DISTRACTORS // 4) for _ in range(COUNT)], held_out)
    task = Retrieval(scope.tokenizer, held_out=True, template=" {city} {number}.")
    return Task([task.prompt(length, DISTRACTORS + 1, rng) for _ in range(COUNT)], lambda prompt: {})


def take(part: str, scope: Scope, seed: int, texts=None) -> xr.Dataset:
    """Take what the study reads of one trained model.

    Parameters
    ----------
    part : {"mechanism", "lookup", "text", "sinks", "sinks-tied"}
    scope : Scope
    seed : int
        Of the run.
    texts : sequence of str or TextStream, optional
        Held-out text, for running text.

    Returns
    -------
    Dataset
        Of the task's answers, in nats: ``lost_without_a2`` (layer), all of a layer's second maps at once, and
        ``lost_without_a2_of_head`` (layer, head); ``lost_without_signs``, ``lost_with_one_a2`` and ``lost_with_plus`` (layer);
        what :func:`gain` and :func:`rejection` give; of lookups ``previous_token_a1`` and ``previous_token_a2`` (layer, head);
        and of copies ``sink`` (queries, map, layer, head) and ``copy_log_odds``. Models without a second map lack most of it.
    """
    task = task_of(part, scope, seed, texts)
    batch = scope.capture([prompt.ids for prompt in task.prompts])
    if part in COPYING:
        taken = {"sink": sinks(batch, task.prompts), "copy_log_odds": copy_log_odds(scope, seed)}
    else:
        shares = previous_token_share(scope, task.prompts).mean("prompt")
        taken = {f"previous_token_{name}": shares[name] for name in ("a1", "a2")}
    if all(layer.differential for layer in batch.layers):
        taken |= of_second_map(scope, task, queries=None if part == "text" else (-1,))
    dataset = xr.Dataset(taken).drop_vars("family", errors="ignore")
    # Arms have different numbers of heads.
    return dataset.assign_coords(layer=range(dataset.sizes["layer"]), head=range(dataset.sizes["head"]))


def of_second_map(scope: Scope, task: Task, queries: Sequence[int] | None) -> dict[str, xr.DataArray]:
    """Measure what only a model with two maps has: losses without A2 or its signs, gain, and rejection at some or all queries."""
    costs = lost_without_a2(scope, task.prompts).sel(measure="loss", drop=True).mean("prompt")
    taken = {"lost_without_a2": costs["layer_together"], "lost_without_a2_of_head": costs["of_head"]}
    layers = range(costs.sizes["layer"])
    for name, edit in {"without_signs": edits.d_plus, "with_one_a2": edits.share_a2, "with_plus": edits.plus}.items():
        taken[f"lost_{name}"] = by_layer(scope, task.prompts, layers, edit)
    gains = [signal_to_noise(scope, prompt.ids, spans=_named(prompt), **task.exchanged(prompt)) for prompt in task.prompts[:FEW]]
    return taken | gain(over_prompts(gains), costs["of_head"]) | rejection(scope, task.prompts[:FEW], queries)


def gain(together: xr.Dataset, costs: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return the signal-to-noise gain of heads, and its mean over those that tell the answer, weighted by their loss without A2.

    Parameters
    ----------
    together : Dataset
        Of :func:`diffscope.instruments.snr.over_prompts`.
    costs : DataArray (layer, head)
        Nats; what is below 0 counts as 0.
    """
    before = together.sel(stage="before", drop=True)
    chosen = tells(together).sel(stage="before", drop=True)  # (layer, head)
    weights = chosen.astype(float).copy(data=np.nan_to_num(costs.transpose("layer", "head").values).clip(min=0))
    taken = {
        "gain_by_head": together["snr_gain"].rename(stage="norm"),
        "snr_by_head": before["snr"],
        "tells": chosen.astype(float),
    }
    taken["a2_cost_where_told"] = weights.where(chosen, 0.0).sum()
    if not float(taken["a2_cost_where_told"]) > 0:
        return taken
    means = mean_gain(together, weights)["snr_gain"].sel(stage="before", drop=True)
    ahead = before["snr"].sel(output="A1", drop=True) - before["snr"].sel(output="lambda_A2", drop=True)
    return taken | {
        "signal_to_noise_gain": means.sel(a2="own", drop=True),
        "gain_over_uniform": means.sel(a2="own", drop=True) - means.sel(a2="uniform", drop=True),
        "snr_first_ahead": ahead.where(chosen).weighted(weights).mean(),
    }


def by_layer(scope: Scope, prompts: Sequence[Prompt], layers: Sequence[int], edit: Callable[..., Edit]) -> xr.DataArray:
    """Measure by how much the loss of the answer rises if an edit is made in one layer, (layer,), nats."""
    before = answers(scope, prompts).loss.mean()
    rises = [float(answers(scope, prompts, edit(layers=int(layer))).loss.mean() - before) for layer in layers]
    return xr.DataArray(rises, {"layer": list(layers)}, "layer")


def rejection(scope: Scope, prompts: Sequence[Prompt], queries: Sequence[int] | None) -> dict[str, xr.DataArray]:
    """Measure common-mode rejection by injection on what is not answer, query or sink, and its ceiling, (layer, head), dB.

    Of the last query, or with None of all queries, whose squared changes are averaged.
    """
    batch = scope.capture([prompt.ids for prompt in prompts], spans=[_named(prompt) for prompt in prompts])
    measured = cmrr_by_injection(batch, queries, spans=["irrelevant"], sigmas=[SIGMA], draws=8).isel(sigma=0, span=0, drop=True)
    changes = measured[[name for name in measured.data_vars if str(name).startswith("change_")]]
    squares = np.square(changes).mean("prompt")  # of each (layer, head)
    return {
        "rejection": _decibels(squares["change_differential"] / squares["change_common"]),
        "rejection_ceiling": _decibels(squares["change_differential_ceiling"] / squares["change_common_ceiling"]),
    }


def _decibels(ratio: xr.DataArray) -> xr.DataArray:
    return 10 * np.log10(ratio)


def _named(prompt: Prompt) -> dict[str, list[int]]:
    """Return the spans of a prompt that are not empty."""
    return {name: list(at) for name, at in prompt.spans.items() if at}


def sinks(batch, prompts: Sequence[Prompt]) -> xr.DataArray:
    """Return the mean weight of the first token at dormant queries and at triggers, (queries, map, layer, head).

    Of "D" it is the share of Σ|D|, of "net D" the signed weight itself.
    """
    values = np.full((2, len(MAPS), len(batch.layers), batch.layers[0].n_heads, len(prompts)), np.nan)
    for kind, name in enumerate(("dormant", "triggers")):
        for number, layer in enumerate(batch.layers):
            for index, prompt in enumerate(prompts):
                rows = layer.prompt(index).rows(prompt.spans[name])
                second = torch.full_like(rows.a1, torch.nan) if rows.a2 is None else rows.a2
                share = rows.d.abs() / rows.d.abs().sum(-1, keepdim=True)
                of_first = torch.stack([rows.a1, second, share, rows.d])[..., 0]  # (map, head, query)
                values[kind, :, number, :, index] = of_first.double().mean(-1).numpy()
    coords = {"queries": ["dormant", "triggers"], "map": list(MAPS), "layer": [layer.layer for layer in batch.layers]}
    return xr.DataArray(values.mean(-1), coords, ("queries", "map", "layer", "head"))


@torch.no_grad()
def copy_log_odds(scope: Scope, seed: int, rows: int = 64) -> xr.DataArray:
    """Measure the log-odds of the copied token against all others, mean over the triggers of held-out sequences, nats."""
    task = Backcopy()
    ids, kind = task.training_rows(rows, LENGTH["sinks"], np.random.default_rng([PROMPT_SEED, seed, 1]))
    log_p = scope.model(torch.from_numpy(ids), use_cache=False).logits[:, :-1].double().log_softmax(-1)  # (row, query, token)
    copies = torch.from_numpy(kind[:, 1:] == 1)
    target = torch.from_numpy(ids[:, 1:])[copies]
    right = log_p[copies]
    chosen = right.gather(1, target[:, None])  # (copy, 1)
    others = right.scatter(1, target[:, None], -torch.inf).logsumexp(-1)
    return xr.DataArray(float((chosen[:, 0] - others).mean()))


def gather(part: str, cohort: Cohort) -> xr.Dataset:
    """Take the evidence of finished runs that have none, and put all of them together with their scores, over (arm, seed).

    A run that diverged has no model, so all of its evidence is NaN.

    Raises
    ------
    DiffscopeError
        No run is finished, or other code took the evidence of one whose model is not there any more.
    """
    scores = collect(cohort)
    runs = {}
    for run in cohort.runs():
        folder = run_folder(cohort.out, run)
        if run.result(cohort.out).exists() and ((folder / WEIGHTS).is_file() or (folder / FILE).is_file()):
            runs[run.spec["arm"], run.spec["seed"]] = _of_run(part, cohort, folder, run.spec["seed"])
    if not runs:
        raise DiffscopeError(f"no finished run in {cohort.out} has a model to take evidence of; train again what diverged")
    fullest = max(runs.values(), key=lambda run: len(run.data_vars))
    missing = xr.full_like(fullest, np.nan)
    seeds, arms = (scores[name].values.tolist() for name in ("seed", "arm"))
    rows = [xr.concat([_filled(runs.get((arm, seed), missing), missing) for seed in seeds], "seed", join="outer") for arm in arms]
    return scores.merge(xr.concat(rows, "arm", join="outer").assign_coords(arm=arms, seed=seeds))


def _of_run(part: str, cohort: Cohort, folder: Path, seed: int) -> xr.Dataset:
    """Open the evidence of a run; take it first if its folder has none that was taken by this code.

    Raises
    ------
    DiffscopeError
        Other code took it, and the run's weights are no longer there.
    """
    place = folder / FILE
    if place.is_file() and (taken := open_statistics(place)).attrs.get("evidence_format") == FORMAT:
        return without_attrs(taken)
    if not (folder / WEIGHTS).is_file():
        raise DiffscopeError(
            f"other code took the evidence in {folder}, and its model is not there; remove the folder and train the run again"
        )
    scope = load(folder)
    taken = take(part, scope, seed, held_out_text(cohort.recipe, scope))
    save_statistics(taken.assign_attrs(evidence_format=FORMAT), place, dated=False)
    return without_attrs(open_statistics(place))


def held_out_text(recipe: Recipe, scope: Scope) -> TextStream | None:
    """Return the held-out text of the corpus that a recipe trains on, in a model's tokens; None without a corpus."""
    corpus = corpus_of(recipe)
    return None if corpus is None else corpus.filler(HELD_OUT, scope.tokenizer)


def _filled(run: xr.Dataset, missing: xr.Dataset) -> xr.Dataset:
    """Fill up a run's evidence: variables that it lacks, as a model with one map does, are NaN."""
    return run.merge(missing.drop_vars([name for name in missing.data_vars if name in run]), join="outer")


def main() -> None:
    """Take the evidence of a part as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(LENGTH))
    parser.add_argument("runs", type=Path, help="the folder that the study is trained into")
    parser.add_argument("--text", type=Path, help="the folder of the corpus, for the part that was trained on it")
    parser.add_argument("--out", type=Path, default=HERE / "evidence")
    options = parser.parse_args()
    try:
        dataset = gather(options.part, cohort_of(options.part, options.runs, options.text))
        options.out.mkdir(parents=True, exist_ok=True)
        save_statistics(dataset, options.out / f"{options.part}.nc", dated=False)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    print(f"{options.part}: evidence of {int(dataset['finished'].sum())} of {dataset['finished'].size} runs")


if __name__ == "__main__":
    main()
