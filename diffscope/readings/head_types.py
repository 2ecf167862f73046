"""Say which heads are of the known types, by A1, A2 and D: on random tokens that are repeated, and on prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr

from diffscope.attribution import branch_attribution
from diffscope.attribution.stream import check_decoder
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel
from diffscope.instruments.head_scores import MAPS
from diffscope.instruments.head_scores import head_types as scores_of
from diffscope.numbers import between, decimal, listed, shortened
from diffscope.readings.edit_costs import questions
from diffscope.readings.reading import Reading, described
from diffscope.scope import Scope
from diffscope.stats.averaging import mean_over_prompts
from diffscope.tasks import Prompt

RANDOM, PROMPTS = "random tokens", "prompts"
WORDS = {
    "previous_token": "previous-token",
    "duplicate_token": "duplicate-token",
    "induction": "induction",
    "sink": "sink",
    "retrieval": "retrieval",
}
BY_CONTENT = ("duplicate_token", "induction", "retrieval")  # which the shuffled sequence controls: position alone is no such head
ABOVE = 0.3  # a head is of a type if its score is above its control by that much, or below 0 by it


def head_types(
    scope: Scope, prompts: Any = None, *, sequences: int = 4, tokens: int = 32, seed: int = 0, copying: bool = True
) -> Reading:
    """Find the previous-token, duplicate-token, induction, sink and retrieval heads of a model, by A1, A2 and D.

    Random tokens are drawn without repetition, and the sequence stands twice after its first token, as in the work on induction
    heads. A model of a narrow task may do nothing with them, so prompts of its own task are scored beside them.

    Parameters
    ----------
    scope : Scope
        Of a model that predicts tokens.
    prompts : TextPrompt, Prompt, or sequence of these, optional
        Of ``diffscope.tasks``, with answers: each is run with its right answer. The retrieval score counts the answer's tokens
        whose place in the text gets the largest weight.
    sequences, tokens : int
        How many random sequences, and how many tokens of each are repeated.
    seed : int
        Of the random tokens, and of the orders of the shuffled prompts.
    copying : bool
        Whether to measure what heads do with what they look at, for which the model runs twice more.

    Returns
    -------
    Reading
        ``estimates``: ``score``, ``shuffled`` and ``uniform`` (text, type, map, layer, head), means over prompts of
        :func:`diffscope.instruments.head_types`; ``is_type``, 1 where a head is of a type, −1 where its map takes weight from
        such keys, 0 elsewhere; ``copying`` and ``copying_shuffled`` (map, layer, head), what A1, −λ·A2 and both together add to
        the logit of the token that came next last time, minus the mean of the sequence's other tokens, in nats: where the
        sequence is repeated, and where its tokens are shuffled. NaN of what a text does not have, and for the logits of
        models that :func:`diffscope.attribution.branch_attribution` refuses, with ``why``.

    Raises
    ------
    UnsupportedModel
        The model predicts no tokens.
    PromptError
        The vocabulary is too small, or a prompt has no answer.
    DiffscopeError
        Fewer than one sequence, or fewer than four tokens.

    Notes
    -----
    A head is of a type if its score is 0.3 above its control, or below −0.3. The control is uniform attention, and for the types
    that go by content the shuffled sequence too, whichever is larger.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import readings
    >>> reading = readings.head_types(diffscope.load("mini-diff"), copying=False)
    >>> reading.estimates["score"].dims
    ('text', 'type', 'map', 'layer', 'head')
    """
    check_decoder(scope)
    if not scope.runner.predicts:
        raise UnsupportedModel(f"{scope.name} predicts no next tokens, so nothing of it is repeated")
    if sequences < 1 or tokens < 4:
        raise DiffscopeError(f"{sequences} sequences of {tokens} tokens cannot be repeated; take one at least, of four tokens")
    random = np.random.default_rng(seed)
    drawn = [_repeated(scope, tokens, random) for _ in range(sequences)]
    texts = {RANDOM: _scores(scope, drawn, [[] for _ in drawn], random)}
    if prompts is not None:
        asked = questions(scope, prompts)
        answered = [_answered(each) for each in asked]
        texts[PROMPTS] = _scores(scope, [ids for ids, _ in answered], [pairs for _, pairs in answered], random)
    table = xr.concat(list(texts.values()), xr.DataArray(list(texts), dims="text", name="text"), join="outer")
    table = table.transpose("text", "type", "map", "layer", "head")
    estimates = _described(table.assign(is_type=_verdicts(table)))
    if copying:
        estimates = estimates.merge(_copying(scope, drawn, tokens, random), combine_attrs="override")
    estimates = estimates.assign_attrs(
        model=scope.name, sequences=sequences, tokens=tokens, prompts=0 if prompts is None else len(asked), above=ABOVE
    )
    return Reading(_sentence(estimates), estimates)


def _repeated(scope: Scope, tokens: int, random: np.random.Generator) -> list[int]:
    """Return random tokens twice, behind the token that texts begin with or else one more; none comes twice in a sequence."""
    tokenizer = scope.tokenizer
    special = set() if tokenizer is None else set(tokenizer.all_special_ids)
    known = np.setdiff1d(np.arange(scope.runner.vocabulary or 0), list(special))
    if len(known) <= tokens:
        raise PromptError(
            f"{scope.name} has {len(known)} tokens to draw from; take fewer than that, such as tokens={len(known) // 2}"
        )
    first, *once = random.choice(known, tokens + 1, replace=False).tolist()
    begin = None if tokenizer is None else tokenizer.bos_token_id
    return [first if begin is None else begin, *once, *once]


def _answered(prompt: Prompt) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a prompt with its first answer, and from where to where each token of it is copied.

    A prompt whose span ``answer`` holds other tokens has nothing to copy.
    """
    answer = [prompt.answer[at] for at in prompt.numbers[0]]
    places = sorted(prompt.spans.get("answer", ()))
    last = len(prompt.ids) - 1
    begins = min(prompt.numbers[0])
    ids = [*prompt.ids, *prompt.answer[: begins + len(answer) - 1]]
    if [prompt.ids[at] for at in places] != answer:
        return ids, []
    return ids, [(last + begins + at, key) for at, key in enumerate(places)]


def _scores(scope: Scope, prompts: Sequence[list[int]], copied: Sequence[Sequence[tuple[int, int]]], random: Any) -> xr.Dataset:
    """Return the scores of prompts and of shuffled ones, mean over prompts, (layer, head, map, type)."""
    of_prompts = []
    for ids, pairs in zip(prompts, copied):
        shuffled = scope.capture([ids[0], *random.permutation(ids[1:]).tolist()])
        of_prompts.append(scores_of(scope.capture(ids), shuffled, copied=[pairs]))
    together = xr.concat(of_prompts, "prompt", combine_attrs="override")
    return xr.Dataset({name: mean_over_prompts(together[name]) for name in ("score", "shuffled", "uniform")})


def _verdicts(table: xr.Dataset) -> xr.DataArray:
    """Return 1 where a head is of a type, −1 where it takes weight from its keys, 0 elsewhere, NaN where nothing is known."""
    by_content = table["type"].isin(BY_CONTENT)
    control = xr.where(by_content, np.fmax(table["uniform"], table["shuffled"]), table["uniform"])
    verdict = xr.where(table["score"] >= control + ABOVE, 1.0, xr.where(table["score"] <= -ABOVE, -1.0, 0.0))
    return verdict.where(table["score"].notnull())


def _described(table: xr.Dataset) -> xr.Dataset:
    about = {
        "score": ("attention on the keys of the type", "as of diffscope.instruments.head_types"),
        "shuffled": ("the same where the tokens are shuffled", "the same pairs of positions, tokens in another order"),
        "uniform": ("what uniform attention gives", "keys of the type / visible keys"),
        "is_type": ("whether a head is of the type", f"1: score ≥ control + {ABOVE}; −1: score ≤ −{ABOVE}"),
    }
    return xr.Dataset({name: described(table[name], *words) for name, words in about.items()})


def _copying(scope: Scope, drawn: Sequence[list[int]], tokens: int, random: Any) -> xr.Dataset:
    """Return what branches add to the logit of the token that is next in the repetition, and in shuffled sequences."""
    at = tokens + 1 + tokens // 2  # how many tokens of the repetition are given
    answers = [ids[at] for ids in drawn]
    others = [[token for token in ids[1 : tokens + 1] if token != answer] for ids, answer in zip(drawn, answers)]
    given = [ids[:at] for ids in drawn]
    mixed = [[ids[0], *random.permutation(ids[1:]).tolist()] for ids in given]
    variables = {}
    for name, prompts in {"copying": given, "copying_shuffled": mixed}.items():
        try:
            margin = mean_over_prompts(branch_attribution(scope, prompts, answers, others)["margin"]).rename(branch="map")
        except UnsupportedModel as refused:
            empty = xr.DataArray(np.nan, {"map": list(MAPS), "layer": scope.layer_numbers}, ("map", "layer"))
            variables[name] = described(empty, "copying", "as of branch_attribution", "nats", why=str(refused))
            continue
        both = margin.sum("map", min_count=1).expand_dims(map=["D"])
        values = xr.concat([margin, both], "map").transpose("map", "layer", "head")
        where = "in a repeated sequence" if name == "copying" else "in a shuffled one"
        words = f"added to the logit of the token that came next, against the sequence's others, {where}"
        values = values.assign_coords(head=range(values.sizes["head"]))
        variables[name] = described(values, words, "margin of branch_attribution, mean over sequences", "nats")
    return xr.Dataset(variables)


def _sentence(estimates: xr.Dataset) -> str:
    """Name the heads of each type, on each text."""
    return " ".join(f"On {text}: {'; '.join(_of_text(estimates.sel(text=text)))}." for text in estimates["text"].values)


def _of_text(table: xr.Dataset) -> Iterator[str]:
    missing = []
    for name, word in WORDS.items():
        of_type = table.sel(type=name)
        if not of_type["score"].notnull().any():
            continue
        heads = of_type.stack(place=("layer", "head"))
        found = [
            _head(heads.isel(place=at)) for at in range(heads.sizes["place"]) if (abs(heads["is_type"].isel(place=at)) > 0).any()
        ]
        if not found:
            missing.append(word)
            continue
        controls = f"uniform attention {between(of_type['uniform'].values[of_type['uniform'].notnull().values], decimal)}"
        if name in BY_CONTENT:
            shuffled = of_type["shuffled"].where(abs(of_type["is_type"]) > 0).values
            controls += f", shuffled {between(shuffled[np.isfinite(shuffled)], decimal)}"
        yield f"{word} {'head' if len(found) == 1 else 'heads'} {shortened(found)} ({controls})"
    if missing:
        yield f"no {' or '.join(missing)} head"


def _head(head: xr.Dataset) -> str:
    """Name a head with the maps that are of the type and their scores: L1H0 (A1 .93 and D .90)."""
    layer, number = head["place"].item()
    maps = [
        f"{name} {decimal(float(head['score'].sel(map=name)))}" for name in MAPS if abs(float(head["is_type"].sel(map=name))) > 0
    ]
    return f"L{layer}H{number} ({listed(maps)})"
