"""The numbers in the prose of the report are computed from what is committed, and none stands there that nothing computes.

But for what is declared (`DESIGN`), what the first study found (`FIRST_STUDY`), and what the page said before it was corrected.
"""

import json
import math
import re

import numpy as np
import pytest

from benchmarks import results
from diffscope.hypotheses.intervals import holm, sign_flip_test, students_t
from diffscope.hypotheses.rules import IDLE
from diffscope.lab.training.initialisation import tokenizer_for
from diffscope.models import lambda_init_schedule
from diffscope.numbers import listed, minus, percent, two_figures
from diffscope.storage.statistics import open_statistics
from studies.committed import ROOT
from studies.subtraction import evidence, gates
from studies.subtraction.pages import DIFF, over_heads, subtracted, trained, whole_lengths
from studies.subtraction.primaries import PARTS, held_out_loss, log_odds_of_runs, onsets, share_of_seeds
from studies.subtraction.reproduce import EVIDENCE, REPORT
from studies.subtraction.train import recipe_of

WORDS = "no one two three four five six seven eight nine ten eleven twelve".split()
DESIGN = (  # what is declared
    "max(A1 − λ·A2, 0)", "max(·, 0)", "96 to 512 tokens", "all but `standard` | 8 | 702,528 |", "`standard` | 6 | 1,360,512 |",
    "ten of the 24 runs", "half a nat",
)  # fmt: skip
FIRST_STUDY = ("yes (0.06)", "Does λ = 1 do", "if it is 1 throughout", "1.1, 0.4 and 0.6 by layer", "fixed at 1, all six")
NAMES = (  # of parts, seeds and layers, and 0 as no effect
    "above 0", "crosses 0", "D is 0", "seed 5", "Seed 5", "`shared-a2`", "layer 0", "set to 0", "is not 0", "near 0", "about 0",
    "is below 0", "apart from 0",
)  # fmt: skip


def fixed(value, digits):
    return minus(f"{float(value):.{digits}f}")


def within(values, digits):
    """A mean with its interval as sentences have them."""
    values = np.asarray(values, dtype=float)
    (low, high), _, _ = students_t(values)
    return fixed(values.mean(), digits), f"{fixed(low, digits)} to {fixed(high, digits)}"


def bound(values, digits):
    """The least number of so many digits that no value exceeds."""
    return fixed(math.ceil(float(abs(values).max()) * 10**digits) / 10**digits, digits)


def count(condition):
    return WORDS[int(condition.sum())]


def of_lookup(part):
    """What is said of the part lookup."""
    plus = part.sel(arm="plus")
    lambdas = {arm: np.array([model["lambda"] for model in of]) for arm, of in gates.read("lookup", trained(part)).items()}
    of_plus, of_diff, unsigned = (lambdas[arm] for arm in ("plus", DIFF, "d-plus"))  # (seed, layer)
    seeds = WORDS[len(of_plus)]
    formed = plus["formation"].notnull()  # (seed,)
    a2 = plus["previous_token_a2"].sel(layer=0).max("head").where(formed)  # (seed,)
    looks = a2 > 0.5
    (never,) = formed["seed"].values[~formed.values]
    (elsewhere,) = formed["seed"].values[(formed & ~looks).values]
    ((adds, in_layer),) = np.argwhere(of_plus < 0)
    assert in_layer > 0
    signs, about_signs = within(plus["lost_without_signs"].sel(layer=0).where(formed, drop=True), 1)
    limit = f"{int(part['formation_limit']):,} steps"
    return (
        f"In {WORDS[int((of_plus[:, 0] > 0).sum())]} of {seeds}, λ changes its sign in the first layer",
        f"{WORDS[int(formed.sum())].capitalize()} find the lookup",
        f"does not find the lookup** in {limit}",
        f"trained for {recipe_of('lookup').tuning.steps} steps",
        f"counts with step {int(part['formation_limit']):,} as its onset",
        f"It begins with A1 + {lambda_init_schedule(0):.1f}·A2 in the first layer",
        f"λ in A1 − λ·A2 is {of_plus[:, 0].min():.2f} to {of_plus[:, 0].max():.2f} there, in all {seeds} models "
        f"(DIFF: {of_diff[:, 0].min():.2f} to {of_diff[:, 0].max():.2f})",
        f"but for one ({fixed(of_plus[adds, in_layer], 2)}, seed {adds}, layer {in_layer})",
        f"In the {count(formed)} models that find the lookup the loss rises by {signs} nats ({about_signs})",
        f"In {count(looks)} of them a head of that layer looks with A2 at the token before the number "
        f"({float(a2.where(looks).min()):.2f} or more of its weight), as in DIFF. Seed {elsewhere} does it another way",
        *of_contrast(part, int(never)),
        *of_unformed(part, unsigned),
        *of_shared(part, lambdas["shared-a2"]),
        f"prompts of {evidence.LENGTH['lookup']} tokens with {evidence.DISTRACTORS} distractors",
        f"in prompts of {listed(list(map(str, whole_lengths(part))))} tokens",
        *of_gain(part),
        *of_near_duplicates(part),
    )


def of_contrast(part, never):
    """What is said of DIFF beside the arm that adds its second map at first."""
    steps = np.log2(onsets(part))
    later = steps.sel(arm="plus") - steps.sel(arm=DIFF)  # octaves, (seed,)
    assert bool((later > 0).all())
    of_onset, about_onset = within(later, 2)
    rest, about_rest = within(later.drop_sel(seed=never), 2)
    odds = log_odds_of_runs(part)
    lead = (odds.sel(arm=DIFF) - odds.sel(arm="plus")).dropna("seed")  # (seed,)
    of_odds, about_odds = within(-lead, 2)
    margin = 0.5
    opens = [str(int(seed)) for seed in lead["seed"] if students_t(lead.drop_sel(seed=seed).values)[0][1] > margin]
    assert students_t(lead.values)[0][1] < margin
    p = holm([sign_flip_test(later.values), sign_flip_test(lead.values), 1.0, 1.0])[0]
    return (
        f"or never (p {p:.3f}): by {of_onset} octaves ({about_onset})",
        f"more than {PARTS['lookup'].tests[0].quantities['difference'].margin:g} octaves, is *open*: seed {never}, which never",
        f"Without that seed it is {rest} ({about_rest})",
        f"DIFF is {of_odds} nats below `plus` ({about_odds} below, {WORDS[lead.size]} seeds)",
        f"without seed {', '.join(opens[:-1])} or {opens[-1]} alone it would be *open*, seed {never} of `plus` is left out",
    )


def of_unformed(part, unsigned):
    """What is said of the arms that do not find the lookup."""
    failed = ["d-plus", "standard-norm"]
    tuned = part["tuning_formation"].sel(arm=failed)  # (arm, rate_tried, tuning_seed)
    assert not part["formation"].sel(arm=failed).notnull().any() and tuned.isnull().all()
    empty = [model[gates.ALL] for model in gates.read("lookup", trained(part))["d-plus"]]
    last = np.sort(unsigned[:, 2])
    few = sum(share < 0.02 for share in empty)
    return (
        f"none of {part.sizes['seed']} runs each in {int(part['formation_limit']):,} steps on short prompts, "
        f"and none of the {tuned.sizes['rate_tried'] * tuned.sizes['tuning_seed']} of each that chose its rate in "
        f"{recipe_of('lookup').tuning.steps}. At no evaluation do the {part.sizes['seed']} of either answer more than "
        f"{percent(float(part['retrieval'].sel(arm=failed).max()))}",
        f"grows to between {unsigned[:, 0].min():.0f} and {unsigned[:, 0].max():.0f} in the first layer, and in seven of eight "
        f"models to between {last[1]:.0f} and {last[-1]:,.0f} in the last",
        f"in {percent(np.mean(empty))} of rows ({percent(min(empty)).removesuffix(' %')} to {percent(max(empty))}); "
        f"but {WORDS[few]} models have fewer than 2 %",
    )


def of_shared(part, lambdas):
    """What is said of the arm whose heads share their second map; `lambdas` are (seed, layer)."""
    shared = part.sel(arm="shared-a2")
    formed = shared["formation"].notnull()
    steps, odds = np.log2(onsets(part)), log_odds_of_runs(part)
    lead, ahead = steps.sel(arm=DIFF) - steps.sel(arm="shared-a2"), odds.sel(arm="shared-a2") - odds.sel(arm=DIFF)  # (seed,)
    sooner, about_sooner = within(lead, 2)
    of_odds, about_odds = within(ahead, 2)
    of_step, of_answer = (test.quantities["difference"].margin for test in PARTS["lookup"].tests[:2])
    assert students_t(lead.values)[0][0] > -of_step and students_t(ahead.values)[0][0] > -of_answer
    without, about_without = within(shared["lost_without_a2"].sel(layer=0), 1)
    a2 = shared["previous_token_a2"].sel(layer=0).min("head")
    return (
        f"finds the lookup in {count(formed)} of {WORDS[formed.size]} runs, {sooner} octaves earlier than DIFF "
        f"({about_sooner}), and its log-odds are {of_odds} nats above those of DIFF ({about_odds})",
        f"it is worse by as much as matters ({of_step:g} octaves, {of_answer:g} nats)",
        f"it gives the token before the number {math.floor(float(a2.min()) * 100) / 100:.2f} of its weight or more",
        f"it is subtracted (λ is {lambdas[:, 0].min():.2f} to {lambdas[:, 0].max():.2f} there)",
        f"Without it the loss rises by {without} nats ({about_without}), "
        f"without the negative weights by {fixed(shared['lost_without_signs'].sel(layer=0).mean(), 1)}",
    )


def of_gain(part):
    """What is said of the gain in the heads that tell the answer."""
    told = part["a2_cost_where_told"]  # (arm, seed)
    mean_told, about_told = within(told.sel(arm=DIFF), 2)
    gain = part["signal_to_noise_gain"]
    raised, about_raised = within(gain.sel(arm="d-plus"), 1)
    losses, falls = {}, {}
    for arm in ("plus", "shared-a2"):
        costs = told.sel(arm=arm)
        costly = costs["seed"].values[costs.values.argsort()[-2:]]  # the dearest last
        losses[arm] = [fixed(costs.sel(seed=seed), 1) for seed in costly]
        falls[arm] = [fixed(-gain.sel(arm=arm, seed=seed), 1) for seed in costly]
        assert float(costs.drop_sel(seed=costly).max()) < 1
    (plus, of_plus), (shared, of_shared) = ((losses[arm], falls[arm]) for arm in losses)
    most = int(told["seed"][told.sel(arm=DIFF).argmax("seed")])
    return (
        f"A2 costs DIFF {mean_told} nats on average ({about_told}), nearly all of it in seed {most} "
        f"({fixed(told.sel(arm=DIFF).max(), 2)})",
        f"raises the signal by {raised} dB ({about_raised}), in models that do not find",
        f"A2 costs {plus[0]} and {plus[1]} nats there, and the subtraction lowers the signal against the noise by "
        f"{of_plus[0]} and {of_plus[1]} dB",
        f"it costs {shared[1]} and {shared[0]} nats, and the signal falls by {of_shared[1]} and {of_shared[0]} dB",
    )


def of_near_duplicates(part):
    """What is said of answers among near-duplicates."""
    near = part["exact_match_near"]
    shares = near.sel(near=near["near"] > 0).mean(("near", "prompt"))  # (arm, seed)
    of_diff, of_plus = shares.sel(arm=DIFF).values, shares.sel(arm="plus").dropna("seed").values
    of_shared = shares.sel(arm="shared-a2").values
    apart = of_shared[of_shared > 0.5]
    both = np.concatenate([of_diff, of_plus])
    well = both[both >= 0.975]
    return (
        f"{count(of_diff >= 0.975)} of {WORDS[of_diff.size]} models of DIFF and {count(of_plus >= 0.975)} of "
        f"{WORDS[of_plus.size]} of `plus` answer at least {percent(well.min())} right among them, "
        f"the others at most {percent(both[both < 0.975].max())}",
        f"Of `shared-a2` {WORDS[apart.size]} of {WORDS[of_shared.size]} answer at least {percent(apart.min())}, "
        f"the others at most {percent(of_shared[of_shared < 0.5].max())}",
    )


def of_mechanism(part):
    """What is said of the part mechanism."""
    a1, a2 = (part[f"previous_token_{name}"] for name in ("a1", "a2"))  # (seed, layer, head)
    looks = a2.sel(layer=0) > 0.5  # (seed, head)
    assert bool(looks.any("head").all())
    without, signs = part["lost_without_a2"], part["lost_without_signs"]  # (seed, layer)
    costs = part["lost_without_a2_of_head"]  # (seed, layer, head)
    first = costs.sel(layer=0).argmax("head")
    told = part["a2_cost_where_told"]  # (seed,)
    mean_told, about_told = within(told, 2)
    gain = part["signal_to_noise_gain"]
    fall, about_fall = within(-gain, 1)
    falls = -gain.values[gain.values < -1]
    idle = np.stack([each.sel(layer=[1, 2]).values for each in (without, signs)])  # (edit, seed, layer)
    others = part["lost_with_one_a2"].sel(layer=0)
    own = part["gain_by_head"].sel(norm="before", a2="own").where(part["tells"] > 0)
    share = costs.sel(layer=0)
    seeds = WORDS[part.sizes["seed"]]
    needed, unsigned = (fixed(each.sel(layer=0).mean(), 1) for each in (without, signs))
    of_head = fixed(share.max("head").mean(), 1)
    vocabulary = len(tokenizer_for(recipe_of("mechanism")))
    above = part["rejection"] > part["rejection_ceiling"]
    both = looks["seed"].values[looks.all("head").values].tolist()
    most = int(others["seed"][others.argmax("seed")])
    return (
        f"In {count(looks.any('head'))} of {seeds} models a head of layer 0 looks with A2",
        f"its loss rises by {needed} nats), and without D's negative weights as well ({unsigned})",
        f"next to nothing ({bound(idle, 2)} nats at most)",
        f"All {count(looks.any('head'))} DIFF models that look up numbers",
        f"({fixed(a2.sel(layer=0).isel(head=first).mean(), 2)} of its weight; A1 of that head gives it "
        f"{fixed(a1.sel(layer=0).isel(head=first).mean(), 3)})",
        f"in seed {listed(list(map(str, both)))} both heads do so",
        f"rises by {needed} nats, of which this head's share is {of_head}, and by {unsigned} if only",
        f"({math.log(100):.1f} among the numbers, {math.log(vocabulary):.1f} among all tokens)",
        f"by less than {bound(idle.mean(1), 3)} nats on average, in no model by more than {bound(idle, 2)}",
        f"seven seeds are new, and it is so in all seven (p {share_of_seeds(np.ones(7, bool)).p:.3f} without seed 5)",
        f"prompts of {evidence.LENGTH['mechanism']} tokens with {evidence.DISTRACTORS} distractors",
        f"rises by {fixed(others.mean(), 1)} nats on average, by {fixed(others.max(), 1)} in seed {most}",
        f"{int(above.sum())} of the {above.size} heads are above it",
        f"gains more than {fixed(own.max(), 1)} dB",
        f"costs {mean_told} nats on average ({about_told}), more than half a nat in {count(told > 0.5)} of {seeds} models",
        f"by {fall} dB ({about_fall}): by {falls.min():.0f} to {falls.max():.0f} dB in {WORDS[len(falls)]} of {seeds} models, "
        f"and not in {WORDS[gain.size - len(falls)]}",
        f"whose A2 costs {fixed(share.min('head').mean(), 1)} nats; the head that carries the lookup ({of_head})",
        f"{count(without.sel(layer=0) > 1)} of {seeds} lose the answer without",
    )


def of_sinks(part):
    """What is said of the part sinks."""
    seeds = WORDS[part.sizes["seed"]]
    c = subtracted(part).sel(arm=DIFF)
    dormant = over_heads(part["sink"]).sel(queries="dormant")  # (arm, seed, map)
    first = dormant.sel(map="A1")
    strong = first.sel(arm=DIFF) > 0.99
    (weak,) = first.sel(arm=DIFF).values[~strong.values]
    apart = first.sel(arm=DIFF) - dormant.sel(arm=DIFF, map="net D")
    standard = first.sel(arm="standard")
    lead = part["copy_log_odds"].sel(arm=DIFF) - part["copy_log_odds"].sel(arm="d-plus")
    told = part["a2_cost_where_told"].sel(arm="d-plus")
    gains = part["signal_to_noise_gain"].sel(arm="d-plus")
    mean_gain, about_gain = within(gains, 1)
    here = gains.values[(told > 0.05).values]
    small = first.sel(arm="d-plus") < 0.25
    larger = [f"{float(first.sel(arm=arm).mean()):.2f}" for arm in ("standard", "standard-norm")]
    models = gates.read("sinks", trained(part))["d-plus"]
    lambdas, empty = [model["lambda"][0] for model in models], [model["dormant"] for model in models]
    same = sum(model["same"] for model in models)
    return (
        f"{WORDS[same]} of {WORDS[len(models)]} of them with the same losses to the last digit",
        f"lies between {fixed(c.min(), 2)} and {fixed(c.max(), 2)} ({lambda_init_schedule(0):.1f} at the start)",
        f"in {count(c < 0)} of {seeds} models it is below 0",
        f"nothing is lost ({float(part['a2_cost_where_told'].sel(arm=DIFF).mean()):.5f} nats)",
        f"over 0.99 of A1 in {count(strong)} of {seeds} DIFF models, and {fixed(weak, 2)} in one; "
        f"D is the same to {bound(apart, 2)}",
        f"it has {larger[0]}, from {fixed(standard.min(), 2)} to {fixed(standard.max(), 2)} by model; "
        f"with DIFF's norm {larger[1]}",
        f"In {count(small)} of {seeds} `d-plus` models the first token has less than a quarter of A1",
        f"λ ends between {two_figures(min(lambdas))} and {two_figures(max(lambdas))}, "
        f"and D is 0 at {percent(np.mean(empty))} of dormant queries, "
        f"at none in {WORDS[empty.count(0.0)]} model",
        f"by {fixed(lead.mean(), 1)} nats, in all {count(lead > 0)} seeds",
        f"lose nothing ({float(part['lost_without_signs'].sel(arm=DIFF).mean()):.6f} nats)",
        f"not told apart from 0 ({mean_gain}, {about_gain})",
        f"more than 0.05 nats in {count(told > 0.05)} of {seeds} models of `sinks`, "
        f"which gain {here.min():.0f} to {here.max():.0f} dB",
        f"where {count(~small)} of {seeds} models do",
        f"of the whole layer it is {count(part['lost_without_a2'].sel(arm='d-plus') > 0.05)}",
    )


def of_tied(part, strong):
    """What is said of the part sinks-tied."""
    seeds = WORDS[part.sizes["seed"]]
    c = subtracted(part).sel(arm=DIFF)
    by_head = part["sink"].sel(arm=DIFF, queries="dormant")
    dormant = over_heads(by_head)  # (seed, map)
    uniform = [
        np.mean([np.mean([1 / (query + 1) for query in prompt.spans["dormant"]]) for prompt in task.prompts])
        for task in (evidence.task_of("sinks-tied", None, int(seed)) for seed in part["seed"])
    ]
    flat = by_head.sel(map="A2") <= np.asarray(uniform)[:, None, None]  # (seed, layer, head)
    start = lambda_init_schedule(0)
    more = c["seed"].values[(c > start).values]
    of_more = dormant.sel(seed=more)
    taken = [f"{fixed(of_more.sel(map='net D', seed=s), 2)} of {fixed(of_more.sel(map='A1', seed=s), 2)}" for s in more]
    cost = part["lost_without_a2"].sel(arm=DIFF, layer=0)
    top = int(cost["seed"][cost.argmax("seed")])
    told = part["a2_cost_where_told"].sel(arm=DIFF)
    odds = part["copy_log_odds"]
    over = odds.sel(arm=DIFF) - odds.sel(arm="d-plus")
    lead, about_lead = within(over, 2)
    without = {int(seed): float(over.drop_sel(seed=seed).mean()) for seed in over["seed"]}
    below = sorted((seed for seed in without if without[seed] < 0.5), key=without.get)
    behind = odds.sel(arm="standard") - odds.sel(arm=DIFF)
    gain, about_gain = within(part["signal_to_noise_gain"].sel(arm="d-plus"), 1)
    less, about_less = within(part["gain_over_uniform"].sel(arm="d-plus"), 1)
    assert (strong["copy_log_odds"].sel(arm="standard") - strong["copy_log_odds"].sel(arm=DIFF)).mean() < 0 < behind.mean()
    return (
        f"{count(c > start)} of {seeds} models keep λ above its start, and take",
        f"the first token has {fixed(dormant.sel(map='A1').mean(), 2)} of A1. "
        f"Of A2 it has {fixed(dormant.sel(map='A2').mean(), 2)}, "
        f"but in {count(dormant.sel(map='A2') <= uniform)} of {seeds} models no more than uniform attention would give it "
        f"({fixed(np.mean(uniform), 2)}), and in {count(flat.any(('layer', 'head')))} in one head or both",
        f"DIFF subtracts in all {count(c > 0)}",
        f"(below 0.11, {count(c < 0.11)} of {seeds} models)",
        f"In the other {WORDS[len(more)]} λ is {listed([fixed(c.sel(seed=s), 2) for s in more])} "
        f"(seeds {listed(list(map(str, more)))}; {start:.1f} at the start)",
        f"less of D than of A1: {', '.join(taken[:-1])}, and {taken[-1]}",
        f"(seed {top}: {fixed(cost.max(), 2)} nats, λ {fixed(c.sel(seed=top), 2)}; the others at most "
        f"{bound(cost.drop_sel(seed=top), 3)}) the first token has {fixed(dormant.sel(map='A1', seed=top), 2)} of A1, "
        f"{fixed(dormant.sel(map='net D', seed=top), 2)} of D, and {fixed(dormant.sel(map='D', seed=top), 2)} of |D|",
        f"On average A2 costs {fixed(told.mean(), 2)} nats",
        f"less well than `standard` (by {fixed(behind.mean(), 1)} nats;",
        f"on `d-plus` is {lead} nats ({about_lead})",
        f"Without {', or '.join(f'seed {seed} alone ({without[seed]:.2f})' for seed in below)}, it would be *open*",
        f"in seed {listed([str(int(seed)) for seed in over['seed'][over.values < 0]])} `d-plus` leads",
        f"by {gain} dB ({about_gain}), in all {count(part['signal_to_noise_gain'].sel(arm='d-plus') > 0)} models; "
        f"a uniform A2 gains {less} dB less ({about_less})",
        f"and in {count(part['a2_cost_where_told'].sel(arm='d-plus') > 0.05)} of `sinks-tied`",
        f"takes weight in the {count(c > start)} of {seeds} models whose λ ends above its start",
        f"{count(dormant.sel(map='A2') <= uniform)} is right, and {count(flat.any(('layer', 'head')))} counts models",
    )


def of_text(part):
    """What is said of the part text."""
    recipe = recipe_of("text")
    (stage,) = recipe.stages
    ((rows, length),) = stage.shapes
    loss = held_out_loss(part)
    runs, seeds = part.sizes["arm"] * part.sizes["seed"], part.sizes["seed"]
    assert (runs, len(part["rate_tried"]), max(recipe.tuning.rates)) == (24, 2, float(part["rate"].sel(arm=DIFF)))
    apart = loss.sel(arm=DIFF) - loss  # (seed, arm)
    early = part["held_out_loss"].sel(step=100).mean("seed")
    others = {arm: within(apart.sel(arm=arm), 3) for arm in ("plus", "standard-norm")}
    margin = PARTS["text"].tests[0].quantities["difference"].margin
    assert max(map(abs, students_t(apart.sel(arm="plus").values)[0])) < margin
    return (
        f"Each read {stage.steps * rows * length / 1e6:.1f} million tokens",
        f"planted in {percent(stage.planted)} of the windows",
        f"over {recipe.tuning.steps} steps. For all four arms",
        f"(difference {others['plus'][0]} nats, {others['plus'][1]})",
        "carries a signal, in three of six models of running text too",
        f"{others['plus'][0]} nats a token ({others['plus'][1]}), so neither is better by as much as matters ({margin:g} nats)",
        f"`standard-norm` is {others['standard-norm'][0]} nats ({others['standard-norm'][1]})",
        f"at step 100 its loss is {fixed(early.sel(arm='plus') - early.sel(arm=DIFF), 2)} nats below that of `plus` and "
        f"{fixed(early.sel(arm='standard-norm') - early.sel(arm=DIFF), 2)} below",
        f"held-out text of {evidence.LENGTH['text']} tokens with {evidence.DISTRACTORS // 4} distractors",
        *of_last_layer(part.sel(arm=DIFF)),
        *of_bundled(),
        *of_signs(part),
        *of_standard(part, loss),
        *of_planted(part),
        f"In {count((part['snr_first_ahead'] < 0).sel(arm=DIFF))} of {WORDS[seeds]} DIFF models A2",
    )


def of_standard(part, loss):
    """What is said of standard attention without the norm; `loss` is (seed, arm)."""
    early = part["held_out_loss"].sel(step=100).mean("seed")
    of_diff, about_diff = within(loss.sel(arm=DIFF) - loss.sel(arm="standard"), 3)
    of_norm, about_norm = within(loss.sel(arm="standard") - loss.sel(arm="standard-norm"), 3)
    higher = part["text"].sel(arm="standard") - part["text"]  # (seed, arm, token)
    given, about_given = within(higher.sel(arm=DIFF, token="hit"), 2)
    by_norm, about_by_norm = within(higher.sel(arm="standard-norm", token="hit"), 2)
    others, about_others = within(-higher.sel(arm=DIFF, token="other"), 3)
    assert bool((higher.sel(arm=[DIFF, "standard-norm"], token="hit") > 0).all())
    low, high = students_t((loss.sel(arm=DIFF) - loss.sel(arm="standard")).values)[0]
    assert low < -PARTS["text"].tests[0].quantities["difference"].margin < 0 < high
    return (
        f"At step 100 its loss is {fixed(early.sel(arm=DIFF) - early.sel(arm='standard'), 2)} nats below that of DIFF. "
        f"In the end DIFF − `standard` is {of_diff} nats ({about_diff})",
        f"DIFF's loss is {given} nats lower ({about_given}), in all {WORDS[loss.sizes['seed']]} seeds; "
        f"on others it is the same ({others.removeprefix('−')}, {about_others})",
        f"is lower by {of_norm} nats in all ({about_norm}), and by {by_norm} on those tokens ({about_by_norm})",
    )


def of_last_layer(diff):
    """Where the answer is read in DIFF's language models."""
    last = diff.isel(layer=-1)
    layer = int(last["layer"])
    by_a2 = last["snr_first_ahead"] < 0  # (seed,)
    seeds = listed([str(int(seed)) for seed in last["seed"][by_a2.values]])
    cost, signs = last["lost_without_a2"], last["lost_without_signs"]
    ahead, gain, over = (diff[name] for name in ("snr_first_ahead", "signal_to_noise_gain", "gain_over_uniform"))
    assert bool((diff["tells"].sum(("layer", "head")) == 1).all())  # so that means are of this head
    uniform = (gain - over).where(by_a2, drop=True)
    alone = (gain + ahead).where(by_a2, drop=True)  # D·V against λA2·V
    costly = diff["previous_token_a2"].where(diff["lost_without_a2_of_head"] > 0.05)
    assert 2 < float(uniform.max()) < 3.5 and float(costly.max()) < 0.1
    assert bool((diff["lost_without_a2"].sel(layer=0) < 0.03).all()) and bool((cost.where(~by_a2, drop=True) < 0.8).all())
    looks = diff["previous_token_a1"].max("head").mean("seed")
    mean_gain, about_gain = within(gain, 0)

    def span(values, digits=0):
        kept = values.dropna("seed")
        return f"{fixed(kept.min(), digits)} to {fixed(kept.max(), digits)}"

    return (
        f"**In {count(by_a2)} of {WORDS[by_a2.size]} DIFF models A2 of the last layer carries the answer.**",
        f"In seeds {seeds} the loss rises by {span(cost.where(by_a2), 1)} nats without A2 of layer {layer}, and by "
        f"{span(signs.where(by_a2), 1)} without the negative weights there; in the other {count(~by_a2)} by less than 0.8",
        f"A2 costs less than 0.03 in all {WORDS[by_a2.size]}",
        f"gives it {fixed(looks.sel(layer=1), 2)} of its weight in layer 1 and {fixed(looks.sel(layer=2), 2)} in layer 2",
        "No head whose A2 costs more than 0.05 nats gives it a tenth of A2",
        f"In seeds {seeds} A2 reads it: the signal-to-noise ratio of λA2·V is {span(-ahead.where(by_a2))} dB above",
        f"the ratio of the head by {span(gain.where(by_a2))} dB, where a uniform A2 gains at most {fixed(uniform.max(), 1)} dB",
        f"D is no better than λA2·V alone ({span(alone, 1)} dB)",
        f"A1 reads it, {span(ahead.where(~by_a2))} dB ahead, and the subtraction changes the ratio by less than "
        f"{bound(gain.where(~by_a2, drop=True), 0)} dB",
        f"On average the gain is {mean_gain} dB ({about_gain})",
    )


def of_bundled():
    """What flat maps cost the language model that is bundled, in nats."""
    (rises, _) = results.read()["second_map"]["mini-text"]["tables"]
    cells = {row[0]: row[-1].split(" ± ") for row in rises["rows"]}  # of the last layer
    (first, about), (second, _) = cells["A1 uniform"], cells["A2 uniform"]
    card = json.loads((ROOT / "diffscope/models/bundled/mini-text/card.json").read_text(encoding="utf-8"))
    return (
        f"In the model of seed {card['facts']['seed']}, which is bundled as `mini-text`, the maps have changed places: "
        f"in layer {card['summary']['layers'] - 1} A1 may be uniform at no cost ({first} nats ± {about}), "
        f"and A2 may not ({second})",
    )


def of_signs(part):
    """What λ became in language models, and what adds."""
    models_by_arm = gates.read("text", trained(part))
    ends = {arm: np.array([model["lambda"] for model in models]) for arm, models in models_by_arm.items()}  # (seed, layer)
    first = np.array(
        [[model["along"][step][0] for step in ("0", "100")] for models in models_by_arm.values() for model in models]
    )
    assert (first[:, 1].round(1) == 0.9).all() and (first[6:, 0] < 0).all() and (first[:6, 0] > 0).all()
    plus, diff = ends["plus"], ends[DIFF]
    of_first = np.concatenate([plus[:, 0], diff[:, 0]])
    assert np.argwhere(plus < -1e6).tolist() == [[0, 3], [1, 2]]
    adds = np.argwhere(diff[:, 1:] < 0)
    assert set(adds[:, 1]) == {0}
    told = part["tells"].sel(arm="plus").sum("head").argmax("layer").values  # the layer that tells the answer, by seed
    adding = [seed for seed, layer in enumerate(told) if plus[seed, layer] < 0]
    alone, both = (part.sel(arm="plus", seed=seed, layer=3) for seed in (0, 2))
    assert adding == [0, 2] and told[adding].tolist() == [3, 3]
    assert max(abs(float(each["lost_without_signs"])) for each in (alone, both)) < 1e-3
    right, odds = part["exact_match"].mean(("length", "distractors", "prompt")), log_odds_of_runs(part)
    added = dict(arm="plus", seed=[2, 0])
    return (
        f"λ is {first[:, 1].mean():.1f} at step 100 in all {WORDS[len(first)]} models, also in the six that began below 0",
        f"and ends between {fixed(of_first.min(), 2)} and {fixed(of_first.max(), 2)}",
        f"DIFF adds in layer 1 of seeds {listed([str(seed) for seed in adds[:, 0]])}, and `plus` subtracts in "
        f"{int((plus[:, 1:] > 0).sum())} of {plus[:, 1:].size} such layers",
        "In seed 0 (layer 3) and seed 1 (layer 2) of `plus` λ ends below −1,000,000",
        "Two of six `plus` models answer in a layer that adds",
        "in running text two models of six answer in a layer that adds",
        f"seed 2 with both maps (λ is {fixed(plus[2, 3], 2)} in layer 3, "
        f"and A2 costs {fixed(both['lost_without_a2'], 1)} nats there), "
        f"and seed 0 with A2 alone (it costs {fixed(alone['lost_without_a2'], 1)} nats",
        f"They answer {' and '.join(f'{100 * float(share):.0f}' for share in right.sel(added))} % right "
        f"(DIFF: {percent(float(right.sel(arm=DIFF).mean()))}), with log-odds of "
        f"{' and '.join(fixed(value, 1) for value in odds.sel(added))} nats (DIFF: {fixed(odds.sel(arm=DIFF).mean(), 1)})",
        f"in seed 0 of `plus` it is {fixed(part['signal_to_noise_gain'].sel(arm='plus', seed=0), 0)} dB where A2 is added",
    )


def of_planted(part):
    """When planted lookups are found, and how well they are answered."""
    steps, odds = onsets(part), log_odds_of_runs(part)
    limit = float(part["formation_limit"])
    formed_at = {arm: steps.sel(arm=arm) for arm in part["arm"].values}
    ended = part["formation"].sel(arm="standard-norm").notnull()
    lead = {arm: within(odds.sel(arm=DIFF) - odds.sel(arm=arm), 2) for arm in ("plus", "standard-norm")}
    of_standard, about_standard = within(odds.sel(arm=DIFF) - odds.sel(arm="standard"), 2)
    assert not part["formation"].sel(arm="standard").notnull().any()
    apart = odds.sel(arm=DIFF) - odds.sel(arm="standard-norm")
    of_plus, about_plus = within(odds.sel(arm="plus") - odds.sel(arm="standard-norm"), 2)
    assert (limit, bool((formed_at[DIFF] < limit).all())) == (4000, True)
    reached = {arm: f"{float(at.min()):,.0f} to {float(at.max()):,.0f}" for arm, at in formed_at.items()}
    return (
        f"DIFF answers 90 % at step {reached[DIFF]}, `plus` at {reached['plus']}, "
        f"and {count(ended)} of {WORDS[ended.size]} models",
        f"log-odds are {lead['standard-norm'][0]} nats above those of `standard-norm` ({lead['standard-norm'][1]}; "
        f"p by sign flips {sign_flip_test(apart.values):.2f}), "
        f"and not told apart from those of `plus` ({lead['plus'][0]}, {lead['plus'][1]})",
        f"Those of `plus` are {of_plus} above `standard-norm` ({about_plus})",
        f"DIFF − `standard` is {of_standard} nats ({about_standard}), not told apart",
    )


@pytest.fixture(scope="module")
def phrases():
    """Everything that the report says with a number, as its evidence has it."""
    parts = {path.stem: open_statistics(path) for path in sorted((ROOT / EVIDENCE).glob("*.nc"))}
    rates = {name: dict(zip(part["arm"].values.tolist(), part["rate"].values.tolist())) for name, part in parts.items()}
    other = rates["lookup"].pop("standard-norm")
    (rate,) = {rate for of_arms in rates.values() for rate in of_arms.values()}
    sizes = [
        f"| {arms} | {parts[name].sizes['seed']} | {float(parts[name]['parameters'].sel(arm=DIFF)):,.0f} |"
        for name, arms in (("mechanism", "DIFF"), ("sinks", "all six"), ("sinks-tied", "all six"))
    ]
    assert PARTS.keys() == parts.keys()
    assert all(set(recipe_of(name).arms) == set(part["arm"].values.tolist()) for name, part in parts.items())
    return (
        f"its removal costs less than {IDLE:.1f} nats",
        f"were trained at one learning rate, {rate:g}, but those of `standard-norm` in `lookup` ({other:g})",
        *sizes,
        *of_mechanism(parts["mechanism"].sel(arm=DIFF)),
        *of_lookup(parts["lookup"]),
        *of_sinks(parts["sinks"]),
        *of_tied(parts["sinks-tied"], parts["sinks"]),
        *of_text(parts["text"]),
    )


@pytest.fixture(scope="module")
def prose():
    """The report without what is quoted, code and addresses."""
    text = re.sub(r"<!-- \S+ -->.*?<!-- end -->|```.*?```", "", (ROOT / REPORT).read_text(encoding="utf-8"), flags=re.S)
    return re.sub(r"\]\([^)]*\)", "]", text)


def test_the_report_says_what_its_evidence_says(phrases, prose):
    assert not [phrase for phrase in phrases if phrase not in prose]


def test_no_number_of_the_report_is_one_that_nothing_computes(phrases, prose):
    before, _, after = prose.partition("## Corrections")
    rest = before + after.partition("\n## ")[2]
    for phrase in sorted((*phrases, *DESIGN, *FIRST_STUDY, *NAMES), key=len, reverse=True):
        rest = rest.replace(phrase, "")
    rest = re.sub(r"\bA[12]\b", "", rest)
    counts = f"(?:{'|'.join(WORDS)}) of (?:the )?(?:{'|'.join(WORDS[2:])})"
    assert not re.findall(rf".{{0,40}}(?:\d+(?:[.,]\d+)*|{counts}).{{0,20}}", rest, re.I)
