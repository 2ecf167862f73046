"""The Bigram-Backcopy task, on which transformers of one to three layers grow an attention sink at the first token.

"Active-Dormant Attention Heads" (Guo et al., arXiv 2410.13835). A sequence begins with <bos>. After an ordinary character comes a
draw from a table of bigrams; after a *trigger* the character before the trigger comes once more. So a head that looks at the
character before the current one is needed at triggers (active) and of no use at all other queries (dormant).

What differs from the paper: the table is of the documentation strings that come with diffscope and not of Tiny Shakespeare. Its
vocabulary is <bos> and 63 characters. The first character is never a trigger, so that every trigger has a character to copy, and
no copy is a trigger. The paper's triggers are the most frequent characters; here they are the most frequent ones that follow no
character more than half of the time. With a space as trigger a sequence is caught in ", , , , ," because a comma is nearly always
followed by a space, and hardly anything would be left to draw.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from diffscope.errors import PromptError
from diffscope.tasks.lookups import GIVEN_AWAY, TEXT
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.text import standard_library_text
from diffscope.tasks.tokenizer import BOS

CHARACTERS = 63  # with <bos> a vocabulary of 64
TRIGGERS = 3


class CopyScores(NamedTuple):
    """The scores of a model on the task, in nats a token.

    Attributes
    ----------
    copied : float
        Mean loss on the tokens that follow a trigger. The least that any model can reach is 0.
    exact : float
        Share of these tokens that are the first choice.
    bigram : float
        Mean expected loss on all other tokens, over the draws of the table.
    entropy : float
        The least that `bigram` can be: the mean entropy of the table at the same queries.
    """

    copied: float
    exact: float
    bigram: float
    entropy: float

    @property
    def excess(self) -> float:
        """Mean excess risk on bigram tokens in nats: the divergence of the model's prediction from the table's."""
        return self.bigram - self.entropy


@dataclass
class Backcopy:
    """The Bigram-Backcopy task. The table and the triggers are the task's own and depend on no seed.

    Parameters
    ----------
    triggers : int
        How many characters are triggers: the commonest that follow no character more than half of the time.

    Attributes
    ----------
    tokenizer : PreTrainedTokenizerFast
        One token a character, <bos> first; it cannot split other characters.
    trigger_ids : ndarray of int64, (trigger,)
    transitions : ndarray of float64, (token, token)
        Probability of the next token after each token. Rows of triggers are zero, because there a copy follows.

    Raises
    ------
    PromptError
        `triggers` is 0, or more than half of such characters.
    """

    triggers: int = TRIGGERS
    tokenizer: PreTrainedTokenizerFast = field(init=False, repr=False)
    trigger_ids: np.ndarray = field(init=False)
    transitions: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        characters, counts = _bigrams()
        able = np.flatnonzero((counts <= counts.sum(1, keepdims=True) / 2).all(0))[1:]  # the commonest first
        if not 1 <= self.triggers <= len(able) // 2:
            raise PromptError(f"triggers = {self.triggers}; give a number from 1 to {len(able) // 2}")
        self.tokenizer = _tokenizer(characters)
        self.trigger_ids = able[: self.triggers]
        table = counts.copy()
        table[0, self.trigger_ids] = 0
        table[self.trigger_ids] = 0
        totals = table.sum(1, keepdims=True)
        self.transitions = np.divide(table, totals, out=np.zeros(table.shape), where=totals > 0)

    def speaks(self, tokenizer: PreTrainedTokenizerBase | None) -> bool:
        """Return whether a tokenizer has this task's tokens, so that its model can be given the task."""
        return tokenizer is not None and tokenizer.get_vocab() == self.tokenizer.get_vocab()

    def training_rows(self, rows: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw sequences.

        Parameters
        ----------
        rows, length : int
            Sequences, and tokens of each, <bos> included.
        rng : numpy.random.Generator

        Returns
        -------
        ids : ndarray of int64, (row, length)
        kind : ndarray of int8, (row, length)
            1 a token that the trigger before it determines, 0 <bos> and tokens drawn from the table.
        """
        if length < 2:
            raise PromptError(f"a sequence of {length} tokens has nothing after <bos>; give a length of 2 or more")
        up_to = self.transitions.cumsum(1)  # (token, token)
        up_to /= np.maximum(up_to[:, -1:], np.finfo(float).tiny)  # exactly 1 at the end
        draws = rng.random((rows, length))
        ids = np.full((rows, length), self.tokenizer.bos_token_id, dtype=np.int64)
        kind = np.full((rows, length), TEXT, dtype=np.int8)
        for at in range(1, length):
            drawn = (up_to[ids[:, at - 1]] <= draws[:, at, None]).sum(1)  # (row,)
            copies = np.isin(ids[:, at - 1], self.trigger_ids)
            ids[:, at] = np.where(copies, ids[:, at - 2], drawn)
            kind[copies, at] = GIVEN_AWAY
        return ids, kind

    def prompt(self, length: int, rng: np.random.Generator) -> Prompt:
        """Draw a sequence of exactly `length` tokens that ends with a trigger, so that a copy comes next.

        Spans are ``sink`` (<bos>), ``triggers`` (the queries whose next token is a copy), ``copied`` (the tokens before them: the
        keys where an active head must look), ``dormant`` (all other queries but <bos>, which sees only itself); and, of the last
        trigger, ``query`` and ``answer``.

        Raises
        ------
        PromptError
            There is no room for <bos>, a character and a trigger.
        """
        if length < 3:
            raise PromptError(f"{length} tokens do not hold <bos>, a character and a trigger; give a length of 3 or more")
        while True:
            ids = self.training_rows(1, length, rng)[0][0]
            if ids[-1] in self.trigger_ids:
                return Prompt(ids.tolist(), [int(ids[-2])], self.spans(ids), (length - 2) / length)

    def spans(self, ids: np.ndarray) -> dict[str, list[int]]:
        """Return the spans of a sequence, as :meth:`prompt` has them; ``query`` and ``answer`` if it ends with a trigger."""
        ids = np.asarray(ids)
        is_trigger = np.isin(ids, self.trigger_ids)
        triggers = np.flatnonzero(is_trigger)
        dormant = np.flatnonzero(~is_trigger)[1:]
        last = len(ids) - 1
        ends = bool(is_trigger[last])
        return {
            "sink": [0],
            "answer": [last - 1] if ends else [],
            "needles": [],
            "query": [last] if ends else [],
            "triggers": triggers.tolist(),
            "copied": (triggers - 1).tolist(),
            "dormant": dormant.tolist(),
        }

    def entropies(self) -> np.ndarray:
        """Return the entropy of the next token after each token in nats, (token,): the Bayes-optimal loss, 0 after a trigger."""
        p = self.transitions
        return -(p * np.log(np.where(p > 0, p, 1))).sum(1)

    def bayes_loss(self) -> dict[str, float]:
        """Return the least loss that any model can reach in long sequences, in nats a token.

        Returns
        -------
        dict of str to float
            ``copied`` on tokens after a trigger, which is 0; ``bigram`` on all others; ``all`` on both together; and
            ``share``, which part of all tokens are copies.
        """
        # From one dormant query to the next: a trigger and its copy lead back to the character that the trigger followed.
        step = self.transitions.copy()
        back = step[:, self.trigger_ids].sum(1)  # (token,)
        step[:, self.trigger_ids] = 0
        step[np.diag_indices_from(step)] += back
        often = np.zeros(len(step))
        often[0] = 1
        while (change := np.abs(often @ step - often).sum()) > 1e-14:
            often = often @ step
        assert change < 1e-12
        copies = float(often @ back)  # copies a dormant query
        bigram = float(often @ self.entropies())
        return {"copied": 0.0, "bigram": bigram, "all": bigram / (1 + copies), "share": copies / (1 + copies)}

    @torch.no_grad()
    def score(self, model: torch.nn.Module, rows: int, length: int, rng: np.random.Generator, tokens: int = 8192) -> CopyScores:
        """Score a model on sequences that `rng` draws, which should be one that no training used.

        Parameters
        ----------
        model
            Of this task's tokenizer.
        rows, length : int
        rng : numpy.random.Generator
        tokens : int
            The most that run together.
        """
        ids, kind = self.training_rows(rows, length, rng)
        device = model.get_input_embeddings().weight.device
        table = torch.from_numpy(self.transitions).to(device)
        copied, right, bigram, entropy = [], [], [], []
        for batch, kinds in zip(*(torch.from_numpy(part).split(max(1, tokens // length)) for part in (ids, kind))):
            batch = batch.to(device)
            log_p = model(batch, use_cache=False).logits[:, :-1].double().log_softmax(-1)  # (row, query, token)
            copies = (kinds[:, 1:] == GIVEN_AWAY).to(device)  # (row, query)
            target = batch[:, 1:][copies]  # (copy,)
            copied.append(-log_p[copies].gather(1, target[:, None])[:, 0])
            right.append(log_p[copies].argmax(-1) == target)
            p = table[batch[:, :-1][~copies]]  # (bigram query, token)
            bigram.append(-(p * log_p[~copies]).sum(1))
            entropy.append(torch.special.entr(p).sum(1))
        means = (float(torch.cat(parts).double().mean()) for parts in (copied, right, bigram, entropy))
        return CopyScores(*means)


@cache
def _bigrams() -> tuple[str, np.ndarray]:
    """Count the commonest characters of the training text, most common first, and pairs of neighbours (token, token).

    Row 0, of <bos>, counts the characters themselves.
    """
    texts = standard_library_text(held_out=False)
    single: Counter[str] = Counter()
    double: Counter[tuple[str, str]] = Counter()
    for text in texts:
        single.update(text)
        double.update(pairwise(text))
    characters = "".join(sorted(single, key=lambda character: (-single[character], character))[:CHARACTERS])
    ids = {character: at for at, character in enumerate(characters, 1)}
    counts = np.zeros((len(ids) + 1, len(ids) + 1))
    for character, at in ids.items():
        counts[0, at] = single[character]
    for (first, second), count in double.items():
        if first in ids and second in ids:
            counts[ids[first], ids[second]] = count
    counts.setflags(write=False)
    return characters, counts


def _tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Make a tokenizer of one token a character, with <bos> before every text."""
    tokenizer = Tokenizer(models.WordLevel({token: at for at, token in enumerate([BOS, *characters])}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS)
