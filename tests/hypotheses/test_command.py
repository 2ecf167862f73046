"""``diffscope test`` and ``diffscope.hypotheses.test``: what they show, keep and refuse."""

import json

import pytest

from diffscope.cli import main
from diffscope.hypotheses import test as board_of
from diffscope.storage.statistics import save_statistics
from studies.laptop.calibration.simulate import Sizes, planted_cohort
from tests import tiny
from tests.tokenizers_of_kinds import tokenizer

WORDS = "NC against · SP silent · SH silent"  # of a signed mask that does all that DIFF does


@pytest.fixture
def folder(tmp_path):
    effects, spreads = Sizes(log_odds=3.0), Sizes(log_odds=0.3, slope=0.1)
    cohort = planted_cohort("SP", 5, effects, spreads).sel(arm=["diff", "standard", "double-width", "signed"])
    cohort.attrs["recipe"] = json.dumps({"grid": {"template": " {city} {number}."}})
    save_statistics(cohort, tmp_path / "cohort.nc", dated=False)
    return tmp_path


def test_the_command_shows_and_keeps(folder, capsys):
    command = ["test", "signed-mask", "top-k", "--cohort", str(folder)]
    assert main([*command, "--json", "--out", str(folder / "board.md")]) == 1  # one that was named could not run
    shown = json.loads(capsys.readouterr().out)
    assert [test["shown"] for test in shown["tests"]] == [WORDS, "needs a cohort with the arm 'top-8'"]
    assert (
        shown["tests"][0]["verdicts"] == {"NC": "against", "SP": "silent", "SH": "silent"} and not shown["tests"][1]["verdicts"]
    )
    assert shown["tests"][0]["reasons"]["SP"] == "as it predicts, but SH predicts the same"
    assert shown["tests"][0]["of"].startswith("whole models") and shown["tests"][0]["a2_cost"] is None
    assert shown["tests"][0]["estimates"]["own"]["state"] == "above" and shown["tests"][0]["rule"]
    assert shown["settings"]["template"] == " {city} {number}." and "no primary test was run" in shown["summary"]
    question = "Does one softmax with a learned signed mask gain on standard attention, and is DIFF still better?"
    assert f"| signed-mask | {question} | yes: signed 3" in (folder / "board.md").read_text()
    assert shown["tests"][0]["question"] == question and shown["tests"][0]["answer"].startswith("yes: signed 3")
    assert shown["wanting"] == {"a cohort with the arm 'top-8'": ["top-k"]}
    assert main(["test", "signed-mask", "--cohort", str(folder), "--out", str(folder / "board.tex")]) == 0
    assert rf"signed-mask & {question} & against & silent & silent &" in (folder / "board.tex").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main([*command, "--out", str(folder / "board.html")]) == 1
    text = capsys.readouterr().out
    assert f"signed-mask: {WORDS}" in text and "noise cancellation: against 1 (signed-mask)" in " ".join(text.split())
    assert ["signed-mask", "against", "silent", "silent"] in [line.split() for line in text.splitlines()]
    assert main(["test", "--list"]) == 0 and "noise-symmetry" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nothing", "--model", "mini-diff"], "no test 'nothing'"),
        ([], "nothing to test"),
        (["--cohort", "nowhere"], "holds no cohort.nc"),
        (["--model", "mini-diff", "--out", "board.pdf"], "as '.pdf'"),
        (["--model", "mini-diff", "--prompts", "5"], "--prompts 5 are too few; give 10 or more"),
        (["--model", "mini-diff", "--prompts", "nowhere.jsonl"], "no file of prompts 'nowhere.jsonl'"),
    ],
)
def test_the_command_refuses(arguments, words, capsys):
    assert main(["test", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_in_python_it_takes_one_test_by_name_and_seeds_of_the_cohort(folder):
    (verdict,) = board_of(cohort=folder, tests="signed-mask", seeds=[0, 1, 2])
    assert verdict.test.id == "signed-mask" and verdict.estimates["own"].seeds == 3


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Random models of real classes with tokenizers that write digits one by one, and the folders that they are in."""
    folders = {}
    for name, model in (("diff", tiny.diffllama()), ("standard", tiny.standard("llama"))):
        folders[name] = str(tmp_path_factory.mktemp("foreign") / name)
        model.save_pretrained(folders[name])
        tokenizer("qwen").save_pretrained(folders[name])
    return folders


def test_any_model_has_a_board_and_is_told_from_chance(foreign, tmp_path, capsys):
    asked = ["--prompts", "10", "--length", "190", "--untrained", "3", "--out", str(tmp_path / "board.md")]
    pair = ["--model", foreign["diff"], "--baseline", foreign["standard"]]
    assert main(["test", "sparsity-pair", *pair, *asked]) == 0
    shown = capsys.readouterr().out
    assert shown.count("answers at chance (") == 2 and "about attention that does not answer" in shown
    assert "answers at chance (" in (tmp_path / "board.md").read_text()
    assert main(["test", "key-token-gain", "--model", foreign["standard"], *asked]) == 1
    assert "a differential model" in capsys.readouterr().out.partition("Missing:")[2]


def test_own_prompts_are_tested_as_far_as_they_go(foreign, tmp_path, capsys):
    file = tmp_path / "my.jsonl"
    text = "Here is a story of towns by the sea. The number of Rome is 1983, that of Paris {}. The number of {} is"
    own = [
        {"prompt": text.format(number, city), "answer": f" {number}", "spans": {"answer": number}}
        for number, city in (("7421", "Paris"), ("60552", "the town of Paris"))  # of several lengths
    ]
    file.write_text("\n".join(map(json.dumps, own)))
    asked = ["--model", foreign["diff"], "--prompts", str(file), "--untrained", "3"]
    assert main(["test", "key-token-gain", *asked, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"]["own"] == ["my.jsonl, line 1", "my.jsonl, line 2"]
    assert {estimate["prompts"] for estimate in shown["tests"][0]["estimates"].values()} == {2}
    assert shown["answers"][0]["chance"] is None and "no prompt names its distractors" in shown["answers"][0]["sentence"]
    file.write_text("\n".join(json.dumps({**prompt, "spans": {}}) for prompt in own))
    assert main(["test", *asked]) == 1
    assert '"spans": {"answer": "…"}' in capsys.readouterr().out.partition("Missing:")[2]
