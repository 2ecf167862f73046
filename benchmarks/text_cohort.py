"""What a cohort of plain text shows: perplexity, attention sinks, attention by depth in four normalisations, λ along training.

    python -m benchmarks.text_cohort runs/laptop/laptop-text --out benchmarks/results/text_cohort.json

Means over seeds, with 95 % intervals (Student's t) where there are three or more; DIFF minus each standard arm is paired by seed.
Texts are of modules that no model was trained on, other texts for each seed, the same for its arms. Sinks are read at all queries
from the 64th on, where a first token has 1/64 of uniform attention at most; standard attention's one map stands as A1 and as D.
Nothing here is judged: it is a description of models that write text, beside a study of models that retrieve.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from torch.nn import functional as F

import diffscope
from diffscope import readings
from diffscope.errors import DiffscopeError
from diffscope.files import plain, write_json
from diffscope.hypotheses.intervals import students_t
from diffscope.scope import Scope
from diffscope.stats.averaging import averaged
from diffscope.store import provenance
from diffscope.tasks.recall import Recall

LENGTH = 512
TEXTS = 64  # of the perplexity
FEW = 8  # of the maps
FIRST_QUERY = 64
SEED = 80_000  # texts of no other purpose have these seeds
PROMPTS = 10  # at each of five depths
STATISTICS = ("sink_mass", "sink_rate", "column_sink", "entropy_normalised", "gini")
BASELINES = ("standard", "double-width")
SETS = {"S": "first token", "first_four": "first four tokens"}
Values = dict[str, float]


def losses(scope: Scope, ids: np.ndarray, hits: np.ndarray) -> Values:
    """Mean loss in nats on texts (text, token): of all tokens, of those that the text gives away, of the others; by position."""
    parts = []
    with torch.inference_mode():
        for batch in torch.from_numpy(ids).split(8):
            logits = scope.model(batch, use_cache=False).logits[:, :-1].float()  # (text, token - 1, vocabulary)
            parts.append(F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none"))
    table = torch.cat(parts).double().numpy()  # (text, token - 1)
    given = hits[:, 1:]
    values = {"loss": table.mean(), "loss, given away": table[given].mean(), "loss, others": table[~given].mean()}
    half = table.shape[1] // 2
    values |= {"loss, first half": table[:, :half].mean(), "loss, second half": table[:, half:].mean()}
    values["perplexity"] = np.exp(values["loss"])
    return {name: float(value) for name, value in values.items()}


def maps(scope: Scope, ids: np.ndarray) -> Values:
    """Sinks and sparsity of the maps, mean over texts (text, token), by layer and as a mean over layers."""
    queries = range(min(FIRST_QUERY, ids.shape[1] // 2), ids.shape[1])
    each = [scope.measure(row.tolist(), STATISTICS, queries=queries) for row in ids]
    measured = xr.concat(each, "text", combine_attrs="override").mean("text")
    values: Values = {}
    for name in ("A1", "A2", "D"):
        for sink in measured["sink_set"].values:
            # The sum over 1 − λ has no bound, and no mean over layers that one with λ near 1 would not decide.
            for normalisation in ("raw", "share", "positive") if name == "D" else ("share",):
                at = dict(map=name, sink_set=sink, normalisation=normalisation)
                words = f"{SETS[str(sink)]} in {name}" + (f", {normalisation}" if name == "D" else "")
                values |= _by_layer(f"mass on the {words}", measured["sink_mass"].sel(at))
                values |= _by_layer(f"share of heads that give more than 0.3 to the {words}", measured["sink_rate"].sel(at))
        for statistic in ("entropy_normalised", "gini"):
            values |= _by_layer(f"{statistic} of {name}", measured[statistic].sel(map=name))
        values |= _by_layer(f"most attended key of {name}", measured["column_sink"].sel(map=name, normalisation="share"))
    return values


def _by_layer(words: str, values: xr.DataArray) -> Values:
    """The mean over queries and heads, by layer, and over layers; NaN where a layer has none."""
    over = averaged(values, [dim for dim in ("query", "head") if dim in values.dims]).values
    layers = {f"{words}, layer {layer}": float(value) for layer, value in enumerate(over.values)}
    return {words: float(over.mean(skipna=False)), **layers}


def by_depth(scope: Scope, seed: int) -> Values:
    """What the last query of retrieval prompts gives to the answer and to irrelevant tokens, by depth and normalisation.

    Means over heads, then layers; of the sum over 1 − λ, which has no bound, the median over all heads. Beside it what uniform
    attention would give, and how the prompts are answered.
    """
    estimates = readings.depths(scope, [LENGTH // 2], prompts=PROMPTS, seed=SEED + seed).estimates.isel(length=0)
    values = {}
    for depth in estimates["depth"].values:
        at = estimates.sel(depth=depth)
        place = f"depth {100 * depth:.0f} %"
        for span in ("answer", "irrelevant"):
            for normalisation in at["normalisation"].values:
                chosen = dict(map="D", span=span, normalisation=normalisation)
                signed = at["by_head"].sel(chosen).median(["layer", "head"])
                mass = signed if normalisation == "signed" else at["mass"].sel(chosen)
                values[f"{span}, {normalisation}, {place}"] = float(mass)
            values[f"{span}, uniform attention, {place}"] = float(at["uniform"].sel(span=span))
        values[f"exact answers, {place}"] = float(at["exact"])
        values[f"log-odds of the answer, {place}"] = float(at["log_odds"])
    return values


def along(scope: Scope, ids: np.ndarray) -> Values:
    """λ of every layer at each checkpoint and at the end, mean over heads and queries; none of standard attention."""
    prompt = ids[0].tolist()
    if not scope.capture(prompt).differential:
        return {}
    values = {}
    for step, at in [*((f"step {step}", scope.at(step)) for step in scope.checkpoints), ("the end", scope)]:
        lam = at.capture(prompt).lam
        over = lam.mean([dim for dim in lam.dims if dim != "layer"]).values
        values |= {f"λ of L{layer} at {step}": float(value) for layer, value in enumerate(over)}
    return values


def read(folder: Path, seed: int) -> dict:
    """Everything of one run."""
    scope = diffscope.load(folder)
    recall = Recall(scope.tokenizer)
    ids, hits = recall.rows(TEXTS, LENGTH, np.random.default_rng([SEED, seed]))
    return {
        "values": losses(scope, ids, hits) | maps(scope, ids[:FEW]) | by_depth(scope, seed) | along(scope, ids),
    }


def summary(runs: Mapping[str, Mapping[int, dict]]) -> dict:
    """Means over seeds by arm, and DIFF minus each baseline seed by seed, each with its interval."""
    arms = {arm: _means([run["values"] for run in of_arm.values()]) for arm, of_arm in runs.items()}
    differences = {}
    for arm in BASELINES:
        both = sorted(set(runs.get("diff", {})) & set(runs.get(arm, {})))
        pairs = [(runs["diff"][seed]["values"], runs[arm][seed]["values"]) for seed in both]
        differences[f"diff − {arm}"] = _means(
            [{name: ours[name] - theirs[name] for name in ours if name in theirs} for ours, theirs in pairs]
        )
    return {"arms": arms, "differences": differences}


def _means(runs: Sequence[Values]) -> dict[str, dict]:
    table = {}
    for name in dict.fromkeys(name for values in runs for name in values):
        values = np.array([of[name] for of in runs if np.isfinite(of.get(name, np.nan))])
        low, high = students_t(values)[0] if len(values) > 2 else (np.nan, np.nan)
        table[name] = {"value": values.mean() if len(values) else np.nan, "low": low, "high": high, "seeds": len(values)}
    return table


def run(cohort: Path, arms: Sequence[str] = (), tell: Callable[[str], object] = lambda words: None) -> dict:
    """Read every finished run of a cohort, or of some of its arms.

    Raises
    ------
    DiffscopeError
        The folder holds no model.
    """
    folders = sorted(path.parent for path in cohort.glob("*/seed-*/model.safetensors"))
    folders = [folder for folder in folders if not arms or folder.parent.name in arms]
    if not folders:
        raise DiffscopeError(f"{cohort} holds no trained models; train them with: diffscope train laptop-text --out {cohort}")
    runs: dict[str, dict[int, dict]] = {}
    for folder in folders:
        tell(f"{folder.parent.name}, {folder.name}")
        seed = int(folder.name.removeprefix("seed-"))
        runs.setdefault(folder.parent.name, {})[seed] = read(folder, seed)
    return plain({"made_with": provenance(False), "length": LENGTH, "texts": TEXTS, **summary(runs), "runs": runs})


def main() -> int:
    """Read, print the means of whole models, and keep everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--arm", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        result = run(options.cohort, options.arm, lambda words: print(words, file=sys.stderr))
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    if options.out:
        write_json(options.out, result, indent=1)
    for title, tables in (("means", result["arms"]), ("paired differences", result["differences"])):
        print(f"\n{title}: {', '.join(tables)}")
        for name in dict.fromkeys(name for table in tables.values() for name in table if "layer" not in name):
            cells = (table.get(name) for table in tables.values())
            print(f"{name:60}", "  ".join(map(_cell, cells)))
    return 0


def _cell(row: dict | None) -> str:
    if row is None or row["value"] is None:
        return "–"
    ends = "" if row["low"] is None else f" ({row['low']:.3g} to {row['high']:.3g})"
    return f"{row['value']:.3g}{ends}"


if __name__ == "__main__":
    sys.exit(main())
