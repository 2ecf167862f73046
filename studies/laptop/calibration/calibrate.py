"""Do the tests tell planted truths apart, and how often do they find what is not there? One command for all of it.

    python -m studies.laptop.calibration.calibrate                                  # a quarter of an hour of one core
    python -m studies.laptop.calibration.calibrate --models 200 --parts random      # random models alone

Four parts. ``models``: synthetic attention with a planted truth (noise that is cancelled, a pedestal that is taken away, a key
that is marked with a minus sign, noise and a pedestal, noise of each map's own, an answer that stands out as any number does,
nothing), whose λ was trained away from where it began: the share of each word of each account, beside scores at random that are
made as sharp and given the trained λ; the same of checkpoints (the truth is there from the third on), and of pairs that nobody
trained. ``random``: of models with random weights, made like mini-diff and its checkpoints, the share of p at most 0.05 of every
quantity that the rule of a mechanism test uses. ``cohorts`` and ``power``: the modules beside this one. The parts ``cohorts`` and
``models`` are the result ``calibration``, and power is one of its own.

By account stands what it comes to: how often a test was *for* an account that is not true (false positives), or *against* one
that is, and how often each test that can be for an account is, where it is true (power). p is not corrected, but for the cohorts,
whose tests are corrected together.
"""

from __future__ import annotations

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context

import torch
import xarray as xr

import diffscope
from diffscope.cards import BUNDLED
from diffscope.evidence import take
from diffscope.evidence.last_query import last_query_of
from diffscope.evidence.quantities import OF_FLOWS, named
from diffscope.evidence.take import LAST_QUERY, evidence_of
from diffscope.evidence.untrained import untrained_like
from diffscope.hypotheses import TESTS, Models, Pair, run
from diffscope.hypotheses.accounts import ACCOUNTS, AGAINST, FOR, SILENT
from diffscope.hypotheses.rules import ANSWER, state
from diffscope.hypotheses.statistics import as_estimate
from diffscope.models.folders import checkpoints
from diffscope.scope import Scope, load
from diffscope.stats.intervals import LEVEL
from diffscope.tasks import Retrieval
from diffscope.tasks.sampling import draw
from studies.laptop.calibration import power
from studies.laptop.calibration.cohorts import no_difference, planted_cohorts
from studies.laptop.calibration.power import of_accounts
from studies.laptop.calibration.synthetic import TRUTHS, Planted, PlantedSource, simulated_models
from studies.laptop.results import write_result

UNTRAINED = 12
GROUPS = 4  # of UNTRAINED models of scores at random, or series of such; one for each planted model in turn
SIZES = ((10, 1.0), (10, 2.0))  # prompts, strength of the noise
LAMBDAS = {"NC": 0.9, "both": 0.9}  # trained to fit what is shared; of other truths to anything, far from where it began
OTHER_LAMBDA = 0.7
MODEL_TRUTHS = TRUTHS[:-1]
SINK = 4.0
STEPS = (0, 10, 50, 200, 800)
ROUNDS = 8  # series of untrained models
PULLS = {"NC": 0.3, "neither": 0.0, "against": -0.3}
TAKES = ("noise", "branches")  # parts of the evidence that are planted, beside the last query
ORDERED = (LAST_QUERY, *TAKES)
OF_EDITS = ("signed-weights", "a2-content", "a2-signal")  # of whole models that are edited, which synthetic attention is not
PARTS = ("cohorts", "power", "models", "random")
RATES = ("false_for", "false_against")


def verdict(test, subject):
    """Return the words that follow from what is observed of a subject, p not corrected."""
    estimates = {name: as_estimate(observed) for name, observed in test.measure(subject).items()}
    states = {}
    for name in test.judged:
        quantity = test.quantities[name]
        states[name] = state(estimates[name], estimates[name].p, quantity.margin, quantity.no_effect)
    return of_accounts(test.judge(estimates, states))


def tests_on(needs):
    """The tests on such a subject whose quantities can be planted, without measurements."""
    return [test for test in TESTS.values() if test.judged and test.needs == needs and test.id not in OF_EDITS]


def group(seed):
    """Which models of scores at random a model is compared with: what chance does to one group it does not to all."""
    first = seed % GROUPS * UNTRAINED
    return range(first, first + UNTRAINED)


def shares(counts, models):
    """Return counts of words by test as shares of so many models."""
    return {name: {word: n / models for word, n in counter.most_common()} for name, counter in counts.items()}


def of_truth(truth, noise, **more):
    """Return a planted model whose λ was trained."""
    return Planted(truth, noise=noise, lam=LAMBDAS.get(truth, OTHER_LAMBDA), **more)


@cache
def task_of_all():
    """Return retrieval in the sentence of the bundled pair."""
    return Retrieval(diffscope.load("mini-diff").tokenizer)


def planted(models, count, noise, truth):
    """Share of verdicts by test, of models with one truth."""
    prompts = draw(task_of_all(), count, 160, 4, 0)
    tests = tests_on("model")
    counts = {test.id: Counter() for test in tests}
    model = of_truth(truth, noise)
    source = PlantedSource(model, prompts, count=GROUPS * UNTRAINED)
    source.take(LAST_QUERY, 0)
    pool = xr.merge([source.take_untrained(part, 0) for part in ORDERED])
    for seed in range(models):
        own = PlantedSource(model, prompts, seeds=(seed,), count=0)
        evidence = own.take(LAST_QUERY, 0)
        for part in TAKES:
            evidence = evidence.assign(own.take(part, 0).data_vars)
        subject = Models([evidence.assign(pool.isel(untrained=list(group(seed))).data_vars)], ["planted"], weights=ANSWER)
        for test in tests:
            counts[test.id].update(verdict(test, subject))
    return {f"{name} | {truth} | {count} prompts, noise {noise:g}": words for name, words in shares(counts, models).items()}


def pairs(models, task):
    """p at most 0.05 on pairs of which neither was trained, by quantity of the measurements that need no model."""
    names = ("key-token-gain-pair", "sparsity-pair", "sinks")
    rejections = Counter()
    prompts = draw(task, 10, 160, 4, 0)
    both = [Planted(truth, sink=SINK, signal=0.0) for truth in ("neither", "standard")]
    seeds = range(10_000, 10_000 + GROUPS * UNTRAINED)
    pools = [[evidence_of(model.read(prompts, seed), prompts) for seed in seeds] for model in both]
    for seed in range(models):
        subjects = [
            simulated_models([evidence_of(model.read(prompts, seed), prompts)], [pool[i] for i in group(seed)])
            for model, pool in zip(both, pools)
        ]
        for name in names:
            for quantity, observed in TESTS[name].measure(Pair(*subjects)).items():
                rejections[f"{name}: {quantity}"] += as_estimate(observed).p <= LEVEL
    return {name: count / models for name, count in rejections.items()}


def series(models, truth):
    """Share of verdicts on checkpoints, by test: of a truth that is there from the third on."""
    prompts = draw(task_of_all(), 10, 160, 4, 0)
    counts = {name: Counter() for name in ("noise-symmetry-training", "amplifier-training")}
    learned = of_truth(truth, 1.5)
    at_random = replace(learned.at_random, lam=learned.lam_init)
    nulls = {}
    for seed in range(models):
        steps = [(learned if i > 1 else at_random).read(prompts, 10 * seed + i) for i in range(len(STEPS))]
        if seed < GROUPS:  # another model at random at each step, made like that step
            first = 10_000 + 1000 * seed
            count = ROUNDS * len(STEPS)
            matches = [steps[i % len(STEPS)].matches for i in range(count)]
            nulls[seed] = [evidence_of(at_random.read(prompts, first + i, match), prompts) for i, match in enumerate(matches)]
        subject = simulated_models([evidence_of(step, prompts) for step in steps], nulls[seed % GROUPS], STEPS)
        for name, counter in counts.items():
            counter.update(of_accounts(run(name, checkpoints=[subject])[0].verdicts))
    return {f"{name} | {truth} | from the third on": words for name, words in shares(counts, models).items()}


def pulled(models, pull):
    """Share of verdicts on checkpoints whose gradients pull towards less overlap, more of it, or neither."""
    prompts = draw(task_of_all(), 10, 160, 4, 0)
    at_random = Planted("neither", signal=0.0)
    read = [at_random.read(prompts, i) for i in range(len(STEPS))]
    count = ROUNDS * len(STEPS)

    def pulled_at(step, pull, seed):
        """Return the evidence of a step, with flows of a model that pulls."""
        return evidence_of(read[step % len(STEPS)], prompts, flows=named(OF_FLOWS, at_random.flows(prompts, pull, seed)))

    nulls = [[pulled_at(i, 0.0, 10_000 + 1000 * g + i) for i in range(count)] for g in range(GROUPS)]
    counts = {"gradient-dynamics": Counter()}
    for seed in range(models):
        steps = [pulled_at(i, PULLS[pull], 10 * seed + i) for i in range(len(STEPS))]
        subject = simulated_models(steps, nulls[seed % GROUPS], STEPS)
        counts["gradient-dynamics"].update(of_accounts(run("gradient-dynamics", checkpoints=[subject])[0].verdicts))
    return {f"{name} | {pull} | pull {PULLS[pull]:g}": words for name, words in shares(counts, models).items()}


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
    read, tables = [], []
    for number in range(models):
        read.append([])
        for step, match in enumerate(matches):  # each step of a series is another model
            seed = number * len(steps) + step
            scope = Scope(untrained_like(scopes[-1].model, seed), scopes[-1].tokenizer, f"random {seed}", scopes[-1].family)
            layers = [scope.capture([prompt.ids for prompt in prompts]).layers]
            read[-1].append(last_query_of(layers, prompts, match))
        tables.append({part: take.PARTS[part].take(scope, prompts[:5], matches[-1]) for part in ("flows", *TAKES)})  # of the last
    ends = [evidence_of(each[-1], prompts, **of) for each, of in zip(read, tables)]
    along = [[evidence_of(step, prompts, **of) for step in each] for each, of in zip(read, tables)]
    significant = Counter()
    verdicts = Counter()
    for i in range(models):
        others = [(i + j) % models for j in range(1, UNTRAINED + 1)]
        one = simulated_models([ends[i]], [ends[j] for j in others])
        growing = simulated_models(along[i], [step for j in others for step in along[j]], steps)
        for needs, subject in (("model", one), ("checkpoints", growing)):
            for test in tests_on(needs):
                estimates = {name: as_estimate(observed) for name, observed in test.measure(subject).items()}
                for name in test.judged:
                    significant[f"{test.id}: {name}"] += estimates[name].p <= LEVEL
                verdicts.update(f"{test.id}: {word}" for word in verdict(test, subject))
    return {name: n / models for name, n in significant.items()}, {name: n / models for name, n in verdicts.items()}


def table(results):
    """Shares of words as Markdown, one row a test and truth, one column a size; where all are silent that is left out."""
    rows = {}
    sizes = {}
    for name, words in results.items():
        *place, size = name.split(" | ")
        sizes[size] = None
        counted = (f"{word} {share:.0%}" for word, share in words.items() if not (word.endswith(SILENT) and share == 1))
        rows.setdefault(tuple(place), {})[size] = ", ".join(counted) or SILENT
    lines = [f"| test | planted truth | {' | '.join(sizes)} |", "|---|---|" + "---|" * len(sizes)]
    return "\n".join(
        lines + [f"| {' | '.join(place)} | {' | '.join(row.get(size, '') for size in sizes)} |" for place, row in rows.items()]
    )


def half_true(account, truth):
    """Whether a planted truth has what an account says beside something else, so that it is neither true nor false."""
    return truth == "both" and account in ("NC", "SP")


def by_account(results):
    """Of each account the share of false positives and false refutations over tests, truths and sizes, and power by test."""
    rates = {}
    for account in ACCOUNTS:
        false, refuted, true = [], [], {}
        for name, words in results.items():
            test, truth, _ = name.split(" | ")
            if account not in TESTS[test].predictions or "needs" in words:
                continue
            if truth != account:
                false += [] if half_true(account, truth) else [(words.get(f"{account} {FOR}", 0.0), name)]
                continue
            refuted.append((words.get(f"{account} {AGAINST}", 0.0), name))
            if TESTS[test].own(account):
                true.setdefault(test, []).append(words.get(f"{account} {FOR}", 0.0))
        rates[account] = {
            "false_for": sum(share for share, _ in false) / max(1, len(false)),
            "worst_false_for": max(false, default=(0.0, "")),
            "false_against": sum(share for share, _ in refuted) / max(1, len(refuted)),
            "worst_false_against": max(refuted, default=(0.0, "")),
            "power": {test: [min(shares), max(shares)] for test, shares in true.items()},
        }
    return rates


def account_table(rates):
    """Format the rates of accounts as Markdown."""
    lines = ["| account | false *for* (worst) | false *against* (worst) | power, least to most over sizes |", "|---|---|---|---|"]
    for account, of in rates.items():
        worst = [
            f"{of[name]:.1%} ({of[f'worst_{name}'][0]:.0%}: {of[f'worst_{name}'][1].replace(' | ', ', ')})" for name in RATES
        ]
        power_of = "; ".join(f"{test} {low:.0%} to {high:.0%}" for test, (low, high) in of["power"].items())
        lines.append(f"| {account} | {' | '.join(worst)} | {power_of or 'no test here can be for it'} |")
    return "\n".join(lines)


def of_models(models, processes):
    """Planted models, checkpoints and pairs."""
    cells = [(count, noise, truth) for count, noise in SIZES for truth in MODEL_TRUTHS]
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        jobs = [pool.submit(planted, models, *cell) for cell in cells]
        along = [pool.submit(series, models, truth) for truth in MODEL_TRUTHS]
        along += [pool.submit(pulled, models, pull) for pull in PULLS]
        parts = {"planted": jobs, "checkpoints": along}
        result = {name: {place: words for cell in of for place, words in cell.result().items()} for name, of in parts.items()}
    return result | {"pairs": pairs(models, task_of_all())}


def report(result):
    """All of it as Markdown: what it comes to by account first."""
    planted_parts = [name for name in ("planted_cohorts", "planted", "checkpoints") if name in result]
    texts = [f"By account, {name.replace('_', ' ')}\n\n{account_table(of)}" for name, of in result.get("by_account", {}).items()]
    texts += [f"{name.replace('_', ' ').capitalize()}\n\n{table(result[name])}" for name in planted_parts]
    if "cohorts" in result:
        shares = ", ".join(f"{share:.1%} of {seeds} seeds" for seeds, share in result["cohorts"].items())
        texts.append(f"Two arms that differ by their seeds alone: p at most {LEVEL:g} in {shares}.")
    for name, words in (("pairs", "pairs without a difference"), ("random", "models of random weights")):
        lines = [f"- {place}: {share:.1%}" for place, share in result.get(name, {}).items()]
        texts += ["\n".join([f"{result['models']} {words}, share of p at most {LEVEL:g}", "", *lines])] if lines else []
    if "random_verdicts" in result:
        shares = {word: share for word, share in result["random_verdicts"].items() if not word.endswith(SILENT)}
        texts.append(f"Words on random weights: {', '.join(f'{word} {share:.1%}' for word, share in shares.items())}.")
    return "\n\n".join(texts)


def main():
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=20, help="models of each truth, and cohorts")
    parser.add_argument("--cohorts", type=int, default=100, help="cohorts of each cell of the power of primaries")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    result = {"models": options.models, "untrained": UNTRAINED}
    for part in (part for part in PARTS if part in options.parts):
        if part == "power":
            power.measure(options.cohorts)
        elif part == "cohorts":
            result["planted_cohorts"] = planted_cohorts(options.models)
            result["cohorts"] = {str(seeds): no_difference(50 * options.models, seeds) for seeds in (3, 6, 8)}
        elif part == "models":
            result |= of_models(options.models, options.processes)
        else:
            result["random"], result["random_verdicts"] = random_models(options.models, task_of_all())
        named = [name for name in ("planted_cohorts", "planted", "checkpoints") if name in result]
        result["by_account"] = {name: by_account(result[name]) for name in named}
        if {"cohorts", "models"} <= set(options.parts):
            write_result("calibration", result)
    print(report(result))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
