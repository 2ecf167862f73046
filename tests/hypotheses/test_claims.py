"""What others published stands beside the quantity that bears on it, with the sign that its interval has."""

import json
from dataclasses import replace

import numpy as np
import pytest

from diffscope import DiffscopeError, tables
from diffscope.cli import main
from diffscope.hypotheses import TESTS
from diffscope.hypotheses.board import run
from diffscope.hypotheses.claims import Bearing, Claim, answered, compare, read_claims
from diffscope.hypotheses.study import ALL, WEIGHTS, Study
from tests.study_data import estimate, study

SOURCES, CLAIMS = read_claims()
INTERVALS = {  # (low, high): above, below, none within ± 0.5, not above 0.5, not below −0.5, in 2 to 5
    (0.1, 0.4): ("same sign", "other sign", "within", "within", "within", "outside, below"),
    (-0.2, 0.4): ("open", "open", "within", "within", "within", "outside, below"),
    (-0.9, -0.6): ("other sign", "same sign", "outside, below", "within", "outside, below", "outside, below"),
    (0.0, 0.6): ("open", "open", "open", "open", "within", "outside, below"),
    (2.5, 4.0): ("same sign", "other sign", "outside, above", "outside, above", "within", "within"),
    (4.0, 6.0): ("same sign", "other sign", "outside, above", "outside, above", "within", "open"),
}


@pytest.mark.parametrize("interval", INTERVALS)
def test_an_answer_is_what_the_whole_interval_says(interval):
    low, high = interval
    measured = replace(estimate(0, 5), value=(low + high) / 2, low=low, high=high)
    every = ("above", "below", "none", "not above", "not below", (2.0, 5.0))
    bearings = [Bearing("distractors", "standard", says) for says in every]  # 0.5 nats matter
    assert tuple(answered(bearing, measured) for bearing in bearings) == INTERVALS[interval]
    claimed = [bearing.claimed for bearing in bearings]
    assert claimed == ["above 0", "below 0", "−0.5 to 0.5", "below 0.5", "above −0.5", "2 to 5"]


def test_every_claim_is_about_quantities_that_are_declared_and_says_its_limits():
    for claim in CLAIMS:
        assert claim.source in SOURCES and claim.limits.endswith("."), claim.id
        for bearing in claim.bearings:
            assert bearing.quantity in TESTS[bearing.test].quantities, claim.id
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


def test_what_one_board_lacks_is_taken_from_the_next_and_what_all_lack_is_said():
    bearings = (
        Bearing("sparsity-pair", "gini", "above"),
        Bearing("sinks", "d", "below"),
        Bearing("head-geometry", "steps", "below"),
    )
    claim = Claim("x", "paper", "says", "", bearings, "")
    undefined = replace(estimate(0, 8), value=np.nan, low=np.nan, high=np.nan, why="nothing answers")
    first = run(["sinks", "head-geometry"], finished={"head-geometry": {"steps": estimate(-1, 8)}})
    first += run("sparsity-pair", finished={"sparsity-pair": {"gini": undefined}})
    later = {"sparsity-pair": {"gini": estimate(2, 3)}, "head-geometry": {"steps": estimate(5, 3)}}
    second = run(list(later), finished=later)
    (compared,) = compare([claim], {"first": first, "second": second})
    gini, sinks, geometry = compared.measured
    assert (gini.estimate.value, geometry.estimate.value) == (2, -1)  # the first board's where it has a value
    assert (gini.board, geometry.board) == ("second", "first")
    assert sinks.estimate is None and sinks.answer == "not measured" and sinks.why.startswith("needs ")
    assert compared.answer == "of 3: 2 same sign, 1 not measured"
    (alone,) = compare([claim], {"first": first})
    assert alone.measured[0].why == "nothing answers"


def test_the_table_has_every_claim_with_its_quantities(tmp_path):
    whole = study()
    boards = {ALL: [verdict for verdict in whole.boards[ALL] if verdict.test.id != "redundancy-importance"]}
    boards[WEIGHTS] = [verdict for verdict in whole.boards[ALL] if verdict.test.id == "redundancy-importance"]
    table = tables.claims(Study(whole.facts, boards, whole.survival))
    assert list(dict.fromkeys(table.data["claim"])) == [claim.id for claim in CLAIMS]
    rows = table.data.set_index(["claim", "test"])
    assert rows.loc[("redundancy", "redundancy-importance"), "answer"].tolist() == ["same sign", "other sign"]
    assert rows.loc[("rank", "low-rank-noise"), "claimed"].unique().tolist() == ["2 to 5"]
    assert (table.data.query("claim == 'scaling'")["answer"] == "cannot be asked").all()
    assert table.data.query("claim == 'negative'")["answer"].tolist() == ["not yet tested"]
    assert sum(bool(row[0]) for row in table.rows) == len(CLAIMS) and "not corrected" in table.caption
    seeds = {row[3]: row[table.header.index("seeds")] for row in table.rows}
    assert seeds["CKA between heads' outputs, DIFF − standard"] == "(5)"
    assert set(table.data.query("claim == 'redundancy'")["board"]) == {WEIGHTS}
    with pytest.raises(DiffscopeError, match="of a study"):
        tables.claims(whole.boards[ALL])


def test_the_command_shows_and_keeps_them(tmp_path, capsys):
    study().save(tmp_path / "study")
    assert main(["study", "show", str(tmp_path / "study"), "--claims", "--out", str(tmp_path / "claims.md")]) == 0
    assert "cannot be asked" in capsys.readouterr().out and "| review |" in (tmp_path / "claims.md").read_text()
    assert main(["study", "show", str(tmp_path / "study"), "--claims", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["claim"] == CLAIMS[0].id
    assert main(["study", "show", str(tmp_path / "study"), "--claims", "--out", str(tmp_path / "claims.html")]) == 2
    assert "cannot be kept as 'claims.html'" in capsys.readouterr().err
