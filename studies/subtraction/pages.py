"""What the report quotes of the study: primaries, mechanisms by layer and head, measurements and runs; and its figures.

A number in a table is the mean over seeds with its 95 % interval by Student's t. Nothing but the p of primaries is corrected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import xarray as xr

from diffscope import figures, numbers
from diffscope.hypotheses.accounts import ACCOUNTS
from diffscope.hypotheses.cohort import onsets
from diffscope.hypotheses.rules import NONE, Test
from diffscope.hypotheses.verdict import Verdict
from diffscope.lab.training.onsets import CRITERIA
from diffscope.render import pipe_table
from diffscope.stats.intervals import t_half_width
from diffscope.tasks.text_folder import HELD_OUT
from studies.markdown import mean
from studies.subtraction import gates
from studies.subtraction.judging import Judged, judge
from studies.subtraction.primaries import PARTS, held_out_loss, log_odds_in_cells, log_odds_of_runs
from studies.subtraction.primaries import onsets as onsets_of_runs
from studies.subtraction.read import cost_of

POWER = Path(__file__).with_name("power.json")
WIDTH = 7.0  # inches of a figure
DIFF = "diff"
LOOKUP, TEXT = "lookup", "text"
LOSSES = {  # rises of the answer's loss
    "lost_without_a2": "without A2",
    "lost_without_signs": "negative weights of D set to 0",
    "lost_with_one_a2": "one A2 for all heads of the layer",
    "lost_with_plus": "λ with the other sign",
}
OF_COPIES = {"copied": "copied right", "copy_loss": "loss on copies (nats)", "bigram_excess": "excess loss on bigrams (nats)"}
MAP_NAMES = {"D": "|D|, its share", "net D": "D"}

Parts = Mapping[str, xr.Dataset]


def quotes(parts: Parts) -> dict[str, str]:
    """Return what the report quotes, by name.

    Parameters
    ----------
    parts : dict of str to Dataset
        By name, of the parts whose runs are all finished: what :func:`studies.subtraction.evidence.gather` gives.
    """
    texts = {"runs": runs(parts), "primaries": primaries(parts)}
    for name, part in parts.items():
        texts |= {f"{name}-layers": by_layer(part), f"{name}-heads": by_head(part), f"{name}-gains": gains(part)}
        if "sink" in part:
            texts |= {f"{name}-sinks": sinks(part), f"{name}-copies": copies(part), f"{name}-lambdas": lambdas(part)}
        else:
            texts[f"{name}-onsets"] = by_criterion(part)
    for name, part in parts.items():
        if name not in (LOOKUP, TEXT):
            continue
        texts |= {f"{name}-answers": lookups(part), f"{name}-others": against_others(part), f"{name}-cells": by_cell(part)}
        texts |= {f"{name}-before": by_costliest_head(part)}
    if LOOKUP in parts:
        texts["lookup-rates"] = by_rate(parts[LOOKUP])
    if TEXT in parts:
        texts |= {"text-rates": by_tuning_loss(parts[TEXT]), "text-losses": losses(parts[TEXT])}
    for name in gates.PARTS:
        if name not in parts:
            continue
        found = gates.read(name, trained(parts[name]))
        texts[f"{name}-gates"] = gates.table(name, found)
        if name in gates.ALONG:
            texts[f"{name}-lambdas"] = gates.course(found)
    return texts


def runs(parts: Parts) -> str:
    """List how many runs each part has, how many diverged, what trained them, and which parts are not trained yet."""
    rows = []
    for name, declared in PARTS.items():
        if name not in parts:
            rows.append((name, "–", str(declared.seeds), "not all trained yet, so not read", *("–",) * 3))
            continue
        part = parts[name]
        runs_of_part = part.sizes["arm"] * part.sizes["seed"]
        counts = (part.sizes["seed"], runs_of_part, runs_of_part - sum(map(len, trained(part).values())))
        rows.append((name, ", ".join(part["arm"].values.tolist()), *map(str, counts), *_made_by(part)))
    return pipe_table(("part", "arms", "seeds of each", "runs", "diverged", "trained by revision", "on"), rows)


def trained(part: xr.Dataset) -> dict[str, list[int]]:
    """Return the seeds of each arm that have a model: of a run that diverged, all evidence is NaN."""
    looked_at = part["sink"] if "sink" in part else part["previous_token_a1"]
    has_model = np.isfinite(looked_at).any([dim for dim in looked_at.dims if dim not in ("arm", "seed")])  # (arm, seed)
    return {str(arm): part["seed"].values[has_model.sel(arm=arm).values].tolist() for arm in part["arm"].values}


def _made_by(part: xr.Dataset) -> tuple[str, str]:
    """Return the revisions of the code, and the processors, that a part's runs were trained by and on."""
    facts = [fact for of_run in json.loads(part.attrs["made_by"]).values() for fact in of_run]
    revisions, processors = (", ".join(sorted({fact[name] for fact in facts})) for name in ("revision", "processor"))
    return revisions, processors


def verdicts(name: str, part: xr.Dataset) -> list[Verdict]:
    """Return the primaries of a part with what they came to, as figures and tables of verdicts take them."""
    cost = cost_of(part)
    return [
        Verdict(row.test, row.words, row.estimates, dict.fromkeys(row.test.asks, row.p), row.states, row.note, cost)
        for row in judge(name, part, cost)
    ]


def primaries(parts: Parts) -> str:
    """All primaries in their order, their questions first: those of parts that are not trained yet with their power alone."""
    questions: list[str] = []
    rows = []
    for name, declared in PARTS.items():
        cost = cost_of(parts[name]) if name in parts else None
        judged = judge(name, parts[name], cost) if name in parts else [Judged(test, note="not read") for test in declared.tests]
        there = "–" if cost is None else f"{numbers.with_interval(cost.value, cost.low, cost.high)} nats"
        for row in judged:
            questions.append(f"`{name}`: {row.test.question}")
            rows += _of_primary(f"{len(questions)}.", name, row, there if row.test.inside else "–")
    header = ("test", "quantity", "estimate [95 %]", "matters from", "p", "power", *ACCOUNTS, "A2 costs there")
    listed = "\n".join(f"{number}. {question}" for number, question in enumerate(questions, 1))
    return f"{listed}\n\n{pipe_table(header, rows)}"


def _of_primary(number: str, name: str, row: Judged, cost: str) -> list[tuple[str, ...]]:
    words = [row.words.get(account, "–") for account in ACCOUNTS]
    tail = (numbers.significant(row.p, 2), power_of(name, row.test), *words, cost)
    cells = []
    for key, quantity in row.test.quantities.items():
        estimate = row.estimates.get(key)
        value = row.note or "–" if estimate is None else numbers.with_interval(estimate.value, estimate.low, estimate.high)
        cells.append((number, quantity.label, value, f"{quantity.margin:g}", *tail))
        number, tail = "", ("",) * len(tail)
    return cells


def power_of(name: str, test: Test) -> str:
    """Say how often a primary would detect an effect of middle size that an account predicts, by the simulation."""
    rows = json.loads(POWER.read_text(encoding="utf-8"))["rows"]
    predicting = [account for account, of in test.predictions.items() if any(side != NONE for side in of.values())]
    shares = [
        row["detected"][test.id] for row in rows if row["part"] == name and row["size"] == "middle" and row["truth"] in predicting
    ]
    return numbers.between(shares, numbers.percent).replace(" to over 99 %", " or more")


def two_maps(part: xr.Dataset) -> list[str]:
    """Return the arms of a part that have a second map."""
    return [str(arm) for arm in part["arm"].values if bool(np.isfinite(part["lost_without_a2"].sel(arm=arm)).any())]


def by_layer(part: xr.Dataset) -> str:
    """List what the answer loses by each edit of a layer's second map, by arm and layer, in nats."""
    known = [name for name in LOSSES if name in part]
    rows = [
        (arm, str(layer), *(mean(part[name].sel(arm=arm, layer=layer)) for name in known))
        for arm in two_maps(part)
        for layer in part["layer"].values
    ]
    return pipe_table(("arm", "layer", *(LOSSES[name] for name in known)), rows)


def by_head(part: xr.Dataset) -> str:
    """DIFF's heads: of every layer and seed first the one whose second map costs most, and so on.

    Heads have no order that seeds share, so they are put in that of their cost.
    """
    diff = part.sel(arm=DIFF)
    costs = diff["lost_without_a2_of_head"]  # (seed, layer, head)
    order = (-costs.fillna(-np.inf)).argsort(costs.get_axis_num("head"))
    heads = int(np.isfinite(costs).sum("head").max())
    ranked = [{"rank": rank, "at": order.isel(head=rank, drop=True)} for rank in range(heads)]
    columns = _of_heads(diff)
    rows = []
    for layer in part["layer"].values:
        for each in ranked:
            values = [of.isel(head=each["at"]).sel(layer=layer) for of in columns.values()]
            rows.append((str(layer), f"{each['rank'] + 1}.", *(mean(value) for value in values)))
    return pipe_table(("layer", "head by cost", *columns), rows)


def _of_heads(diff: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return what is told of each head of DIFF, by the words of the table."""
    before = diff["gain_by_head"].sel(norm="before")
    columns = {"its A2 costs (nats)": diff["lost_without_a2_of_head"]}
    if "previous_token_a2" in diff:
        columns |= {f"{name.upper()} on the token before": diff[f"previous_token_{name}"] for name in ("a1", "a2")}
    return columns | {
        "gain (dB)": before.sel(a2="own"),
        "with a uniform A2 (dB)": before.sel(a2="uniform"),
        "signal to noise of A1·V (dB)": diff["snr_by_head"].sel(output="A1"),
        "of λA2·V (dB)": diff["snr_by_head"].sel(output="lambda_A2"),
        "rejection (dB)": diff["rejection"],
        "if spread as A1 (dB)": diff["rejection_ceiling"],
    }


def lookups(part: xr.Dataset) -> str:
    """List how well every arm looks up in the end, at the learning rate that was chosen for it.

    Of models that were trained to look up and not to write, how they do among near-duplicates and without an answer, and their
    loss on text.
    """
    columns = {
        "log-odds of the answer (nats)": log_odds_of_runs(part),
        "answered right": part["exact_match"].mean(("length", "distractors", "prompt")),
    }
    if "exact_match_near" in part:
        near = part["exact_match_near"]
        unknown = part["says_unknown"].sel(question="unanswerable")
        columns |= {
            "the same among near-duplicates": near.sel(near=near["near"] > 0).mean(("near", "prompt")),
            "says “unknown” where there is no answer": unknown.mean(("distractors", "prompt")),
            "loss on tokens that the text does not give away (nats)": part["text"].sel(token="other"),
        }
    return _with_rates(part, columns)


def _with_rates(part: xr.Dataset, columns: Mapping[str, xr.DataArray]) -> str:
    """List means over seeds of values (arm, seed) by arm, behind the learning rate that was chosen for it."""
    rows = [
        (str(arm), f"{float(part['rate'].sel(arm=arm)):g}", *(mean(values.sel(arm=arm)) for values in columns.values()))
        for arm in part["arm"].values
    ]
    return pipe_table(("arm", "learning rate", *columns), rows)


def losses(part: xr.Dataset) -> str:
    """List the loss on text by arm, nats a token: held out, of all tokens and by kind, and of another domain."""
    by_domain = part["text_by_domain"]  # (arm, seed, domain, token)
    held_out = held_out_loss(part)
    (other,) = (domain for domain in by_domain["domain"].values if domain != HELD_OUT)
    columns = {
        "held-out text": held_out,
        "DIFF − arm": (held_out.sel(arm=DIFF) - held_out).where(held_out["arm"] != DIFF),
        "tokens that the text gives away": part["text"].sel(token="hit"),
        "other tokens": part["text"].sel(token="other"),
        "another domain": by_domain.sel(domain=other, token="all"),
    }
    return _with_rates(part, columns)


def by_tuning_loss(part: xr.Dataset) -> str:
    """List the training loss of the runs that chose each arm's learning rate, mean over steps and seeds, and the chosen rate.

    At a rate at which one of them diverged it says so.
    """
    loss = part["tuning_area"].mean("tuning_seed", skipna=False)  # (arm, rate_tried)
    rows = [
        (
            str(arm),
            *("diverged" if np.isinf(value) else numbers.significant(float(value), 4) for value in loss.sel(arm=arm)),
            f"{float(part['rate'].sel(arm=arm)):g}",
        )
        for arm in part["arm"].values
    ]
    return pipe_table(("arm", *(f"{rate:g} (nats)" for rate in loss["rate_tried"].values), "chosen"), rows)


def by_rate(part: xr.Dataset) -> str:
    """List how many runs of each arm that chose its learning rate found the lookup, by rate, and the rate that was chosen."""
    formed = part["tuning_formation"].notnull()  # (arm, rate_tried, tuning_seed)
    rates = formed["rate_tried"].values
    rows = [
        (
            str(arm),
            *(f"{int(formed.sel(arm=arm, rate_tried=rate).sum())} of {formed.sizes['tuning_seed']}" for rate in rates),
            f"{float(part['rate'].sel(arm=arm)):g}",
        )
        for arm in part["arm"].values
    ]
    return pipe_table(("arm", *(f"{rate:g}" for rate in rates), "chosen"), rows)


def against_others(part: xr.Dataset) -> str:
    """List onset and log-odds of DIFF minus those of each other arm, seed by seed; below 0 octaves DIFF is earlier."""
    columns = {
        "onset, DIFF − arm (octaves)": np.log2(onsets_of_runs(part)),
        "log-odds, DIFF − arm (nats)": log_odds_of_runs(part),
    }
    rows = [
        (str(arm), *(mean(values.sel(arm=DIFF) - values.sel(arm=arm)) for values in columns.values()))
        for arm in part["arm"].values
        if arm != DIFF
    ]
    return pipe_table(("arm", *columns), rows)


def by_cell(part: xr.Dataset) -> str:
    """List log-odds of the answer by arm, length and number of distractors, in nats; a cell that was not scored is left out."""
    odds = log_odds_in_cells(part)  # (arm, seed, length, distractors)
    rows = [
        (str(length), str(distractors), *(mean(odds.sel(arm=arm, length=length, distractors=distractors)) for arm in odds["arm"]))
        for length in odds["length"].values
        for distractors in odds["distractors"].values
        if bool(odds.sel(length=length, distractors=distractors).notnull().any())
    ]
    return pipe_table(("tokens", "distractors", *(f"{arm} (nats)" for arm in odds["arm"].values)), rows)


def by_costliest_head(part: xr.Dataset) -> str:
    """List, by arm and layer, the head whose second map costs most in its seed: what it costs, and where its maps look.

    Beside it stands the largest weight on the token before that any head's A1 gives it; arms have two or four heads a layer.
    """
    rows = []
    for arm in part["arm"].values:
        of_arm = part.sel(arm=arm)
        costs = of_arm["lost_without_a2_of_head"]  # (seed, layer, head)
        at = costs.fillna(-np.inf).argmax("head")
        first = [costs, of_arm["previous_token_a1"], of_arm["previous_token_a2"]]
        columns = [values.isel(head=at).where(costs.notnull().any("head")) for values in first]
        columns.append(of_arm["previous_token_a1"].max("head"))
        rows += [(str(arm), str(layer), *(mean(of.sel(layer=layer)) for of in columns)) for layer in part["layer"].values]
    costliest = ("its A2 costs (nats)", "its A1 on the token before", "its A2 there")
    return pipe_table(("arm", "layer", *costliest, "most of A1 there, any head"), rows)


def gains(part: xr.Dataset) -> str:
    """Signal-to-noise gain in the heads that tell the answer, weighted by what their A2 costs, by arm."""
    columns = {
        "a2_cost_where_told": "A2 costs there (nats)",
        "signal_to_noise_gain": "gain (dB)",
        "gain_over_uniform": "above a uniform A2 (dB)",
        "snr_first_ahead": "signal to noise of A1·V minus that of λA2·V (dB)",
    }
    known = [name for name in columns if name in part]
    rows = [(arm, *(mean(part[name].sel(arm=arm)) for name in known)) for arm in two_maps(part)]
    return pipe_table(("arm", *(columns[name] for name in known)), rows)


def sinks(part: xr.Dataset) -> str:
    """List the first token's weight by arm and map, at dormant queries and at triggers: the mean over heads.

    A model has none if one of its heads has none, as the share of |D| if all of a row is 0.
    """
    weights = over_heads(part["sink"])  # (arm, seed, queries, map)
    maps = weights["map"].values.tolist()
    rows = [
        (str(arm), str(queries), *(mean(weights.sel(arm=arm, queries=queries, map=name)) for name in maps))
        for arm in weights["arm"].values
        for queries in weights["queries"].values
    ]
    return pipe_table(("arm", "queries", *(MAP_NAMES.get(name, name) for name in maps)), rows)


def over_heads(sink: xr.DataArray) -> xr.DataArray:
    """Return the first token's weight, the mean over a model's heads; NaN if it is not defined in all heads that have an A1."""
    heads = ("layer", "head")
    lacking = sink.sel(map="A1", drop=True).notnull() & sink.isnull()
    return sink.mean(heads).where(~lacking.any(heads))


def lambdas(part: xr.Dataset) -> str:
    """List how much of A2 each arm subtracts in the end."""
    of_run = subtracted(part)
    rows = []
    for arm in two_maps(part):
        if arm == "d-plus":  # whose D is no such difference
            continue
        each = of_run.sel(arm=arm).dropna("seed").values
        ends = (numbers.decimal(float(value)) for value in (each.min(), np.median(each), each.max()))
        rows.append((arm, *ends, f"{int((each > 0).sum())} of {len(each)}"))
    return pipe_table(("arm", "least", "median", "largest", "subtracts in"), rows)


def subtracted(part: xr.Dataset) -> xr.DataArray:
    """Return how much of A2 a model subtracts, c in D = A1 − c·A2, from the first token's weights in all three, (arm, seed)."""
    weights = part["sink"].sel(queries="dormant")  # (arm, seed, map, layer, head)
    taken = (weights.sel(map="A1") - weights.sel(map="net D")) / weights.sel(map="A2")
    return taken.mean(("layer", "head"))


def copies(part: xr.Dataset) -> str:
    """List how well every arm copies and predicts bigrams at its last evaluation, and when it began to copy."""
    columns = {words: last(part[name]) for name, words in OF_COPIES.items()}
    columns["log-odds of the copy (nats)"] = part["copy_log_odds"]
    begins = onsets(part.assign(retrieval=part["copied"]), CRITERIA["90 % once"])  # (arm, seed)
    rows = [
        (str(arm), *(mean(values.sel(arm=arm)) for values in columns.values()), steps_in_words(begins.sel(arm=arm).values))
        for arm in part["arm"].values
    ]
    return pipe_table(("arm", *columns, "first 90 % right at step: median, least to most"), rows)


def last(values: xr.DataArray) -> xr.DataArray:
    """Return the last value along the training that is defined."""
    places = xr.DataArray(np.arange(values.sizes["step"]), dims="step")
    return values.isel(step=places.where(values.notnull(), 0).max("step")).drop_vars("step")


def by_criterion(part: xr.Dataset) -> str:
    """List when each arm finds the lookup, by every criterion: the median over runs, the least, the most, how many never do."""
    rows = []
    for words, criterion in CRITERIA.items():
        steps = onsets(part, criterion)  # (arm, seed)
        rows.append((words, *(steps_in_words(steps.sel(arm=arm).values) for arm in part["arm"].values)))
    return pipe_table(("criterion", *map(str, part["arm"].values)), rows)


def steps_in_words(steps: np.ndarray) -> str:
    """Write the median over runs and their range; those that never get there or diverged (NaN) come last in the median."""
    reached = steps[np.isfinite(steps)]
    counts = {"never": int(np.isinf(steps).sum()), "diverged": int(np.isnan(steps).sum())}
    others = [f"{words}: {count}" for words, count in counts.items() if count]
    if not len(reached):
        return ", ".join(others)
    middle = np.median(np.nan_to_num(steps, nan=np.inf, posinf=np.inf))
    words = f"{middle:g}" if np.isfinite(middle) else "median: never"
    return ", ".join([f"{words} ({reached.min():g} to {reached.max():g})", *others])


def drawings(parts: Parts) -> dict[str, figures.Figure]:
    """Return the report's figures by name: the primaries, and what A2 costs and does by layer."""
    read = [verdict for name, part in parts.items() for verdict in verdicts(name, part) if verdict.estimates]
    drawn = {"primaries": figures.board(read, width=WIDTH, title="")} if read else {}
    if "mechanism" in parts:
        drawn["costs"] = _costs(parts["mechanism"])
    if LOOKUP in parts:
        drawn["lookup"] = _odds(parts[LOOKUP])
    if TEXT in parts:
        drawn["text"] = _losses(parts[TEXT])
    return drawn


def _losses(part: xr.Dataset) -> figures.Figure:
    """Draw DIFF's loss on held-out text minus that of each other arm along the training, every seed a point."""
    loss = part["held_out_loss"].dropna("step", how="all")  # (arm, seed, step)
    ahead = loss.sel(arm=DIFF, drop=True) - loss.drop_sel(arm=DIFF)
    return _with_seeds(ahead.assign_attrs(long_name="held-out loss, DIFF − arm", units="nats"), "step", "arm", "lines")


def _odds(part: xr.Dataset) -> figures.Figure:
    """Draw log-odds of the answer by the number of distractors and arm, every seed a point; of arms that find the lookup."""
    odds = log_odds_in_cells(part).dropna("arm", how="all")  # (arm, seed, length, distractors)
    means = odds.sel(length=whole_lengths(part)).mean("length").transpose("arm", "seed", "distractors")
    return _with_seeds(means.assign_attrs(long_name="log-odds", units="nats"), "distractors", "arm")


def whole_lengths(part: xr.Dataset) -> list[int]:
    """Return the lengths that hold every number of distractors: others would mix length with distractors in a mean."""
    scored = log_odds_in_cells(part).notnull().any(("arm", "seed"))  # (length, distractors)
    return scored["length"].values[scored.all("distractors").values].tolist()


def _costs(part: xr.Dataset) -> figures.Figure:
    """Draw what the answer loses by each edit of a layer's second map, every seed a point."""
    rises = xr.concat([part[name].sel(arm=DIFF, drop=True) for name in LOSSES if name in part], "edit")  # (edit, seed, layer)
    rises = rises.assign_coords(edit=[words for name, words in LOSSES.items() if name in part])
    return _with_seeds(rises.assign_attrs(long_name="rise of the answer's loss", units="nats"), "layer", "edit")


def _with_seeds(values: xr.DataArray, x: str, series: str, style: Literal["points", "lines"] = "points") -> figures.Figure:
    """Draw means over seeds with their 95 % intervals, and every seed as a point."""
    middle = values.mean("seed", keep_attrs=True)
    half = half_widths(values)
    ends = {"low": middle - half, "high": middle + half}
    return figures.curves(middle, x=x, series=series, points=values, style=style, width=WIDTH, title="", **ends)


def half_widths(values: xr.DataArray) -> xr.DataArray:
    """Return half the 95 % intervals of means over seeds, by Student's t, without the seeds that have no value."""
    count = values.count("seed")
    error = values.std("seed", ddof=1) / np.sqrt(count)
    return xr.apply_ufunc(np.vectorize(t_half_width, otypes=[float]), error, count - 1)
