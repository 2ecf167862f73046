"""Do the tests tell planted truths apart, and how often do they find what is not there?

    python benchmarks/calibration.py --models 40                # planted truths, one model each, and random models
    python benchmarks/calibration.py --models 200 --quick       # random models alone

Of synthetic attention with a planted truth (noise that is cancelled, a pedestal that is taken away, both, noise of each map's
own, nothing), at several strengths of the noise and numbers of prompts: the share of each verdict, beside scores at random. Of
models with random weights, whose scores are as far apart as a trained model's: the share of p at most 0.05, each model against
others of its kind. Of families in which no arm differs: the same, over seeds.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

import numpy as np
import torch

import diffscope
from diffscope.hypotheses import of_model
from diffscope.hypotheses.inference import LEVEL, Observed, estimate
from diffscope.hypotheses.reading import read
from diffscope.hypotheses.rules import judge, state
from diffscope.hypotheses.subjects import anew
from diffscope.hypotheses.synthetic import TRUTHS, Planted, PlantedSubject
from diffscope.lab.evaluate import draw
from diffscope.scope import Scope
from diffscope.tasks import Retrieval

UNTRAINED = 12
SIZES = ((10, 1.0), (10, 2.0), (20, 1.5))  # prompts, strength of the noise


class Given:
    """Readings at hand, as a subject of the tests."""

    scopes = ()

    def __init__(self, readings, untrained):
        self.readings, self.untrained = readings, untrained


def verdict(test, observe, subject):
    found = {name: estimate(one) for name, one in observe(subject).items()}
    return judge(test, {name: state(one, one.p, test.quantities[name].margin) for name, one in found.items()}), found


def planted(models, task):
    """Share of verdicts by truth, size and test."""
    table = {}
    for count, noise in SIZES:
        prompts = draw(task, count, 160, 4, 0)
        others = PlantedSubject(Planted("neither", noise=noise), prompts, count=UNTRAINED).untrained
        for truth in TRUTHS:
            said = {test.id: Counter() for test in of_model.TESTS}
            for seed in range(models):
                subject = Given([Planted(truth, noise=noise).read(prompts, seed)], others)
                for test, observe in of_model.TESTS.items():
                    said[test.id][verdict(test, observe, subject)[0]] += 1
            for name, counted in said.items():
                shares = {one: count / models for one, count in counted.most_common()}
                table[f"{name} | {truth} | {count} prompts, noise {noise:g}"] = shares
    return table


def random_models(models, task):
    """Share of p at most 0.05 among models of random weights, each beside the others, by test and quantity."""
    scope, prompts = diffscope.load("mini-diff"), draw(task, 10, 160, 4, 0)
    spreads = read(scope, prompts).spreads
    readings = []
    for seed in range(models):
        made = Scope(anew(scope.model, seed), scope.tokenizer, f"random {seed}", scope.family)
        readings.append(read(made, prompts, spreads))
    significant, verdicts = Counter(), Counter()
    for i in range(models):
        others = [readings[(i + j) % models] for j in range(1, UNTRAINED + 1)]
        for test, observe in of_model.TESTS.items():
            said, found = verdict(test, observe, Given([readings[i]], others))
            verdicts[test.id, said] += 1
            for name, one in found.items():
                significant[test.id, name] += one.p <= LEVEL
    shares = {f"{id}: {name}": count / models for (id, name), count in significant.items()}
    return shares, {f"{id}: {said}": count / models for (id, said), count in verdicts.items()}


def families(count, seeds=3, prompts=100, spread=0.05):
    """Share of p at most 0.05 where two arms differ by their seeds alone, as the tests of a family see them."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(count):
        levels = 0.85 + spread * rng.normal(size=(2, seeds, 1))
        answers = rng.random((2, seeds, prompts)) < levels.clip(0, 1)
        found += estimate(Observed(answers[0].astype(float) - answers[1])).p <= LEVEL
    return found / count


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
        print("test | truth | size: share of verdicts")
        for name, shares in result["planted"].items():
            print(f"{name}: " + ", ".join(f"{one} {share:.0%}" for one, share in shares.items()))
    result["random"], result["random_verdicts"] = random_models(options.models, task)
    print(f"\n{options.models} models of random weights: share of p at most {LEVEL:g}")
    for name, share in result["random"].items():
        print(f"{name}: {share:.1%}")
    print("verdicts on them: " + ", ".join(f"{name} {share:.1%}" for name, share in result["random_verdicts"].items()))
    result["families"] = families(20 * options.models)
    print(f"\n{20 * options.models} families without a difference, 3 seeds: {result['families']:.1%} of p at most {LEVEL:g}")
    if options.out:
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
