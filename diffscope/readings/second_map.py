"""Where the second map is needed for an answer: in which layer, in which head of it, and at which token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from diffscope.edits import Edit, knock_out, set_lambda
from diffscope.errors import UnsupportedModel
from diffscope.numbers import NAMED, between, head_name, numbered, percent
from diffscope.readings.edit_costs import check_unedited, questions
from diffscope.readings.reading import Reading, described
from diffscope.scope import Scope
from diffscope.scope.answers import score_answers
from diffscope.scope.heads import heads_by_layer
from diffscope.tasks import Prompt, TextPrompt

GIVEN = 0.1  # the answer's probability from which the model gives it
KEPT = 0.5  # of the answer's probability: if no more is left without an A2, the answer needs it
ALIKE = 0.02  # a change of the answer's probability up to which it is about the same
PROBABILITY = "product over the answer's tokens of p(token | the prompt and the tokens before)"


def where_a2_works(scope: Scope, prompt: TextPrompt | Prompt, *, progress: Callable[[int, int], object] | None = None) -> Reading:
    """Find the layer, the head and the token whose second map the answer needs, with the other layers as the control.

    The answer needs the A2 of a layer if its probability, which has to be 0.1 or more, falls by half or more when λ is 0 in
    this layer alone. Of the layers whose A2 is needed the one that costs most is asked further: each head alone, and of the
    head that costs most one token of the prompt; rows of the answer's own tokens are not searched. That token is found by
    halving: A2 is taken out of half of the head's rows, the half that costs more is halved again, until one row is left. So it
    is a token that costs what is said, and not always the one that costs most.

    Parameters
    ----------
    scope : Scope
        Of a model that predicts tokens.
    prompt : TextPrompt or Prompt
        Of ``diffscope.tasks``, with an answer.
    progress : callable, optional
        Called with (runs done, runs in all) before the first and after each; what it raises ends the reading. The runs in all
        are those of a prompt whose answer needs an A2; others take fewer.

    Returns
    -------
    Reading
        ``estimates`` are probabilities of the answer: ``unedited``, ``without_layer`` (layer) with λ = 0 in one layer,
        ``without_any`` with λ = 0 in all. If a layer's A2 is needed, also ``without_head`` (head) with λ = 0 in one head of
        the layer that costs most, which the attribute ``layer`` names. If a head's A2 is needed, the attribute ``head`` names
        the one that costs most, and ``without_token`` is the probability without its A2 at the one token ``query``; the
        attribute ``query`` is there if this token's A2 is needed, too.

    Raises
    ------
    PromptError
        The prompt has no answer or does not fit the model.
    UnsupportedModel
        The model predicts no tokens, or no layer has a second map.
    DiffscopeError
        Edits are on already, inside a block of ``scope.edit``.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import readings, tasks
    >>> reading = readings.where_a2_works(diffscope.load("mini-diff"), tasks.examples()[0])
    >>> print(reading.sentence.partition(";")[0])
    Without the A2 of layer 0 the answer's probability is under 1 % instead of over 99 %
    """
    check_unedited(scope)
    (asked,) = questions(scope, [prompt])
    heads = heads_by_layer(scope, asked.ids, with_a2=True)
    if not heads:
        raise UnsupportedModel(f"{scope.name} has no second map in any layer, so none can be needed; choose a differential model")
    tell, total, done = progress or (lambda done, total: None), runs(heads, len(asked.ids)), 0
    tell(done, total)

    def answered(*edits: Edit) -> float:
        nonlocal done
        with scope.edit(*edits):
            value = math.exp(score_answers(scope, [asked])["log_p"][0])
        done += 1
        tell(done, total)
        return value

    layers = list(heads)
    unedited = answered()
    without_layer = np.array([answered(set_lambda(0.0, layers=layer)) for layer in layers])  # (layer,)
    values: dict[str, xr.DataArray] = {
        "unedited": _probability(unedited, "as the model is"),
        "without_layer": _probability(xr.DataArray(without_layer, {"layer": layers}), "with λ = 0 in one layer"),
        "without_any": _probability(answered(set_lambda(0.0, layers=layers)), "with λ = 0 in all layers"),
    }
    place: dict[str, int] = {}
    if needs(unedited, without_layer.min()):
        place["layer"] = layer = layers[int(without_layer.argmin())]
        one_head = np.array([answered(set_lambda(0.0, layers=layer, heads=head)) for head in range(heads[layer])])  # (head,)
        values["without_head"] = _probability(xr.DataArray(one_head, {"head": range(len(one_head))}), "with λ = 0 in one head")
        if needs(unedited, one_head.min()):
            place["head"] = head = int(one_head.argmin())
            query, one_token = _costly_token(answered, len(asked.ids), layer, head)
            at_token = xr.DataArray(one_token, {"query": query})
            values["without_token"] = _probability(at_token, "without the A2 of one head at one token")
            if needs(unedited, one_token):
                place["query"] = query
    estimates = xr.Dataset(values, attrs={"model": scope.name, **place})
    return Reading(" ".join(filter(None, (layers_sentence(estimates), place_sentence(estimates)))), estimates)


def runs(heads: Mapping[int, int], tokens: int) -> int:
    """Return how often the model runs, at most: without each layer's A2, without that of each head of one, and by halving."""
    return 3 + len(heads) + max(heads.values()) + 2 * math.ceil(math.log2(tokens))


def _costly_token(answered: Callable[..., float], tokens: int, layer: int, head: int) -> tuple[int, float]:
    """Find one token without whose row of A2 the answer is lost, by halving; return it with the answer's probability."""

    def without(start: int, stop: int) -> float:
        # a row of A2 that sees no key is zeros
        return answered(knock_out(range(tokens), range(start, stop), branch=2, layers=layer, heads=head))

    start, stop, value = 0, tokens, without(0, tokens)
    while stop - start > 1:
        middle = (start + stop) // 2
        halves = {(start, middle): without(start, middle), (middle, stop): without(middle, stop)}
        (start, stop), value = min(halves.items(), key=lambda half: half[1])
    return start, value


def _probability(values: xr.DataArray | float, edited: str) -> xr.DataArray:
    return described(xr.DataArray(values), f"probability of the answer {edited}", f"{PROBABILITY}, {edited}")


def needs(before: float, without: Any) -> Any:
    """Return whether an answer of this probability needs an A2, by its probability without it: one value or an array."""
    return (before >= GIVEN) & (without <= KEPT * before)


def does_without(before: float, without: Any) -> Any:
    """Return whether an answer's probability without an A2 is about the same: one value or an array."""
    return abs(without - before) <= ALIKE


def layers_sentence(estimates: xr.Dataset) -> str:
    """Say of which layers the answer needs the A2, beside what it is without that of the others."""
    before, without = float(estimates["unedited"]), estimates["without_layer"]
    needed = needs(before, without)
    if needed.any():
        start = f"Without the A2 of {_any_of(without[needed])} the answer's probability is {_amount(without[needed])}"
        return f"{start} instead of {percent(before)}; {_others(estimates, without[~needed])}."
    one_by_one = _beside(before, without, mentioned=False)
    if before < GIVEN:
        start = f"The model does not give the answer ({percent(before)}), so there is nothing that it could need A2 for"
        return f"{start}; {one_by_one}."
    start = f"No layer alone needs its A2 for the answer: its probability is {percent(before)}"
    whole = f"; without any A2 it is {percent(float(estimates['without_any']))}" if without.size > 1 else ""
    return f"{start}; {one_by_one}{whole}."


def _others(estimates: xr.Dataset, others: xr.DataArray) -> str:
    """Say what the answer's probability is without the A2 of layers that do not need it."""
    if others.size:
        return _beside(float(estimates["unedited"]), others, mentioned=True)
    return "no other layer has an A2" if estimates["layer"].size == 1 else "there is no layer that does without"


def _beside(before: float, without: xr.DataArray, *, mentioned: bool) -> str:
    """Say without the A2 of which layers the answer's probability is lower, higher, alike; others may be mentioned before."""
    alike = does_without(before, without)
    groups = {"lower": ~alike & (without < before), "higher": ~alike & (without > before), "about the same": alike}
    said: list[str] = []
    for word, members in groups.items():
        if not members.any():
            continue
        others = mentioned and word == "about the same" and members.sum() > NAMED  # all that are left
        amount, which = _amount(without[members]), "any other layer" if others else _any_of(without[members])
        same = f"still {amount}" if amount == percent(before) else f"{word} ({amount})"
        said.append(f"without {'that' if mentioned else 'the A2'} of {which} it is {same}")
        mentioned = True
    return "; ".join(said)


def place_sentence(estimates: xr.Dataset) -> str:
    """Say of which head of the layer that costs most the A2 is needed, and at which token; nothing if no layer's is."""
    if "layer" not in estimates.attrs:
        return ""
    layer, heads = estimates.attrs["layer"], estimates["without_head"]
    name, alone = head_name(layer, int(heads.values.argmin())), percent(float(heads.min()))
    start = f"Without the A2 of {name} alone the answer's probability is {alone}"
    if "head" not in estimates.attrs:
        return f"No head of layer {layer} alone needs its A2. {start}."
    if "query" not in estimates.attrs:
        return f"{start}; no single token of the prompt was found that costs as much."
    return f"{start}, and without that at token {estimates.attrs['query']} alone {percent(float(estimates['without_token']))}."


def _any_of(values: xr.DataArray) -> str:
    """Name layers, any one of which is meant: layer 0, 1 or 2."""
    numbers: Sequence[Any] = values["layer"].values.tolist()
    if len(numbers) > NAMED:
        return f"any one of {numbered('layer', numbers)}"
    first = ", ".join(map(str, numbers[:-1]))
    return f"layer {first}{' or ' if first else ''}{numbers[-1]}"


def _amount(values: xr.DataArray) -> str:
    return between(values.values, percent)
