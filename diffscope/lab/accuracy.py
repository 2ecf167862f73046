"""Does a model answer better than chance? What it answers, beside what copying any number of the text would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.stats import binomtest, t

from diffscope.errors import PromptError
from diffscope.lab.scoring import answers
from diffscope.scope import Scope
from diffscope.stats.negative_mass import NEEDED, negative_mass
from diffscope.tasks.log_odds import Logits
from diffscope.tasks.retrieval import Prompt

LEVEL = 0.05
TOKENS = 8192  # that run together


def logits_of(scope: Scope) -> Logits:
    """The logits of a model's last tokens, as :func:`diffscope.lab.scoring.answers` takes them."""

    def logits(ids: torch.Tensor, width: int) -> torch.Tensor:
        length = ids.shape[1]
        vocabulary = scope.runner.vocabulary
        if scope.positions is not None and length > scope.positions:
            raise PromptError(
                f"a prompt with its answer has {length} tokens, but {scope.name} has positions for {scope.positions}"
            )
        if vocabulary is not None and int(ids.max()) >= vocabulary:
            raise PromptError(
                f"token id {int(ids.max())} is outside the vocabulary of {scope.name}, {vocabulary}; use its tokenizer"
            )
        with scope.running((length,) * len(ids)):
            return scope.runner.logits(ids, torch.ones_like(ids), columns=range(length - width, length))

    return logits


def chance(prompts: Sequence[Prompt]) -> np.ndarray:
    """Share of exact answers of who copies any number of the text, for each question anew, (prompt,); NaN if unknown."""
    return np.array([(1 + len(p.distractors)) ** -len(p.numbers) if p.distractors else math.nan for p in prompts])


@dataclass(frozen=True)
class Standing:
    """How a model answers, beside chance.

    Attributes
    ----------
    model : str
    prompts : int
    exact : float
        Share of exact answers.
    chance : float
        The same of who copies any number of the text; NaN where no distractors are named.
    p : float
        Of as many exact answers or more by that chance (binomial).
    log_odds, log_odds_low, log_odds_high : float
        Mean of :func:`log_odds` and its 95 % interval over prompts.
    blind : float
        Mean of −log n, n distractors: the log-odds of who prefers none of the numbers.
    right : ndarray of bool (prompt,)
        Which answers are exact.
    """

    model: str
    prompts: int
    exact: float
    chance: float
    p: float
    log_odds: float
    log_odds_low: float
    log_odds_high: float
    blind: float
    right: np.ndarray = field(repr=False)

    def as_dict(self) -> dict:
        """Ready for JSON, without the single prompts."""
        fields = {name: value for name, value in vars(self).items() if name != "right"}
        return {**fields, "at_chance": self.at_chance, "sentence": self.sentence}

    @property
    def at_chance(self) -> bool:
        """Whether it gives no more exact answers than who copies any number."""
        return self.p > LEVEL

    @property
    def sentence(self) -> str:
        """In words."""
        if math.isnan(self.chance):
            return (
                f"{self.model} answers {self.exact:.1%} of {self.prompts} prompts exactly; chance is not known: no prompt names "
                "its distractors"
            )
        odds = f"log-odds {self.log_odds:.2f} nats, {self.blind:.2f} for who prefers none of the numbers"
        if not self.at_chance:
            return f"{self.model} answers {self.exact:.1%} of {self.prompts} prompts exactly (chance {self.chance:.1%}; {odds})"
        what = "what follows is about attention that does not answer"
        if self.log_odds_low > self.blind:
            what = f"yet it prefers the right number to the others; {what}"
        return f"{self.model} answers at chance ({self.exact:.1%} exact, chance {self.chance:.1%}; {odds}): {what}"


def standing(scope: Scope, prompts: Sequence[Prompt]) -> Standing:
    """How a model answers prompts, each of which has an answer; those that name distractors, if any do."""
    prompts = [prompt for prompt in prompts if prompt.distractors] or prompts
    answered = answers(logits_of(scope), prompts, scope.runner.device, TOKENS)
    odds = answered.log_odds[np.isfinite(answered.log_odds)]
    expected = float(np.mean(chance(prompts)))
    p = math.nan
    if prompts[0].distractors:
        p = float(binomtest(int(answered.right.sum()), len(prompts), expected, alternative="greater").pvalue)
    mean = float(odds.mean()) if len(odds) else math.nan
    spread = float(t.ppf(0.975, len(odds) - 1) * odds.std(ddof=1) / math.sqrt(len(odds))) if len(odds) > 1 else math.nan
    return Standing(
        model=scope.name or "the model",
        prompts=len(prompts),
        exact=float(answered.right.mean()),
        chance=expected,
        p=p,
        log_odds=mean,
        log_odds_low=mean - spread,
        log_odds_high=mean + spread,
        blind=float(np.mean([-math.log(len(prompt.distractors)) for prompt in prompts])) if prompts[0].distractors else math.nan,
        right=answered.right,
    )


def of_each(scope: Scope, prompts: Sequence[Prompt], progress: Callable[[int, int], None] | None = None) -> list[dict]:
    """Of each prompt by itself what is known; None for what is not.

    Returns
    -------
    list of dict
        ``prompt`` its name, ``exact``, ``loss`` and ``log_odds`` of the answer; ``on answer``, ``on needles`` and so on: the
        share of |D| that the last query gives to a span, mean over heads, then layers; ``negative on answer`` and so on: the part
        of |D| that negative weights there have, of differential attention.
    """
    logits = logits_of(scope)
    rows = []
    for index, prompt in enumerate(prompts):
        row: dict = {"prompt": prompt.city, "exact": None, "loss": None, "log_odds": None}
        if prompt.answer:
            answered = answers(logits, [prompt], scope.runner.device)
            row |= {"exact": bool(answered.right[0]), "loss": float(answered.loss[0])}
            row["log_odds"] = float(answered.log_odds[0]) if prompt.distractors else None
        spans = {name: positions for name, positions in prompt.spans.items() if positions}
        capture = scope.capture(prompt.ids, spans=spans)
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
