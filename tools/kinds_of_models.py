"""What differs between bundled models of different tasks: their names, their scores, the words of their cards, their examples."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from diffscope.errors import DiffscopeError
from diffscope.lab.accuracy import accuracy_of, exact_by_depth
from diffscope.lab.copying import copying
from diffscope.lab.training.drawing import filler_of
from diffscope.lab.training.initialisation import corpus_of
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.stages import BACKCOPY, PLANTED
from diffscope.numbers import listed
from diffscope.prompts.encoded import Chars
from diffscope.scope import Scope
from diffscope.tasks.backcopy import Backcopy
from diffscope.tasks.files import EXAMPLES
from diffscope.tasks.prompt import Prompt, TextPrompt
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.sampling import draw
from diffscope.tasks.text_folder import HELD_OUT, OTHER_DOMAIN
from diffscope.tasks.training_sentence import last_template
from studies.laptop.text import losses
from studies.subtraction.train import recipe_of

SCORED = dict(count=500, needles=4, seed=20_000)
COPIES_SCORED = dict(sequences=500, measured=50, seed=20_000)
# tokens of a window; windows of the text of the training, drawn with the seed, and of text of another domain
TEXTS_SCORED = dict(length=512, texts=64, seed=20_000)
CORPUS = recipe_of("text").corpus  # that of running text
#: How the names of held-out documents begin of which example prompts are made: their licence, Python's, comes with the package.
OF_EXAMPLES = "python3.11-doc/"
# (tokens for the bundled tokenizer, needles, depth of the queried one)
LOOKUPS = ((96, 2, 0.5), (128, 4, 0.0), (128, 4, 0.5), (256, 4, 0.25), (256, 4, 1.0), (256, 6, 0.5))
TEXT_EXAMPLES = (128, 256)  # tokens
COPY_EXAMPLES = (48, 64)  # tokens
DRAWS = 5000  # texts of which one makes an example
SEED = 7  # of examples


class Kind(NamedTuple):
    """A task that bundled models are trained on, and what their cards say of it.

    Attributes
    ----------
    stem : str
        How the names of its models begin, after ``mini-``; of models that look up answers nothing.
    arms : tuple of str
        Those that are published by default, if the cohort has them.
    checkpoints : bool
        Whether checkpoints along training are published by default.
    examples : Path
        The prompts that come with diffscope for its models.
    task, purpose, data, result : str
        Words of the card.
    headline : tuple of str
        The score by which a model is known, and the words for it.
    columns, curve : str
        Head and row of the card's table of the training.
    is_logged : callable
        Whether a row of the metrics stands in that table.
    score : callable
        (scope, recipe) → the scores of the card, and what they were scored on.
    facts : callable
        (scores) → what `result` names besides the scores themselves.
    draw : callable
        (scope, recipe) → the example prompts.
    """

    stem: str
    arms: tuple[str, ...]
    checkpoints: bool
    examples: Path
    task: str
    purpose: str
    data: str
    result: str
    headline: tuple[str, str]
    columns: str
    curve: str
    is_logged: Callable[[dict], bool]
    score: Callable[[Scope, Recipe], tuple[dict, dict]]
    facts: Callable[[dict], dict[str, Any]]
    draw: Callable[[Scope, Recipe], list[TextPrompt]]


def answer_scores(scope: Scope, recipe: Recipe) -> tuple[dict, dict]:
    """Score the answers of a model to unseen prompts in the sentence of its training."""
    task = Retrieval(scope.tokenizer, template=template_of(recipe), texts=filler_of(recipe, scope.tokenizer, held_out=True))
    room = scope.model.config.max_position_embeddings - 1  # for the first of an answer's two tokens
    scored_on = {**SCORED, "length": min(recipe.length, room)}
    scores = exact_by_depth(accuracy_of(scope, draw(task, **scored_on)).right)
    return scores | {"tokens": scored_on["length"]}, scored_on


def text_scores(scope: Scope, recipe: Recipe) -> tuple[dict, dict]:
    """Return losses (nats a token), on held-out text its perplexity too, and scores of the answers to planted lookups."""
    length, texts, seed = TEXTS_SCORED["length"], TEXTS_SCORED["texts"], TEXTS_SCORED["seed"]
    held_out, trained = (Recall(scope.tokenizer, filler_of(recipe, scope.tokenizer, held_out=of)) for of in (True, False))
    windows = held_out.windows(length)  # their tokens, and which of these are given away (window, token)
    scores = {name: value for name, value in losses(scope, *windows).items() if name in ("loss", "perplexity")}
    scores["trained_loss"] = losses(scope, *trained.rows(texts, length, np.random.default_rng(seed)))["loss"]
    other = Recall(scope.tokenizer, corpus_of(recipe).filler(OTHER_DOMAIN, scope.tokenizer))
    scores["other_loss"] = losses(scope, *other.windows(length, texts))["loss"]
    answers, scored_on = answer_scores(scope, recipe)
    return {**scores, "windows": len(windows[0]), **answers}, {**scored_on, "text": TEXTS_SCORED}


def copy_scores(scope: Scope, recipe: Recipe) -> tuple[dict, dict]:
    """Return the share of right copies, losses in nats a token, and what heads give the first token where none is to be made."""
    scored_on = {**COPIES_SCORED, "length": recipe.length}
    scores, masses = copying(scope, Backcopy(), **scored_on)
    dormant = masses.sel(queries="dormant").stack(of=("layer", "head")).dropna("map", how="all")  # (map, head of any layer)
    maps = dormant["map"].values.tolist()
    first_token = {name: dormant.sel(map=name).values.tolist() for name in (maps if "A2" in maps else ["D"])}
    return {
        "copied": scores.exact,
        "copy_loss": scores.copied,
        "bigram_excess": scores.excess,
        "first_token": first_token,
    }, scored_on


def template_of(recipe: Recipe) -> str:
    """Return the needle sentence of the last stage of training."""
    return last_template(recipe.as_dict()) or TEMPLATE


def sentence(template: str) -> str:
    """Return a needle sentence for people."""
    return template.strip().format(city="CITY", number="N")


def as_text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, name: str) -> TextPrompt:
    """Return a generated prompt as text, with a character range for each run of neighbouring tokens of a span but the sink."""
    pieces = [tokenizer.decode([token]) for token in prompt.ids[1:]]  # without <bos>
    ends = np.concatenate([[0, 0], np.cumsum([len(piece) for piece in pieces])])  # of each token, <bos> included
    ranges = {}
    for span, tokens in prompt.spans.items():
        at = np.array(tokens, dtype=int)
        if span == "sink" or not len(at):  # every prompt has the sink anyway
            continue
        runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
        ranges[span] = [Chars(int(ends[run[0]]), int(ends[run[-1] + 1])) for run in runs]
    answer, *distractors = (tokenizer.decode(ids).strip() for ids in (prompt.answer, *prompt.distractors))
    return TextPrompt(name, "".join(pieces), ranges, answer, tuple(distractors))


def questions(scope: Scope, recipe: Recipe) -> list[TextPrompt]:
    """Draw the example prompts of retrieval, in the sentence of a model's training."""
    task = Retrieval(scope.tokenizer, held_out=True, template=template_of(recipe))
    rng = np.random.default_rng(SEED)
    drawn = []
    for length, needles, depth in LOOKUPS:
        prompt = task.prompt(length, needles, rng, depth)
        name = f"{length} tokens, {needles} needles, answer at {round(100 * depth)} %"
        drawn.append(as_text(task.tokenizer, prompt, name))
    return drawn


def texts(scope: Scope, recipe: Recipe) -> list[TextPrompt]:
    """Draw the example prompts of text: of each length the first whose next word the model predicts from the text itself.

    They are of documents that were held out of its training.

    Raises
    ------
    DiffscopeError
        The model predicts the next word of none of `DRAWS` texts.
    """
    lines = (corpus_of(recipe).path / f"{HELD_OUT}.jsonl").read_text(encoding="utf-8").splitlines()
    paragraphs = [row["text"] for row in map(json.loads, lines) if row["document"].startswith(OF_EXAMPLES)]
    recall = Recall(scope.tokenizer, paragraphs)
    rng = np.random.default_rng(SEED)
    drawn = []
    for length in TEXT_EXAMPLES:
        prompts = (recall.prompt(length, rng) for _ in range(DRAWS))
        predicted = next((prompt for prompt in prompts if is_predicted(scope, prompt)), None)
        if predicted is None:
            raise DiffscopeError(f"the model predicts no next word of {DRAWS} texts of {length} tokens; publish another seed")
        drawn.append(as_text(scope.tokenizer, predicted, f"text of {length} tokens, whose next word follows from it"))
    return drawn


def copies(scope: Scope, recipe: Recipe) -> list[TextPrompt]:
    """Draw the example prompts of Bigram-Backcopy: of each length the first in which a letter is to be copied.

    Distractors are the other characters that stand before a trigger of the sequence, white space aside.
    """
    task = Backcopy()
    rng = np.random.default_rng(SEED)
    drawn = []
    for length in COPY_EXAMPLES:
        prompts = (as_text(task.tokenizer, task.prompt(length, rng), f"copies in {length} tokens") for _ in range(DRAWS))
        drawn.append(next(prompt for prompt in prompts if prompt.answer.isalpha()))
    return [replace(prompt, distractors=_others_copied(prompt)) for prompt in drawn]


def _others_copied(prompt: TextPrompt) -> tuple[str, ...]:
    copied = dict.fromkeys(prompt.text[at.start : at.stop] for at in prompt.spans["copied"])
    return tuple(character for character in copied if character.strip() and character != prompt.answer)


@torch.inference_mode()
def is_predicted(scope: Scope, prompt: Prompt) -> bool:
    """Return whether a model predicts the next word because the word stands in the text.

    The word has to be the likeliest, twice as likely as the second. If any other word of the text takes all of its places, it
    must not be the likeliest. A text whose tokens change when it is tokenised again is refused.
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


def _answer_facts(scores: dict) -> dict[str, Any]:
    low, high = scores["interval"]
    depths = ", ".join(f"{float(depth):.0%} {share:.1%}" for depth, share in scores["by_depth"].items())
    return {"low": low, "high": high, "depths": depths, "needles": SCORED["needles"]}


def _text_facts(scores: dict) -> dict[str, Any]:
    return {**_answer_facts(scores), "scored_length": TEXTS_SCORED["length"], "texts": TEXTS_SCORED["texts"]}


def _copy_facts(scores: dict) -> dict[str, Any]:
    maps = (f"{name} {listed([f'{share:.2f}' for share in shares])}" for name, shares in scores["first_token"].items())
    return {"sinks": "; ".join(maps), **{name: COPIES_SCORED[name] for name in ("sequences", "measured")}}


STANDARD_LIBRARY = (
    "documentation strings of the Python 3.11.7 standard library (SHA-256 of the training text\n"
    "  `{fingerprint}`), 8 % of modules held out by a hash of their path"
)
#: by what ``task`` says on the card
KINDS = {
    "answers": Kind(
        stem="",
        arms=("diff", "standard"),
        checkpoints=True,
        examples=EXAMPLES["retrieval"],
        task="to look up numbers in real text",
        purpose="and it really retrieves. It knows little English and is of no other use.",
        data=f'{STANDARD_LIBRARY};\n  needle sentences "{{sentence}}" drawn from seed {{seed}}',
        result=(
            "**Exact answers** at {tokens} tokens, {needles} needles, one question, {prompts} unseen prompts over held-out text:"
            "\n  **{retrieval:.1%}** (95 % interval {low:.1%} to {high:.1%}); by depth of the needle: {depths}."
        ),
        headline=("retrieval", "{:.1%} exact answers"),
        columns="| step | prompt length | answer loss | text loss | exact answers ({evaluated} prompts) |\n|---|---|---|---|---|",
        curve="| {step} | {length} | {answer_loss:.3f} | {text_loss:.3f} | {retrieval:.0%} |",
        is_logged=lambda row: "retrieval" in row,
        score=answer_scores,
        facts=_answer_facts,
        draw=questions,
    ),
    "text": Kind(
        stem="text",
        arms=("diff",),
        checkpoints=False,
        examples=EXAMPLES["text"],
        task="as a language model of running English",
        purpose="with maps of text. It writes in the tone of manuals, and looks up a number that stands in the text.",
        data=(
            "running English out of Debian's documentation, as `python -m studies.subtraction.corpus build` makes it\n"
            "  (digest `{fingerprint}`), whole documents held out by a hash of their names;\n"
            '  in {planted:.0%} of the windows one of up to {most} sentences "{sentence}" stands again later'
        ),
        result=(
            "**Loss on held-out text**: {loss:.3f} nats a token, a perplexity of **{perplexity:.1f}** (all of it,\n"
            "  {windows} windows of {scored_length} tokens); on text that it was trained on {trained_loss:.3f}, on text of\n"
            "  another domain {other_loss:.3f} ({texts} windows of each). Exact answers at {tokens} tokens, {needles} needles,\n"
            "  one question, {prompts} unseen prompts over held-out text: {retrieval:.1%} (95 % interval {low:.1%} to\n"
            "  {high:.1%})."
        ),
        headline=("perplexity", "perplexity {:.1f}"),
        columns=(
            "| step | text length | text loss (one batch of training) | exact answers ({evaluated} prompts) |\n|---|---|---|---|"
        ),
        curve="| {step} | {length} | {text_loss:.3f} | {retrieval:.0%} |",
        is_logged=lambda row: "retrieval" in row,
        score=text_scores,
        facts=_text_facts,
        draw=texts,
    ),
    "copies": Kind(
        stem="sinks",
        arms=("diff", "standard"),
        checkpoints=False,
        examples=EXAMPLES["copies"],
        task="on the Bigram-Backcopy task",
        purpose=(
            "with a head that is needed after a trigger and has nothing to do elsewhere, where it looks at\n"
            "the first token. After the characters t, a and n the character before them comes once more; it knows nothing else."
        ),
        data=f"{STANDARD_LIBRARY};\n  random sequences of their bigrams, drawn from seed {{seed}}",
        result=(
            "**Right copies** after triggers: **{copied:.2%}** of those in {sequences} sequences, loss {copy_loss:.4f} nats; on\n"
            "  other tokens the loss is {bigram_excess:.4f} nats above the least. Where nothing is to be copied the first token\n"
            "  has this share of the weights of each head, mean of {measured} sequences: {sinks}."
        ),
        headline=("copied", "{:.2%} right copies"),
        columns="| step | length | loss on copies | loss above the least elsewhere | right copies |\n|---|---|---|---|---|",
        curve="| {step} | {length} | {copy_loss:.4f} | {bigram_excess:.4f} | {copied:.0%} |",
        is_logged=lambda row: row["step"] % 200 == 0,
        score=copy_scores,
        facts=_copy_facts,
        draw=copies,
    ),
}


def kind_of(recipe: Recipe) -> str:
    """Return what models of a recipe are trained on, one of :data:`KINDS`.

    Raises
    ------
    DiffscopeError
        It is text of another kind, of which no models are published.
    """
    if recipe.of_text or (recipe.task == PLANTED and recipe.corpus != CORPUS):
        raise DiffscopeError(f"no models of recipe {recipe.name!r} are bundled: its text is not that of the second study")
    return {BACKCOPY: "copies", PLANTED: "text"}.get(recipe.task, "answers")
