"""Do the tests tell planted truths apart, and how often do they find what is not there?

    python -m benchmarks.calibration --models 40                # planted truths, one model each, and random models
    python -m benchmarks.calibration --models 200 --quick       # random models alone

Of synthetic attention with a planted truth (noise that is cancelled, a pedestal that is taken away, both, noise of each map's
own, nothing), at several strengths of the noise and numbers of prompts: the share of each verdict, beside scores at random. The
same of pairs (beside a standard model with noise of its own), of checkpoints (the truth grows from step to step) and of cohorts
(benchmarks/calibration_cohorts.py). Of models with random weights, whose scores are as far apart as a trained model's: the share
of p at most 0.05, each model against others of its kind. Of cohorts in which no arm differs: the same, over seeds. p is not
corrected, but for the cohorts, whose tests are corrected together.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch

import diffscope
from benchmarks.calibration_cohorts import no_difference, planted_cohorts
from diffscope.hypotheses import TESTS, Pair, Test, run
from diffscope.hypotheses.declared import information_flow, low_rank, one_model, pair
from diffscope.hypotheses.evidence.flows import flows, second_map_ranks
from diffscope.hypotheses.evidence.last_query import read
from diffscope.hypotheses.inference import estimate
from diffscope.hypotheses.intervals import LEVEL
from diffscope.hypotheses.planted import TRUTHS, Planted, PlantedModels
from diffscope.hypotheses.rules import MEASURED, state
from diffscope.hypotheses.subjects import untrained_like
from diffscope.lab.scoring import draw
from diffscope.scope import Scope
from diffscope.tasks import Retrieval

UNTRAINED = 12
POOL = 48  # models of scores at random, of which each planted one gets its own UNTRAINED
SIZES = ((10, 1.0), (10, 2.0), (20, 1.5))  # prompts, strength of the noise
MODEL_TRUTHS = TRUTHS[:-1]
SINK = 4.0
STEPS = (0, 10, 50, 200, 800)
ROUNDS = 8  # series of untrained models
PULLS = {"NC": 0.3, "neither": 0.0, "against": -0.3}


class FixedModels:
    """Last queries and tables at hand: tests take them as they take Models."""

    def __init__(self, last_queries, untrained, prompts=(), scopes=(), tables=None):
        self.last_queries = last_queries
        self.untrained = untrained
        self.prompts = prompts
        self.scopes = scopes
        self.tables = tables

    def measure_each(self, take):
        return self.tables[take]


def estimates_of(observe, subject):
    """Estimates of what was observed, by name."""
    return {name: estimate(observed) for name, observed in observe(subject).items()}


def verdict(test, estimates):
    """The verdict that follows from estimates, p not corrected."""
    if not isinstance(test, Test):
        return MEASURED
    return test.judge({name: state(estimates[name], estimates[name].p, test.quantities[name].margin) for name in test.judged})


def tests_of(module, needs):
    """The tests that a module declares on such a subject."""
    return [test for test in TESTS.values() if test.needs == needs and test.observe.__module__ == module.__name__]


def some(pool, seed):
    """As many of a pool as a model is compared with, others for each."""
    return [pool[i] for i in np.random.default_rng([seed, len(pool)]).choice(len(pool), UNTRAINED, replace=False)]


def shares(counts):
    """Counts of verdicts by test as shares."""
    return {name: {word: n / sum(counter.values()) for word, n in counter.most_common()} for name, counter in counts.items()}


def planted(models, task):
    """Share of verdicts by truth, size and test."""
    table = {}
    tests = tests_of(one_model, "model")
    for count, noise in SIZES:
        prompts = draw(task, count, 160, 4, 0)
        pool = PlantedModels(Planted("neither", noise=noise), prompts, count=POOL).untrained
        for truth in MODEL_TRUTHS:
            counts = {test.id: Counter() for test in tests}
            for seed in range(models):
                subject = FixedModels([Planted(truth, noise=noise).read(prompts, seed)], some(pool, seed))
                for test in tests:
                    counts[test.id][verdict(test, estimates_of(test.observe, subject))] += 1
            for name, verdicts in shares(counts).items():
                table[f"{name} | {truth} | {count} prompts, noise {noise:g}"] = verdicts
    return table


def pairs(models, task):
    """Share of verdicts on pairs by truth of the DIFF model; the standard one has noise of its own and looks at the answer."""
    table = {}
    tests = tests_of(pair, "pair")
    for count, noise in SIZES:
        prompts = draw(task, count, 160, 4, 0)
        standard = Planted("standard", noise=noise, sink=SINK)
        pools = [
            [replace(standard, truth=truth, signal=0.0).read(prompts, 10_000 + i) for i in range(POOL)]
            for truth in ("neither", "standard")
        ]
        for truth in ("NC", "SP", "both", "neither"):
            counts = {test.id: Counter() for test in tests}
            two = (replace(standard, truth=truth), replace(standard, signal=0.0 if truth == "neither" else standard.signal))
            for seed in range(models):
                beside = [FixedModels([model.read(prompts, seed)], some(pool, seed), prompts) for model, pool in zip(two, pools)]
                for test in tests:
                    counts[test.id][verdict(test, estimates_of(test.observe, Pair(*beside)))] += 1
            for name, verdicts in shares(counts).items():
                table[f"{name} | {truth} | {count} prompts, noise {noise:g}"] = verdicts
    return table


def series(models, task):
    """Share of verdicts on checkpoints: of a truth that is there from the third on, and of gradients that pull along ρ or not."""
    prompts = draw(task, 10, 160, 4, 0)
    places = [SimpleNamespace(name=f"m@{step}") for step in STEPS]
    at_random = Planted("neither", sink=SINK, signal=0.0)
    untrained = [at_random.read(prompts, 10_000 + i) for i in range(ROUNDS * len(STEPS))]
    table = {}
    for truth in MODEL_TRUTHS:
        counts = {name: Counter() for name in ("noise-symmetry-training", "sinks-training")}
        learned = replace(at_random, truth=truth, signal=3.0)
        for seed in range(models):
            steps = [(learned if i > 1 else at_random).read(prompts, 10 * seed + i) for i in range(len(STEPS))]
            for name, counter in counts.items():
                counter[run(name, checkpoints=[FixedModels(steps, untrained, prompts, places)])[0].shown] += 1
        table |= {f"{name} | {truth}": verdicts for name, verdicts in shares(counts).items()}
    null = [at_random.flows(prompts, 0.0, 10_000 + i) for i in range(ROUNDS * len(STEPS))]
    for pull, strength in PULLS.items():
        counts = {"gradient-dynamics": Counter()}
        for seed in range(models):
            steps = [at_random.flows(prompts, strength, 10 * seed + i) for i in range(len(STEPS))]
            subject = FixedModels([], [], prompts, places, {flows: (steps, null)})
            counts["gradient-dynamics"][run("gradient-dynamics", checkpoints=[subject])[0].shown] += 1
        table |= {f"{name} | {pull}": verdicts for name, verdicts in shares(counts).items()}
    return table


def random_models(models, task):
    """Share of p at most 0.05 among models of random weights, each beside the others, by test and quantity."""
    scope = diffscope.load("mini-diff")
    prompts = draw(task, 10, 160, 4, 0)
    spreads = read(scope, prompts).spreads
    observers = {test: test.observe for test in tests_of(one_model, "model")}
    observers[information_flow.information_flow] = information_flow.shares_of_flow  # a knock-out needs the model itself
    observers[low_rank.low_rank] = low_rank.effective_ranks
    last_queries = []
    tables = {flows: [], second_map_ranks: []}
    for seed in range(models):
        untrained = Scope(untrained_like(scope.model, seed), scope.tokenizer, f"random {seed}", scope.family)
        last_queries.append(read(untrained, prompts, spreads))
        for take, datasets in tables.items():
            datasets.append(take(untrained, prompts, spreads))
    significant = Counter()
    verdicts = Counter()
    for i in range(models):
        others = [(i + j) % models for j in range(1, UNTRAINED + 1)]
        beside = {take: ([datasets[i]], [datasets[j] for j in others]) for take, datasets in tables.items()}
        subject = FixedModels([last_queries[i]], [last_queries[j] for j in others], tables=beside)
        for test, observe in observers.items():
            estimates = estimates_of(observe, subject)
            for name, result in estimates.items():
                significant[test.id, name] += result.p <= LEVEL
            if len(estimates) == len(test.quantities):
                verdicts[test.id, verdict(test, estimates)] += 1
    rates = {f"{id}: {name}": count / models for (id, name), count in significant.items()}
    return rates, {f"{id}: {word}": count / models for (id, word), count in verdicts.items()}


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
    parser.add_argument("--quick", action="store_true", help="leave out the planted truths")
    parser.add_argument("--out", help="a JSON file for all numbers")
    options = parser.parse_args()
    task = Retrieval(diffscope.load("mini-diff").tokenizer)
    result = {"models": options.models, "untrained": UNTRAINED}
    if not options.quick:
        result["planted"] = planted(options.models, task)
        result["pairs"] = pairs(options.models, task)
        result["checkpoints"] = series(options.models, task)
        result["planted_cohorts"] = planted_cohorts(options.models)
        for name in ("planted", "pairs", "checkpoints", "planted_cohorts"):
            print(f"\n{name.replace('_', ' ')}\n\n{table(result[name])}")
    result["random"], result["random_verdicts"] = random_models(options.models, task)
    print(f"\n{options.models} models of random weights: share of p at most {LEVEL:g}")
    for name, share in result["random"].items():
        print(f"{name}: {share:.1%}")
    print("verdicts on them: " + ", ".join(f"{name} {share:.1%}" for name, share in result["random_verdicts"].items()))
    result["cohorts"] = {seeds: no_difference(50 * options.models, seeds) for seeds in (3, 6, 8)}
    for seeds, share in result["cohorts"].items():
        print(f"{50 * options.models} cohorts of {seeds} seeds in which arms do not differ: {share:.1%} of p at most {LEVEL:g}")
    if options.out:
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
