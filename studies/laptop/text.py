"""The page ``text.md``: perplexity, sinks, attention by depth in four normalisations and λ along training, of plain text.

:func:`run` reads trained models; what it found is the result ``text``, from which :func:`page` writes.

Means over seeds, with 95 % intervals (Student's t) where there are three or more; DIFF minus each standard arm is paired by seed.
Losses are of all text of modules that no model was trained on; maps of a few texts drawn from it, others for each seed, the same
for its arms. Sinks are read at all queries
from the 64th on, where a first token has 1/64 of uniform attention at most; standard attention's one map stands as A1 and as D.
Nothing here is judged: it is a description of models that write text, beside a study of models that retrieve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import xarray as xr

import diffscope
from diffscope import readings
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.intervals import students_t
from diffscope.scope import Scope
from diffscope.stats.averaging import averaged
from diffscope.storage.atomic import plain
from diffscope.tasks import scoring
from diffscope.tasks.log_odds import logits_of
from diffscope.tasks.recall import Recall, earlier
from diffscope.tasks.template import prefix_tokens

LENGTH = 512
TEXTS = 64  # of those that models were trained on
FEW = 8  # of the maps
FIRST_QUERY = 64
SEED = 80_000  # texts of no other purpose have these seeds
PROMPTS = 10  # at each of five depths
STATISTICS = ("sink_mass", "sink_rate", "column_sink", "entropy_normalised", "gini")
BASELINES = ("standard", "double-width")
INTRODUCTION = (
    "What was read of models that write text (`python -m studies.laptop.reproduce --train FOLDER`). Losses: all held-out text, "
    "{windows} windows of {length} tokens of documentation strings one after another, and {texts} texts of the training. Maps: "
    "{few} held-out texts for each seed, the same for its arms. Means over {seeds} seeds with 95 % intervals (Student's t), "
    "differences paired by seed; no interval is corrected, and they are of the seeds of models, not of what text there might be. "
    "*Given away* are tokens that complete three tokens which stood in the same window before."
)
SECTIONS = (
    ("Loss", "Nats a token, and the perplexity that is its exponential.", ("loss", "perplexity")),
    (
        "Sinks",
        f"Mean over heads, then layers, of {FEW} texts and all queries from the {FIRST_QUERY}th on; standard attention's one map "
        "stands as A1 and as D.",
        ("mass on", "share of heads"),
    ),
    ("Most attended key", "The largest share that one key gets of all queries' attention.", ("most attended",)),
    ("Sparsity", "Of the same maps.", ("entropy", "gini")),
    (
        "The query's own token, the one before it, and the first",
        "Weights, with their signs, mean over the heads of a layer; and of the heads with most and least, others in each model.",
        ("given to",),
    ),
    (
        "What the maps share",
        "‖A1 − c·A2‖ / ‖A1‖ at the c that makes it least, over all keys but the first; mean over queries, heads, layers and "
        "texts. 1 is nothing shared. At step 0 nothing is trained.",
        ("left of A1",),
    ),
    (
        "Attention by depth",
        "Of the last query of retrieval prompts, which these models were not trained on, of half the trained length; mean over "
        "heads, then layers; of the sum over 1 − λ (`signed`), which has no bound, the median over all heads too.",
        ("answer,", "irrelevant,", "exact answers", "log-odds"),
    ),
    ("λ along training", "One number a layer.", ("λ",)),
)
WHOSE = ("its own A2", "another head's A2")
SETS = {"S": "first token", "first_four": "first four tokens"}
Values = dict[str, float]


def windows(scope: Scope) -> tuple[np.ndarray, np.ndarray]:
    """All held-out text in windows (window, token) that each begin as texts do, and which of their tokens are given away."""
    recall = Recall(scope.tokenizer)
    first = prefix_tokens(scope.tokenizer)
    inside = LENGTH - len(first)
    parts = [recall.filler.ids[at : at + inside] for at in range(0, len(recall.filler.ids) - inside + 1, inside)]
    ids = np.array([[*first, *part] for part in parts])
    return ids, np.array([earlier(row.tolist(), recall.n) >= 0 for row in ids])


def of_training(scope: Scope, seed: int | Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Texts that models were trained on (text, token), and which of their tokens are given away."""
    return Recall(scope.tokenizer, held_out=False).rows(TEXTS, LENGTH, np.random.default_rng(seed))


def losses(scope: Scope, ids: np.ndarray, hits: np.ndarray) -> Values:
    """Mean loss in nats on texts (text, token): of all tokens, of those that the text gives away, of the others; by position."""
    table = scoring.losses(logits_of(scope.model), ids, 8 * ids.shape[1]).numpy()  # (text, token − 1)
    given = hits[:, 1:]
    values = {"loss": table.mean(), "loss, given away": table[given].mean(), "loss, others": table[~given].mean()}
    half = table.shape[1] // 2
    values |= {"loss, first half": table[:, :half].mean(), "loss, second half": table[:, half:].mean()}
    values["perplexity"] = np.exp(values["loss"])
    return {name: float(value) for name, value in values.items()}


def losses_along(scope: Scope, seed: int) -> Values:
    """Mean loss at each checkpoint, on held-out text and on text of the training: whether what is learned is learned by heart."""
    values = {}
    for words, (ids, hits) in {"held-out text": windows(scope), "text of the training": of_training(scope, [SEED, seed])}.items():
        values |= {
            f"loss on {words}, step {step}": losses(scope.at(step), ids, hits)["loss"] for step in sorted(scope.checkpoints)
        }
    return values


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
    taken = {words: value for words, value in values.items() if f"{SETS['S']} in D, share" in words}
    for words in [*taken, *(words for words in values if words.startswith(("entropy", "gini")) and " of D" in words)]:
        before = words.replace(" in D, share", " in A1").replace(" of D", " of A1")
        values[words.replace("D", "D − A1", 1)] = values[words] - values[before]
    return values


def nearest(scope: Scope, ids: np.ndarray) -> Values:
    """Measure what maps give to a query's own token, the one before and the first, by layer, and the most of a head."""
    found: dict[tuple[str, str, int], list[np.ndarray]] = {}
    for row in ids:
        cap = scope.capture(row.tolist())
        queries = np.arange(FIRST_QUERY, len(row))
        for layer, name in product(cap.layer_numbers, ("A1", "A2", "D") if cap.differential else ("A1", "D")):
            heads = [cap.map(name, layer=layer, head=head).values for head in range(cap.n_heads)]
            for place, keys in {
                "its own token": queries,
                "the token before": queries - 1,
                "the first token": 0 * queries,
            }.items():
                each = np.array([weights[queries, keys].mean() for weights in heads])  # (head,)
                found.setdefault((place, name, layer), []).append(each)
    values = {"given to the first token by uniform attention": float((1 / (1 + queries)).mean())}
    for (place, name, layer), each in found.items():
        over_texts = np.mean(each, axis=0)  # (head,)
        words = f"given to {place} by {name}, layer {layer}"
        values |= {words: float(over_texts.mean())}
        values |= {f"{words}, head with least": float(over_texts.min()), f"{words}, head with most": float(over_texts.max())}
        most = f"given to {place} by {name}, head that gives most"
        values[most] = max(values.get(most, -np.inf), float(over_texts.max()))
    return values


def shared(scope: Scope, ids: np.ndarray) -> Values:
    """Measure what the best coefficient leaves of A1, with A2 of its head and of the layer's other heads; not of standard."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in ids:
        cap = scope.capture(row.tolist())
        if not cap.differential:
            return {}
        for layer, head, other in product(cap.layer_numbers, range(cap.n_heads), range(cap.n_heads)):
            whose = WHOSE[head != other]
            a1 = cap.map("A1", layer=layer, head=head).values[FIRST_QUERY:, 1:]  # (query, key), without <bos>
            a2 = cap.map("A2", layer=layer, head=other).values[FIRST_QUERY:, 1:]
            cosine = (a1 * a2).sum(-1) / (np.linalg.norm(a1, axis=-1) * np.linalg.norm(a2, axis=-1))
            found.setdefault((whose, layer), []).append(float(np.sqrt(np.clip(1 - cosine**2, 0, 1)).mean()))
    left = xr.DataArray(
        [[np.mean(found[whose, layer]) for layer in cap.layer_numbers] for whose in WHOSE],
        {"whose": list(WHOSE), "layer": cap.layer_numbers},
    )
    values: Values = {}
    for whose in WHOSE:
        values |= _by_layer(f"left of A1 by the best coefficient of {whose}", left.sel(whose=whose))
    own, other = (left.sel(whose=whose, drop=True) for whose in WHOSE)
    return values | _by_layer("left of A1, its own A2 − another head's", own - other)


def _by_layer(words: str, values: xr.DataArray) -> Values:
    """Return the mean over queries and heads, by layer, and over layers; NaN where a layer has none."""
    over = averaged(values, [dim for dim in ("query", "head") if dim in values.dims]).values
    layers = {f"{words}, layer {layer}": float(value) for layer, value in enumerate(over.values)}
    return {words: float(over.mean(skipna=False)), **layers}


def by_depth(scope: Scope, seed: int) -> Values:
    """Measure what the last query of retrieval prompts gives to the answer and to irrelevant tokens, by depth and normalisation.

    Means over heads, then layers; of the sum over 1 − λ, which has no bound, the median over all heads too. Beside it what
    uniform attention would give, and how the prompts are answered.
    """
    estimates = readings.depths(scope, [LENGTH // 2], prompts=PROMPTS, seed=SEED + seed).estimates.isel(length=0)
    values = {}
    for depth in estimates["depth"].values:
        at = estimates.sel(depth=depth)
        place = f"depth {100 * depth:.0f} %"
        for span in ("answer", "irrelevant"):
            for normalisation in at["normalisation"].values:
                chosen = dict(map="D", span=span, normalisation=normalisation)
                values[f"{span}, {normalisation}, {place}"] = float(at["mass"].sel(chosen))
            median = at["by_head"].sel({**chosen, "normalisation": "signed"}).median(["layer", "head"])
            values[f"{span}, signed, median of heads, {place}"] = float(median)
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


def read(folder: Path, seed: int) -> Values:
    """Measure everything of one run."""
    scope = diffscope.load(folder)
    recall = Recall(scope.tokenizer)
    ids, _ = recall.rows(FEW, LENGTH, np.random.default_rng([SEED, seed]))
    first = min(scope.checkpoints)
    return (
        losses(scope, *windows(scope))
        | losses_along(scope, seed)
        | maps(scope, ids)
        | nearest(scope, ids)
        | shared(scope, ids)
        | {f"{words}, step {first}": value for words, value in shared(scope.at(first), ids).items()}
        | by_depth(scope, seed)
        | along(scope, ids)
    )


def summary(runs: Mapping[str, Mapping[str, Values]]) -> dict[str, dict[str, dict]]:
    """Return means over seeds by arm, and DIFF minus each baseline seed by seed, each with its interval; a column each."""
    columns = {arm: _means(list(of_arm.values())) for arm, of_arm in runs.items()}
    for arm in BASELINES:
        both = sorted(set(runs.get("diff", {})) & set(runs.get(arm, {})))
        pairs = [(runs["diff"][seed], runs[arm][seed]) for seed in both]
        columns[f"diff − {arm}"] = _means(
            [{name: _number(ours[name]) - _number(theirs[name]) for name in ours if name in theirs} for ours, theirs in pairs]
        )
    return columns


def _number(value: float | None) -> float:
    """Return a value of a file, which has null for NaN."""
    return np.nan if value is None else value


def _means(runs: Sequence[Values]) -> dict[str, dict]:
    table = {}
    for name in dict.fromkeys(name for values in runs for name in values):
        values = np.array([_number(of.get(name)) for of in runs])
        values = values[np.isfinite(values)]
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
    runs: dict[str, dict[str, Values]] = {}
    for folder in folders:
        tell(f"{folder.parent.name}, {folder.name}")
        seed = int(folder.name.removeprefix("seed-"))
        runs.setdefault(folder.parent.name, {})[str(seed)] = read(folder, seed)
    made_of = {"length": LENGTH, "windows": len(windows(diffscope.load(folders[0]))[0]), "texts": TEXTS, "few": FEW}
    return plain({**made_of, "runs": runs})


def page(result: Mapping) -> str:
    """Format all means and paired differences of what was read, as Markdown."""
    columns = summary(result["runs"])
    names = list(dict.fromkeys(name for table in columns.values() for name in table))
    seeds = sorted({len(runs) for runs in result["runs"].values()})
    if {row["seeds"] for table in columns.values() for row in table.values()} - {0, *seeds}:  # 0: standard attention has no A2
        raise DiffscopeError("some of what was read has no value for some seeds, which the page would hide; look at the file")
    head = "# The cohort of plain text\n\n" + INTRODUCTION.format(seeds=" to ".join(map(str, seeds)), **result) + "\n"
    lines = [head]
    for title, words, begins in SECTIONS:
        rows = [name for name in names if name.startswith(begins)]
        used = {arm: table for arm, table in columns.items() if any(name in table for name in rows)}
        lines += [f"## {title}\n", f"{words}\n", f"| | {' | '.join(used)} |", "|---" * (len(used) + 1) + "|"]
        lines += [f"| {name} | {' | '.join(_cell(table.get(name)) for table in used.values())} |" for name in rows]
        lines.append("")
    return "\n".join(lines)


def _cell(row: dict | None) -> str:
    if row is None or not row["seeds"]:
        return "–"
    ends = "" if np.isnan(row["low"]) else f" ({row['low']:.3g} to {row['high']:.3g})"
    return f"{row['value']:.3g}{ends}".replace("-", "−")
