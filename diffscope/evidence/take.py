"""Take the evidence of open models: one labelled Dataset a model, in parts that are taken when they are first needed.

Quantities of heads are called LABEL.NAME ("shared_noise.sharing") and are (prompt, layer, head), or (prompt,) of whole models.
Outcomes, what edits cost the answer, have a name alone ("zero") and are (prompt,); NAME_LAYER is the same edit in one layer.
Quantities of untrained models, made like the model, have the prefix ``untrained.`` and the dimension ``untrained``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import xarray as xr

from diffscope.evidence import ablations, costs, maps, signs
from diffscope.evidence.branches import attributed
from diffscope.evidence.gradients import flows
from diffscope.evidence.heads import UNTRAINED
from diffscope.evidence.last_query import LastQuery, read
from diffscope.evidence.noise import SIGMA, injected, log_odds_lost
from diffscope.evidence.quantities import (
    A2_OUT,
    KNOCK_OUT,
    OF_ATTRIBUTION,
    OF_FLOWS,
    OF_INJECTION,
    OF_LAST_QUERY,
    Quantities,
    Read,
    lambda_fit,
    named,
    rank_ratios,
)
from diffscope.evidence.untrained import Match, untrained_like
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt

FEW = 10  # prompts of what takes long: two at each depth
FEWER = 5  # of untrained models, which differ more from each other than with the prompt
ANSWER_HIDDEN = "answer_hidden"
READ_OFF_LAST_QUERY = (*OF_LAST_QUERY, lambda_fit)
Tell = Callable[[int, int, str], None]  # (done, total, words)


@dataclass(frozen=True)
class Part:
    """What is taken of a model in one go.

    Attributes
    ----------
    measure : callable
        From (scope, prompts, match) to variables by name, each (prompt, …), or to what its quantities are read off. `match`, of
        untrained models, is what each layer is made like; see :func:`~diffscope.evidence.untrained.matched`.
    words : str
        What is done, to be shown.
    read : tuple of callable
        Functions of what was measured, each to the quantities of a label, which is its name.
    label : str
        The label of quantities that are measured as they are.
    outcomes : tuple of str
        The names of its outcomes, those of single layers not among them.
    few : bool
        Whether the first few prompts are enough, since it takes long.
    untrained : bool
        Whether its quantities are taken of untrained models too.
    """

    measure: Callable[..., Any]
    words: str
    read: tuple[Read, ...] = ()
    label: str = ""
    outcomes: tuple[str, ...] = ()
    few: bool = True
    untrained: bool = True

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its quantities."""
        return tuple(read.__name__ for read in self.read) or ((self.label,) if self.label else ())

    def take(self, *given: Any) -> Quantities:
        """Return its variables by name, of what :attr:`measure` is given."""
        measured = self.measure(*given)
        return named(self.read, measured) if self.read else dict(measured)


def take_last_query(last_query: LastQuery) -> dict[str, xr.DataArray]:
    """Return every quantity of the answering query, and what its heads count with."""
    layers = {name: last_query.layers[name] for name in ("lam", "lam_init", "lambda_star")}
    return named(READ_OFF_LAST_QUERY, last_query) | layers | {"weight": last_query.answering}


def take_a2_out(scope: Scope, prompts: Sequence[Prompt]) -> dict[str, xr.DataArray]:
    """Return what the answer loses without A2 of each head, and of each layer as an outcome."""
    lost = costs.lost_without_a2(scope, prompts)
    return _by_measure(A2_OUT, lost["of_head"]) | _of_layers("without_a2", lost["layer_together"].sel(measure="loss", drop=True))


def take_signs(scope: Scope, prompts: Sequence[Prompt]) -> dict[str, xr.DataArray]:
    """Return what signs are worth, in all layers and in each."""
    rises = signs.rises_by_signs(scope, prompts)
    outcomes: dict[str, xr.DataArray] = {}
    for name in signs.SIGNS:
        outcomes[f"signs_{name}"] = rises["together"].sel(change=name, drop=True)
        outcomes |= _of_layers(f"signs_{name}", rises["layers"].sel(change=name, drop=True))
    return outcomes


def take_blind(scope: Scope, prompts: Sequence[Prompt]) -> dict[str, xr.DataArray]:
    """Return what the answer loses if a map does not see the token before the number."""
    rises = signs.rises_when_blind(scope, prompts)
    return {f"blind_{name}": rises.sel(blind=name, drop=True) for name in signs.BLINDED}


def take_noise_losses(scope: Scope, prompts: Sequence[Prompt]) -> dict[str, xr.DataArray]:
    """Return what common and opposite noise in all layers cost the answer's log-odds."""
    lost = log_odds_lost(scope, prompts, (SIGMA,), span="irrelevant")["log_odds_lost"].isel(sigma=0, drop=True)
    return {f"lost_{mode}": lost.sel(mode=mode, drop=True) for mode in ("common", "differential")}


def take_hidden_answer(scope: Scope, prompts: Sequence[Prompt]) -> dict[str, xr.DataArray]:
    """Return what the loss rises by if the answer is hidden, in all layers and in each."""
    rises = ablations.hidden_answer_losses(scope, prompts)
    return {ANSWER_HIDDEN: rises["together"]} | _of_layers(ANSWER_HIDDEN, rises["layers"])


LAST_QUERY = "last_query"
STAND_INS = "stand_ins"
#: what the evidence of a model consists of
PARTS = {
    LAST_QUERY: Part(read, "reading", READ_OFF_LAST_QUERY, few=False),
    "flows": Part(flows, "gradients", OF_FLOWS),
    "noise": Part(injected, "injected noise", OF_INJECTION),
    "branches": Part(attributed, "attribution by branches", OF_ATTRIBUTION),
    "ranks": Part(maps.second_map_ranks, "ranks of the second map", (rank_ratios,)),
    "previous": Part(
        lambda *of: _labelled("previous", signs.previous_token_share(*of)), "the token before the number", label="previous"
    ),
    "tails": Part(lambda *of: _labelled("tails", maps.tails(*of)), "outliers", label="tails"),
    "likeness": Part(lambda *of: _labelled("likeness", maps.likeness(*of)), "likeness of heads", label="likeness"),
    "knock_out": Part(
        lambda *of: _by_measure(KNOCK_OUT, costs.lost_without_heads(*of)), "without each head", label=KNOCK_OUT, untrained=False
    ),
    "a2_out": Part(take_a2_out, "without A2 of each head", label=A2_OUT, outcomes=("without_a2",), untrained=False),
    STAND_INS: Part(
        ablations.replacement_losses,
        "a simpler second map",
        outcomes=(*(f"low_{rank}" for rank in ablations.LOW_RANKS), "uniform", "zero", "mean", "distance"),
    ),
    "signs": Part(take_signs, "without signs", outcomes=tuple(f"signs_{name}" for name in signs.SIGNS)),
    "blind": Part(take_blind, "a key hidden from a map", outcomes=tuple(f"blind_{name}" for name in signs.BLINDED)),
    "noise_losses": Part(take_noise_losses, "noise in all layers", outcomes=("lost_common", "lost_differential")),
    "hidden_answer": Part(take_hidden_answer, "the answer hidden", outcomes=(ANSWER_HIDDEN,)),
    "coarse_scores": Part(
        ablations.quantisation_losses,
        "coarse scores",
        outcomes=tuple(f"bits_{bits}" for bits in ablations.BITS),
        few=False,
    ),
    "exact_answers": Part(
        ablations.exact_answers_without_heads, "exact answers without each head", outcomes=("mean_head", "worst_head"), few=False
    ),
}
PART_OF_LABEL = {label: name for name, part in PARTS.items() for label in part.labels}
PART_OF_OUTCOME = {outcome: name for name, part in PARTS.items() for outcome in part.outcomes}


def part_of_outcome(name: str) -> str | None:
    """Return the part that an outcome is of, NAME or NAME_LAYER; None if there is no such outcome."""
    whole, _, layer = name.rpartition("_")
    return PART_OF_OUTCOME.get(name) or (PART_OF_OUTCOME.get(whole) if layer.isdecimal() else None)


@dataclass
class OpenModels:
    """Open models of one kind, from which the parts of their evidence are taken.

    Attributes
    ----------
    scopes : sequence of Scope
    prompts_of : callable
        Gives the prompts, the same for all models.
    others : callable
        From a Scope and its prompts to the token ids of other prompts with their answers, for replacements of A2.
    untrained : int
        Models of random weights; they are made like the trained ones in turn.
    seed : int
        Of the first of them.
    series : bool
        Whether the models are the checkpoints of one training. Then the statistics of the last query are of another untrained
        model at each step, since how much two maps are alike by chance changes as weights do; other parts are of one untrained
        model for all steps, since what is peculiar to a model does not average out over steps.
    tell : callable, optional
        Called with (done, total, words).
    """

    scopes: Sequence[Scope]
    prompts_of: Callable[[], Sequence[Prompt]]
    others: Callable[[Scope, Sequence[Prompt]], Sequence[Sequence[int]]] = lambda scope, prompts: ()
    untrained: int = 0
    seed: int = 0
    series: bool = False
    tell: Tell | None = None
    _matches: dict[int, list[Match]] = field(default_factory=dict, repr=False)

    parts = frozenset(PARTS)

    @cached_property
    def prompts(self) -> Sequence[Prompt]:
        """The prompts of all models, which have one vocabulary."""
        return self.prompts_of()

    @property
    def few(self) -> Sequence[Prompt]:
        """The first prompts, two at each depth: for what takes long."""
        return self.prompts[:FEW]

    def take(self, part: str, number: int) -> xr.Dataset:
        """Take a part of one model.

        Parameters
        ----------
        part : str
            A name of ``PARTS``.
        number : int
            Of the model.

        Returns
        -------
        Dataset
            With the dimension ``prompt``, or ``few`` of what takes long. Of the last query with the attributes of the model.
        """
        scope = self.scopes[number]
        kind = PARTS[part]
        self._tell(number, len(self.scopes), f"{scope.name}: {kind.words}")
        if part == LAST_QUERY:
            last_query = read(scope, self.prompts, progress=partial(self._read, f"reading {scope.name}"))
            self._matches[number] = last_query.matches
            return evidence_of(last_query, self.prompts)
        prompts = self.few if kind.few else self.prompts
        if part == STAND_INS:
            return dataset_of(kind.take(scope, prompts, self.others(scope, prompts)), "few")
        return dataset_of(kind.take(scope, prompts), "few" if kind.few else "prompt")

    def take_untrained(self, part: str, number: int) -> xr.Dataset:
        """Take a part of the untrained models that are made like one model, (untrained, prompt, …), with the prefix.

        Parameters
        ----------
        part, number
            As of :meth:`take`. The last query of the model has to be taken before.

        Returns
        -------
        Dataset
            With the dimensions ``untrained`` and ``prompt``, or ``fewer`` of what takes long.
        """
        first = self.scopes[0]
        kind = PARTS[part]
        tables = []
        for index in range(number, self.untrained, len(self.scopes)):
            shared = self.series and part != LAST_QUERY
            model = untrained_like(first.model, self.seed + index - (number if shared else 0))
            scope = Scope(model, first.tokenizer, f"untrained {index}", first.family)
            words = f"untrained model {index + 1} of {self.untrained}"
            if part == LAST_QUERY:
                taken = take_last_query(read(scope, self.prompts, self._matches[number], partial(self._read, words)))
            else:
                self._tell(index, self.untrained, f"{kind.words}, untrained")
                taken = kind.take(scope, self.few[:FEWER], self._matches[number])
            tables.append(dataset_of(taken, "fewer" if kind.few else "prompt"))
        return as_untrained(tables)

    def _read(self, words: str, done: int, total: int) -> None:
        self._tell(done, total, words)

    def _tell(self, done: int, total: int, words: str) -> None:
        if self.tell:
            self.tell(done, total, words)


def evidence_of(last_query: LastQuery, prompts: Sequence[Prompt], **more: Mapping[str, xr.DataArray]) -> xr.Dataset:
    """Return the evidence of a model from what was measured of it already.

    Parameters
    ----------
    prompts : sequence of Prompt
        That it was measured on.
    **more : mapping of str to DataArray (prompt, …)
        Other parts, by LABEL.NAME, of as many prompts or all of as many fewer.
    """
    evidence = dataset_of(take_last_query(last_query), "prompt")
    for variables in more.values():
        count = next(iter(variables.values())).sizes["prompt"]
        evidence = evidence.assign(dataset_of(variables, "prompt" if count == len(prompts) else "few").data_vars)
    return evidence.assign_attrs(
        differential=int(last_query.differential),
        extras=last_query.extras,
        prompts=_prompts_key(prompts),
    )


def as_untrained(evidence: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return the evidence of untrained models as that of the model that they are made like holds it."""
    if not evidence:
        return xr.Dataset()
    together = xr.concat([of.rename({"few": "fewer"}) if "few" in of.dims else of for of in evidence], "untrained")
    return together.rename({name: f"{UNTRAINED}{name}" for name in together.data_vars}).drop_attrs()


def dataset_of(variables: Mapping[str, xr.DataArray], prompt: str) -> xr.Dataset:
    """Return variables as a Dataset without coordinates, whose dimension ``prompt`` has another name."""
    tables = {
        name: ([prompt if dim == "prompt" else dim for dim in array.dims], array.values) for name, array in variables.items()
    }
    return xr.Dataset(tables)


def _prompts_key(prompts: Sequence[Prompt]) -> str:
    """Return what tells prompts from others: a digest of their tokens."""
    return hashlib.sha256(json.dumps([list(map(int, prompt.ids)) for prompt in prompts]).encode()).hexdigest()


def _labelled(label: str, table: xr.Dataset) -> dict[str, xr.DataArray]:
    return {f"{label}.{name}": array for name, array in table.data_vars.items()}


def _by_measure(label: str, lost: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return what is lost, (prompt, layer, head), by LABEL.MEASURE."""
    return {
        f"{label}.{name}": lost.sel(measure=name, drop=True).transpose("prompt", "layer", "head")
        for name in lost["measure"].values
    }


def _of_layers(name: str, values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return an outcome of each layer, (prompt,), by NAME_LAYER."""
    return {f"{name}_{layer}": values.isel(layer=layer, drop=True) for layer in range(values.sizes["layer"])}
