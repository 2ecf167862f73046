"""What every training begins with: the vocabulary, the weights; and the loss that it lowers."""

from __future__ import annotations

import hashlib
from functools import cache

import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from diffscope.lab.training.recipe import Recipe
from diffscope.tasks.corpus import standard_library_text
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.tokenizer import CITIES, train_tokenizer

# Kinds of target, see Retrieval.training_rows
TEXT = 0
GIVEN_AWAY = 1
NO_KIND = -1


def tokenizer_for(recipe: Recipe) -> PreTrainedTokenizerFast:
    """The cohort's tokenizer, learned from the training text and the needle sentence, so that its words are single tokens."""
    return _tokenizer(recipe.vocab_size, recipe.words)


@cache
def _tokenizer(vocab_size: int, words: tuple[str, ...]) -> PreTrainedTokenizerFast:
    sentences = [TEMPLATE.partition("{number}")[0].format(city=city) for city in CITIES] * 40
    return train_tokenizer([*standard_library_text(held_out=False), *sentences], vocab_size, words)


def losses(logits: torch.Tensor, ids: torch.Tensor, kind: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses of one step of training.

    Parameters
    ----------
    logits : Tensor (row, token, vocabulary)
    ids : Tensor (row, token)
    kind : Tensor (row, token)
        As :meth:`~diffscope.tasks.Retrieval.training_rows` gives it.

    Returns
    -------
    answers : Tensor ()
        Mean cross-entropy, in nats, on the answers that an earlier mention gives away.
    text : Tensor ()
        The same on everything but numbers.
    right : Tensor ()
        Share of the tokens of those answers that are the first choice.
    """
    # The last token's target is of no kind. To cut it off would cost a copy of all logits.
    target = ids.roll(-1, 1)
    kind = kind.roll(-1, 1)
    kind[:, -1] = NO_KIND
    loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    answers = kind == GIVEN_AWAY
    right = (logits.detach()[answers].argmax(-1) == target[answers]).float().mean()
    return loss[answers].mean(), loss[kind == TEXT].mean(), right


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
