"""One word, one thing: the glossary defines no word twice, and leaves formulas of statistics to the page that has them."""

import re
from pathlib import Path

from diffscope.stats import STATISTICS

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def defined():
    """Every word that a row defines, and what the row says of it."""
    rows = [row for row in re.findall(r"^\| (.+?) \| (.+) \|$", GLOSSARY, re.MULTILINE) if row[0] != "word"]
    return [(word.strip(" `"), meaning) for words, meaning in rows for word in re.sub(r" \(.*?\)", "", words).split(",")]


def test_no_word_is_defined_twice():
    words = [word for word, _ in defined()]
    assert len(words) > 60 and sorted(words) == sorted(set(words))
    folded = [word.casefold() for word in words if len(word) > 2]  # D and d are not one word
    assert sorted(folded) == sorted(set(folded))


def test_the_formula_of_rejection_stands_in_the_definitions_alone():
    meaning = dict(defined())["CMRR"]
    assert "statistics.md#cmrr" in meaning and not re.search(r"log10|\blog\b|\|g", meaning)
    formula = STATISTICS["cmrr"].formula
    assert "|g + lambda|" in formula and formula in (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
