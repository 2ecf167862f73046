"""Draw what the sentences of retrieval prompts are about: cities, their near-duplicates, and numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from diffscope.errors import PromptError
from diffscope.tasks.template import USE_OWN, Template
from diffscope.tasks.text import insert
from diffscope.tasks.tokenizer import CITIES, QUALIFIERS, UNKNOWN

# Grades of evidence for a question of Retrieval.graded, weakest first, and how often the text states the answer.
GRADES = {"nothing": 0, "qualifier": 0, "city": 0, "stated": 1, "stated 2": 2, "stated 4": 4}
TEXT, GIVEN_AWAY, UNPREDICTABLE = 0, 1, 2  # kinds of token in training rows

Seed = int | Sequence[int]
Mention = tuple[list[int], list[int]]  # the tokens of a sentence of a training row, and the kind of each


def seeds_of(seed: Seed) -> list[int]:
    """Return a seed as a list of numbers, to which more can be added."""
    return [seed] if isinstance(seed, int) else list(seed)


def draw_cities(count: int, rng: np.random.Generator) -> list[str]:
    """Draw different cities, or raise PromptError if there are not as many."""
    if not 0 <= count <= len(CITIES):
        raise PromptError(f"{count} needles need as many cities, and there are {len(CITIES)}; use at most {len(CITIES)}")
    return [CITIES[i] for i in rng.choice(len(CITIES), count, replace=False)]


def draw_numbers(template: Template, count: int, rng: np.random.Generator) -> list[list[int]]:
    """Draw numbers of four digits, of which the first two differ in all, in tokens."""
    first = rng.choice(100, count, replace=False)
    second = rng.integers(100, size=count)
    return [template.number(f"{a:02d}{b:02d}") for a, b in zip(first, second)]


def check_grade(grade: str) -> None:
    """Raise PromptError if there is no such grade of evidence."""
    if grade not in GRADES:
        raise PromptError(f"there is no grade {grade!r} of evidence; choose from {', '.join(GRADES)}")


def cities_by_grade(template: Template, cities: Sequence[str], qualifiers: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Choose a city to ask for, and for each grade that does not state its number a city that stands in its place.

    Raises PromptError if no cities have equally many tokens.

    Parameters
    ----------
    cities, qualifiers : sequence of str
        Names to choose from, in order of preference.

    Returns
    -------
    str
        A qualified city, such as "Old Paris".
    dict of str to str
        Another city by grade, of as many tokens.
    """
    for city, qualifier in itertools.product(cities, qualifiers):
        asked = f"{qualifier} {city}"
        others = [other for other in cities if other != city]
        another = [other for other in qualifiers if other != qualifier]
        choices = {
            "nothing": (f"{what} {where}" for where in others for what in another),
            "qualifier": (f"{qualifier} {where}" for where in others),
            "city": (f"{what} {city}" for what in another),
        }
        tokens = len(template.head(asked))
        alike = {
            grade: next((name for name in names if len(template.head(name)) == tokens), "") for grade, names in choices.items()
        }
        if all(alike.values()):
            return asked, alike
    raise PromptError(f"this tokenizer has no cities of equally many tokens, one for each grade; {USE_OWN}")


def draw_mentions(
    template: Template,
    needles: int,
    mentions: int,
    rng: np.random.Generator,
    near: float = 0.0,
    unanswerable: float = 0.0,
) -> list[Mention]:
    """Draw the sentences of a training row, in which cities are mentioned again and again with their numbers.

    Raises PromptError if there are not as many cities.

    Parameters
    ----------
    needles : int
        Cities.
    mentions : int
        Sentences; there is one at least for each city.
    near : float
        Probability that the cities are near-duplicates of each other.
    unanswerable : float
        Probability that the last sentence is about a city not mentioned before, whose number is "unknown".
    """
    cities = draw_cities(needles, rng)
    numbers = draw_numbers(template, needles, rng)
    if near and rng.random() < near:
        similar = [f"{other} {cities[0]}" for other in rng.permutation(QUALIFIERS)[: min(needles, len(QUALIFIERS) - 1)]]
        cities = similar + cities[len(similar) :]
    order = np.concatenate([rng.permutation(needles), rng.integers(needles, size=max(0, mentions - needles))])
    if mentions > needles:  # the last mention stands at the end, as the question does
        order = np.concatenate([rng.permutation(order[:-1]), order[-1:]])
    ends_unknown = unanswerable and rng.random() < unanswerable
    sentences = []
    seen = set()
    for which in order[:-1] if ends_unknown else order:
        kind = GIVEN_AWAY if which in seen else UNPREDICTABLE
        sentences.append(_mention(template, template.question(cities[which]), numbers[which], kind))
        seen.add(which)
    if ends_unknown:
        question = template.head(_never_mentioned(cities, rng))
        sentences.append(_mention(template, question, template.encode(UNKNOWN), GIVEN_AWAY))
    return sentences


def _mention(template: Template, question: Sequence[int], number: Sequence[int], kind: int) -> Mention:
    """Return the tokens of a sentence and their kinds, which is `kind` for those of the number."""
    tokens = [*question, *number, *template.suffix]
    return tokens, [TEXT] * len(question) + [kind] * len(number) + [TEXT] * len(template.suffix)


def _never_mentioned(cities: Sequence[str], rng: np.random.Generator) -> str:
    """Draw a city that is none of these, but a near-duplicate of them if they are near-duplicates of each other."""
    qualified = " " in cities[0]
    others = [f"{qualifier} {cities[0].split()[1]}" for qualifier in QUALIFIERS] if qualified else CITIES
    others = [city for city in others if city not in cities]
    if not others:
        raise PromptError(f"all {len(CITIES)} cities are mentioned, so that no other can be asked for; use fewer needles")
    return others[int(rng.integers(len(others)))]


def blank_rows(prefix: Sequence[int], rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return training rows that hold the tokenizer's prefix alone: ids (row, length), and kinds of the same shape."""
    ids = np.zeros((rows, length), dtype=np.int64)
    ids[:, : len(prefix)] = prefix
    return ids, np.full((rows, length), TEXT, dtype=np.int8)


def insert_mentions(text: np.ndarray, mentions: Sequence[Mention], places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Insert sentences into text (token,) at `places`, in ascending order; return all tokens and the kind of each."""
    kinds = insert(np.zeros(len(text), dtype=np.int8), [kinds for _, kinds in mentions], places)[0]
    return insert(text, [tokens for tokens, _ in mentions], places)[0], kinds
