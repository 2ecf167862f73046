"""Encode prompts that are given as text, with their spans and answers, in the tokens of a model."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError, SpanError
from diffscope.prompts.encoded import Chars, encode, with_spans
from diffscope.tasks.prompt import Prompt, TextPrompt
from diffscope.tasks.template import suffix_count


def encode_prompts(tokenizer: PreTrainedTokenizerBase | None, prompts: Sequence[TextPrompt]) -> list[Prompt]:
    """Encode prompts, such as those that :func:`diffscope.tasks.read_prompts` reads.

    The answer continues the prompt as it is written. If all answers begin with the same token of white space, that token belongs
    to the prompt. Without a span ``query`` the last token is the question. Spans and answers that are not given are empty.

    Raises
    ------
    PromptError, SpanError
        The answer or the spans of a prompt are not whole tokens; the message names the prompt.
    """
    if tokenizer is None:
        raise PromptError("this model came without a tokenizer, and the prompts are text; load the model with it")
    encoded = []
    for prompt in prompts:
        try:
            encoded.append(encode_prompt(tokenizer, prompt))
        except (PromptError, SpanError) as error:
            raise type(error)(f"prompt {prompt.name!r}: {error}") from None
    return encoded


def require_answers(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Return prompts as they are if each has an answer and a span that says where its text states it.

    Raises PromptError if some lack either; the message names them.
    """
    for what, how, lacking in (
        ("an answer", '"answer": "…"', [prompt.city for prompt in prompts if not prompt.answer]),
        ("a span of it", '"spans": {"answer": "…"}', [prompt.city for prompt in prompts if not prompt.spans["answer"]]),
    ):
        if lacking:
            others = len(lacking) - 1
            have = f" and {others} more have" if others else " has"
            raise PromptError(f"each with {what} ({how} in the file); {lacking[0]!r}{have} none")
    return prompts


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: TextPrompt) -> Prompt:
    """Encode one prompt as :func:`encode_prompts` does; errors do not name it."""
    text = prompt.text if prompt.answer is None else prompt.text.rstrip()
    encoded = encode(tokenizer, text)
    characters = {name: _within(ranges, len(text)) for name, ranges in prompt.spans.items()}
    spans = {name: list(at) for name, at in with_spans(encoded, characters).spans.items()}
    ids = list(encoded.ids)[: len(encoded.ids) - suffix_count(tokenizer)]
    lead: list[int] = []
    answers: list[list[int]] = [[]]
    if prompt.answer is not None:
        gap, answer = split_gap(prompt, text)
        texts = [answer, *(other.strip() for other in prompt.distractors)]
        lead, answers = split_common_space(tokenizer, [_continued(tokenizer, text, ids, gap + other) for other in texts])
    query = spans.get("query", [len(ids) - 1]) + list(range(len(ids), len(ids) + len(lead)))
    spans = {"sink": [0], "answer": [], "needles": [], **spans, "query": query}
    if lead and [ids[at] for at in spans["answer"][: len(lead)]] == lead:
        spans["answer"] = spans["answer"][len(lead) :]
    depth = spans["answer"][0] / len(ids) if spans["answer"] else float("nan")
    return Prompt([*ids, *lead], answers[0], spans, depth, prompt.name, answers[1:])


def _within(ranges: Sequence[Chars], length: int) -> list[Chars]:
    """Cut ranges to a text that lost the white space at its end."""
    return [Chars(start, min(stop, length)) for start, stop in ranges if start < length] or list(ranges)


def split_gap(prompt: TextPrompt, text: str) -> tuple[str, str]:
    """Return the white space between a prompt and its answer, and the answer without it.

    It is what the prompt ends with or the answer begins with. If neither has any and the span ``answer`` is the same text as the
    answer, it is the white space before that span.

    Raises PromptError if prompt and answer would be one word.

    Parameters
    ----------
    text : str
        That of the prompt without the white space at its end.
    """
    answer = (prompt.answer or "").strip()
    given = prompt.text[len(text) :] or _white(prompt.answer or "")
    if given or not answer:
        return given, answer
    if ranges := prompt.spans.get("answer"):
        start, stop = ranges[0]
        stated = text[start:stop]
        before = text[:start] + _white(stated)
        if stated.strip() == answer:
            return before[len(before.rstrip()) :], answer
    if all(end.isdigit() or end.upper() != end.lower() for end in (text[-1], answer[0])):
        raise PromptError(
            f"the prompt ends in {text[-12:]!r} and the answer begins with {answer[:12]!r}, with no space between; "
            "if a space comes next, begin the answer with it"
        )
    return "", answer


def _white(text: str) -> str:
    """Return the white space that a text begins with."""
    return text[: len(text) - len(text.lstrip())]


def _continued(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int], more: str) -> list[int]:
    """Return the tokens of a text that continues another."""
    whole = list(encode(tokenizer, text + more).ids)
    whole = whole[: len(whole) - suffix_count(tokenizer)]
    if whole[: len(ids)] != ids or len(whole) == len(ids):
        raise PromptError(
            f"this tokenizer joins the answer {more!r} to the end of the prompt, {text[-12:]!r}; begin it with a space, or end "
            "the prompt with a whole word"
        )
    return whole[len(ids) :]


def split_common_space(tokenizer: PreTrainedTokenizerBase, answers: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Split off the tokens of white space that all answers begin with."""
    lead: list[int] = []
    while len({answer[0] for answer in answers}) == 1 and min(map(len, answers)) > 1:
        if str(tokenizer.decode([answers[0][0]])).strip():
            break
        lead.append(answers[0][0])
        answers = [answer[1:] for answer in answers]
    return lead, answers
