"""Read the tests of tests.toml: what each asks, of which numbers, and what each account predicts of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from diffscope.errors import DiffscopeError, check_choice
from diffscope.hypotheses.places import Places
from diffscope.hypotheses.rules import Measure, Place, Quantity, Test

FILE = Path(__file__).with_name("tests.toml")
SUBJECTS = {
    "model": ("model", "models"),
    "pair": ("pair", "pairs"),
    "checkpoints": ("series of checkpoints", "series"),
    "cohort": ("seed", "seeds"),
}
KINDS = {"primary": "Primary tests", "mechanism": "Mechanism tests", "measurement": "Measurements"}
NEEDED = {
    "model": "a differential model with a tokenizer for retrieval prompts",
    "pair": "a standard model beside it (--baseline NAME)",
    "checkpoints": "checkpoints along its training (--model FOLDER with checkpoints/, as diffscope train leaves them)",
    "cohort": "a trained cohort (--cohort FOLDER)",
}
ISSUES = "https://github.com/microsoft/unilm/issues"

REQUIRED = {"question": str, "asks": dict, "source": str, "statistic": str, "controls": list, "needs": str, "quantities": dict}
OPTIONAL = {"limits": str, "unable": str, "of": str, "kind": str, "inside": bool, "without_a2": str, "predicts": dict}
READING = {"evidence": str, "over": str, "arms": (list, str)}  # what says where the quantities are
OF_QUANTITY = {"label": str, "margin": float}
OF_PLACE = {field.name: type(field.default) for field in fields(Place)} | {"other": (str, list)}
PLAIN = {str: "text", dict: "a table", list: "a list", bool: "true or false", float: "a number"}


def read_tests(text: str) -> dict[str, Test]:
    """Read declarations of tests, in the order of a board: by kind, then by what they need.

    Whether there are the numbers that quantities are read from is checked when a test first measures something, since that
    imports all that takes evidence.

    Raises DiffscopeError if a declaration is not whole, names what there is not, or holds a key that means nothing; in one line
    with the test's id.

    Parameters
    ----------
    text : str
        TOML, in the form that the head of ``tests.toml`` describes.
    """
    record = tomllib.loads(text)
    words = record["words"] | record["arms"] | {name: source["name"] for name, source in record["sources"].items()}
    tests = [_read(id, table, words, record["arms"]) for id, table in record["tests"].items()]
    order = [(kind, needs) for kind in KINDS for needs in SUBJECTS]
    return {test.id: test for place in order for test in tests if (test.kind, test.needs) == place}


def _read(id: str, table: Mapping[str, Any], words: Mapping[str, str], arms: Mapping[str, str]) -> Test:
    """Make one test of its table."""
    _check_keys(f"the test {id!r}", table, REQUIRED, OPTIONAL | READING)
    chosen = table.get("arms", [])
    if unknown := set() if chosen == "all" else set(chosen) - set(arms):
        raise DiffscopeError(f"the test {id!r} has arms {', '.join(map(repr, unknown))}; there are {', '.join(arms)}, or all")
    if chosen:
        named = list(arms if chosen == "all" else chosen)
        table = {**table, **{key: _for_each_arm(table[key], named) for key in ("asks", "quantities", "predicts") if key in table}}
    table = _filled(table, words, f"the test {id!r}")
    places = {name: _place(id, name, row, table) for name, row in table["quantities"].items()}
    quantities = {
        name: Quantity(row["label"], row["margin"], row.get("within"), row.get("short", ""))
        for name, row in table["quantities"].items()
    }
    predictions = table.get("predicts", {})
    judged = {name for predicted in predictions.values() for name in predicted} if not table.get("unable") else set()
    return make_test(
        id=id,
        quantities=quantities,
        predictions=predictions,
        controls=tuple(table["controls"]),
        measure=Places(id, table["needs"], places, frozenset(judged), ("diff", *arms), table.get("over", "")),
        **{key: table[key] for key in ("question", "asks", "source", "statistic", "needs")},
        **{key: table[key] for key in OPTIONAL if key in table and key != "predicts"},
    )


def _place(id: str, name: str, row: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the number of a quantity is, as given; nothing if the test has a function that measures it."""
    _check_keys(f"the quantity {name!r} of the test {id!r}", row, OF_QUANTITY, {"within": float, "short": str} | OF_PLACE)
    given = {key: tuple(row[key]) if isinstance(row[key], list) else row[key] for key in OF_PLACE if key in row}
    if table["needs"] != "cohort" and not {"evidence", "outcome"} & set(given) and table.get("evidence"):
        given["evidence"] = f"{table['evidence']}.{name}"
    return given


def _check_keys(whose: str, table: Mapping[str, Any], required: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Raise unless a table has all keys that it needs, no other than those and the optional ones, and values of their types."""
    known = {**required, **optional}
    if lacking := [key for key in required if key not in table]:
        raise DiffscopeError(f"{whose} lacks {', '.join(lacking)}")
    for key, value in table.items():
        if key not in known:
            raise DiffscopeError(f"{whose} has the key {key!r}, which means nothing; there are {', '.join(known)}")
        types = known[key] if isinstance(known[key], tuple) else (known[key],)
        if not isinstance(float(value) if type(value) is int else value, types):
            raise DiffscopeError(f"{whose} has {key} = {value!r}; give {' or '.join(PLAIN[of] for of in types)}")


def _for_each_arm(table: Mapping[str, Any], arms: Sequence[str]) -> dict[str, Any]:
    """Repeat the entries of a table for each arm, whose name {arm} is there, and {words} its words."""

    def of_arm(value: Any, arm: str) -> Any:
        if isinstance(value, str):
            return value.replace("{arm}", arm).replace("{words}", f"{{{arm}}}")
        return {of_arm(key, arm): of_arm(each, arm) for key, each in value.items()} if isinstance(value, dict) else value

    entries = [of_arm({key: value}, arm) for arm in arms for key, value in table.items()]
    joined: dict[str, Any] = {}
    for entry in entries:
        for key, value in entry.items():
            joined[key] = joined.get(key, {}) | value if isinstance(value, dict) else value
    return joined


def _filled(value: Any, words: Mapping[str, str], whose: str) -> Any:
    """Fill every {name} in the texts of a value with what `words` says, which may hold names itself."""
    if isinstance(value, dict):
        return {key: _filled(each, words, f"{whose}, {key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, words, whose) for each in value]
    while isinstance(value, str) and "{" in value:
        try:
            value = value.format_map(words)
        except (KeyError, ValueError) as error:
            raise DiffscopeError(f"{whose}: {value!r} holds a {{name}} that is no word, source or arm ({error})") from None
    return value


def make_test(
    *, predictions: Mapping[str, Mapping[str, str]] | None = None, unable: str = "", inside: bool | None = None, **fields: Any
) -> Test:
    """Make a test of its attributes; what cannot tell the accounts apart is a measurement, and `unable` says why.

    A test of models, pairs or checkpoints looks inside heads unless it says otherwise; one of cohorts does only if it says so.

    Raises DiffscopeError as :class:`Test` does, and if something is predicted and the test does not say of which heads it is.
    """
    inside = fields["needs"] != "cohort" if inside is None else inside
    limits = " ".join(filter(None, (fields.pop("limits", ""), unable and f"It cannot tell the accounts apart: {unable}.")))
    test = Test(**fields, predictions=predictions or {}, inside=inside, limits=limits)
    if not predictions or unable:
        return replace(test, predictions={}, kind="measurement", inside=False)
    if not test.of:
        raise DiffscopeError(f"the test {test.id!r} does not say of which heads and queries it is; give it as of = …")
    return test


def declare(**fields: Any) -> Callable[[Measure], Test]:
    """Decorate the function that measures a test's quantities with what is declared of them; see :func:`make_test`."""
    return lambda measure: make_test(measure=measure, **fields)


_TEXT = FILE.read_text(encoding="utf-8")
TESTS: dict[str, Test] = read_tests(_TEXT)
PRIMARIES = tuple(id for id, test in TESTS.items() if test.kind == "primary")
SOURCES: dict[str, dict[str, str]] = tomllib.loads(_TEXT)["sources"]  # name and link of what the tests cite; see docs/sources.md


def chosen(tests: str | Sequence[str] | None = None) -> list[Test]:
    """Return tests by id, all without any.

    Raises DiffscopeError if there is no such test.
    """
    ids = [tests] if isinstance(tests, str) else list(tests or TESTS)
    for id in ids:
        check_choice("test", id, TESTS)
    return [TESTS[id] for id in ids]


def linked(source: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a test's source, each with its address, which is empty if a part has none."""
    links = {cited["name"]: cited["link"] for cited in SOURCES.values()}
    end = 0
    for match in re.finditer("|".join([*map(re.escape, links), r"\b1[67]\d\d\b"]), source):  # the numbers are of unilm's issues
        cited = match.group()
        yield source[end : match.start()], ""
        yield cited, links.get(cited, f"{ISSUES}/{cited}")
        end = match.end()
    yield source[end:], ""
