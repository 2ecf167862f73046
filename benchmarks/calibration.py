"""Do the tests tell planted truths apart, and how often do they find what is not there?

    python benchmarks/calibration.py --models 40                # planted truths, one model each, and random models
    python benchmarks/calibration.py --models 200 --quick       # random models alone

Of synthetic attention with a planted truth (noise that is cancelled, a pedestal that is taken away, both, noise of each map's
own, nothing), at several strengths of the noise and numbers of prompts: the share of each verdict, beside scores at random. The
same of pairs (beside a standard model with noise of its own), of checkpoints (the truth grows from step to step) and of cohorts
(rates of answers that follow one account, at several effects and numbers of seeds). Of models with random weights, whose scores
are as far apart as a trained model's: the share of p at most 0.05, each model against others of its kind. Of cohorts in which
no arm differs: the same, over seeds. p is not corrected, but for the cohorts, whose tests are corrected together.
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
from diffscope.hypotheses import TESTS, Pair, run
from diffscope.hypotheses.declared import information_flow, low_rank, one_model, pair
from diffscope.hypotheses.evidence.flows import flows, noise_ranks
from diffscope.hypotheses.evidence.last_query import read
from diffscope.hypotheses.inference import LEVEL, Observed, estimate
from diffscope.hypotheses.planted import TRUTHS, Planted, PlantedSubject, planted_cohort
from diffscope.hypotheses.rules import judge, state
from diffscope.hypotheses.subjects import anew
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
COHORTS = ((3, 0.5), (5, 0.5), (5, 1.0), (8, 1.0))  # seeds, effect in logits


class Given:
    """Readings and tables at hand, as a subject of the tests."""

    def __init__(self, readings, untrained, prompts=(), scopes=(), tables=None):
        self.readings, self.untrained, self.prompts, self.scopes, self.tables = readings, untrained, prompts, scopes, tables

    def of_each(self, take, what):
        return self.tables[take]


def verdict(test, observe, subject):
    found = {name: estimate(one) for name, one in observe(subject).items()}
    return judge(test, {name: state(one, one.p, test.quantities[name].margin) for name, one in found.items()}), found


def planted(models, task):
    """Share of verdicts by truth, size and test."""
    table = {}
    for count, noise in SIZES:
        prompts = draw(task, count, 160, 4, 0)
        others = PlantedSubject(Planted("neither", noise=noise), prompts, count=POOL).untrained
        for truth in MODEL_TRUTHS:
            said = {test.id: Counter() for test in one_model.TESTS}
            for seed in range(models):
                subject = Given([Planted(truth, noise=noise).read(prompts, seed)], some(others, seed))
                for test, observe in one_model.TESTS.items():
                    said[test.id][verdict(test, observe, subject)[0]] += 1
            for name, counted in said.items():
                found = {one: n / models for one, n in counted.most_common()}
                table[f"{name} | {truth} | {count} prompts, noise {noise:g}"] = found
    return table


def some(pool, seed):
    """As many of a pool as a model is compared with, others for each."""
    return [pool[i] for i in np.random.default_rng([seed, len(pool)]).choice(len(pool), UNTRAINED, replace=False)]


def shares(said):
    """Counts of verdicts by test as shares."""
    return {name: {one: n / sum(counted.values()) for one, n in counted.most_common()} for name, counted in said.items()}


def pairs(models, task):
    """Share of verdicts on pairs by truth of the DIFF model; the standard one has noise of its own and looks at the answer."""
    table = {}
    for count, noise in SIZES:
        prompts = draw(task, count, 160, 4, 0)
        plain = Planted("standard", noise=noise, sink=SINK)
        at_random = [
            [replace(plain, truth=one, signal=0.0).read(prompts, 10_000 + i) for i in range(POOL)]
            for one in ("neither", "standard")
        ]
        for truth in ("NC", "SP", "both", "neither"):
            said = {test.id: Counter() for test in pair.TESTS}
            for seed in range(models):
                nothing = truth == "neither"
                two = (replace(plain, truth=truth), replace(plain, signal=0.0 if nothing else plain.signal))
                read = [Given([one.read(prompts, seed)], some(others, seed), prompts) for one, others in zip(two, at_random)]
                for test, observe in pair.TESTS.items():
                    said[test.id][verdict(test, observe, Pair(*read))[0]] += 1
            for name, found in shares(said).items():
                table[f"{name} | {truth} | {count} prompts, noise {noise:g}"] = found
    return table


def series(models, task):
    """Share of verdicts on checkpoints: of a truth that is there from the third on, and of gradients that pull along ρ or not."""
    prompts, table = draw(task, 10, 160, 4, 0), {}
    places = [SimpleNamespace(name=f"m@{step}") for step in STEPS]
    at_random = Planted("neither", sink=SINK, signal=0.0)
    others = [at_random.read(prompts, 10_000 + i) for i in range(ROUNDS * len(STEPS))]
    null = [at_random.flows(prompts, 0.0, 10_000 + i) for i in range(ROUNDS * len(STEPS))]
    for truth in MODEL_TRUTHS:
        said = {name: Counter() for name in ("noise-symmetry-training", "sinks-training")}
        for seed in range(models):
            own = [
                replace(at_random, truth=truth if i > 1 else "neither", signal=3.0 * (i > 1)).read(prompts, 10 * seed + i)
                for i in range(len(STEPS))
            ]
            for name, counted in said.items():
                counted[run([name], checkpoints=[Given(own, others, prompts, places)])[0].verdict] += 1
        table |= {f"{name} | {truth}": found for name, found in shares(said).items()}
    for pull, strength in PULLS.items():
        said = {"gradient-dynamics": Counter()}
        for seed in range(models):
            own = [at_random.flows(prompts, strength, 10 * seed + i) for i in range(len(STEPS))]
            subject = Given([], [], prompts, places, {flows: (own, null)})
            said["gradient-dynamics"][run(["gradient-dynamics"], checkpoints=[subject])[0].verdict] += 1
        table |= {f"{name} | {pull}": found for name, found in shares(said).items()}
    return table


def planted_cohorts(count):
    """Share of verdicts on cohorts by truth, number of seeds and effect; p corrected over the cohort's tests."""
    ids, table = [test.id for test in TESTS.values() if test.needs == "cohort"], {}
    for seeds, effect in COHORTS:
        for truth in ("NC", "SP", "neither"):
            said = {name: Counter() for name in ids}
            for seed in range(count):
                for one in run(ids, cohort=planted_cohort(truth, seeds, effect, seed=seed)):
                    said[one.test.id][one.verdict] += 1
            table |= {f"{name} | {truth} | {seeds} seeds, effect {effect:g}": found for name, found in shares(said).items()}
    return table


def random_models(models, task):
    """Share of p at most 0.05 among models of random weights, each beside the others, by test and quantity."""
    scope, prompts = diffscope.load("mini-diff"), draw(task, 10, 160, 4, 0)
    spreads = read(scope, prompts).spreads
    tests = one_model.TESTS | {information_flow.FLOW: information_flow.shares_of_flow, low_rank.LOW_RANK: low_rank.ranks_of_noise}
    readings, tables = [], {flows: [], noise_ranks: []}
    for seed in range(models):
        made = Scope(anew(scope.model, seed), scope.tokenizer, f"random {seed}", scope.family)
        readings.append(read(made, prompts, spreads))
        for take, found in tables.items():
            found.append(take(made, prompts, spreads))
    significant, verdicts = Counter(), Counter()
    for i in range(models):
        others = [(i + j) % models for j in range(1, UNTRAINED + 1)]
        given = {take: ([found[i]], [found[j] for j in others]) for take, found in tables.items()}
        subject = Given([readings[i]], [readings[j] for j in others], tables=given)
        for test, observe in tests.items():
            found = {name: estimate(one) for name, one in observe(subject).items()}
            for name, one in found.items():
                significant[test.id, name] += one.p <= LEVEL
            if len(found) == len(test.quantities):
                states = {name: state(one, one.p, test.quantities[name].margin) for name, one in found.items()}
                verdicts[test.id, judge(test, states)] += 1
    rates = {f"{id}: {name}": count / models for (id, name), count in significant.items()}
    return rates, {f"{id}: {said}": count / models for (id, said), count in verdicts.items()}


def cohorts(count, seeds=3, prompts=100, spread=0.05):
    """Share of p at most 0.05 where two arms differ by their seeds alone, as the tests of a cohort see them."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(count):
        levels = 0.85 + spread * rng.normal(size=(2, seeds, 1))
        answers = rng.random((2, seeds, prompts)) < levels.clip(0, 1)
        found += estimate(Observed(answers[0].astype(float) - answers[1])).p <= LEVEL
    return found / count


def table(found):
    """Shares of verdicts as Markdown, one row a test and truth, one column a size."""
    rows, sizes = {}, {}
    for name, shares in found.items():
        *place, size = name.split(" | ") if name.count(" | ") == 2 else (*name.split(" | "), "share of verdicts")
        sizes[size] = None
        rows.setdefault(tuple(place), {})[size] = ", ".join(f"{one} {share:.0%}" for one, share in shares.items())
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
        result["pairs"], result["checkpoints"] = pairs(options.models, task), series(options.models, task)
        result["planted_cohorts"] = planted_cohorts(options.models)
        for name in ("planted", "pairs", "checkpoints", "planted_cohorts"):
            print(f"\n{name.replace('_', ' ')}\n\n{table(result[name])}")
    result["random"], result["random_verdicts"] = random_models(options.models, task)
    print(f"\n{options.models} models of random weights: share of p at most {LEVEL:g}")
    for name, share in result["random"].items():
        print(f"{name}: {share:.1%}")
    print("verdicts on them: " + ", ".join(f"{name} {share:.1%}" for name, share in result["random_verdicts"].items()))
    result["cohorts"] = cohorts(20 * options.models)
    print(f"\n{20 * options.models} cohorts without a difference, 3 seeds: {result['cohorts']:.1%} of p at most {LEVEL:g}")
    if options.out:
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
