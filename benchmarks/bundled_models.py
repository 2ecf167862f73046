"""Measure what the bundled models do when their attention is changed, and what the instruments show of them.

    python -m benchmarks.bundled_models                        # every part; writes docs/evidence/interventions.md, too
    python -m benchmarks.bundled_models --part instruments

Prompts are held-out retrieval in the models' own sentence. One pair, one seed: numbers of these models, not of the architecture.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from scipy.stats import binomtest
from torch.nn.functional import cross_entropy

import diffscope
from benchmarks import results
from benchmarks.results import Section, table
from diffscope import edits
from diffscope.instruments.injection import with_a2_moved
from diffscope.instruments.snr import DRAWS, over_prompts
from diffscope.scope import Scope
from diffscope.storage.atomic import write_text
from diffscope.tables.table import Table
from diffscope.tasks import Recall, Retrieval
from diffscope.tasks.exchanging import redrawn
from diffscope.tasks.retrieval import Prompt
from diffscope.tasks.sampling import draw
from diffscope.tasks.template import encode_continuation
from diffscope.tasks.tokenizer import CITIES
from diffscope.tasks.training_sentence import template_of

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "interventions.md"
INTRODUCTION = (
    "This page says how much loss and how many answers each edit costs the bundled models mini-diff and mini-standard: λ "
    "clamped, the second map replaced, the norm removed, negative weights removed, and maps made sparse."
)
SEED = 20_000
MODELS = "mini-diff and mini-standard as they are bundled"


def task_of(scope: Scope) -> Retrieval:
    """Return retrieval in held-out text, in the sentence that mini-diff was trained on."""
    return Retrieval(scope.tokenizer, held_out=True, template=template_of("mini-diff"))


# Interventions.

ROWS = 25  # prompts at once
LENGTH, NEEDLES = 256, 4


@torch.no_grad()
def scores(scope: Scope, prompts: Sequence[Prompt], *active: edits.Edit) -> dict[str, np.ndarray]:
    """Return of each prompt under edits the loss of its text and answer (nats a token), and whether it is answered exactly."""
    values: dict[str, list[torch.Tensor]] = {"text": [], "answer": [], "right": []}
    with scope.edit(*active):
        for start in range(0, len(prompts), ROWS):
            some = prompts[start : start + ROWS]
            ids = torch.tensor([prompt.ids + prompt.answer for prompt in some])
            logits = scope.model(ids[:, :-1], use_cache=False).logits
            losses = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")  # (prompt, token − 1)
            width = len(some[0].answer)
            values["text"].append(losses[:, :-width].mean(1))
            values["answer"].append(losses[:, -width:].mean(1))
            values["right"].append((logits[:, -width:].argmax(-1) == ids[:, -width:]).all(1))
    return {name: torch.cat(parts).numpy() for name, parts in values.items()}


def score_row(name: str, edited: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> list[str]:
    """Return one row of a table; changes are of the same prompts, with their standard error."""
    right = edited["right"]
    low, high = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    change = edited["text"] - plain["text"]
    error = change.std(ddof=1) / len(change) ** 0.5
    cells = [name, f"{edited['text'].mean():.3f}", f"{change.mean():+.3f} ± {error:.3f}", f"{edited['answer'].mean():.3f}"]
    return [*cells, f"{right.mean():.1%} ({low:.1%}–{high:.1%})"]


def interventions(options: Namespace) -> Section:
    """Change λ, the second map, the norm and the first map of the bundled pair."""
    diff, standard = diffscope.load("mini-diff"), diffscope.load("mini-standard")
    count, averaged = (4, 2) if options.quick else (200, 100)
    prompts = draw(task_of(diff), count, LENGTH, NEEDLES, SEED)
    others = [p.ids + p.answer[:-1] for p in draw(task_of(diff), averaged, LENGTH, NEEDLES, SEED + 1)]
    captured = [diff.capture(ids) for ids in others]
    plain, baseline = scores(diff, prompts), scores(standard, prompts)
    header = ("edit", "loss of the text", "change", "loss of the answer", "exact answers (95 %)")
    as_trained = [score_row("mini-diff as trained", plain, plain), score_row("mini-standard as trained", baseline, baseline)]
    tables = [table("The pair as it was trained", header, as_trained)]
    lams = {f"λ = {value:g}": edits.set_lambda(value) for value in np.arange(0, 1.51, 0.25)}
    seconds = {f"A2 of rank {rank}": edits.low_rank_a2(rank) for rank in (1, 2, 4, 8, 32, 128)}
    seconds |= {
        f"A2 = its mean over {averaged} other prompts": edits.mean_a2(captured),
        "A2 = its mean by distance": edits.positional_a2(captured),
        "A2 uniform": edits.uniform_a2(),
        "A2 = 0": edits.zero_a2(),
    }
    norms = {"no norm": edits.remove_norm(), "norm → one number a head": edits.scalar_norm(captured)}
    shapes = {"|D|": edits.absolute_d(), "D⁺": edits.d_plus(), "A1 top-8": edits.top_k_a1(8)}
    for title, scope, before, changes in (
        ("λ clamped (mini-diff)", diff, plain, lams),
        ("The second map replaced (mini-diff)", diff, plain, seconds),
        ("The norm replaced (mini-diff)", diff, plain, norms),
        ("The signs of D, and a sparse A1 (mini-diff)", diff, plain, shapes),
        ("The standard model's map made sparse", standard, baseline, {"A top-8": edits.top_k_a1(8)}),
    ):
        some = list(changes.items())[: 1 if options.quick else None]
        rows = [score_row(name, scores(scope, prompts, edit), before) for name, edit in some]
        tables.append(table(title, header, [score_row("none", before, before), *rows]))
    text = (
        f"Each of {count} held-out prompts has {LENGTH} tokens, {NEEDLES} needles and one question. Losses are in nats a token, "
        "averaged over tokens, then over prompts. The change is measured prompt by prompt, ± its standard error over prompts. "
        "An edit acts on all layers and heads at once. The numbers are of these two models of one seed, not of the architecture."
    )
    title = "What the bundled pair loses when its attention is changed"
    section = Section("interventions", title, command("interventions"), MODELS, tables, text)
    if not options.quick:
        made = f"{INTRODUCTION}\n\nMeasured by `{section.command}` on {section.measured}. {text}"
        headed = "\n".join(f"## {of.caption}\n{of.to_markdown().partition(chr(10))[2]}" for of in tables)
        write_text(PAGE, f"# {title}\n\n{made}\n\n{headed}")
    return section


# Instruments.

PROMPTS = 20
SIGMA, STRONG = 0.5, 1.0  # of the noise in single heads, and in all layers
SOURCES = ("uniform", "distance", "key", "other", "rest")


def rejection(captures: Sequence[diffscope.Capture]) -> tuple[np.ndarray, np.ndarray]:
    """Return common-mode rejection by injection and its ceiling in dB, (layer, head): ratios of mean squares over prompts."""
    runs = [
        diffscope.instruments.cmrr_by_injection(capture, spans=["irrelevant"], sigmas=[SIGMA]).squeeze() for capture in captures
    ]

    def ratio(end: str) -> np.ndarray:
        of_mode = [np.mean([run[f"change_{mode}{end}"] ** 2 for run in runs], 0) for mode in ("differential", "common")]
        return 10 * np.log10(of_mode[0] / of_mode[1])

    return ratio(""), ratio("_ceiling")


def lost_to_noise(name: str, prompts: Sequence[Prompt]) -> list[str]:
    """Return the nats of log-odds that noise in all layers costs a model, in each mode, and those that it has."""
    scope = diffscope.load(name)
    by_prompt = []
    for p in prompts:
        others = [ids[0] for ids in p.distractors]
        by_prompt.append(
            diffscope.instruments.log_odds_under_noise(scope, p.ids, p.answer[0], others, spans=p.spans, sigmas=(STRONG,))
        )
    values = xr.concat(by_prompt, "prompt")
    nats = values["log_odds_lost"].isel(sigma=0)  # (prompt, mode)
    errors = nats.std("prompt", ddof=1) / np.sqrt(len(prompts))
    cells = [
        f"{float(nats.sel(mode=mode).mean()):.2f} ± {float(errors.sel(mode=mode)):.2f}" for mode in ("common", "differential")
    ]
    return [name, *cells, f"{float(values['log_odds'].mean()):.1f}"]


def instruments(options: Namespace) -> Section:
    """Measure rejection by injection, what noise costs, and the anatomy of both maps."""
    scope, count = diffscope.load("mini-diff"), 2 if options.quick else PROMPTS
    prompts, others = (draw(task_of(scope), count, 160, 4, seed) for seed in (SEED, SEED + 1))
    captures = [scope.capture(list(prompt.ids), spans=prompt.spans) for prompt in prompts]
    (own, most), (moved, _) = rejection(captures), rejection([with_a2_moved(capture) for capture in captures])
    lam = captures[0].lam.mean([dim for dim in captures[0].lam.dims if dim != "layer"]).values
    rows = []
    for layer, value in enumerate(lam):
        equal = 20 * np.log10((1 + value) / abs(1 - value))
        cells = [", ".join(f"{each:.1f}" for each in of[layer]) + " dB" for of in (own, most, moved)]
        rows.append([str(layer), f"{value:.2f}", f"{equal:.1f} dB", *cells])
    header = ("layer", "λ", "if maps were equal", "CMRR_inj of its two heads", "of at most", "with A2 of the other head")
    tables = [table(f"Common-mode rejection by injection, σ = {SIGMA}, X = irrelevant tokens.", header, rows)]
    noise = [lost_to_noise(name, prompts) for name in ("mini-diff", "mini-standard")]
    columns = ("model", "to common noise", "to opposite noise", "of")
    tables.append(table(f"Nats of log-odds that noise of σ = {STRONG} in all layers costs.", columns, noise))
    batch = scope.capture([list(prompt.ids) for prompt in others])
    parts = [diffscope.average(diffscope.instruments.anatomy(capture, batch), "head").shapley for capture in captures]
    means = xr.concat(parts, "prompt").mean("prompt")
    anatomy = [
        [str(layer), of, *(f"{float(means.sel(map=of, layer=layer, part=part)):.2f}" for part in SOURCES)]
        for of, layer in product(("A2", "A1"), means["layer"].values)
    ]
    tables.append(table("Anatomy, mean over heads and prompts (shapley).", ("layer", "map", *SOURCES), anatomy))
    text = f"{count} retrieval prompts of 160 tokens, the answering query; ratios of mean squares and means over prompts."
    return Section("instruments", "What the instruments show of the bundled models", command("instruments"), MODELS, tables, text)


# Signal to noise.

CASES = {"4 sentences, 160 tokens": (4, 160), "25 sentences, 256 tokens": (25, 256)}  # the asked one counts, too
FILLERS = {"text": False, "text and the other sentences": True}


def of_retrieval(name: str, sentences: int, length: int, anew: bool, count: int) -> xr.Dataset:
    """Measure at the answering query; the other sentences stay, or are about other cities and numbers (`anew`)."""
    scope, tables, rng = diffscope.load(name), [], np.random.default_rng(SEED)
    task = task_of(scope)
    for prompt in draw(task, count, length, sentences, SEED):
        fillers = [redrawn(task, prompt, rng) for _ in range(DRAWS)]
        tables.append(diffscope.instruments.signal_to_noise(scope, prompt.ids, spans=prompt.spans, fillers=fillers, needles=anew))
    return over_prompts(tables)


def of_city(name: str, sentences: int, length: int, count: int) -> xr.Dataset:
    """Measure at the first token of the number: the signal is the city before it."""
    scope, tables, rng = diffscope.load(name), [], np.random.default_rng(SEED)
    task = task_of(scope)
    cities = [ids for city in CITIES if len(ids := encode_continuation(scope.tokenizer, [f" {city}"])[0]) == 1]
    for prompt in draw(task, count, length, sentences, SEED):
        number = prompt.spans["answer"][0]
        spans = prompt.spans | {"city": [number - 1], "sentence": list(range(number - len(prompt.spans["query"]), number))}
        fillers = [redrawn(task, prompt, rng) for _ in range(DRAWS)]
        exchanged = {"answers": cities, "fillers": fillers, "needles": True, "keep": ("answer", "sentence"), "queries": [number]}
        tables.append(diffscope.instruments.signal_to_noise(scope, prompt.ids, spans=spans, signal="city", **exchanged))
    return over_prompts(tables)


def of_text(name: str, length: int, count: int) -> xr.Dataset:
    """Measure a language model where a pair of tokens stands again: the signal is the token that followed it before."""
    scope, tables, rng = diffscope.load(name), [], np.random.default_rng(SEED)
    recall = Recall(scope.tokenizer)
    for _ in range(count):
        prompt = recall.prompt(length, rng)
        others = [[int(token)] for token in recall.filler.sample(4 * DRAWS, rng)[0]]
        spans = {name: at for name, at in prompt.spans.items() if at}
        tables.append(diffscope.instruments.signal_to_noise(scope, prompt.ids, spans=spans, answers=others))
    return over_prompts(tables)


def by_head(title: str, measured: xr.Dataset) -> Table:
    """Return what was measured by layer and head, in dB."""
    rows = []
    for layer, head in product(measured["layer"].values, measured["head"].values):
        here = measured.sel(layer=layer, head=head)
        before = here.sel(stage="before")
        snr = ", ".join(decibels(before["snr"].sel(output=name)) for name in ("A1", "lambda_A2", "D"))
        gain, uniform, following = (decibels(before["snr_gain"].sel(a2=name)) for name in ("own", "uniform", "next head"))
        sides = ", ".join(decibels(before[f"{name}_change"].sel(a2="own")) for name in ("signal", "noise"))
        error, after = decibels(before["snr_gain_error"].sel(a2="own")), decibels(here["snr_gain"].sel(a2="own", stage="after"))
        rows.append([f"L{layer}H{head}", snr, f"{gain} ± {error}", sides, uniform, following, after])
    header = ("head", "SNR of A1·V, λA2·V, D·V", "gain", "signal, noise", "uniform A2", "next head's A2", "gain after the norm")
    return table(title, header, rows)


def decibels(value: xr.DataArray) -> str:
    """Return one decimal; a dash for what is undefined."""
    return "–" if np.isnan(value) else f"{float(value):.1f}".replace("-0.0", "0.0").replace("-", "−")


def signal_to_noise(options: Namespace) -> Section:
    """Measure the signal-to-noise gain of the subtraction, head by head."""
    count = 2 if options.quick else 10
    few = next(iter(CASES.values()))
    tables = [
        by_head(f"mini-diff, {case}, filler: {filler}", of_retrieval("mini-diff", *size, anew, count))
        for (case, size), (filler, anew) in list(product(CASES.items(), FILLERS.items()))[: 1 if options.quick else None]
    ]
    tables.append(
        by_head("mini-standard, 4 sentences, 160 tokens, filler: text", of_retrieval("mini-standard", *few, False, count))
    )
    tables.append(by_head("mini-diff, 4 sentences, 160 tokens, at the number, of its city", of_city("mini-diff", *few, count)))
    tables.append(by_head("mini-text, 256 tokens, where a pair of tokens stands again", of_text("mini-text", 256, count)))
    text = f"{count} prompts, gains before the norm in dB, ± standard error over prompts."
    models = "mini-diff, mini-standard and mini-text as they are bundled"
    return Section("signal_to_noise", "Signal-to-noise gain", command("signal_to_noise"), models, tables, text)


def command(part: str) -> str:
    """Return what measures a part again."""
    return f"python -m benchmarks.bundled_models --part {part}"


PARTS = {"interventions": interventions, "instruments": instruments, "signal_to_noise": signal_to_noise}


def main() -> None:
    """Measure the parts that are wanted."""
    parser = results.parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    options = parser.parse_args()
    for part in options.part:
        results.keep("bundled_models", [PARTS[part](options)], options)


if __name__ == "__main__":
    main()
