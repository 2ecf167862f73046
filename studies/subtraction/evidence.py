"""What is taken of every finished run of the study, and a part's dataset of all of them.

    python -m studies.subtraction.evidence sinks runs/subtraction/sinks

takes the evidence of runs that have none yet and writes ``studies/subtraction/evidence/PART.nc`` over (arm, seed), scores of the
runs included. It prints how many runs there are, and no number of them: they are read by ``studies.subtraction.read``.
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
from diffscope.hypotheses.evidence.answers import answers
from diffscope.hypotheses.evidence.costs import lost_without_a2
from diffscope.instruments.injection import cmrr_by_injection
from diffscope.instruments.signal_to_noise import mean_gain, over_prompts, signal_to_noise, tells
from diffscope.lab.training.cohort import Cohort, collect
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.runs import home
from diffscope.scope import Scope, load
from diffscope.store import open_statistics, save_statistics
from diffscope.tasks import Backcopy, PlantedLookups
from diffscope.tasks.retrieval import Prompt, Retrieval

HERE = Path(__file__).parent
FILE = "evidence.nc"  # in a run's folder
PROMPTS = 60_000  # with the seed of a run, the seed of the prompts that its evidence is taken on
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
    rng = np.random.default_rng([PROMPTS, seed])
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
        return Task([planted.prompt(length, rng, distractors=DISTRACTORS // 4) for _ in range(COUNT)], lambda prompt: {})
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
    texts : sequence of str or Filler, optional
        Held-out text, for running text.

    Returns
    -------
    Dataset
        Of the task's answers, in nats: ``lost_without_a2`` (layer), all of a layer's second maps at once, and
        ``lost_without_a2_of_head`` (layer, head); ``lost_without_signs``, ``lost_with_one_a2`` and ``lost_with_plus`` (layer);
        what :func:`gain` and :func:`rejection` give; ``previous_token_a1`` and ``previous_token_a2`` (layer, head); and of sinks
        ``sink`` (queries, map, layer, head) and ``copy_log_odds``. Models without a second map lack most of it.
    """
    task = task_of(part, scope, seed, texts)
    batch = scope.capture([prompt.ids for prompt in task.prompts])
    taken = previous_token(batch, task.prompts)
    if part in COPYING:
        taken |= {"sink": sinks(batch, task.prompts), "copy_log_odds": copy_log_odds(scope, seed)}
    if all(layer.differential for layer in batch.layers):
        taken |= of_second_map(scope, task)
    return xr.Dataset(taken).drop_vars(["family"], errors="ignore")


def of_second_map(scope: Scope, task: Task) -> dict[str, xr.DataArray]:
    """What only a model with two maps has: what A2 costs, its signs, gain and rejection."""
    costs = lost_without_a2(scope, task.prompts).sel(measure="loss", drop=True).mean("prompt")
    of_heads = (costs["alone"] + costs["after_others"]) / 2  # (layer, head)
    taken = {"lost_without_a2": costs["layer_together"], "lost_without_a2_of_head": of_heads}
    layers = range(costs.sizes["layer"])
    for name, edit in {"without_signs": edits.d_plus, "with_one_a2": edits.share_a2, "with_plus": edits.plus}.items():
        taken[f"lost_{name}"] = by_layer(scope, task.prompts, layers, edit)
    gains = [signal_to_noise(scope, prompt.ids, spans=_named(prompt), **task.exchanged(prompt)) for prompt in task.prompts[:FEW]]
    return taken | gain(over_prompts(gains), of_heads) | rejection(scope, task.prompts[:FEW])


def gain(together: xr.Dataset, costs: xr.DataArray) -> dict[str, xr.DataArray]:
    """The signal-to-noise gain of heads, and its mean over those that tell the answer, weighted by what their A2 costs.

    Parameters
    ----------
    together : Dataset
        Of :func:`diffscope.instruments.signal_to_noise.over_prompts`.
    costs : DataArray (layer, head)
        Nats; what is below 0 counts as 0.
    """
    before = together.sel(stage="before", drop=True)
    told = tells(together).sel(stage="before", drop=True)  # (layer, head)
    weights = told.astype(float).copy(data=np.nan_to_num(costs.transpose("layer", "head").values).clip(min=0))
    taken = {"gain_by_head": together["snr_gain"], "snr_by_head": before["snr"], "tells": told.astype(float)}
    taken["a2_cost_where_told"] = weights.where(told, 0.0).sum()
    if not float(taken["a2_cost_where_told"]) > 0:
        return taken
    means = mean_gain(together, weights)["snr_gain"].sel(stage="before", drop=True)
    ahead = before["snr"].sel(output="A1", drop=True) - before["snr"].sel(output="lambda_A2", drop=True)
    return taken | {
        "signal_to_noise_gain": means.sel(a2="own", drop=True),
        "gain_over_uniform": means.sel(a2="own", drop=True) - means.sel(a2="uniform", drop=True),
        "snr_first_ahead": ahead.where(told).weighted(weights).mean(),
    }


def by_layer(scope: Scope, prompts: Sequence[Prompt], layers: Sequence[int], edit: Callable[..., Edit]) -> xr.DataArray:
    """By how much the loss of the answer rises if an edit is made in one layer, (layer,), nats."""
    before = answers(scope, prompts).loss.mean()
    rises = [float(answers(scope, prompts, edit(layers=int(layer))).loss.mean() - before) for layer in layers]
    return xr.DataArray(rises, {"layer": list(layers)}, "layer")


def rejection(scope: Scope, prompts: Sequence[Prompt]) -> dict[str, xr.DataArray]:
    """Common-mode rejection by injection on what is neither answer nor query, and its ceiling, (layer, head), dB."""
    batch = scope.capture([prompt.ids for prompt in prompts], spans=[_named(prompt) for prompt in prompts])
    measured = cmrr_by_injection(batch, spans=["irrelevant"], sigmas=[SIGMA], draws=8).isel(sigma=0, span=0, drop=True)
    changes = measured[[name for name in measured.data_vars if str(name).startswith("change_")]]
    squares = np.square(changes).mean("prompt")  # of each (layer, head)
    return {
        "rejection": _decibels(squares["change_differential"] / squares["change_common"]),
        "rejection_ceiling": _decibels(squares["change_differential_ceiling"] / squares["change_common_ceiling"]),
    }


def _decibels(ratio: xr.DataArray) -> xr.DataArray:
    return 10 * np.log10(ratio)


def _named(prompt: Prompt) -> dict[str, list[int]]:
    """The spans of a prompt that it has."""
    return {name: list(at) for name, at in prompt.spans.items() if at}


def previous_token(batch, prompts: Sequence[Prompt]) -> dict[str, xr.DataArray]:
    """A1 and A2 of every head from the answer's first token in the text to the token before it, mean over prompts."""
    tables = {"A1": [], "A2": []}
    for layer in batch.layers:
        of_prompts = []
        for index, prompt in enumerate(prompts):
            at = prompt.spans["answer"][0]
            rows = layer.prompt(index).rows([at])
            second = torch.full_like(rows.a1, torch.nan) if rows.a2 is None else rows.a2
            of_prompts.append(torch.stack([rows.a1[:, 0, at - 1], second[:, 0, at - 1]]))  # (map, head)
        for name, values in zip(tables, torch.stack(of_prompts).double().mean(0)):
            tables[name].append(values.numpy())
    coords = {"layer": [layer.layer for layer in batch.layers]}
    named = {f"previous_token_{name.lower()}": np.stack(of) for name, of in tables.items()}
    return {name: xr.DataArray(values, coords, ("layer", "head")) for name, values in named.items()}


def sinks(batch, prompts: Sequence[Prompt]) -> xr.DataArray:
    """Weight of the first token at dormant queries and at triggers, (queries, map, layer, head), mean over queries and prompts.

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
    """Log-odds of the copied token against all others, mean over the triggers of held-out sequences, nats."""
    task = Backcopy()
    ids, kind = task.training_rows(rows, LENGTH["sinks"], np.random.default_rng([PROMPTS, seed, 1]))
    log_p = scope.model(torch.from_numpy(ids), use_cache=False).logits[:, :-1].double().log_softmax(-1)  # (row, query, token)
    copies = torch.from_numpy(kind[:, 1:] == 1)
    target = torch.from_numpy(ids[:, 1:])[copies]
    right = log_p[copies]
    chosen = right.gather(1, target[:, None])  # (copy, 1)
    others = right.scatter(1, target[:, None], -torch.inf).logsumexp(-1)
    return xr.DataArray(float((chosen[:, 0] - others).mean()))


def gather(part: str, out: Path, recipe: Recipe, texts=None) -> xr.Dataset:
    """Take the evidence of finished runs that have none, and put all of them together with their scores, over (arm, seed)."""
    cohort = Cohort(recipe, out)
    scores = collect(cohort)
    runs = {}
    done = {shard.id for shard in cohort.outcome().done}
    for shard in cohort.runs():
        if shard.id not in done:
            continue
        place = home(out, shard) / FILE
        if not place.is_file():
            save_statistics(take(part, load(home(out, shard)), shard.spec["seed"], texts), place, dated=False)
        runs[shard.spec["arm"], shard.spec["seed"]] = open_statistics(place).drop_attrs()
    fullest = max(runs.values(), key=lambda run: len(run.data_vars))
    missing = xr.full_like(fullest, np.nan)
    rows = [
        xr.concat(
            [_filled(runs.get((arm, seed), missing), missing) for seed in scores["seed"].values.tolist()], "seed", join="outer"
        )
        for arm in scores["arm"].values.tolist()
    ]
    taken = xr.concat(rows, "arm", join="outer").assign_coords(arm=scores["arm"], seed=scores["seed"])
    return scores.merge(taken)


def _filled(run: xr.Dataset, missing: xr.Dataset) -> xr.Dataset:
    """A run's evidence with all variables: those that it lacks, as a model with one map does, are NaN."""
    return run.merge(missing.drop_vars([name for name in missing.data_vars if name in run]), join="outer")


def main() -> None:
    """Take the evidence of a part as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(LENGTH))
    parser.add_argument("run", type=Path, help="the folder that the part is trained into")
    parser.add_argument("--out", type=Path, default=HERE / "evidence")
    options = parser.parse_args()
    try:
        dataset = gather(options.part, options.run, Recipe.load(str(HERE / f"{options.part}.toml")))
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    options.out.mkdir(exist_ok=True)
    save_statistics(dataset, options.out / f"{options.part}.nc", dated=False)
    print(f"{options.part}: evidence of {int(dataset['finished'].sum())} of {dataset['finished'].size} runs")


if __name__ == "__main__":
    main()
