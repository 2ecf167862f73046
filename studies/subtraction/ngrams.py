"""What a text can be predicted from counts alone: the perplexity of a unigram and of a trigram model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_DISCOUNT = 0.1  # where no n-gram is rare, so that what was never seen still has a probability


@dataclass
class Unigrams:
    """Frequencies of tokens, one added to each count."""

    log_probabilities: np.ndarray  # (token of the vocabulary,) nats

    @classmethod
    def of(cls, ids: np.ndarray, vocabulary: int) -> Unigrams:
        counts = np.bincount(ids, minlength=vocabulary) + 1
        return cls(np.log(counts / counts.sum()))

    def log_probability(self, ids: np.ndarray) -> np.ndarray:
        """Return that of each token but the first two, (token − 2,) nats."""
        return self.log_probabilities[ids[2:]]


@dataclass
class Order:
    """n-grams of one order: counts, their discount, and what each context is followed by."""

    ngrams: np.ndarray  # (n-gram,) ascending: context · vocabulary + token
    counts: np.ndarray  # (n-gram,)
    contexts: np.ndarray  # (context,) ascending
    totals: np.ndarray  # (context,) sum of the counts
    kinds: np.ndarray  # (context,) different tokens that follow
    discount: float
    vocabulary: int

    @classmethod
    def of(cls, ngrams: np.ndarray, counts: np.ndarray, vocabulary: int) -> Order:
        contexts, first, kinds = np.unique(ngrams // vocabulary, return_index=True, return_counts=True)
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        discount = max(once / max(once + 2 * twice, 1), LEAST_DISCOUNT)
        return cls(ngrams, counts, contexts, np.add.reduceat(counts, first), kinds, float(discount), vocabulary)

    def probability(self, context: np.ndarray, token: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Return the probability of tokens after contexts; `lower` is that of the next lower order. All are (token,)."""
        ngram = context * self.vocabulary + token
        at = np.searchsorted(self.ngrams, ngram).clip(max=len(self.ngrams) - 1)
        count = np.where(self.ngrams[at] == ngram, self.counts[at], 0)
        at = np.searchsorted(self.contexts, context).clip(max=len(self.contexts) - 1)
        mass = np.maximum(count - self.discount, 0) + self.discount * self.kinds[at] * lower
        return np.where(self.contexts[at] == context, mass / self.totals[at], lower)


@dataclass
class Trigrams:
    """Interpolated Kneser–Ney (Chen and Goodman, 1999) of order three, with one discount an order: n₁/(n₁ + 2n₂)."""

    orders: tuple[Order, Order, Order]  # the first, the second, the third

    @classmethod
    def of(cls, ids: np.ndarray, vocabulary: int) -> Trigrams:
        first, second, third = _columns(ids)
        trigrams, counts = np.unique((first * vocabulary + second) * vocabulary + third, return_counts=True)
        # Of lower orders it counts after how many different tokens something stands, not how often.
        bigrams, before = np.unique(trigrams % vocabulary**2, return_counts=True)
        tokens, before_those = np.unique(bigrams % vocabulary, return_counts=True)
        pairs = ((tokens, before_those), (bigrams, before), (trigrams, counts))
        return cls(tuple(Order.of(ngrams, counts, vocabulary) for ngrams, counts in pairs))

    def log_probability(self, ids: np.ndarray) -> np.ndarray:
        """Return that of each token but the first two, (token − 2,) nats."""
        first, second, third = _columns(ids)
        vocabulary = self.orders[0].vocabulary
        probability = np.full(len(third), 1 / vocabulary)
        for order, context in zip(self.orders, (np.zeros_like(second), second, first * vocabulary + second)):
            probability = order.probability(context, third, probability)
        return np.log(probability)


def _columns(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = np.asarray(ids, dtype=np.int64)
    return ids[:-2], ids[1:-1], ids[2:]


def perplexity(model: Unigrams | Trigrams, ids: np.ndarray) -> float:
    """Return the perplexity per token of a text, (token,)."""
    return float(np.exp(-model.log_probability(ids).mean()))
