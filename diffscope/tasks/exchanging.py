"""Exchange the answer or the filler of a prompt token for token, so that lengths and positions stay."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError, SpanError
from diffscope.prompts.encoded import Encoded
from diffscope.tasks.lookups import draw_cities, draw_numbers
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.template import encode_continuation
from diffscope.tasks.text import TextStream, pieces, standard_library_text
from diffscope.tasks.tokenizer import CITIES

DIGITS = re.compile(r"([Ġ▁ ]*)([0-9]+)")
SENTENCE_ENDS = (".", "!", "?", ":", "\n")
MOST = 32  # tokens of a sentence that are looked through


def filler_of(
    prompt: Encoded, signal: str, queries: Sequence[int], needles: bool, keep: Sequence[str], special: Collection[int] = ()
) -> list[int]:
    """Return the positions of a prompt that are filler.

    Filler is what is neither the signal, nor the question, nor the sink, nor a query, nor a special token. The words that lead to
    the answer are no filler either: as many tokens before it as the end of the prompt repeats, or else those of its sentence.

    Raises SpanError if there is no such span, and PromptError if nothing is left.

    Parameters
    ----------
    signal : str
        The span that is exchanged for other tokens.
    needles : bool
        Whether the span ``needles`` is filler.
    keep : sequence of str
        Other spans that stay.
    special : collection of int
        Tokens that stay wherever they stand, such as those that mark turns of a chat.
    """
    for name in (signal, *keep):
        if not prompt.spans.get(name):
            raise SpanError(f"there is no span {name!r} to exchange or keep; spans are {', '.join(prompt.spans)}")
    names = [signal, "query", "sink", *keep, *([] if needles else ["needles"])]
    stay = {*queries, *_leading(prompt, signal), *(at for name in names for at in prompt.spans.get(name, ()))}
    filler = [at for at, token in enumerate(prompt.ids) if at not in stay and token not in special]
    if not filler:
        raise PromptError("there is no filler to exchange: every token is of the answer, the question or a span that is kept")
    return filler


def _leading(prompt: Encoded, signal: str) -> set[int]:
    """Return the positions of the words that lead to the answer, and of their repetition at the end of the prompt."""
    first = prompt.spans[signal][0]
    end = max(prompt.spans.get("query", (len(prompt.ids) - 1,))) + 1
    ids = prompt.ids
    same = 0
    while same < min(first, end - first) and ids[first - same - 1] == ids[end - same - 1]:
        same += 1
    if same:
        return {*range(first - same, first), *range(end - same, end)}
    begin = first
    while begin and first - begin < MOST and not prompt.tokens[begin - 1].rstrip(" ").endswith(SENTENCE_ENDS):
        begin -= 1
    return set(range(begin, first)) if prompt.text is not None else set()


def other_answers(
    prompt: Encoded,
    signal: str,
    count: int,
    rng: np.random.Generator,
    tokenizer: PreTrainedTokenizerBase | None,
    given: Sequence[Any] | None = None,
) -> list[list[int]]:
    """Return the answer and others in its place, of as many tokens each.

    Raises PromptError if there are none of as many tokens, or the answer is no number and none are given.

    Parameters
    ----------
    count : int
        How many, the answer itself included.
    given : sequence of str, or of token ids, optional
        Other answers, of which up to `count` − 1 are drawn. By default numbers: every token of digits is exchanged for any other
        token of as many digits.

    Returns
    -------
    list of list of int
        All different, the prompt's own first.
    """
    own = [prompt.ids[at] for at in prompt.spans[signal]]
    if given is not None:
        chosen = _chosen(own, [(each, _in_tokens(each, tokenizer)) for each in given], count - 1, rng)
    else:
        chosen = _numbers(own, count - 1, rng, tokenizer)
    if not chosen:
        raise PromptError("there is no other answer; give some of as many tokens: answers=['…', '…']")
    return [own, *chosen]


def _chosen(own: list[int], given: Sequence[tuple[Any, list[int]]], count: int, rng: np.random.Generator) -> list[list[int]]:
    """Draw some of the answers that were given, each once."""
    for text, ids in given:
        if len(ids) != len(own):
            raise PromptError(f"the answer has {len(own)} tokens and {text!r} has {len(ids)}; give answers of as many tokens")
    others = [ids for ids in dict.fromkeys(tuple(ids) for _, ids in given) if list(ids) != own]
    return [list(others[at]) for at in rng.permutation(len(others))[:count]]


def _in_tokens(answer: Any, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    if not isinstance(answer, str):
        return list(answer)
    if tokenizer is None:
        raise PromptError("this model has no tokenizer; give other answers as token ids")
    return encode_continuation(tokenizer, [answer if answer[:1].isspace() else f" {answer}"])[0]


def _numbers(own: list[int], count: int, rng: np.random.Generator, tokenizer: PreTrainedTokenizerBase | None) -> list[list[int]]:
    """Draw other numbers, token by token of as many digits."""
    if tokenizer is None:
        raise PromptError("this model has no tokenizer, so other numbers are not known; give answers=[[…], […]] as token ids")
    kind_of = list(map(_kind, pieces(tokenizer)))
    kinds = [kind_of[token] for token in own]
    if not any(kinds):
        raise PromptError("the answer is no number, so other answers have to be given: answers=['…', '…']")
    of_kind = {kind: [token for token, other in enumerate(kind_of) if other == kind] for kind in kinds}
    pools = [[token] if kind is None else of_kind[kind] for token, kind in zip(own, kinds)]
    count = min(count, int(np.prod([float(len(pool)) for pool in pools])) - 1)
    chosen: dict[tuple[int, ...], None] = {tuple(own): None}
    while len(chosen) <= count:
        chosen.setdefault(tuple(pool[rng.integers(len(pool))] for pool in pools))
    return [list(answer) for answer in chosen][1:]


def _kind(piece: str) -> tuple[str, int] | None:
    """Return the white space before a token's digits and how many digits it has; None for other tokens."""
    digits = DIGITS.fullmatch(piece)
    return None if digits is None else (digits[1], len(digits[2]))


def other_fillers(
    prompt: Encoded,
    filler: Sequence[int],
    count: int,
    rng: np.random.Generator,
    tokenizer: PreTrainedTokenizerBase | None,
    given: Sequence[Any] | None = None,
) -> list[list[int]]:
    """Draw other tokens for the filler of a prompt: one row a draw, in the order of the positions.

    Raises PromptError if there is no tokenizer for texts, a row has another length, there are fewer than two rows, or a text is
    too short.

    Parameters
    ----------
    filler : sequence of int
        Positions, ascending.
    given : sequence of str, or of rows of token ids, optional
        Texts that pieces are cut from, whole words; or other prompts of exactly as many tokens, one a draw, of which the tokens
        at the same positions are taken. By default the documentation strings of the Python standard library.
    """
    if given is not None and not all(isinstance(each, str) for each in given):
        rows = [list(row) for row in given]
        if wrong := next((row for row in rows if len(row) != len(prompt.ids)), None):
            raise PromptError(f"a prompt to take filler from has {len(wrong)} tokens, and {len(prompt.ids)} are needed, as here")
        if len(rows) < 2:
            raise PromptError("a variance needs two fillers at least; give more prompts")
        return [[row[at] for at in filler] for row in rows[:count]]
    if tokenizer is None:
        raise PromptError("this model has no tokenizer; give other prompts of as many token ids: fillers=[[…], […]]")
    source = TextStream.of(standard_library_text(True) if given is None else given, tokenizer)
    return [source.fill(filler, rng) for _ in range(count)]


def redrawn(task: Retrieval, prompt: Prompt, rng: np.random.Generator) -> list[int]:
    """Draw the text and the other sentences of a retrieval prompt anew, and return its tokens.

    The question, the sentence that answers it, and the places and lengths of all sentences stay.

    Raises PromptError if there is no other sentence of as many tokens.

    Parameters
    ----------
    task : Retrieval
        That the prompt was drawn by.
    prompt : Prompt
        Of one question.
    """
    ids = np.array(prompt.ids)
    number = prompt.spans["answer"]
    asked = range(number[0] - len(prompt.spans["query"]), number[-1] + 1 + len(task.encoded.suffix)) if number else ()
    sentences = _sentences(prompt, task.encoded.suffix)
    stay = {*prompt.spans["query"], *prompt.spans["sink"], *range(len(task.prefix)), *asked}
    text = sorted(set(range(len(ids))) - stay - {at for sentence in sentences for at in sentence})
    ids[text] = task.filler.fill(text, rng)
    cities = [city for city in draw_cities(len(CITIES), rng) if city != prompt.city]
    for sentence, stated in zip(sentences, draw_numbers(task.encoded, len(sentences), rng)):
        fitting = (city for city in cities if len(task.encoded.sentence(city, stated)) == len(sentence))
        city = next(fitting, None)
        if city is None:
            raise PromptError(
                f"this tokenizer has no other sentence of {len(sentence)} tokens for {prompt.city!r} to stand among; draw other "
                "prompts"
            )
        cities.remove(city)
        ids[sentence] = task.encoded.sentence(city, stated)
    return ids.tolist()


def _sentences(prompt: Prompt, suffix: list[int]) -> list[list[int]]:
    """Return the positions of each sentence about another city; each ends with its number and the template's suffix."""
    needles = prompt.spans["needles"]
    sentences = []
    for stated in prompt.distractors:
        end = [*stated, *suffix]
        stop = len(end)
        while [prompt.ids[at] for at in needles[stop - len(end) : stop]] != end:
            stop += 1
        sentences.append(needles[:stop])
        needles = needles[stop:]
    return sentences
