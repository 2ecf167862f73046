"""The example prompts that come with the bundled models, drawn with their tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from diffscope.errors import DiffscopeError
from diffscope.files import write_json
from diffscope.prompts import Chars
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt, TextPrompt
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Retrieval

# (tokens for the bundled tokenizer, needles, depth of the queried one)
KINDS = ((96, 2, 0.5), (128, 4, 0.0), (128, 4, 0.5), (256, 4, 0.25), (256, 4, 1.0), (256, 6, 0.5))
TEXT_EXAMPLES = (128, 256)  # tokens
DRAWS = 5000  # texts of which one makes an example


def as_text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, name: str) -> TextPrompt:
    """A generated prompt as text with character ranges, one a run of neighbouring tokens."""
    pieces = [tokenizer.decode([token]) for token in prompt.ids[1:]]  # without <bos>
    ends = np.concatenate([[0, 0], np.cumsum([len(piece) for piece in pieces])])  # of each token, <bos> included
    ranges = {}
    for span in ("answer", "needles", "query"):
        at = np.array(prompt.spans[span], dtype=int)
        if not len(at):
            continue
        runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
        ranges[span] = [Chars(int(ends[run[0]]), int(ends[run[-1] + 1])) for run in runs]
    answer, *distractors = (tokenizer.decode(ids).strip() for ids in (prompt.answer, *prompt.distractors))
    return TextPrompt(name, "".join(pieces), ranges, answer, tuple(distractors))


def questions(task: Retrieval, seed: int = 7) -> list[TextPrompt]:
    """Draw the examples of retrieval anew."""
    rng = np.random.default_rng(seed)
    drawn = []
    for length, needles, depth in KINDS:
        prompt = task.prompt(length, needles, rng, depth)
        name = f"{length} tokens, {needles} needles, answer at {round(100 * depth)} %"
        drawn.append(as_text(task.tokenizer, prompt, name))
    return drawn


def texts(scope: Scope, seed: int = 7) -> list[TextPrompt]:
    """Draw the examples of text anew: the first that end before a word which the model tells, and not with others in its place.

    Raises
    ------
    DiffscopeError
        It tells none of many.
    """
    recall = Recall(scope.tokenizer)
    rng = np.random.default_rng(seed)
    drawn = []
    for length in TEXT_EXAMPLES:
        prompts = (recall.prompt(length, rng) for _ in range(DRAWS))
        told = next((prompt for prompt in prompts if is_told(scope, prompt)), None)
        if told is None:
            raise DiffscopeError(f"the model tells no next word of {DRAWS} texts of {length} tokens, so that there is no example")
        drawn.append(as_text(scope.tokenizer, told, f"text of {length} tokens, whose next word follows from it"))
    return drawn


@torch.inference_mode()
def is_told(scope: Scope, prompt: Prompt) -> bool:
    """Whether a model tells the next word because it stands in the text.

    It is the likeliest, twice as likely as the second; and never the likeliest where another of the text's words stands at all
    of its places, for each of the others. A text that is other tokens when it is read again is none.
    """
    (answer,) = prompt.answer
    words = {token for token in prompt.ids[1:] if _is_word(scope.tokenizer.decode([token]))}
    repeated = {prompt.ids[at] for at in prompt.spans["query"]}  # where the answer's own word stands, others would change it
    if answer not in words - repeated or scope.tokenize(scope.tokenizer.decode(prompt.ids[1:])) != prompt.ids:
        return False
    likely = scope.model(torch.tensor([prompt.ids])).logits[0, -1].softmax(-1).topk(2)
    if int(likely.indices[0]) != answer or likely.values[0] < 2 * likely.values[1]:
        return False
    others = [[other if token == answer else token for token in prompt.ids] for other in sorted(words - {answer})]
    return not (scope.model(torch.tensor(others)).logits[:, -1].argmax(-1) == answer).any()


def _is_word(text: str) -> bool:
    return text.startswith(" ") and text.strip().isalpha()


def write_prompts(drawn: Sequence[TextPrompt], file: Path) -> None:
    """Write prompts as ``read_prompts`` reads them."""
    fields = ("spans", "answer", "distractors")
    rows = [{"name": one.name, "prompt": one.text, **{name: getattr(one, name) for name in fields}} for one in drawn]
    write_json(file, rows, indent=1)
