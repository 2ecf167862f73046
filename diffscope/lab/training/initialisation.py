"""Begin a training: its vocabulary, its corpus, its initial weights, and its loss."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from diffscope.errors import DiffscopeError
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.stages import BACKCOPY
from diffscope.tasks.backcopy import Backcopy
from diffscope.tasks.lookups import GIVEN_AWAY, TEXT
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.text import fingerprint, standard_library_text
from diffscope.tasks.text_folder import TextFolder, require_digest
from diffscope.tasks.tokenizer import CITIES, train_tokenizer

NO_KIND = -1  # of a target that is in no loss


def tokenizer_for(recipe: Recipe) -> PreTrainedTokenizerBase:
    """Return the cohort's tokenizer: of its task, of its corpus, or learned from the training text.

    One that is learned knows the needle sentence, so that its words are single tokens.
    """
    if recipe.task == BACKCOPY:
        return Backcopy().tokenizer
    corpus = corpus_of(recipe)
    return _tokenizer(recipe.vocab_size, recipe.words) if corpus is None else corpus.tokenizer()


def corpus_of(recipe: Recipe) -> TextFolder | None:
    """Return the corpus that a recipe trains on, None if that is the text which comes with diffscope.

    Raises DiffscopeError if the recipe has a corpus, and no folder of one was given; or it has none.
    """
    if recipe.corpus is None:
        if recipe.text is not None:
            raise DiffscopeError(f"recipe {recipe.name!r} trains on no corpus; leave out --text")
        return None
    if recipe.text is None:
        raise DiffscopeError(f"recipe {recipe.name!r} trains on the corpus {recipe.corpus}; give its folder with --text FOLDER")
    return _opened(recipe.text, recipe.corpus)


@lru_cache(maxsize=2)  # every run of a cohort asks for it, and to prove it takes a second
def _opened(folder: Path, digest: str) -> TextFolder:
    TextFolder(folder).tokenizer()  # one that is trained is part of the digest, the first time as later
    return require_digest(folder, digest)


def with_text(recipe: Recipe, folder: Path | None, any_text: bool = False) -> Recipe:
    """Return a recipe with the folder of its corpus.

    Raises DiffscopeError if the folder holds another corpus, or the recipe has none.

    Parameters
    ----------
    any_text : bool
        Take another corpus than the recipe's. Its digest takes the place of the recipe's, so that runs on one are not found as
        runs on the other.
    """
    placed = replace(recipe, text=folder and folder.resolve())
    if any_text and folder is not None and recipe.corpus is not None:
        other = TextFolder(folder)
        other.tokenizer()
        placed = replace(placed, corpus=other.digest)
    if folder is not None:
        corpus_of(placed)
    return placed


def text_digest(recipe: Recipe) -> str:
    """Return the digest of the text that a recipe trains on."""
    return recipe.corpus or fingerprint(standard_library_text(held_out=False))


@cache
def _tokenizer(vocab_size: int, words: tuple[str, ...]) -> PreTrainedTokenizerFast:
    sentences = [TEMPLATE.partition("{number}")[0].format(city=city) for city in CITIES] * 40
    return train_tokenizer([*standard_library_text(held_out=False), *sentences], vocab_size, words)


class Losses(NamedTuple):
    """Losses of one step of training, in nats.

    Attributes
    ----------
    answers : Tensor ()
        Mean cross-entropy on the answers that what stands before gives away; NaN if there are none.
    text : Tensor ()
        The same on everything but answers.
    every : Tensor ()
        The same on both together, token by token.
    right : Tensor ()
        Share of the tokens of those answers that are the first choice.
    """

    answers: torch.Tensor
    text: torch.Tensor
    every: torch.Tensor
    right: torch.Tensor


def losses(logits: torch.Tensor, ids: torch.Tensor, kind: torch.Tensor) -> Losses:
    """Compute the losses of one step of training.

    Parameters
    ----------
    logits : Tensor (row, token, vocabulary)
    ids : Tensor (row, token)
    kind : Tensor (row, token)
        As :meth:`~diffscope.tasks.Retrieval.training_rows` gives it.
    """
    # The last token's target is of no kind. To cut it off would cost a copy of all logits.
    target = ids.roll(-1, 1)
    kind = kind.roll(-1, 1)
    kind[:, -1] = NO_KIND
    loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    answers = kind == GIVEN_AWAY
    text = kind == TEXT
    right = (logits.detach()[answers].argmax(-1) == target[answers]).float().mean()
    return Losses(loss[answers].mean(), loss[text].mean(), loss[answers | text].mean(), right)


@torch.no_grad()
def initialise(model, seed: int) -> None:
    """Draw every random tensor of a fresh model from a random stream of its own, given by the seed and the tensor's name.

    So tensors that two arms have in common, in name and shape, begin equal. Tensors that begin as one constant are left as they
    are.
    """
    config = model.config
    for name, tensor in model.named_parameters():
        if (tensor == tensor.flatten()[0]).all():
            continue
        stream = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7])
        values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(stream))
        scale = config.initializer_range if tensor.dim() == 2 else config.lambda_std_dev
        tensor.copy_(values * scale)
    if config.pad_token_id is not None:
        model.get_input_embeddings().weight[config.pad_token_id] = 0
