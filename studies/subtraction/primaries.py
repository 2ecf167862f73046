"""The primary tests of the study, as they were declared before any of its runs was read.

Each part has primaries of its own, with a correction of its own: in the lookup and of the sinks Holm's over all of them, of the
language models a fixed order, in which a primary is tested only if those before it were detected. All of them are read off one
dataset of the part over (arm, seed), which :mod:`studies.subtraction.evidence` puts together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr
from scipy import stats

from diffscope.errors import Missing
from diffscope.hypotheses import cohort
from diffscope.hypotheses.cohort import measured, of_arm
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Quantity, Test
from diffscope.hypotheses.statistics import Estimate, Sample
from diffscope.hypotheses.tests import declare
from diffscope.lab.training.onsets import AVERAGED

NATS = 0.5  # of log-odds: odds by two thirds
OCTAVES = 0.15  # of steps
TEXT = 0.02  # nats a token
DECIBELS = 3.0
NO_GAIN = 1.0  # dB
SHARE, AHEAD = 0.5, 0.3  # of A2's weight on the token before the number, and by how much it is ahead of A1's there
SOURCE = "an independent reading of the first study, whose headline was measured where the second map is idle"
GUO = "Active-Dormant Attention Heads (Guo et al., arXiv 2410.13835)"
SAME = ("same data, order and initial weights where tensors are alike, parameters within 1 %",)
LAST = "the answering query; heads that tell the answer, weighted by what taking out their second map costs it"
GAINS = {"gain": "signal_to_noise_gain", "over_uniform": "gain_over_uniform", "first_ahead": "snr_first_ahead"}
WHOLE = "the whole model: nothing is looked at inside heads"


@dataclass(frozen=True)
class Part:
    """A part of the study.

    Attributes
    ----------
    tests : tuple of Test
        Its primaries, in the order in which they are tested.
    seeds : int
    correction : {"none", "Holm", "in order"}
        "in order": each at 0.05, and only if those before it were detected.
    may_come_later : tuple of str
        Arms that no primary compares: the primaries may be read before such an arm is trained.
    """

    tests: tuple[Test, ...]
    seeds: int
    correction: Literal["none", "Holm", "in order"]
    may_come_later: tuple[str, ...] = ()


def differences(part: xr.Dataset, values: xr.DataArray, arm: str, other: str) -> Sample:
    """One arm minus another, seed by seed, of values (arm, seed).

    Raises
    ------
    Missing
        Fewer than two seeds have both.
    """
    left, right = of_arm(values, arm), of_arm(values, other)
    places = np.flatnonzero(np.isfinite((left - right).values))
    return _over_seeds(part, (left - right).values, places)


def _over_seeds(part: xr.Dataset, values: np.ndarray, places: np.ndarray) -> Sample:
    if len(places) < 2:
        raise Missing("two seeds at least that have a value")
    seeds = part["seed"].values
    without = [str(seed) for place, seed in enumerate(seeds) if place not in places]
    note = f"without a value: seed {', '.join(without)}" if without else ""
    return Sample(values[places, None], prompts="nested", seeds=tuple(int(seed) for seed in seeds[places]), note=note)


@declare(
    id="previous-token-subtracted",
    kind="primary",
    question="Does the second map of the first layer attend to the token before the number, so that its content is subtracted?",
    asks={"seeds": ABOVE},
    source=SOURCE,
    statistic=f"seeds in which a head of layer 0 has A2 ≥ {SHARE:g} on the token before the number, and ≥ {AHEAD:g} more "
    "there than A1; p by the sign test",
    controls=("A1 of the same head",),
    quantities={"seeds": Quantity("share of seeds in which it does", 0.5)},
    predictions={"SH": {"seeds": ABOVE}},
    needs="cohort",
    of="heads of layer 0; the queries of the number's first token",
    limits="Borne out only if it is so in every seed. It says where A2 looks; what that costs is measured beside it.",
)
def previous_token_subtracted(part: xr.Dataset) -> dict[str, Estimate]:
    """Seeds in which a head of layer 0 attends to the token before the number with A2."""
    a2, a1 = (of_arm(measured(part, f"previous_token_{name}"), "diff").sel(layer=0) for name in ("a2", "a1"))  # (seed, head)
    trained = np.isfinite(a2).all("head").values  # (seed,)
    attends = ((a2 >= SHARE) & (a2 - a1 >= AHEAD)).any("head").values
    return {"seeds": share_of_seeds(attends[trained])}


def share_of_seeds(holds: np.ndarray) -> Estimate:
    """Estimate the share of seeds in which a statement holds, with its exact interval, and p against one half (two-sided).

    Parameters
    ----------
    holds : ndarray (seed,), bool
    """
    if len(holds) < 2:
        raise Missing("two seeds at least that have a value")
    test = stats.binomtest(int(holds.sum()), len(holds))
    interval = test.proportion_ci()
    numbers = dict(value=float(holds.mean()), low=float(interval.low), high=float(interval.high), null_low=0.5, null_high=0.5)
    counts = dict(prompts=1, seeds=len(holds), untrained=0)
    return Estimate(**numbers, p=float(test.pvalue), **counts, method="sign test", interval="of the share (Clopper–Pearson)")


def _lookup(other: str, words: str, statistic: str, predictions: Mapping[str, Mapping[str, str]], name: str, limits: str) -> Test:
    @declare(
        id=name,
        kind="primary",
        question=f"Does DIFF tell the answer better than {words}?",
        asks={"difference": ABOVE},
        source=SOURCE,
        statistic=f"{statistic}; DIFF − {words}, paired by seed",
        controls=SAME,
        quantities={"difference": Quantity(f"log-odds, DIFF − {words} (nats)", NATS)},
        predictions=predictions,
        needs="cohort",
        of=WHOLE,
        limits=limits,
    )
    def observe(part: xr.Dataset) -> dict[str, Sample]:
        """Log-odds of DIFF minus those of another arm, seed by seed."""
        return {"difference": differences(part, log_odds_of_runs(part), "diff", other)}

    return observe


def log_odds_of_runs(part: xr.Dataset) -> xr.DataArray:
    """Log-odds of the answer, mean over prompts and the cells of the grid, (arm, seed), nats."""
    return log_odds_in_cells(part).mean(("length", "distractors"))


def log_odds_in_cells(part: xr.Dataset) -> xr.DataArray:
    """Log-odds of the answer, mean over prompts, (arm, seed, length, distractors), nats: of every run that was scored."""
    return measured(part, "log_odds").astype(float).mean("prompt")


ALL_ABOVE = {account: {"difference": ABOVE} for account in ("NC", "SP", "SH")}
ALL_BELOW = {account: {"difference": BELOW} for account in ("NC", "SP", "SH")}
SIGN_ABOVE = {"NC": {"difference": NONE}, "SP": {"difference": NONE}, "SH": {"difference": ABOVE}}
ODDS = "log-odds of the answer against all distractors (nats), mean over the grid"
EVERY = "All three accounts predict it: it can speak against them, and for none of them alone."


@declare(
    id="onset-of-the-lookup",
    kind="primary",
    question="Does the lookup arise earlier if the second map is subtracted than if it is added?",
    asks={"difference": BELOW},
    source=SOURCE,
    statistic="log2 of the step at which the mean of three evaluations first reaches 90 % (a run that never does counts with the "
    "last step of the stage that it has to do so in); DIFF − plus, paired by seed",
    controls=SAME,
    quantities={"difference": Quantity("onset, DIFF − plus (octaves)", OCTAVES)},
    predictions=ALL_BELOW,
    needs="cohort",
    of=WHOLE,
    limits=EVERY,
)
def onset_of_the_lookup(part: xr.Dataset) -> dict[str, Sample]:
    """Octaves between the onsets of DIFF and plus, seed by seed."""
    return {"difference": differences(part, np.log2(onsets(part)), "diff", "plus")}


def onsets(part: xr.Dataset) -> xr.DataArray:
    """Onset of each run, (arm, seed), in steps: of one that has none, or that diverged before it, the most that there are.

    NaN where a run is missing.
    """
    limit = float(measured(part, "formation_limit"))
    return cohort.onsets(part, AVERAGED).clip(max=limit)


def _loss_of_text(other: str, words: str, question: str, name: str) -> Test:
    @declare(
        id=name,
        kind="primary",
        question=question,
        asks={"difference": BELOW},
        source=SOURCE,
        statistic=f"mean loss on held-out documents (nats a token), the same windows for all runs; DIFF − {words}, by seed",
        controls=SAME,
        quantities={"difference": Quantity(f"held-out loss, DIFF − {words} (nats)", TEXT)},
        predictions=ALL_BELOW,
        needs="cohort",
        of=WHOLE,
        limits=EVERY,
    )
    def observe(part: xr.Dataset) -> dict[str, Sample]:
        """Held-out loss of DIFF minus that of another arm, seed by seed."""
        return {"difference": differences(part, held_out_loss(part), "diff", other)}

    return observe


LOSS_OF_PLUS = _loss_of_text(
    "plus",
    "plus",
    "Is the loss on held-out text lower if the second map is subtracted than if it is added?",
    "loss-of-text-plus",
)
LOSS_OF_NORM = _loss_of_text(
    "standard-norm",
    "standard + norm",
    "Is the loss on held-out text lower than that of standard attention with DIFF's norm?",
    "loss-of-text-norm",
)


def held_out_loss(part: xr.Dataset) -> xr.DataArray:
    """Mean loss on held-out text, (arm, seed), nats a token."""
    return measured(part, "text").sel(token="all", drop=True).astype(float)


def _gain(name: str, where: str) -> Test:
    @declare(
        id=name,
        kind="primary",
        question=f"Does the subtraction raise the signal above the noise {where}?",
        asks={"gain": ABOVE},
        source="Differential Transformer (Ye et al., 2024): differential amplifiers",
        statistic="variance of a head's output that comes of exchanging the answer, over that of exchanging the filler; of D·V "
        "minus of A1·V (dB), before the norm",
        controls=("A1·V of the same head", "a uniform A2 in the place of the learned one"),
        quantities={
            "gain": Quantity("signal-to-noise gain of the subtraction (dB)", DECIBELS, within=NO_GAIN),
            "over_uniform": Quantity("gain above that with a uniform A2 (dB)", NO_GAIN),
            "first_ahead": Quantity("signal-to-noise ratio of A1·V minus that of λA2·V (dB)", NO_GAIN),
        },
        predictions={"NC": dict.fromkeys(("gain", "over_uniform", "first_ahead"), ABOVE)},
        needs="cohort",
        of=LAST,
        inside=True,
        limits="A gain alone bears out nothing: signed heads gain more than an amplifier, and a flat pedestal gains as much with "
        "a uniform A2.",
    )
    def observe(part: xr.Dataset) -> dict[str, Sample]:
        """Gain of DIFF's subtraction, seed by seed, and its two controls."""
        values = {name: of_arm(measured(part, variable), "diff").values.astype(float) for name, variable in GAINS.items()}
        places = np.flatnonzero(np.isfinite(list(values.values())).all(0))
        return {name: _over_seeds(part, of, places) for name, of in values.items()}

    return observe


def _copies(other: str, words: str, predictions: Mapping[str, Mapping[str, str]], name: str, limits: str) -> Test:
    @declare(
        id=name,
        kind="primary",
        question=f"Does DIFF copy better than the same model {words}?",
        asks={"difference": ABOVE},
        source=GUO,
        statistic=f"log-odds of the copied token against all others (nats), mean over triggers; DIFF − {other}, paired by seed",
        controls=SAME,
        quantities={"difference": Quantity(f"log-odds of the copy, DIFF − {other} (nats)", NATS)},
        predictions=predictions,
        needs="cohort",
        of=WHOLE,
        limits=limits,
    )
    def observe(part: xr.Dataset) -> dict[str, Sample]:
        """Log-odds of the copy of DIFF minus those of another arm, seed by seed."""
        return {"difference": differences(part, measured(part, "copy_log_odds"), "diff", other)}

    return observe


def _sinks(ending: str, where: str) -> tuple[Test, ...]:
    """Declare the primaries of a training on copies; `ending` tells the two trainings apart."""
    return (
        _gain(f"gain-at-triggers{ending}", where),
        _copies("d-plus", "whose negative weights are set to 0", SIGN_ABOVE, f"copies-without-signs{ending}", ""),
        _copies("plus", "that adds its second map", ALL_ABOVE, f"copies-plus{ending}", EVERY),
    )


PARTS: dict[str, Part] = {
    "mechanism": Part((previous_token_subtracted,), 8, "none"),
    "lookup": Part(
        (
            onset_of_the_lookup,
            _lookup("plus", "the same model that adds its second map", ODDS, ALL_ABOVE, "lookup-plus", EVERY),
            _lookup("d-plus", "the same model whose negative weights are 0", ODDS, SIGN_ABOVE, "lookup-without-signs", ""),
            _lookup("standard-norm", "standard attention with DIFF's norm", ODDS, ALL_ABOVE, "lookup-norm", EVERY),
        ),
        8,
        "Holm",
        may_come_later=("shared-a2",),
    ),
    "text": Part(
        (LOSS_OF_PLUS, LOSS_OF_NORM, _gain("gain-in-text", "in running text")), 6, "in order", may_come_later=("standard",)
    ),
    "sinks": Part(_sinks("", "at triggers, where the first map has a sink at all other queries"), 12, "Holm"),
    # The same questions of a training whose sinks are weaker and in both maps: a replication, corrected by itself.
    "sinks-tied": Part(_sinks("-tied", "at triggers, where both maps have weak sinks"), 12, "Holm"),
}


def by_id(ids: Sequence[str] = ()) -> dict[str, Test]:
    """Return the primaries of all parts by id, or some of them."""
    tests = {test.id: test for part in PARTS.values() for test in part.tests}
    return {id: tests[id] for id in ids} if ids else tests
