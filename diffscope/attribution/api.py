"""Compute what A1 and −λ·A2 of each head add to the logits of an answer and of its distractors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from diffscope.attribution.heads import BRANCHES, Query, of_layer
from diffscope.attribution.runs import record_modules
from diffscope.attribution.stream import attention_modules, check_decoder, read_stream
from diffscope.errors import PromptError
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.inputs import naming_prompt
from diffscope.prompts.selection import whole_number
from diffscope.scope import Scope
from diffscope.scope.answers import encode_question
from diffscope.scope.runners import Inputs
from diffscope.stats.ragged import stack_layers

BATCH = 10  # prompts that run together
BATCH_TOKENS = 16384
OF_HEADS = ("contribution", "through")  # through all keys, and through the candidate's own
OF_CONTROL = ("other_a2", "other_a2_through")

WORDS = {
    "contribution": "what a branch of a head adds to a candidate's logit, directly",
    "mlp": "what the other part of each block adds to it",
    "bias": "what the bias of each output projection adds to it",
    "embedding": "what the first block was given adds to it",
    "constant": "what the biases of the final norm and of the unembedding add to it",
    "logit": "the candidate's logit",
    "unexplained": "the logit minus all that is listed: rounding",
    "token": "token id of the candidate; -1 where a prompt has fewer",
    "answer": "what a branch of a head adds to the answer's logit",
    "distractors": "what it adds to the mean of the distractors' logits",
    "largest_distractor": "what it adds to the logit of the distractor whose logit is largest",
    "margin": "answer - distractors",
    "other_a2": "what the second branch would add with the row of A2 of another prompt in place of its own",
    "through": "what a branch of a head adds to a candidate's logit through the candidate's own places in the prompt",
    "other_a2_through": "the same of the row of A2 of another prompt, at the places of its candidates",
}


def branch_attribution(
    scope: Scope, prompts: Any, answers: Any, distractors: Any, *, places: Any = None, control: bool = False
) -> xr.Dataset:
    """Attribute the logits of the answer and of its distractors to the branches of heads, directly.

    A head writes g·A1·V − λ·A2·V through its norm, its post-scale and the output projection into the residual stream, which the
    final norm and the unembedding make logits of. With the factors of both norms held at what they are, that is linear: each
    branch adds its part to each logit. What later layers make of it is left out. This is direct logit attribution as
    TransformerLens has it for whole heads.

    All parts of a model are counted: the branches of all heads, the biases of output projections, MLPs, the embedding and the
    biases at the end add up to the logit, up to rounding (`unexplained`).

    Parameters
    ----------
    scope : Scope
        Of a decoder whose blocks add what attention and one other module wrote to the residual stream, as it is.
    prompts
        As for :meth:`diffscope.Scope.capture`. Candidates are what may come after the last token.
    answers : one a prompt, or of a single prompt just that
        A token id, a sequence of them or a text; of several tokens it is the first, which comes next. A text continues the
        prompt as for :meth:`diffscope.Scope.answer`: if all candidates are texts and begin with the same token of white space,
        that token belongs to the prompt.
    distractors : a sequence of these for each prompt, or of a single prompt just that
        May be of several lengths, or empty.
    places : for each prompt the token positions of each candidate in it, the answer's first, optional
        To attribute also what is added through these keys alone: how much of what a head says of a candidate it has read there.
    control : bool
        Whether to attribute −λ·A2·V with the row of A2 of another prompt too: of the next one among those of equal length
        that run together, at most ten of them. Values, λ and norm stay the prompt's own.

    Returns
    -------
    xarray.Dataset
        ``contribution`` (prompt, layer, head, branch, candidate), branch A1 or A2 (with its −λ), candidate 0 the answer and the
        others the distractors. NaN where there is none: A2 in standard attention, candidates of other prompts, what is said of
        distractors where a prompt has none.

        Taken from it, (prompt, layer, head, branch): ``answer``, ``distractors`` (their mean), ``largest_distractor`` (that of
        the largest logit) and ``margin``, answer − distractors.

        To account for the ``logit`` (prompt, candidate): ``mlp`` and ``bias`` (prompt, layer, candidate), ``embedding``,
        ``constant`` and ``unexplained`` (prompt, candidate); ``token`` says which the candidates are.

        With `places`, ``through`` (prompt, layer, head, branch, candidate): the part of the contribution that comes through the
        candidate's own places. With `control`, ``other_a2`` (prompt, layer, head, candidate). With both, ``other_a2_through``: a
        candidate's places are weighed with what the other prompt's A2 gives to its candidate of that number.

    Raises
    ------
    UnsupportedModel
        The model is no such decoder: it norms, scales or mixes what attention wrote, attends twice a block, caps its logits, or
        is a model of images. An edit changes heads after D.
    PromptError
        A prompt or candidate cannot be read; the answer is among the distractors; a text changes the tokens of the prompt, and
        other candidates are token ids; with `control`, a prompt is the only one of its length.
    SpanError
        The span ``answer`` of a prompt is of tokens that cover no text.
    DiffscopeError
        A place is not a whole number from 0.

    Examples
    --------
    >>> import diffscope
    >>> scope = diffscope.load("mini-diff")
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> table = diffscope.attribution.branch_attribution(scope, text, " 7421", [" 2174"])
    >>> table["contribution"].dims
    ('prompt', 'layer', 'head', 'branch', 'candidate')
    """
    check_decoder(scope)
    inputs = scope.prepare(prompts)
    if not inputs.batch:
        answers, distractors, places = [answers], [distractors], None if places is None else [places]
    prompt_ids, candidates = _candidates(scope, inputs, answers, distractors)
    queries = [Query(*each) for each in zip(prompt_ids, candidates, _places(places, prompt_ids, candidates))]
    batches = _batches(list(map(len, prompt_ids)), control)
    parts: dict[int, xr.Dataset] = {}
    for batch in batches:
        parts |= zip(batch, decompose(scope, [queries[index] for index in batch], control))
    unasked = {name for name in OF_CONTROL if not control} | ({"through", "other_a2_through"} if places is None else set())
    return _table(scope, [parts[index].drop_vars(unasked) for index in range(len(queries))], candidates)


def decompose(scope: Scope, queries: Sequence[Query], control: bool) -> list[xr.Dataset]:
    """Decompose the logits of candidates into parts of the model, for prompts of one length that run together.

    Parameters
    ----------
    control : bool
        Whether to attribute A2 of the next prompt too.

    Returns
    -------
    list of Dataset
        ``contribution`` and ``through`` (layer, head, branch, candidate), ``other_a2`` and ``other_a2_through`` (layer, head,
        candidate), ``mlp`` and ``bias`` (layer, candidate), ``embedding``, ``constant`` and ``logit`` (candidate,).
    """
    with scope.exclusively(), record_modules(scope.model, len(queries)) as runs:
        layers = {layer.layer: layer for layer in scope.capture([query.ids for query in queries]).layers}
    modules = attention_modules(scope, layers)
    stream = read_stream(scope, list(modules.values()), runs, [query.tokens for query in queries])
    attended = [
        of_layer(layers[number], scope.family.output_projection(module), stream, block, queries, control)
        for block, (number, module) in enumerate(modules.items())
    ]
    biases = torch.stack([bias for _, bias in attended])
    tables = []
    for prompt, query in enumerate(queries):
        written = {"mlp": torch.stack(stream.mlp)[:, prompt], "bias": biases, "embedding": stream.embedding[prompt]}
        added = {name: stream.direct(part, prompt, query.tokens) for name, part in written.items()}
        added |= {"constant": stream.constant(query.tokens), "logit": stream.logits[prompt, query.tokens]}
        variables: dict[str, tuple] = {name: (("layer", "candidate")[-part.dim() :], part) for name, part in added.items()}
        of_heads = stack_layers([of_prompts[prompt].movedim(2, 0).numpy() for of_prompts, _ in attended])
        by_way = np.moveaxis(of_heads, 2, 0)  # (way, layer, head, branch, candidate)
        for table, name, of_control in zip(by_way, OF_HEADS, OF_CONTROL):  # (layer, head, branch, candidate)
            variables[name] = ("layer", "head", "branch", "candidate"), table[:, :, : len(BRANCHES)]
            variables[of_control] = ("layer", "head", "candidate"), table[:, :, -1]
        coordinates = {"layer": list(modules), "branch": list(BRANCHES), "candidate": range(len(query.tokens))}
        tables.append(xr.Dataset({name: (dims, np.asarray(part)) for name, (dims, part) in variables.items()}, coordinates))
    return tables


def _candidates(scope: Scope, inputs: Inputs, answers: Any, distractors: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tokens of each prompt, and those of its candidates, the answer's first."""
    count = len(inputs.prompts)
    if not (_is_list(answers, count) and _is_list(distractors, count)):
        raise PromptError(f"give an answer and a list of distractors for each of the {count} prompts")
    prompts, every = [], []
    for number, (encoded, original, answer, others) in enumerate(zip(inputs.prompts, inputs.originals, answers, distractors)):
        if not _is_list(others):
            raise PromptError(f"the distractors of prompt {number} are no list; give a list of them, of one too")
        with naming_prompt(number, inputs.batch):
            ids, tokens = tokens_after(scope, encoded, [answer, *others], given_as_ids=not isinstance(original, str))
        if tokens[0] in tokens[1:]:
            raise PromptError(
                f"the answer of prompt {number} begins with the same token as a distractor ({tokens[0]}), so their logits are "
                "the same; leave that distractor out"
            )
        prompts.append(ids)
        every.append(tokens)
    return prompts, every


def _is_list(value: Any, length: int | None = None) -> bool:
    """Return whether a value is a list, an array or the like, of that length."""
    listed = isinstance(value, (Sequence, np.ndarray, torch.Tensor)) and not isinstance(value, str)
    return listed and length in (None, len(value))


def tokens_after(scope: Scope, encoded: Encoded, candidates: Sequence[Any], *, given_as_ids: bool) -> tuple[list[int], list[int]]:
    """Return the tokens of a prompt, and the first token of each candidate that may come after them.

    Parameters
    ----------
    scope : Scope
    encoded : Encoded
    candidates : sequence of int, sequence of int, or str
        Texts continue the prompt as :func:`diffscope.scope.answers.encode_question` says, and may add white space to its tokens,
        or take it from the end of a text.
    given_as_ids : bool
        Whether the prompt was given as token ids, to which white space may only be added.

    Raises
    ------
    PromptError, SpanError
        A candidate cannot be read; a text changes the tokens of the prompt, and other candidates are token ids.
    """
    texts = [each for each in candidates if isinstance(each, str)]
    if not texts:
        return list(encoded.ids), [_first_token(scope, each) for each in candidates]
    if scope.tokenizer is None:
        raise PromptError(f"{scope.name} has no tokenizer; give answers and distractors as token ids")
    question = encode_question(scope, encoded, texts[0], texts[1:], given_as_ids=given_as_ids, whole=False)
    if question.ids != list(encoded.ids) and len(texts) < len(candidates):
        raise PromptError(
            f"the text {texts[0]!r} changes the end of the prompt (its white space), so that token ids beside it would follow "
            "another prompt; give all as texts, or all as token ids"
        )
    of_texts = iter([question.answer, *question.distractors])
    tokens = [next(of_texts) if isinstance(each, str) else each for each in candidates]
    return question.ids, [_first_token(scope, each) for each in tokens]


def _first_token(scope: Scope, candidate: Any) -> int:
    """Return the first token of a candidate in tokens."""
    try:
        flat = np.atleast_1d(np.asarray(candidate))
    except ValueError:  # rows of several lengths
        flat = np.empty((0, 0))
    if flat.ndim != 1 or not len(flat) or flat.dtype.kind not in "iu":
        raise PromptError(f"an answer or distractor is a token id, several, or a text of at least one token, not {candidate!r}")
    token = int(flat[0])
    if not 0 <= token < (scope.runner.vocabulary or math.inf):
        raise PromptError(f"token {token} is outside the vocabulary of {scope.name}, which has {scope.runner.vocabulary}")
    return token


def _places(places: Any, prompts: Sequence[list[int]], candidates: Sequence[list[int]]) -> list[list[list[int]]]:
    """Return the positions of each prompt's candidates in it; none if they are not given."""
    if places is None:
        return [[[] for _ in tokens] for tokens in candidates]
    listed = _is_list(places, len(prompts)) and all(_is_list(each, len(own)) for each, own in zip(places, candidates))
    if not listed or not all(_is_list(keys) for of_prompt in places for keys in of_prompt):
        raise PromptError("give the places of each prompt's candidates, the answer's first, then one list for each distractor")
    for number, (of_prompt, ids) in enumerate(zip(places, prompts)):
        for place in itertools.chain.from_iterable(of_prompt):
            position = whole_number(place, 0, math.inf, f"places in prompt {number} are whole numbers from 0")
            if position >= len(ids):
                raise PromptError(f"place {position} is outside of prompt {number}, which has {len(ids)} tokens")
    return [[[int(position) for position in keys] for keys in of_prompt] for of_prompt in places]


def _batches(lengths: Sequence[int], control: bool) -> list[list[int]]:
    """Group prompts that run together, by index: of one length, and with `control` at least two."""
    batches = []
    for length in sorted(set(lengths)):
        alike = np.flatnonzero(np.asarray(lengths) == length)
        if control and len(alike) == 1:
            raise PromptError(
                f"the control takes A2 of another prompt of as many tokens, and prompt {alike[0]} is the only one of {length}; "
                "give another, or control=False"
            )
        together = max(3 if control else 1, min(BATCH, BATCH_TOKENS // length))  # threes and twos: none is left alone
        batches += [each.tolist() for each in np.array_split(alike, math.ceil(len(alike) / together))]
    return batches


def _table(scope: Scope, parts: Sequence[xr.Dataset], candidates: Sequence[Sequence[int]]) -> xr.Dataset:
    """Join the parts of all prompts, and add what follows from them."""
    table = xr.concat(parts, "prompt", join="outer")
    tokens = np.full((len(parts), table.sizes["candidate"]), -1)
    for row, own in zip(tokens, candidates):
        row[: len(own)] = own
    table["token"] = ("prompt", "candidate"), tokens
    sums = table["contribution"].sum(["layer", "head", "branch"]) + (table["mlp"] + table["bias"]).sum("layer")
    table["unexplained"] = table["logit"] - sums - table["embedding"] - table["constant"]
    to_others = table["contribution"].isel(candidate=slice(1, None))
    others = table["logit"].isel(candidate=slice(1, None))
    largest = others == others.fillna(-np.inf).reduce(np.max, "candidate", initial=-np.inf)  # of none, -inf
    table["answer"] = table["contribution"].isel(candidate=0)
    table["distractors"] = to_others.mean("candidate")
    table["largest_distractor"] = to_others.where(largest).mean("candidate")  # of two alike their mean
    table["margin"] = table["answer"] - table["distractors"]
    for name, variable in table.data_vars.items():
        variable.attrs["long_name"] = WORDS[str(name)]
    return table.assign_attrs(model=scope.name, family=scope.family.name)
