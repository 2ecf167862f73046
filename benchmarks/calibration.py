"""Do the tests tell planted truths apart, and how often do they find what is not there?

    python -m benchmarks.calibration --models 40                # planted truths, one model each, and random models
    python -m benchmarks.calibration --models 200 --quick       # random models alone

Of synthetic attention with a planted truth (noise that is cancelled, a pedestal that is taken away, both, noise of each map's
own, an answer that stands out as any number does, nothing), whose λ was trained away from where it began, at several strengths of
the noise and numbers of prompts: the share of each verdict, beside scores at random that are made as sharp and given the trained
λ. The same of pairs (beside a standard model with noise of its own) and of checkpoints (the truth is there from the third on). Of
models with random weights, made like mini-diff and its checkpoints: the share of p at most 0.05 of every quantity that the rule
of a mechanism test uses, each model against others of its kind. Of cohorts: benchmarks/calibration_cohorts.py. p is not
corrected, but for the cohorts, whose tests are corrected together.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import get_context

import torch

import diffscope
from benchmarks.calibration_cohorts import no_difference, planted_cohorts
from diffscope.cards import BUNDLED
from diffscope.hypotheses import TESTS, Pair, Test, run
from diffscope.hypotheses.evidence.attribution import attributed
from diffscope.hypotheses.evidence.flows import flows
from diffscope.hypotheses.evidence.injection import injected
from diffscope.hypotheses.evidence.last_query import last_query_of
from diffscope.hypotheses.evidence.untrained import untrained_like
from diffscope.hypotheses.inference import as_estimate
from diffscope.hypotheses.intervals import LEVEL
from diffscope.hypotheses.planted import TRUTHS, Planted, PlantedModels
from diffscope.hypotheses.rules import MEASURED, state
from diffscope.lab.scoring import draw
from diffscope.models.loading import checkpoints
from diffscope.scope import Scope, load
from diffscope.tasks import Retrieval

UNTRAINED = 12
GROUPS = 8  # of UNTRAINED models of scores at random, or series of such; one for each planted model in turn
SIZES = ((10, 1.0), (10, 2.0), (20, 1.5))  # prompts, strength of the noise
LAMBDAS = {"NC": 0.9, "both": 0.9}  # trained to fit what is shared; of other truths to anything, far from where it began
OTHER_LAMBDA = 0.7
MODEL_TRUTHS = TRUTHS[:-1]
SINK = 4.0
STEPS = (0, 10, 50, 200, 800)
ROUNDS = 8  # series of untrained models
PULLS = {"NC": 0.3, "neither": 0.0, "against": -0.3}
TAKES = (injected, attributed)


@dataclass
class FixedModels(PlantedModels):
    """What was read and taken of models and of untrained ones: tests take them as they take Models."""

    read: list = field(default_factory=list)
    beside: list = field(default_factory=list)
    taken: dict = field(default_factory=dict)

    @property
    def last_queries(self):
        return self.read

    @property
    def untrained(self):
        return self.beside

    def measure_each(self, take):
        return self.taken[take]


def verdict(test, subject):
    """The verdict that follows from what is observed of a subject, p not corrected."""
    estimates = {name: as_estimate(observed) for name, observed in test.observe(subject).items()}
    if not isinstance(test, Test):
        return MEASURED
    quantities = test.quantities
    return test.judge(
        {
            name: state(estimates[name], estimates[name].p, quantities[name].margin, quantities[name].no_effect)
            for name in test.judged
        }
    )


def tests_on(needs):
    """The tests on such a subject whose quantities can be planted, without measurements."""
    return [test for test in TESTS.values() if isinstance(test, Test) and test.needs == needs]


def group(seed):
    """Which models of scores at random a model is compared with: what chance does to one group it does not to all."""
    first = seed % GROUPS * UNTRAINED
    return range(first, first + UNTRAINED)


def shares(counts):
    """Counts of verdicts by test as shares."""
    return {name: {word: n / sum(counter.values()) for word, n in counter.most_common()} for name, counter in counts.items()}


def of_truth(truth, noise, **more):
    """A planted model whose λ was trained."""
    return Planted(truth, noise=noise, lam=LAMBDAS.get(truth, OTHER_LAMBDA), **more)


@cache
def task_of_all():
    return Retrieval(diffscope.load("mini-diff").tokenizer)


def planted(models, count, noise, truth):
    """Share of verdicts by test, of models with one truth."""
    prompts = draw(task_of_all(), count, 160, 4, 0)
    tests = tests_on("model")
    counts = {test.id: Counter() for test in tests}
    model = of_truth(truth, noise)
    pool = PlantedModels(model, prompts, count=GROUPS * UNTRAINED)
    nulls = {take: pool.measure_each(take)[1] for take in TAKES}
    for seed in range(models):
        own = PlantedModels(model, prompts, seeds=(seed,), count=0)
        taken = {take: (own.measure_each(take)[0], [nulls[take][i] for i in group(seed)]) for take in TAKES}
        beside = [pool.untrained[i] for i in group(seed)]
        subject = FixedModels(model, prompts, read=own.last_queries, beside=beside, taken=taken)
        for test in tests:
            counts[test.id][verdict(test, subject)] += 1
    return {f"{name} | {truth} | {count} prompts, noise {noise:g}": verdicts for name, verdicts in shares(counts).items()}


def pairs(models, task):
    """p at most 0.05 on pairs of which neither was trained, by quantity of the measurements that need no model."""
    names = ("key-token-gain-pair", "sparsity-pair", "sinks")
    found = Counter()
    prompts = draw(task, 10, 160, 4, 0)
    both = [Planted(truth, sink=SINK, signal=0.0) for truth in ("neither", "standard")]
    pools = [[model.read(prompts, 10_000 + i) for i in range(GROUPS * UNTRAINED)] for model in both]
    for seed in range(models):
        subjects = [
            FixedModels(model, prompts, read=[model.read(prompts, seed)], beside=[pool[i] for i in group(seed)])
            for model, pool in zip(both, pools)
        ]
        for name in names:
            for quantity, observed in TESTS[name].observe(Pair(*subjects)).items():
                found[f"{name}: {quantity}"] += as_estimate(observed).p <= LEVEL
    return {name: count / models for name, count in found.items()}


def series(models, truth):
    """Share of verdicts on checkpoints, by test: of a truth that is there from the third on."""
    prompts = draw(task_of_all(), 10, 160, 4, 0)
    names = [f"m@{step}" for step in STEPS]
    counts = {name: Counter() for name in ("noise-symmetry-training", "amplifier-training")}
    learned = of_truth(truth, 1.5)
    at_random = replace(learned.at_random, lam=learned.lam_init)
    nulls = {}
    for seed in range(models):
        steps = [(learned if i > 1 else at_random).read(prompts, 10 * seed + i) for i in range(len(STEPS))]
        if seed < GROUPS:  # another model at random at each step, made like that step
            first = 10_000 + 1000 * seed
            count = ROUNDS * len(STEPS)
            nulls[seed] = [at_random.read(prompts, first + i, steps[i % len(STEPS)].matches) for i in range(count)]
        subject = FixedModels(learned, prompts, names=names, read=steps, beside=nulls[seed % GROUPS])
        for name, counter in counts.items():
            counter[run(name, checkpoints=[subject])[0].shown] += 1
    return {f"{name} | {truth}": verdicts for name, verdicts in shares(counts).items()}


def pulled(models, pull):
    """Share of verdicts on checkpoints whose gradients pull towards less overlap, more of it, or neither."""
    prompts = draw(task_of_all(), 10, 160, 4, 0)
    names = [f"m@{step}" for step in STEPS]
    at_random = Planted("neither", signal=0.0)
    read = [at_random.read(prompts, i) for i in range(len(STEPS))]
    count = ROUNDS * len(STEPS)
    nulls = [[at_random.flows(prompts, 0.0, 10_000 + 1000 * g + i) for i in range(count)] for g in range(GROUPS)]
    counts = {"gradient-dynamics": Counter()}
    for seed in range(models):
        steps = [at_random.flows(prompts, PULLS[pull], 10 * seed + i) for i in range(len(STEPS))]
        taken = {flows: (steps, nulls[seed % GROUPS])}
        subject = FixedModels(at_random, prompts, names=names, read=read, beside=read * ROUNDS, taken=taken)
        counts["gradient-dynamics"][run("gradient-dynamics", checkpoints=[subject])[0].shown] += 1
    return {f"{name} | {pull}": verdicts for name, verdicts in shares(counts).items()}


def random_models(models, task):
    """Share of p at most 0.05 among models of random weights made like trained ones, each beside others, by test and quantity.

    Models are made like mini-diff, series like its checkpoints: as sharp, map by map, and with their λ.
    """
    kept = sorted(checkpoints(BUNDLED / "mini-diff"))
    scopes = [*(load(f"mini-diff@{step}") for step in kept), load("mini-diff")]
    steps = [*kept, 2 * kept[-1]]
    prompts = draw(task, 10, 160, 4, 0)
    captured = [[scope.capture([prompt.ids for prompt in prompts]).layers] for scope in scopes]
    matches = [last_query_of(layers, prompts).matches for layers in captured]
    names = [f"m@{step}" for step in steps]
    read, tables = [], {take: [] for take in (flows, *TAKES)}
    for number in range(models):
        read.append([])
        for step, match in enumerate(matches):  # each step of a series is another model
            seed = number * len(steps) + step
            scope = Scope(untrained_like(scopes[-1].model, seed), scopes[-1].tokenizer, f"random {seed}", scopes[-1].family)
            layers = [scope.capture([prompt.ids for prompt in prompts]).layers]
            read[-1].append(last_query_of(layers, prompts, match))
        for take, datasets in tables.items():  # of the last
            datasets.append(take(scope, prompts[:5], matches[-1]))
    significant = Counter()
    verdicts = Counter()
    for i in range(models):
        others = [(i + j) % models for j in range(1, UNTRAINED + 1)]
        taken = {take: ([of[i]], [of[j] for j in others]) for take, of in tables.items()}
        one = FixedModels(Planted("neither"), prompts, read=[read[i][-1]], beside=[read[j][-1] for j in others], taken=taken)
        growing = {take: ([of[i]] * len(steps), [of[j] for j in others for _ in steps]) for take, of in tables.items()}
        beside = [each for j in others for each in read[j]]
        along = FixedModels(Planted("neither"), prompts, names=names, read=read[i], beside=beside, taken=growing)
        for needs, subject in (("model", one), ("checkpoints", along)):
            for test in tests_on(needs):
                estimates = {name: as_estimate(observed) for name, observed in test.observe(subject).items()}
                for name in test.judged:
                    significant[f"{test.id}: {name}"] += estimates[name].p <= LEVEL
                verdicts[f"{test.id}: {verdict(test, subject)}"] += 1
    return {name: n / models for name, n in significant.items()}, {name: n / models for name, n in verdicts.items()}


def table(results):
    """Shares of verdicts as Markdown, one row a test and truth, one column a size."""
    rows = {}
    sizes = {}
    for name, verdicts in results.items():
        *place, size = name.split(" | ") if name.count(" | ") == 2 else (*name.split(" | "), "share of verdicts")
        sizes[size] = None
        rows.setdefault(tuple(place), {})[size] = ", ".join(f"{word} {share:.0%}" for word, share in verdicts.items())
    lines = [f"| test | planted truth | {' | '.join(sizes)} |", "|---|---|" + "---|" * len(sizes)]
    return "\n".join(
        lines + [f"| {' | '.join(place)} | {' | '.join(row.get(size, '') for size in sizes)} |" for place, row in rows.items()]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="leave out the planted truths")
    parser.add_argument("--without-cohorts", action="store_true", help="leave out the cohorts")
    parser.add_argument("--out", help="a JSON file for all numbers")
    options = parser.parse_args()
    task = task_of_all()
    result = {"models": options.models, "untrained": UNTRAINED}
    if not options.quick:
        cells = [(count, noise, truth) for count, noise in SIZES for truth in MODEL_TRUTHS]
        with ProcessPoolExecutor(options.processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            found = [pool.submit(planted, options.models, *cell) for cell in cells]
            along = [pool.submit(series, options.models, truth) for truth in MODEL_TRUTHS]
            along += [pool.submit(pulled, options.models, pull) for pull in PULLS]
            result["planted"] = {name: verdicts for cell in found for name, verdicts in cell.result().items()}
            result["checkpoints"] = {name: verdicts for cell in along for name, verdicts in cell.result().items()}
        if not options.without_cohorts:
            result["planted_cohorts"] = planted_cohorts(options.models)
        for name in [name for name in ("planted", "checkpoints", "planted_cohorts") if name in result]:
            print(f"\n{name.replace('_', ' ')}\n\n{table(result[name])}")
        result["pairs"] = pairs(options.models, task)
        print(f"\n{options.models} pairs without a difference: share of p at most {LEVEL:g}")
        for name, share in result["pairs"].items():
            print(f"{name}: {share:.1%}")
    result["random"], result["random_verdicts"] = random_models(options.models, task)
    print(f"\n{options.models} models of random weights: share of p at most {LEVEL:g}")
    for name, share in result["random"].items():
        print(f"{name}: {share:.1%}")
    print("verdicts on them: " + ", ".join(f"{name} {share:.1%}" for name, share in result["random_verdicts"].items()))
    if not options.without_cohorts:
        result["cohorts"] = {seeds: no_difference(50 * options.models, seeds) for seeds in (3, 6, 8)}
        print(f"\ncohorts without a difference, by seeds: {result['cohorts']} of p at most {LEVEL:g}")
    if options.out:
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
