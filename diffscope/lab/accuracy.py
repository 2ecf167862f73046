"""Score how a model answers beside chance: on one set of prompts, prompt by prompt, and over its training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr
from scipy.stats import binomtest

from diffscope.errors import DiffscopeError, PromptError
from diffscope.numbers import counted
from diffscope.prompts.selection import whole_number
from diffscope.scope import Scope, load
from diffscope.stats.intervals import LEVEL, of_share, t_half_width
from diffscope.stats.negative_mass import NEEDED, negative_mass
from diffscope.tasks.log_odds import rivals
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.sampling import DEPTHS, draw
from diffscope.tasks.scoring import answers
from diffscope.tasks.training_sentence import template_of

SEED = 60_000  # of the prompts that are scored over a training
NEEDLES = 4
CHANCE_UNKNOWN = "chance is not known: no prompt names its distractors"


@dataclass(frozen=True)
class Accuracy:
    """How a model answers, beside chance.

    Attributes
    ----------
    model : str
    prompts : int
        Those that are scored.
    left_out : int
        Prompts without distractors, if others have some: they are not scored.
    exact : float
        Share of exact answers.
    chance : float
        Expected share if any number of the text is copied; NaN if no prompt names its distractors.
    p : float
        Probability of as many exact answers or more by chance (binomial).
    log_odds, log_odds_low, log_odds_high : float
        Mean log-odds of the answer over prompts in nats, and its 95 % interval.
    blind : float
        Log-odds of a model that prefers none of the numbers: mean of −log n for n different distractors.
    right : ndarray of bool (prompt,)
        Which answers are exact.
    """

    model: str
    prompts: int
    left_out: int
    exact: float
    chance: float
    p: float
    log_odds: float
    log_odds_low: float
    log_odds_high: float
    blind: float
    right: np.ndarray = field(repr=False)

    def as_dict(self) -> dict:
        """Return what JSON can hold: all but the single prompts."""
        fields = {name: value for name, value in vars(self).items() if name != "right"}
        return {**fields, "at_chance": None if self.too_few else self.at_chance, "sentence": self.sentence}

    @property
    def at_chance(self) -> bool:
        """Whether the share of exact answers is not above chance; False if there are too few prompts to say."""
        return self.p > LEVEL and not self.too_few

    @property
    def too_few(self) -> bool:
        """Whether exact answers to all prompts could be chance too."""
        return self.chance**self.prompts > LEVEL

    @property
    def sentence(self) -> str:
        """Say how the model answers."""
        share = f"{self.exact:.1%} of {counted(self.prompts, 'prompt')} exactly"
        if self.left_out:
            share += f" ({counted(self.left_out, 'prompt')} without distractors left out)"
        if math.isnan(self.chance):
            return f"{self.model} answers {share}; {CHANCE_UNKNOWN}"
        odds = f"log-odds {self.log_odds:.2f} nats, and {self.blind:.2f} if it preferred none of the numbers"
        if self.too_few:
            return f"{self.model} answers {share}; these are too few prompts to tell it from chance ({self.chance:.1%}; {odds})"
        if not self.at_chance:
            return f"{self.model} answers {share} (chance {self.chance:.1%}; {odds})"
        what = "what follows is about attention that does not answer"
        if self.log_odds_low > self.blind:
            what = f"yet it prefers the right number to the others; {what}"
        return f"{self.model} answers at chance ({share}, chance {self.chance:.1%}; {odds}): {what}"


def accuracy_of(scope: Scope, prompts: Sequence[Prompt]) -> Accuracy:
    """Score the answers of a model.

    Parameters
    ----------
    prompts : sequence of Prompt
        Each with an answer. If some name distractors, only those count.
    """
    scored = [prompt for prompt in prompts if prompt.distractors] or prompts
    left_out, prompts = len(prompts) - len(scored), scored
    answered = answers(scope.logits, prompts)
    expected = float(np.mean(chance(prompts)))
    p = blind = math.nan
    if prompts[0].distractors:
        p = float(binomtest(int(answered.right.sum()), len(prompts), expected, alternative="greater").pvalue)
        blind = float(np.mean([-math.log(len(rivals(prompt))) for prompt in prompts]))
    mean, low, high = _mean_interval(answered.log_odds[np.isfinite(answered.log_odds)])
    return Accuracy(
        model=scope.name or "the model",
        prompts=len(prompts),
        left_out=left_out,
        exact=float(answered.right.mean()),
        chance=expected,
        p=p,
        log_odds=mean,
        log_odds_low=low,
        log_odds_high=high,
        blind=blind,
        right=answered.right,
    )


def check_fits(scope: Scope, prompts: Sequence[Prompt]) -> None:
    """Refuse prompts of one's own that a model has no positions for, by name.

    Raises PromptError if a prompt with its answer is too long.
    """
    for prompt in prompts:
        tokens = len(prompt.ids) + max(0, len(prompt.answer) - 1)  # nothing follows the last one
        if scope.max_length is not None and tokens > scope.max_length:
            raise PromptError(
                f"prompt {prompt.city!r} and its answer are {tokens} tokens, and {scope.name} has positions for "
                f"{scope.max_length}; shorten it"
            )


def chance(prompts: Sequence[Prompt]) -> np.ndarray:
    """Return the chance to answer all questions of a prompt by copying any number of its text, (prompt,).

    A number that is named twice counts once, as in log-odds. NaN for a prompt that names no distractors.
    """
    return np.array([(1 + len(rivals(p))) ** -len(p.numbers) if p.distractors else math.nan for p in prompts])


def _mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of values and its 95 % interval by Student's t."""
    mean = float(values.mean()) if len(values) else math.nan
    spread = t_half_width(values.std(ddof=1) / math.sqrt(len(values)), len(values) - 1) if len(values) > 1 else math.nan
    return mean, mean - spread, mean + spread


def exact_by_depth(right: np.ndarray) -> dict:
    """Summarise exact answers: their share with its 95 % interval (Wilson), and the share at each depth.

    Parameters
    ----------
    right : ndarray of bool (prompt,)
        Of prompts in the order of :func:`diffscope.tasks.sampling.draw`.
    """
    return {
        "retrieval": float(right.mean()),
        "interval": list(of_share(int(right.sum()), len(right))),
        "by_depth": {str(depth): float(right[index :: len(DEPTHS)].mean()) for index, depth in enumerate(DEPTHS)},
        "prompts": len(right),
    }


def prompt_by_prompt(scope: Scope, prompts: Sequence[Prompt], progress: Callable[[int, int], None] | None = None) -> list[dict]:
    """Score and measure each prompt by itself, however little it says.

    Parameters
    ----------
    prompts : sequence of Prompt
        With an answer, distractors and spans or without.
    progress : callable, optional
        Called with (prompts done, prompts in all).

    Returns
    -------
    list of dict
        ``prompt``, its name; ``exact``, ``loss`` and ``log_odds`` of the answer; ``on answer``, ``on needles`` and so on, the
        share of |D| that the last query gives to a span, mean over heads, then layers; ``negative on answer`` and so on, the part
        of |D| that negative weights there have, of differential attention. None for what is not known.
    """
    logits = scope.logits
    rows = []
    for index, prompt in enumerate(prompts):
        row: dict = {"prompt": prompt.city, "exact": None, "loss": None, "log_odds": None}
        if prompt.answer:
            answered = answers(logits, [prompt])
            row |= {"exact": bool(answered.right[0]), "loss": float(answered.loss[0])}
            row["log_odds"] = float(answered.log_odds[0]) if prompt.distractors else None
        capture = scope.capture(prompt)
        measured = capture.measure(NEEDED, queries=[-1]).isel(query=0, drop=True)
        masses = {"on": measured["span_mass"].sel(normalisation="share")}
        if capture.differential:
            masses["negative on"] = negative_mass(measured)
        means = {what: mass.sel(map="D").mean("head").mean("layer") for what, mass in masses.items()}
        for name in prompt.spans:
            row |= {f"{what} {name}": float(mean.sel(span=name)) if prompt.spans[name] else None for what, mean in means.items()}
        rows.append(row)
        if progress:
            progress(index + 1, len(prompts))
    return rows


def accuracy_over_training(
    names: Mapping[int, str],
    prompts: int = 50,
    length: int = 160,
    *,
    needles: int = NEEDLES,
    template: str | None = None,
    seed: int = SEED,
    opener: Callable[[str], Scope] = load,
    progress: Callable[[int, int, str], None] | None = None,
) -> xr.Dataset:
    """Score every checkpoint of a training on the same retrieval prompts.

    Raises DiffscopeError if there is no checkpoint, and PromptError if the prompts cannot be drawn or run.

    Parameters
    ----------
    names : mapping of int to str
        The name of each checkpoint by its step, as :func:`diffscope.lab.training.run.checkpoints_of` gives them.
    prompts, length, needles : int
        How many prompts, tokens of each, and needle sentences in each, that of the question included.
    template : str, optional
        The needle sentence; by default the one that the models were trained on.
    seed : int
        Of the prompts.
    opener : callable
        Opens a checkpoint by its name.
    progress : callable, optional
        Called with (checkpoints done, checkpoints in all, words).

    Returns
    -------
    xarray.Dataset (step,)
        ``exact``, the share of exact answers, with ``exact_low`` and ``exact_high``, its 95 % interval (Wilson), and
        ``standard_error`` (binomial); ``log_odds`` of the answer against all distractors in nats, mean over prompts, with
        ``log_odds_low`` and ``log_odds_high``. Attributes ``prompts``, ``length``, ``needles``, ``chance`` (the share that
        copying any number would give) and ``sentence``.
    """
    if not names:
        raise DiffscopeError("there is no checkpoint to score; give names by step, such as {0: 'mini-diff@0', 400: …}")
    for words, value, least in (("prompts are", prompts, 1), ("needles are", needles, 1), ("the seed is", seed, 0)):
        whole_number(value, least, math.inf, f"{words} a whole number from {least}")
    drawn = None
    accuracies = []
    for number, name in enumerate(names.values()):
        if progress:
            progress(number, len(names), f"asking {name}")
        scope = opener(name)
        sentence = template or template_of(scope.model)
        drawn = drawn or draw(Retrieval(scope.tokenizer, held_out=True, template=sentence), prompts, length, needles, seed)
        accuracies.append(accuracy_of(scope, drawn))
    return _by_step(list(names), accuracies).assign_attrs(length=length, needles=needles)


def _by_step(steps: Sequence[int], accuracies: Sequence[Accuracy]) -> xr.Dataset:
    """Return accuracies as labelled columns over steps."""
    low, high = np.transpose([of_share(int(each.right.sum()), len(each.right)) for each in accuracies])
    exact, odds, odds_low, odds_high = np.transpose(
        [(each.exact, each.log_odds, each.log_odds_low, each.log_odds_high) for each in accuracies]
    )
    count = accuracies[0].prompts
    columns = {
        "exact": (exact, "exact answers", "1"),
        "exact_low": (low, "exact answers, lower end of the 95 % interval", "1"),
        "exact_high": (high, "exact answers, upper end of the 95 % interval", "1"),
        "standard_error": (np.sqrt(exact * (1 - exact) / count), "standard error of the share of exact answers", "1"),
        "log_odds": (odds, "log-odds of the answer", "nats"),
        "log_odds_low": (odds_low, "log-odds, lower end of the 95 % interval", "nats"),
        "log_odds_high": (odds_high, "log-odds, upper end of the 95 % interval", "nats"),
    }
    variables = {name: ("step", values, {"long_name": title, "units": units}) for name, (values, title, units) in columns.items()}
    dataset = xr.Dataset(variables, {"step": ("step", list(steps), {"long_name": "step of training", "units": "steps"})})
    about = {"prompts": count, "chance": accuracies[0].chance, "blind": accuracies[0].blind}
    return dataset.assign_attrs(about, sentence=_sentence(dataset, about))


def _sentence(dataset: xr.Dataset, about: Mapping[str, float]) -> str:
    """Say the shares at the first and the last step with their intervals, and chance."""
    ends = [dataset.isel(step=at) for at in ((0, -1) if dataset.sizes["step"] > 1 else (0,))]
    shares = [
        f"{100 * float(end['exact']):.0f} % at step {int(end['step'])} (95 % {100 * float(end['exact_low']):.0f} to "
        f"{100 * float(end['exact_high']):.0f})"
        for end in ends
    ]
    chance = CHANCE_UNKNOWN
    if not math.isnan(about["chance"]):
        chance = f"copying any number of the text would give {100 * about['chance']:.0f} %"
    return f"Of the same {about['prompts']} prompts at every step, exact answers are {' and '.join(shares)}; {chance}."
