"""The registry says everything about every statistic, and docs/statistics.md says what the registry says."""

import re
from pathlib import Path

import pytest

from diffscope.stats import STATISTICS
from diffscope.stats.registry import UnknownStatistic, select
from diffscope.stats.statistic import declare
from tools import definitions

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8").lower()
FIELDS = ("kind", "dims", "units", "description", "formula", "range", "undefined")
BOUNDS = {"0", "1", "2", "n", "ln n", "ln 2", "1/n", "1 - 1/n", "k/n", "keys - 1", "inf", "-inf"}


def test_what_is_given_as_its_complement_is_named_with_what_took_its_place():
    """A distance that became a likeness under one name would be read the wrong way round."""
    with pytest.raises(UnknownStatistic, match="ask for 'overlap', which is 1 − ρ"):
        select("rho")


def test_one_name_is_declared_once():
    """A second statistic of the name would take the place of the first in every table."""
    with pytest.raises(ValueError, match="two statistics are called 'gini'"):
        declare(name="gini", **{field: getattr(STATISTICS["gini"], field) for field in FIELDS})(len)


@pytest.mark.parametrize("name", STATISTICS)
def test_nothing_is_left_unsaid(name):
    words = STATISTICS[name]
    assert all((words.units, words.description, words.formula, words.undefined, words.source))
    title = words.source.partition(" (")[0]
    assert words.source == "defined here" or title.lower() in SOURCES, f"{title} is not in docs/sources.md"
    assert len(words.range) == 2
    assert set(words.range) <= BOUNDS, "a new bound goes into BOUNDS, and into _bound of test_formulas.py"
    unbounded_ratio = words.units == "1" and words.range[1] == "inf" and "/" in words.formula and "query" in STATISTICS[name].dims
    if STATISTICS[name].kind == "branch" and unbounded_ratio:
        assert words.averaged == "median"


@pytest.mark.parametrize("name", STATISTICS)
def test_its_numbers_are_tested(name):
    """By name, in some file besides this one and those that go through the whole table."""
    files = [path for path in (ROOT / "tests" / "stats").rglob("*.py") if path.name != Path(__file__).name]
    quoted = re.compile(rf"[\"'.]{name}\b")
    assert any(quoted.search(path.read_text(encoding="utf-8")) for path in files), f"no test in tests/stats is about {name}"


def test_the_page_is_what_the_registry_says():
    assert definitions.FILE.read_text(encoding="utf-8") == definitions.page(), "run python tools/definitions.py"
