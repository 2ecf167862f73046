"""Say which heads carry what differs between two prompts: patch one branch or one path at a time, and score the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from diffscope.attribution.api import tokens_after
from diffscope.attribution.paths import RECEIVERS, path_patches
from diffscope.attribution.stream import check_decoder
from diffscope.edits import Edit, patch
from diffscope.edits.patching import STAGES
from diffscope.errors import PromptError, UnsupportedModel, check_choice
from diffscope.numbers import minus, shortened, two_figures
from diffscope.readings.edit_costs import check_unedited
from diffscope.readings.reading import Reading, described
from diffscope.scope import Scope

SENDERS = ("A1 output", "A2 output")
DEFINITION = "logit of the answer − logit of the other prompt's answer, at the last token"


def patched_heads(
    scope: Scope,
    prompt: Any,
    source: Any,
    answer: Any = None,
    other: Any = None,
    *,
    what: Sequence[str] = ("A1", "A2", "D", "A1 output", "A2 output", "output"),
    queries: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Reading:
    """Patch every head, one at a time, with what it computes on another prompt, and measure how the answer changes.

    Parameters
    ----------
    scope : Scope
        Of a model that predicts tokens.
    prompt, source
        One prompt each, of as many tokens, in any form that :meth:`diffscope.Scope.capture` takes, and alike but for what is
        asked.
    answer, other : int or str, optional
        A token, or a text that continues both prompts as for :meth:`diffscope.Scope.answer`, whose first token counts: the answer
        of the prompt, and of `source`. By default what the model says.
    what : sequence of str
        What is patched, as of :func:`diffscope.edits.patch`; what a model does not have is NaN.
    queries, keys : sequence of int, optional
        Only these rows, and of maps only these cells.
    progress : callable, optional
        Called with (heads done, heads in all), after the runs in which every head is patched.

    Returns
    -------
    Reading
        ``estimates``: ``change`` (what, layer, head) of the answer's lead over the other answer, in nats; ``lead`` of the prompt
        and ``lead_of_source``, and ``share``, the change as a part of their difference: 1 if one patch gives the other prompt's
        lead; ``all`` (what,), the change where every head is patched at once.

    Raises
    ------
    PromptError
        The prompts are of several lengths, both have the same answer, or an answer cannot be read or has other tokens after the
        other prompt.
    UnsupportedModel
        The model predicts no tokens.
    DiffscopeError
        Edits are on already, or there is no such thing to patch.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import readings
    >>> text, source = (f"Magic numbers. Paris {number}. Rome 2174. Paris" for number in (7421, 9053))
    >>> reading = readings.patched_heads(diffscope.load("mini-diff"), text, source, what=["A2"])
    >>> reading.estimates["change"].dims
    ('what', 'layer', 'head')
    """
    pair = _Pair(scope, prompt, source, answer, other)
    for name in what:
        check_choice("part to patch", name, STAGES)
    layers = {layer.layer: layer for layer in pair.own.layers}
    shape = (len(what), len(layers), pair.own.n_heads)
    change = np.full(shape, np.nan)
    together = np.full(len(what), np.nan)
    places = [
        (row, at, head) for row in range(len(what)) for at, layer in enumerate(layers.values()) for head in range(layer.n_heads)
    ]
    for row, name in enumerate(what):
        if all(layer.differential or not name.startswith("A2") for layer in layers.values()):
            together[row] = pair.change(_patch(name, pair, queries, keys))
    for done, (row, at, head) in enumerate(places, 1):
        number, layer = list(layers.items())[at]
        if layer.differential or not what[row].startswith("A2"):
            change[row, at, head] = pair.change(_patch(what[row], pair, queries, keys, layers=number, heads=head))
        if progress:
            progress(done, len(places))
    coords = {"what": list(what), "layer": list(layers), "head": range(shape[2])}
    values = xr.DataArray(change, coords, ("what", "layer", "head"))
    table = pair.estimates(values, "with one head patched").assign(
        all=described(
            values[:, 0, 0].drop_vars(["layer", "head"]).copy(data=together), "change with all heads patched", DEFINITION, "nats"
        )
    )
    return Reading(_sentence(table, "one head at a time"), table)


def patched_paths(
    scope: Scope,
    prompt: Any,
    source: Any,
    layer: int,
    head: int,
    answer: Any = None,
    other: Any = None,
    *,
    receivers: Sequence[str] = RECEIVERS,
    progress: Callable[[int, int], object] | None = None,
) -> Reading:
    """Patch every path from a branch of an earlier head to the queries or keys of one head, and measure how the answer changes.

    Parameters
    ----------
    scope, prompt, source, answer, other, progress
        As of :func:`patched_heads`.
    layer, head : int
        Whose queries and keys receive.
    receivers : sequence of {"q1", "k1", "q2", "k2"}
        Queries and keys of its A1 and A2; those of a second map that is not there are left out.

    Returns
    -------
    Reading
        ``estimates``: ``change``, ``share`` (what, layer, head), ``lead`` and ``lead_of_source`` as of :func:`patched_heads`;
        `what` says the path, such as "A2 → k1", and layer and head are the sender's.

    Raises
    ------
    PromptError
        As of :func:`patched_heads`; the head is not there, or in the first layer.
    UnsupportedModel
        As of :func:`diffscope.attribution.path_patches`.
    DiffscopeError
        Edits are on already.
    """
    pair = _Pair(scope, prompt, source, answer, other)
    before = [each for each in pair.own.layers if each.layer < layer]
    if layer not in pair.own.layer_numbers or not before:
        raise PromptError(f"no layer is before layer {layer}; choose from {', '.join(map(str, pair.own.layer_numbers[1:]))}")
    own = next(each for each in pair.own.layers if each.layer == layer)
    asked = [name for name in receivers if own.differential or not name.endswith("2")]
    names = [name for name in SENDERS if name == "A1 output" or any(each.differential for each in before)]
    labels = [f"{name.removesuffix(' output')} → {receiver}" for receiver in asked for name in names]
    coords = {"what": labels, "layer": [each.layer for each in before], "head": range(max(each.n_heads for each in before))}
    change = xr.DataArray(np.nan, coords, ("what", "layer", "head"))
    senders = [
        (each.layer, number, name)
        for each in before
        for number in range(each.n_heads)
        for name in names
        if each.differential or name == "A1 output"
    ]
    for done, receiver in enumerate(asked):
        for (number, of_layer, name), edit in zip(
            senders, path_patches(scope, pair.ids, pair.source_ids, (layer, head, receiver), senders)
        ):
            change.loc[{"what": f"{name.removesuffix(' output')} → {receiver}", "layer": number, "head": of_layer}] = pair.change(
                edit
            )
        if progress:
            progress(done + 1, len(asked))
    table = pair.estimates(change, f"with one path to L{layer}H{head} patched").assign_attrs(receiver=f"L{layer}H{head}")
    return Reading(_sentence(table, f"one path to L{layer}H{head} at a time"), table)


def _asked(scope: Scope, prompt: Any, answers: list[Any]) -> tuple[list[int], list[int]]:
    """Return the tokens of one prompt, and of each answer the one that comes after them."""
    encoded = scope.encode(prompt)  # which refuses a batch
    (original,) = scope.prepare(prompt).originals
    return tokens_after(scope, encoded, answers, given_as_ids=not isinstance(original, str))


class _Pair:
    """Two prompts of one length, their answers, and how far a model prefers the first under an edit.

    Attributes
    ----------
    ids, source_ids : list of int
    own, source : Capture
    answer, other : int
        Tokens.
    lead, lead_of_source : float
        In nats.
    """

    def __init__(self, scope: Scope, prompt: Any, source: Any, answer: Any, other: Any) -> None:
        check_decoder(scope)
        if not scope.runner.predicts:
            raise UnsupportedModel(f"{scope.name} predicts no next tokens, so nothing of it answers")
        check_unedited(scope)
        self._scope = scope
        given = [each for each in (answer, other) if each is not None]
        (self.ids, tokens), (self.source_ids, after_source) = (_asked(scope, each, given) for each in (prompt, source))
        if tokens != after_source:
            raise PromptError("the answers have other tokens after the prompt than after the source; give them as token ids")
        if len(self.ids) != len(self.source_ids):
            raise PromptError(
                f"the prompt has {len(self.ids)} tokens and the source {len(self.source_ids)}; give prompts of one length"
            )
        self.own, self.source = scope.capture(self.ids), scope.capture(self.source_ids)
        own, of_source = self._logits(self.ids), self._logits(self.source_ids)
        self.answer = int(own.argmax()) if answer is None else tokens[0]
        self.other = int(of_source.argmax()) if other is None else tokens[-1]
        if self.answer == self.other:
            raise PromptError("both prompts have the same answer; give prompts whose answers differ, or answer and other")
        self.lead, self.lead_of_source = (float(each[self.answer] - each[self.other]) for each in (own, of_source))

    def _logits(self, ids: list[int]) -> torch.Tensor:
        return self._scope.logits(torch.tensor([ids]))[0, -1].double().cpu()

    def change(self, edit: Edit) -> float:
        """Return how the lead of the prompt's answer changes under an edit, in nats."""
        with self._scope.edit(edit):
            logits = self._logits(self.ids)
        return float(logits[self.answer] - logits[self.other]) - self.lead

    def estimates(self, change: xr.DataArray, words: str) -> xr.Dataset:
        """Return changes with what they are counted against."""
        whole = self.lead_of_source - self.lead
        variables = {
            "change": described(change, f"change of the answer's lead {words}", DEFINITION, "nats"),
            "share": described(
                change / whole, "change, of the difference between both prompts", "change / (lead_of_source − lead)"
            ),
            "lead": described(xr.DataArray(self.lead), "lead of the answer", DEFINITION, "nats"),
            "lead_of_source": described(xr.DataArray(self.lead_of_source), "lead on the source", DEFINITION, "nats"),
        }
        return xr.Dataset(variables, attrs={"model": self._scope.name})


def _patch(name: str, pair: _Pair, queries: Sequence[int] | None, keys: Sequence[int] | None, **places: int) -> Edit:
    of_map = {} if name.endswith("output") else {"keys": keys}
    return patch(name, pair.source, queries=queries, **of_map, **places)


def _sentence(table: xr.Dataset, how: str) -> str:
    """Say what the largest changes are, and what they are counted against."""
    lead, of_source = (two_figures(float(table[name])) for name in ("lead", "lead_of_source"))
    flat = table["change"].stack(place=("what", "layer", "head")).dropna("place")
    start = f"The answer leads by {minus(lead)} nats, and on the other prompt by {minus(of_source)}"
    if not flat.sizes["place"]:
        return f"{start}; there is nothing to patch."
    order = abs(flat).values.argsort()[::-1][:4]
    named = [_named(flat.isel(place=at)) for at in order]
    return f"{start}; patched {how}, the largest changes are of {shortened(named)}."


def _named(value: xr.DataArray) -> str:
    what, layer, head = value["place"].item()
    size = float(value)
    amount = f"+{two_figures(size)}" if size > 0 else minus(two_figures(size))
    return (
        f"{what} of L{layer}H{head} ({amount})"
        if "→" not in what
        else f"{what.replace(' → ', f' of L{layer}H{head} → ')} ({amount})"
    )
