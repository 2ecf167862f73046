"""What a re-analysis reported of the first cohort, measured again on that cohort by the statistics of today.

    python -m benchmarks.old_cohort --revision 613d7b6

The first cohort (0.2 M parameters, maps 16 wide, one learning rate for all arms) has left the tree; its scores, the models of
DIFF and standard attention with seeds 0 to 2, and the study that was made of it are taken from the history. Each line is one
finding: what was reported, what comes out here, and whether the two agree. docs/study.md says what it means. One minute.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from scipy import stats
from statsmodels.api import GLM, families

import diffscope
from diffscope.attention.layer import LayerAttention
from diffscope.capture import CaptureBatch
from diffscope.lab.training.cohort import open_dataset
from diffscope.lab.training.grid import exactness
from diffscope.models import DiffForCausalLM
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.sampling import controlled, draw

ROOT = Path(__file__).parents[1]
FOLDER = "benchmarks/results/laptop"
STUDY = "diffscope/hypotheses/studies/laptop/study.json"
LAST = "613d7b6"  # the last revision that has it
SEEDS = (0, 1, 2)  # of which models were kept
ANSWERS = 0.1  # a head answers if A1 gives the answer more than that
FEW = 10  # prompts of what takes long
UNTRAINED = 24
DISTRACTORS = (4, 8, 16, 32)
LEAST_ROOM = 0.02  # of exact answers, that the old rule asked a cell to leave to both arms
ROWS = ("entropy_normalised", "gini", "span_mass", "sink_mass")
BRANCHES = ("overlap", "selectivity", "residual_noise", "residual_floor", "noise_gain", "signal_gain", "lambda", "cmrr")


@dataclass(frozen=True)
class Finding:
    """One line: what the re-analysis reports, what comes out here, and how far apart they may be by rounding and chance."""

    what: str
    reported: Sequence[float]
    measured: Sequence[float]
    within: float
    note: str = ""

    def __str__(self) -> str:
        reported, measured = (", ".join(f"{number:.3g}" for number in row) for row in (self.reported, self.measured))
        close = np.allclose(self.reported, self.measured, rtol=0, atol=self.within)
        words = "agrees" if close else f"differs by more than {self.within:g}"
        return f"{self.what}: reported {reported}; here {measured}; {words}{self.note and f' ({self.note})'}"


# Of the old study's runs whose models were never kept, and of trainings that were no part of it.
OUT_OF_REACH = (
    "log-odds per 16 distractors, DIFF - double-width (-1.13 at 256 tokens, -1.11 at 512): double-width models were not kept",
    "λ of no-norm, scalar and low-rank, and λ along training (0.93 in layer 0 at step 50): no such models were kept",
    "trainings of twice the width, which reverse two signs: they were no part of this cohort",
)


class Old:
    """The old cohort, and what its models do with the prompts of the old study."""

    def __init__(self, root: Path):
        folder = root / FOLDER
        study = json.loads((root / STUDY).read_text(encoding="utf-8"))
        self.board = {test["id"]: test["estimates"] for test in study["boards"]["all seeds"]}
        self.cohort = open_dataset(folder)
        self.models = {arm: [diffscope.load(folder / arm / f"seed-{seed}") for seed in SEEDS] for arm in ("diff", "standard")}
        template = json.loads(self.cohort.attrs["recipe"])["grid"]["template"]
        self.task = Retrieval(self.models["diff"][0].tokenizer, template=template)
        self.prompts = draw(self.task, 40, 160, 4, 50_000)

    def captures(self, arm: str, prompts: Sequence[Prompt]) -> list[CaptureBatch]:
        """Of the models of an arm, with the spans that the findings are about."""
        spans = [spans_of(prompt, index) for index, prompt in enumerate(prompts)]
        return [scope.capture([prompt.ids for prompt in prompts], spans) for scope in self.models[arm]]

    @cached_property
    def diff(self) -> xr.Dataset:
        """Statistics of the answering query of the DIFF models: (seed, prompt, layer, head, …)."""
        return self._measured("diff", (*ROWS, *BRANCHES))

    @cached_property
    def standard(self) -> xr.Dataset:
        """The same of the standard models, as far as they have them."""
        return self._measured("standard", ROWS)

    def _measured(self, arm: str, names: Sequence[str]) -> xr.Dataset:
        tables = [cap.measure(names, queries=[-1]).isel(query=0, drop=True) for cap in self.captures(arm, self.prompts)]
        return xr.concat(tables, "seed").transpose("seed", "layer", "head", "prompt", ...)

    @cached_property
    def answering(self) -> xr.DataArray:
        """Which heads of the DIFF models answer, bool (seed, layer, head)."""
        mass = self.diff["span_mass"].sel(map="A1", span="answer", normalisation="share")
        return mass.mean("prompt") > ANSWERS

    @cached_property
    def formed(self) -> np.ndarray:
        """Seeds with which both DIFF and standard attention formed the circuit, bool (seed,)."""
        return self.cohort["formation"].sel(arm=["diff", "standard"]).notnull().all("arm").values


def spans_of(prompt: Prompt, index: int) -> dict[str, list[int]]:
    """Answer, question and other needles of a prompt; each other needle's number; spans of text of the answer's size."""
    width = len(prompt.answer)
    numbers = {f"number_{i}": sentence[-1 - width : -1] for i, sentence in enumerate(sentences(prompt))}
    named = {name: positions for name, positions in prompt.spans.items() if name != "sink"}
    return named | numbers | text_spans(prompt, np.random.default_rng(index))


def text_spans(prompt: Prompt, rng: np.random.Generator, count: int = 8) -> dict[str, list[int]]:
    """Spans of the answer's length in text that is neither answer, needle nor question, nor among the first tokens."""
    width = len(prompt.answer)
    start = prompt.spans["answer"][0]
    taken = {*range(4), *range(start - len(prompt.spans["query"]), start)}.union(*prompt.spans.values())
    free = [first for first in range(len(prompt.ids) - width) if not taken & set(range(first, first + width))]
    starts = rng.choice(free, count, replace=False).tolist()
    return {f"text_{i}": list(range(first, first + width)) for i, first in enumerate(starts)}


def sentences(prompt: Prompt) -> list[list[int]]:
    """Positions of each sentence about another city: the question's words, the number, and the full stop."""
    width = len(prompt.spans["query"]) + len(prompt.answer) + 1
    needles = prompt.spans["needles"]
    return [needles[first : first + width] for first in range(0, len(needles), width)]


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean over seeds, and its 95 % interval (Student's t)."""
    values = np.asarray(values, dtype=float)
    reach = stats.t(len(values) - 1).ppf(0.975) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - reach), float(values.mean() + reach)


# Findings, in the order of docs/study.md.


def key_tokens(old: Old) -> Iterator[Finding]:
    selectivity = old.diff["selectivity"].sel(span="answer")
    gain = np.log2(selectivity.where(selectivity > 0)).mean("prompt")  # (seed, layer, head)
    answering = gain.where(old.answering).mean(("layer", "head"))
    by_layer = gain.mean(("seed", "head")).values
    yield Finding(
        "key-token gain of heads that answer, octaves with 95 % over seeds",
        (0.050, -0.27, 0.37),
        interval(answering),
        0.005,
        f"of all heads, by layer: {by_layer[0]:+.2f}, {by_layer[1]:+.2f}, {by_layer[2]:+.2f}",
    )
    yield by_layer_of(old, "key-token-gain", "gain", (1.494, -0.073, 0.248))
    mass = old.diff["span_mass"].sel(span="answer").where(old.answering).mean("prompt").sum(("layer", "head"))
    ratio = mass.sel(map="D") / mass.sel(map="A1")
    yield Finding(
        "the same as a ratio of mean shares, seeds 0 to 2", (0.955, 0.948, 1.032), ratio.sel(normalisation="share").values, 0.015
    )
    yield Finding(
        "the same in `positive`, where only what D adds counts, with 95 %",
        (1.42, 1.34, 1.50),
        interval(ratio.sel(normalisation="positive")),
        0.04,
        "what is averaged first moves the last digit",
    )
    itself = np.array([self_attending(cap) for cap in old.captures("diff", old.prompts)])
    yield Finding("layer 0's self-attending head, A1 on its own token", (0.83, 0.88, 0.88), itself.max(1), 0.005)
    d = old.diff["span_mass"].sel(map="D", span="answer", normalisation="raw", layer=0)
    negative = (
        (d < 0).mean("prompt").isel(head=xr.DataArray(itself.argmax(1), dims="seed"), seed=xr.DataArray(list(SEEDS), dims="seed"))
    )
    yield Finding("its prompts in which D takes from the answer", (0.95, 0.925, 1.0), negative.values, 0.005)


def self_attending(cap: CaptureBatch) -> list[float]:
    """What each head of layer 0 gives its own token in A1, at the answering query; mean over prompts."""
    last = [len(prompt.tokens) - 1 for prompt in cap]
    maps = [[cap.map("A1", 0, head, i, queries=[at], keys=[at]) for i, at in enumerate(last)] for head in range(cap.n_heads)]
    return [float(np.mean(of_head)) for of_head in maps]


def sparsity(old: Old) -> Iterator[Finding]:
    entropy = old.diff["entropy_normalised"].mean("prompt")
    change = (entropy.sel(map="A1") - entropy.sel(map="D")).where(old.answering).mean(("layer", "head"))
    yield Finding(
        "normalised entropy of A1 - that of D, heads that answer, with 95 %",
        (-0.012, -0.080, 0.055),
        interval(change),
        0.002,
        "so D has slightly more",
    )
    yield by_layer_of(old, "sparsity", "entropy", (-0.173, -0.074, 0.029))


def amplifier(old: Old) -> Iterator[Finding]:
    upper = old.diff.sel(layer=[1, 2])
    of_head = {name: upper[name].sel(span="irrelevant").median("prompt") for name in ("residual_floor", "noise_gain")}
    over = (upper["residual_noise"] / upper["residual_floor"]).sel(span="irrelevant").median("prompt")
    signal = upper["signal_gain"].sel(span="answer").median("prompt")
    yield Finding("residual at the learned λ over its floor, layers 1 and 2, least and most", (1.02, 1.38), ends(over), 0.005)
    yield Finding("the floor itself: what the best λ would leave", (0.64, 0.91), ends(of_head["residual_floor"]), 0.005)
    yield Finding("noise gain, layers 1 and 2", (0.53, 1.38), ends(of_head["noise_gain"]), 0.005)
    yield Finding("signal gain, layers 1 and 2", (0.86, 0.99), ends(signal), 0.005)
    first = old.diff.sel(layer=0).isel(prompt=0, head=0)
    yield Finding("λ of layer 0, seeds 0 to 2", (0.951, 1.049, 0.986), first["lambda"].sel(lambda_value="used").values, 0.001)
    yield Finding("λ_init of layer 0", (0.2,), first["lambda"].sel(lambda_value="init").values[:1], 0.001)
    yield Finding("CMRR of layer 0, dB", (26.0, 26.5, 37.3), first["cmrr"].values, 0.05)

    yield by_layer_of(old, "lambda-star", "distance", (2.71, 1.24, 0.68))


def by_layer_of(old: Old, test: str, quantity: str, reported: Sequence[float]) -> Finding:
    """By layer, what the old study kept of a quantity: means over eight seeds, and all heads alike."""
    return Finding(f"{test} by layer, eight seeds, as kept", reported, old.board[test][quantity]["layers"], 0.006)


def ends(values: xr.DataArray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def ranks(old: Old) -> Iterator[Finding]:
    caps = old.captures("diff", old.prompts[:FEW])
    measured = xr.concat([cap.measure("effective_rank")["effective_rank"] for cap in caps], "seed").sel(ranked_map="lambda_A2")
    means = measured.mean(("prompt", "head", "layer"))
    over = means.sel(control="ratio_uniform")
    others = {name: over.sel(definition=name).values.round(2).tolist() for name in over["definition"].values.tolist()[1:]}
    yield Finding(
        "exp H(σ) of λA2 over that of the uniform map, seeds 0 to 2",
        (0.98, 1.16, 1.18),
        over.sel(definition="erank").values,
        0.005,
        ", ".join(f"{name} {values}" for name, values in others.items()),
    )
    yield Finding("exp H(σ) of the uniform map", (36.5,), means.sel(control="uniform", definition="erank").values[:1], 0.05)
    exact = means.sel(control="map")
    for name, reported in (("participation", (4.1, 6.9, 4.8)), ("stable_rank", (2.3, 3.5, 2.5))):
        yield Finding(f"{name} of λA2", reported, exact.sel(definition=name).values, 0.05)


def number_control(old: Old) -> Iterator[Finding]:
    overlap = old.diff["overlap"].mean("prompt").mean("head").mean("layer")  # (seed, span), 1 - ρ
    of_text, of_numbers = (overlap.sel(span=overlap["span"].str.startswith(kind)).mean("span") for kind in ("text", "number"))
    answer = overlap.sel(span="answer")
    yield Finding(
        "overlap on text - on the distractors' numbers",
        (0.166, 0.092, 0.134),
        (of_text - of_numbers).values,
        0.02,
        "text is drawn",
    )
    yield Finding(
        "overlap on the distractors' numbers - on the answer", (0.151, 0.127, 0.190), (of_numbers - answer).values, 0.001
    )


def text_loss(old: Old) -> Iterator[Finding]:
    loss = old.cohort["text"].sel(token="other")
    for arm, reported in (("standard", (0.218, 0.130, 0.306)), ("double-width", (0.371,))):
        change = (loss.sel(arm="diff") - loss.sel(arm=arm)).values
        yield Finding(f"text loss, DIFF - {arm}, nats over 8 seeds", reported, interval(change)[: len(reported)], 0.001)
    change = (loss.sel(arm="diff") - loss.sel(arm="standard")).values[old.formed]
    yield Finding("the same against standard, runs that formed", (0.248,), interval(change)[:1], 0.001)


def failed_run(old: Old) -> Iterator[Finding]:
    right = old.cohort["exact_match"].sel(distractors=[4, 8, 16]).mean(("length", "distractors", "prompt"))
    gain = (right.sel(arm="diff") - right.sel(arm="standard")).values
    yield Finding(
        "exact answers, DIFF - standard, runs that formed", (-0.0365, -0.068, -0.005), interval(gain[old.formed]), 0.001
    )
    with_failed = interval(old_slopes(old.cohort))
    yield Finding("the old slope per 16 distractors with the failed run, logits", (0.69, -0.08, 1.47), with_failed, 0.005)
    without = interval(old_slopes(old.cohort.isel(seed=old.formed)))
    yield Finding("the same without it", (0.26, -0.91, 1.43), without, 0.005)
    for length, reported in ((256, -0.81), (512, -0.54)):
        odds = {arm: [log_odds(scope, old.task, length) for scope in scopes] for arm, scopes in old.models.items()}
        gaps = np.subtract(odds["diff"], odds["standard"])  # (seed, distractors)
        slopes = np.polyfit(np.array(DISTRACTORS) / 16, gaps.T, 1)[0]
        yield Finding(
            f"log-odds per 16 distractors at {length} tokens, DIFF - standard",
            (reported,),
            slopes.mean(keepdims=True),
            0.3,
            f"other prompts, sd over seeds {slopes.std(ddof=1):.2f}; without a ceiling the sign is the opposite",
        )


def old_slopes(cohort: xr.Dataset) -> np.ndarray:
    """What was judged: of each seed a binomial model of exact answers, DIFF's own slope per 16 distractors."""
    answers = (
        cohort["exact_match"].sel(arm=["diff", "standard"]).transpose("seed", "arm", "length", "distractors", "prompt").values
    )
    distractors, length = np.meshgrid(cohort["distractors"].values / 16, np.log2(cohort["length"].values.astype(float)))
    distractors, length = (axis.ravel() - axis.mean() for axis in (distractors, length))
    terms = np.stack([np.ones_like(distractors), distractors, length, distractors * length], 1)  # (cell, term)
    design = np.concatenate([np.hstack([terms, terms]), np.hstack([terms, 0 * terms])])
    rates = answers.mean((0, -1)).reshape(2, -1)  # (arm, cell): of all seeds together, the failed run among them
    room = np.tile(((rates > LEAST_ROOM) & (rates < 1 - LEAST_ROOM)).all(0), 2)
    right = answers.sum(-1).reshape(len(answers), -1) + 0.5  # (seed, arm and cell)
    counts = np.stack([right, answers.shape[-1] + 1 - right], -1)
    return np.array([GLM(seed[room], design[room], family=families.Binomial()).fit().params[5] for seed in counts])


def log_odds(scope: Scope, task: Retrieval, length: int, count: int = 100) -> list[float]:
    """Log-odds of the answer against all distractors, mean over prompts, by number of distractors."""
    cells = [controlled(task, count, length, number, 30_000, slots=max(DISTRACTORS)) for number in DISTRACTORS]
    return [float(exactness(scope.model, prompts)["log_odds"].mean()) for prompts in cells]


def sinks(old: Old) -> Iterator[Finding]:
    for arm, rows, reported in (("standard", old.standard, (0.001, 0.166)), ("DIFF", old.diff, (0.002, 0.030))):
        mass = rows["sink_mass"].sel(map="D", sink_set="S", normalisation="share").mean(("prompt", "head"))  # (seed, layer)
        yield Finding(f"<bos> mass at the answering query, {arm}, layer with least and most", reported, ends(mass), 0.03)
    caps = {arm: old.captures(arm, old.prompts[:FEW]) for arm in ("standard", "diff")}
    rates = {arm: [cap.measure("sink_rate")["sink_rate"] for cap in caps[arm]] for arm in caps}
    chosen = {"map": "D", "sink_set": "S", "normalisation": "share"}
    without = [float((xr.concat(rates[arm], "seed").sel(chosen).mean("prompt") == 0).sum()) for arm in caps]
    yield Finding("layers of 9 without a head that has a sink: standard, DIFF", (7, 9), without, 0)


def nulls(old: Old) -> Iterator[Finding]:
    """Key-token gain of untrained models made as sharp as the trained ones, with their own λ and with the trained λ."""
    prompts = old.prompts[:FEW]
    trained = old.captures("diff", prompts)
    spans = [{"answer": prompt.spans["answer"]} for prompt in prompts]
    first = old.models["diff"][0]
    gains = []
    for number in range(UNTRAINED):
        torch.manual_seed(number)
        scope = diffscope.load(DiffForCausalLM(first.model.config).eval(), first.tokenizer)
        cap = scope.capture([prompt.ids for prompt in prompts], spans)
        like = trained[number % len(trained)].layers
        sharp = [as_sharp(layer, wanted) for layer, wanted in zip(cap.layers, like)]
        with_lambda = [replace(layer, lam=wanted.lam, lam_fp32=wanted.lam_fp32) for layer, wanted in zip(sharp, like)]
        gains.append([gain_of(replace(cap, layers=layers)) for layers in (sharp, with_lambda)])
    yield Finding(
        "null of the key-token gain, octaves: with λ_init, with the trained λ",
        (0.017, 0.199),
        np.mean(gains, axis=0),
        0.1,
        f"{UNTRAINED} models, standard errors {np.std(gains, axis=0, ddof=1).max() / np.sqrt(UNTRAINED):.2f}",
    )
    yield Finding("trained, the same prompts", (0.364,), [np.mean([gain_of(cap) for cap in trained])], 0.001)


def as_sharp(layer: LayerAttention, like: LayerAttention) -> LayerAttention:
    """The layer with its scores as far apart at the last query as those of another, map by map."""
    factor = spread(like) / spread(layer)
    return replace(layer, q=layer.q * factor[:, None, None])


def spread(layer: LayerAttention) -> torch.Tensor:
    """Standard deviation over keys of the last query's scores, (map,), mean over prompts of one length."""
    keys = layer.k[:, layer.pairing.key_of_map]  # (batch, map, key, d)
    return ((keys @ layer.q[:, :, -1, :, None])[..., 0] * layer.scale).std(-1).mean(0)


def gain_of(cap: CaptureBatch) -> float:
    """Key-token gain of a capture as the old test took it: mean over heads, layers and prompts."""
    selectivity = cap.measure("selectivity", queries=[-1])["selectivity"].sel(span="answer")
    return float(np.log2(selectivity.where(selectivity > 0)).mean("head").mean("layer").mean())


FINDINGS = (key_tokens, sparsity, amplifier, failed_run, text_loss, ranks, number_control, sinks, nulls)


def fetch(revision: str, target: Path) -> None:
    """Put the old cohort and its study, from the history, into a folder."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, FOLDER, STUDY]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        cause = getattr(error, "stderr", b"").decode(errors="replace").strip().partition("\n")[0] or error
        sys.exit(f"error: no {FOLDER} of revision {revision} ({cause}); a whole clone with revision {LAST} has it")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(target, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", default=LAST, help="a revision that has the old cohort")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # what is undefined is left out of means
    with tempfile.TemporaryDirectory() as folder:
        fetch(options.revision, Path(folder))
        old = Old(Path(folder))
        for findings in FINDINGS:
            for finding in findings(old):
                print(f"- {finding}", flush=True)
    for line in OUT_OF_REACH:
        print(f"- out of reach: {line}")


if __name__ == "__main__":
    main()
