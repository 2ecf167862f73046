"""The count models that stand beside a language model's loss are distributions, and the ones that their names say."""

import math
from collections import Counter

import numpy as np
import pytest

from studies.subtraction.ngrams import LEAST_DISCOUNT, Trigrams, Unigrams, perplexity

VOCABULARY = 7
TRAIN = np.random.default_rng(0).choice(VOCABULARY - 1, size=60, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05]).astype(np.uint16)


def kneser_ney(train, a, b, c):
    """The same by sets and loops, from the formula of Chen and Goodman."""
    train = [int(token) for token in train]
    counts = Counter(zip(train, train[1:], train[2:]))
    bigrams = Counter(ngram[1:] for ngram in counts)
    tokens = Counter(ngram[1:] for ngram in bigrams)

    def level(table, context, token, lower):
        values = list(table.values())
        discount = max(values.count(1) / max(values.count(1) + 2 * values.count(2), 1), LEAST_DISCOUNT)
        after = {ngram: count for ngram, count in table.items() if ngram[:-1] == context}
        if not after:
            return lower
        kept = max(after.get((*context, token), 0) - discount, 0)
        return (kept + discount * len(after) * lower) / sum(after.values())

    return level(counts, (a, b), c, level(bigrams, (b,), c, level(tokens, (), c, 1 / VOCABULARY)))


@pytest.mark.parametrize("context", [(0, 1), (1, 1), (4, 5), (6, 0), (0, 6)], ids=str)
def test_trigrams_are_a_distribution_and_that_of_the_formula(context):
    """Also after contexts that the text lacks, and for a token that it lacks."""
    model = Trigrams.of(TRAIN, VOCABULARY)
    shares = [math.exp(model.log_probability(np.array([*context, token]))[0]) for token in range(VOCABULARY)]
    assert sum(shares) == pytest.approx(1, abs=1e-12)
    assert shares == pytest.approx([kneser_ney(TRAIN, *context, token) for token in range(VOCABULARY)], rel=1e-12)


def test_perplexities_of_a_text_that_only_its_order_tells():
    """Tokens that take turns: a unigram cannot tell them apart, a trigram can. The largest vocabulary does not overflow."""
    vocabulary = 200_000
    text = np.tile(np.array([0, 1, 2, vocabulary - 1], dtype=np.uint32), 500)
    assert perplexity(Trigrams.of(text, vocabulary), text) < 1.01
    assert perplexity(Unigrams.of(np.tile([0, 1, 2, 3], 100_000), 4), np.tile([0, 1, 2, 3], 9)) == pytest.approx(4)
