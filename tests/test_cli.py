"""The command line: the same words everywhere, results alone on stdout, and one line when something is wrong."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import StringIO
from types import SimpleNamespace
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

import diffscope
from diffscope.cli import COMMANDS, app, main, output
from diffscope.cli.app import find_app
from diffscope.cli.output import time_left
from diffscope.hypotheses import TESTS
from diffscope.stats import STATISTICS
from diffscope.storage.statistics import open_statistics
from tests import tiny

PROMPT = "The magic number of Paris is 7421. The magic number of Rome is 1234."


def name(parameter):
    return " ".join(parameter) if isinstance(parameter, list) else None


@pytest.fixture(scope="session")
def saved(tiny_diff_folder, tmp_path_factory):
    """A saved capture of the tiny model."""
    path = tmp_path_factory.mktemp("cli") / "tiny.dscope"
    arguments = ["--model", str(tiny_diff_folder), "--prompt", PROMPT, "--span", "answer=7421", "--out", str(path)]
    assert main(["capture", *arguments]) == 0
    return path


def is_one_line(err):
    return err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")


# Help


def test_without_arguments_it_helps(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    assert all(command in out for command in COMMANDS)


def test_time_left_is_at_the_mean_speed_of_all():
    """Two workers whose runs end together every four minutes: what counts is not how fast the last two reports came."""
    ends = [240 * (i // 2 + 1) + 5 * (i % 2) for i in range(8)]
    assert time_left(0, 51, 0, 0.0, 0.0) == ""
    assert time_left(8, 51, 0, 0.0, ends[-1]) == "1:26:27 left"  # 43 more at eight in 965 s
    assert time_left(8, 51, 4, 0.0, ends[-1]) == "2:52:54 left"  # of which four were there before


def test_what_is_counted_next_has_its_own_time_left(monkeypatch):
    shown = []
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(output, "time", clock)
    monkeypatch.setattr(output, "time_left", lambda *said: shown.append(time_left(*said)) or shown[-1])
    with output.counting("testing") as update:
        for clock.now, done, total in ((0, 0, 4), (10, 1, 4), (1000, 1, 3), (1010, 2, 3), (2000, 1, 3), (2020, 2, 3)):
            update(done, total)
    assert shown == ["", "0:00:30 left", "", "0:00:10 left", "", "0:00:20 left"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(run, command):
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    example = out.partition("Example:")[2].split()
    assert example[:2] == ["diffscope", command]


def test_version(run):
    assert run("--version") == (0, f"diffscope {diffscope.__version__}\n", "")


# Commands run one after the other in one process; it fails at the first by whose end any of `heavy` is loaded.
LOADS = """
import sys
from diffscope.cli import main

def run(commands, heavy):
    for arguments in commands:
        assert main(arguments) == 0
        loaded = sorted(name for name in sys.modules if name.startswith(heavy))
        assert not loaded, (arguments, loaded)

"""


def test_help_and_a_study_load_nothing_heavy():
    """The whole shipped study, and published claims beside it, take no evidence."""
    helped = [[], ["models"], ["--help"], ["measure", "--help"], ["app", "--help"], ["train", "--help"]]
    heavy = "torch", "transformers", "streamlit", "plotly", "matplotlib", "xarray"
    script = (
        f"{LOADS}run({helped!r}, {(*heavy, 'numpy')!r})\n"
        f"run([['study', 'show'], ['study', 'show', '--claims']], {(*heavy, 'scipy.stats')!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_a_model_no_model_code_is_loaded(saved, tmp_path):
    commands = [
        ["models"],
        ["measure", str(saved), "--statistics", "entropy"],
        ["figure", str(saved), "--layer", "0", "--head", "0", "--out", "x.html"],
    ]
    script = f"{LOADS}run({commands!r}, ('transformers.models.', 'transformer_lens'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (0, "saved x.html")


# Results


def test_capture_prints_fidelity_lambda_and_next_tokens(run, tiny_diff_folder):
    status, out, err = run("capture", "--model", tiny_diff_folder, "--prompt", PROMPT)
    assert (status, err) == (0, "")
    for word in ("error", "tolerance", "λ", "next token", "probability"):
        assert word in out


def test_capture_json_is_the_capture(run, tiny_diff_folder):
    status, out, _ = run("capture", "--model", tiny_diff_folder, "--prompt", PROMPT, "--span", "answer=7421", "--json")
    printed = json.loads(out)
    capture = diffscope.load(str(tiny_diff_folder)).capture(PROMPT, spans={"answer": "7421"})
    assert status == 0
    assert printed["tokens"] == capture.tokens
    assert printed["spans"]["answer"] == list(capture.spans["answer"])
    assert printed["fidelity"]["error"] == pytest.approx(capture.fidelity["error"].values.tolist())
    assert len(printed["lambda"]) == capture.n_layers


def test_a_span_by_token_range_is_the_span_by_text(run, tiny_diff_folder):
    arguments = ("capture", "--model", tiny_diff_folder, "--prompt", PROMPT, "--json")
    answer = json.loads(run(*arguments, "--span", "answer=7421")[1])["spans"]["answer"]
    by_range = json.loads(run(*arguments, "--span", f"answer={answer[0]}:{answer[-1] + 1}")[1])["spans"]["answer"]
    assert by_range == answer


def test_measure_json_averages_over_queries(run, saved):
    status, out, err = run("measure", saved, "--statistics", "entropy,gini", "--json")
    assert (status, err) == (0, "")
    printed = json.loads(out)
    expected = diffscope.open(saved).measure(["entropy"])["entropy"].mean("query")
    entropy = printed["statistics"]["entropy"]
    assert set(printed["statistics"]) >= {"entropy", "gini"}
    assert entropy["dims"] == list(expected.dims)
    assert entropy["coords"]["map"] == ["A1", "A2", "D"]
    assert entropy["values"][-1][-1] == pytest.approx(expected.values[-1, -1].tolist(), rel=1e-6, nan_ok=True)


def test_measure_table_says_what_it_averages_over(run, saved):
    capture = diffscope.open(saved)
    _, out, _ = run("measure", saved, "--statistics", "entropy")
    assert f"mean over {capture.n_tokens} queries" in out
    assert f"then {capture.n_heads} heads" in out
    _, by_head, _ = run("measure", saved, "--statistics", "entropy", "--per-head")
    assert "heads" not in by_head
    assert len(by_head.splitlines()) - len(out.splitlines()) == capture.n_layers * (capture.n_heads - 1)


def test_measure_on_a_model_is_measure_on_its_capture(run, saved, tiny_diff_folder):
    of_model = ("--model", tiny_diff_folder, "--prompt", PROMPT, "--span", "answer=7421")
    options = ("--statistics", "entropy,span_mass,column_sink", "--json")
    (status, out, err), printed = run("measure", *of_model, *options), json.loads(run("measure", saved, *options)[1])
    assert (status, err) == (0, "")
    assert json.loads(out) == printed | {"model": str(tiny_diff_folder)}


def test_the_list_of_statistics_is_that_of_their_declarations(run):
    status, out, _ = run("measure", "--list")
    lines = out.splitlines()[1:]
    assert status == 0 and [line.split()[0] for line in lines] == list(STATISTICS)
    for line, statistic in zip(lines, STATISTICS.values(), strict=True):
        assert statistic.units in line and line.rstrip().endswith(statistic.formula)
    listed = json.loads(run("measure", "--list", "--json")[1])
    assert listed["gini"]["definition"] == STATISTICS["gini"].formula and listed["gini"]["kind"] == "row"


def test_some_queries_by_span_range_and_sample(run, saved):
    capture = diffscope.open(saved)
    for choice, queries in (("answer", "answer"), ("3:-2", slice(3, -2))):
        printed = json.loads(run("measure", saved, "--statistics", "gini", "--queries", choice, "--json")[1])
        expected = capture.measure("gini", queries=queries)["gini"]
        assert printed["averaged_over"] == {"query": expected.sizes["query"]}
        np.testing.assert_allclose(printed["statistics"]["gini"]["values"], expected.mean("query"), rtol=1e-6)
    printed = json.loads(run("measure", saved, "--statistics", "gini", "--queries", "sample:8", "--json")[1])
    averaged = diffscope.average(capture.measure("gini", queries=diffscope.QuerySample(8)))
    np.testing.assert_allclose(printed["statistics"]["gini"]["standard_error"], averaged["gini_se"], rtol=1e-6)
    assert "stratified" in printed["averaged_over"]["sampled"]
    status, out, err = run("measure", saved, "--statistics", "gini", "--queries", "sample:8")
    assert (status, err) == (0, "") and "mean over a sample of 8 queries" in out and "D ±" in out
    for wrong in (("--queries", "nowhere"), ("--queries", "sample:1"), ("--queries", "answer", "--query", "1")):
        status, out, err = run("measure", saved, "--statistics", "gini", *wrong)
        assert (status, out) == (2, "") and is_one_line(err)


def test_a_wrong_layer_or_head_is_told_before_the_model_is_measured(run, tiny_diff_folder, monkeypatch):
    from diffscope.scope import Scope

    prompts, measure = [], Scope.measure

    def watched(self, prompt, *more, **choices):
        prompts.append(prompt)
        return measure(self, prompt, *more, **choices)

    monkeypatch.setattr(Scope, "measure", watched)
    for option in ("--layer", "--head"):
        status, out, err = run("measure", "--model", tiny_diff_folder, "--prompt", PROMPT, option, "77")
        assert (status, out) == (2, "") and is_one_line(err) and f"no {option[2:]} 77" in err
    assert PROMPT not in prompts


def test_an_interrupted_measure_shows_and_keeps_what_was_finished(run, tiny_diff_folder, tmp_path, monkeypatch):
    from diffscope.stats.measure import MeasurementRun

    add, copy = MeasurementRun.add, tmp_path / "part.nc"

    def stop(measuring, layer, workers):
        if layer.layer == 1:
            raise KeyboardInterrupt
        return add(measuring, layer, workers)

    monkeypatch.setattr("diffscope.stats.measure.MAX_JOINT_BYTES", 0)
    monkeypatch.setattr(MeasurementRun, "add", stop)
    requested = ("measure", "--model", tiny_diff_folder, "--prompt", PROMPT, "--statistics", "entropy", "--out", copy, "--json")
    status, out, err = run(*requested)
    assert status == 130 and f"stopped after 1 of 2 layers; these are kept in {copy}" in err
    assert json.loads(out)["stopped"].startswith("after 1 of")
    assert open_statistics(copy)["layer"].values.tolist() == [0]


def test_positions_and_decibels_are_not_averaged(run, saved):
    _, out, _ = run("measure", saved, "--statistics", "argmax,cmrr,column_sink_position,gini")
    lines = out.splitlines()
    assert sum("is not averaged" in line and "--query" in line for line in lines) == 2
    assert "gini, mean over" in out
    capture = diffscope.open(saved)
    position = lines.index("column_sink_position [position]")
    assert lines[position + 1].split()[:3] == ["layer", "head", "normalisation"]
    _, out, _ = run("measure", saved, "--statistics", "argmax", "--json")
    argmax = json.loads(out)["statistics"]["argmax"]
    assert "query" in argmax["dims"] and argmax["averaged_over"] == []
    _, out, _ = run("measure", saved, "--statistics", "argmax", "--query", "-1")
    expected = capture.measure(["argmax"], queries=[-1])["argmax"].isel(query=0)
    shown = [line.split() for line in out.splitlines()[-expected.sizes["layer"] * expected.sizes["head"] :]]
    assert [list(map(float, row[2:])) for row in shown] == expected.values.reshape(-1, 3).tolist()


def test_a_head_is_not_compared_with_itself(run, saved):
    capture = diffscope.open(saved)
    cka = capture.measure(["head_cka"])["head_cka"].values
    _, out, _ = run("measure", saved, "--statistics", "head_cka")
    assert f"mean over other heads ({capture.n_heads - 1})" in out
    shown = [float(line.split()[2]) for line in out.splitlines()[-cka.shape[0] * cka.shape[1] :]]
    expected = [np.delete(cka[layer, :, head], head).mean() for layer in range(cka.shape[0]) for head in range(cka.shape[1])]
    assert shown == pytest.approx(expected, rel=1e-3)


def test_infinite_divergences_are_left_out_and_counted(run, saved, monkeypatch):
    measure = diffscope.capture.capture.Capture.measure

    def with_infinity(self, *arguments, **options):
        measured = measure(self, *arguments, **options).copy(deep=True)
        measured["kl_12"].loc[dict(layer=0, head=0, query=measured["query"][-2:])] = np.inf
        return measured

    monkeypatch.setattr(diffscope.capture.capture.Capture, "measure", with_infinity)
    measured = diffscope.open(saved).measure(["kl_12"])["kl_12"]
    infinite = int(np.isinf(measured).sum())
    _, out, _ = run("measure", saved, "--statistics", "kl_12")
    assert f"{infinite} infinite values left out" in out and "inf" not in out.split("left out)", 1)[1]
    entry = json.loads(run("measure", saved, "--statistics", "kl_12", "--json")[1])["statistics"]["kl_12"]
    copy = measured.where(np.isfinite(measured)).mean("query").sel(layer=0, head=0)
    answer = copy["span"].values.tolist().index("answer")
    assert entry["values"][0][0][answer] == pytest.approx(float(copy[answer]), rel=1e-6)
    assert f"{infinite} infinite values" in entry["averaged_over"][0]


@pytest.fixture
def hybrid(saved, tmp_path):
    """A saved capture whose layers are numbered 1 and 3."""
    capture = diffscope.open(saved)
    layers = [replace(layer, layer=number) for layer, number in zip(capture.layers, (1, 3), strict=True)]
    path = tmp_path / "hybrid.dscope"
    replace(capture, layers=layers).save(path)
    return path


def test_layers_go_by_their_number_in_the_model(run, hybrid, tmp_path):
    status, out, _ = run("measure", hybrid, "--layer", 3, "--statistics", "gini", "--json")
    assert status == 0
    gini = json.loads(out)["statistics"]["gini"]
    assert gini["coords"]["layer"] == [3]
    expected = diffscope.open(hybrid).measure(["gini"])["gini"].isel(layer=[1]).mean("query")
    assert gini["values"][0][0] == pytest.approx(expected.values[0, 0].tolist(), rel=1e-6)
    assert run("figure", hybrid, "--layer", 3, "--out", tmp_path / "maps.json")[0] == 0
    assert json.loads((tmp_path / "maps.json").read_text())["attrs"]["layer"] == 3
    for command in (["measure"], ["figure", "--out", tmp_path / "no.json"]):
        status, _, err = run(command[0], hybrid, "--layer", 0, *command[1:])
        assert (status, is_one_line(err)) == (2, True) and "choose from 1, 3" in err


def test_measure_of_one_layer_and_head(run, saved):
    _, out, _ = run("measure", saved, "--statistics", "entropy", "--layer", 1, "--head", 0, "--json")
    assert json.loads(out)["statistics"]["entropy"]["coords"] | {"map": None} == {"layer": [1], "head": [0], "map": None}


def test_measure_keeps_every_value(run, saved, tmp_path):
    status, _, err = run("measure", saved, "--statistics", "entropy", "--out", tmp_path / "s.parquet")
    assert (status, err.startswith("saved")) == (0, True)
    assert open_statistics(tmp_path / "s.parquet")["entropy"].sizes["query"] == diffscope.open(saved).n_tokens


def test_a_table_says_of_what_part_it_is_and_has_no_single_heads(run, saved, tmp_path):
    part = ("--layer", 1, "--head", 0, "--query", -1)
    assert run("measure", saved, "--statistics", "entropy", *part, "--out", tmp_path / "s.md")[0] == 0
    last = diffscope.open(saved).n_tokens - 1
    assert f", layer 1, head 0, query {last}." in (tmp_path / "s.md").read_text(encoding="utf-8")
    status, _, err = run("measure", saved, "--statistics", "entropy", "--per-head", "--out", tmp_path / "t.tex")
    assert status != 0 and "leave --per-head out, or keep every value" in err and not (tmp_path / "t.tex").exists()


def test_prompt_from_a_file(run, tiny_diff_folder, tmp_path):
    (tmp_path / "prompt.txt").write_text(PROMPT, encoding="utf-8-sig")  # with the mark that some editors put first
    _, from_file, err = run("capture", "--model", tiny_diff_folder, "--prompt-file", tmp_path / "prompt.txt", "--json")
    _, typed, _ = run("capture", "--model", tiny_diff_folder, "--prompt", PROMPT, "--json")
    assert json.loads(from_file)["tokens"] == json.loads(typed)["tokens"] and "line break" not in err
    (tmp_path / "prompt.txt").write_text(f"{PROMPT}\n", encoding="utf-8")
    _, ended, err = run("capture", "--model", tiny_diff_folder, "--prompt-file", tmp_path / "prompt.txt", "--json")
    assert len(json.loads(ended)["tokens"]) > len(json.loads(typed)["tokens"]) and "ends in a line break" in err


def test_a_chat_or_token_ids_from_a_json_file(run, tiny_diff_folder, tmp_path):
    folder = shutil.copytree(tiny_diff_folder, tmp_path / "chatty")
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}")
    scope = diffscope.load(folder)
    chat = [{"role": "user", "content": PROMPT}]
    for content in (chat, scope.tokenize(PROMPT), scope.tokenizer(PROMPT).data):
        (tmp_path / "prompt.json").write_text(json.dumps(content), encoding="utf-8")
        _, captured, _ = run("capture", "--model", folder, "--prompt-file", tmp_path / "prompt.json", "--json")
        assert json.loads(captured)["tokens"] == list(scope.encode(PROMPT).tokens)
    for content, words in (([chat, chat], "a batch of 2"), ([0.5], "0.5 is no whole number"), ({"prompt": "a"}, "input_ids")):
        (tmp_path / "prompt.json").write_text(json.dumps(content), encoding="utf-8")
        for command in ("capture", "measure"):
            status, out, err = run(command, "--model", folder, "--prompt-file", tmp_path / "prompt.json")
            assert (status, out) == (2, "") and is_one_line(err) and words in err
    (tmp_path / "prompt.json").write_text("{", encoding="utf-8")
    status, _, err = run("capture", "--model", folder, "--prompt-file", tmp_path / "prompt.json")
    assert status == 2 and is_one_line(err) and "broken JSON" in err


def test_figure(run, saved, tmp_path):
    status, out, _ = run("figure", saved, "--layer", 1, "--head", 0, "--venue", "neurips", "--out", tmp_path / "maps.pdf")
    assert (status, out) == (0, "")
    assert (tmp_path / "maps.pdf").stat().st_size > 1000


def test_a_figure_of_a_statistic_says_where_it_is(run, saved, tmp_path):
    out_file = tmp_path / "heads.json"
    status, out, _ = run("figure", saved, "--kind", "heads", "--statistic", "gini", "--out", out_file, "--json")
    assert status == 0 and json.loads(out) == {"figure": "heads", "saved": str(out_file)}
    assert list(json.loads(out_file.read_text())["data_vars"]) == ["gini"]


def test_models_lists_what_is_bundled(run):
    status, out, _ = run("models")
    names = [model["name"] for model in diffscope.models.bundled()]
    assert status == 0
    assert names and all(name in out for name in names)
    assert [model["name"] for model in json.loads(run("models", "--json")[1])["models"]] == names


# What is wrong


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["mesure"], "measure"),
        (["measure", "--layr", "1"], "--layer"),
        (["measure", "--layer", "one"], "--layer"),
        (["measure", "--layer", "-1"], "--layer"),
        (["measure"], "--model"),
        (["measure", "--model", "mini-diff"], "--prompt"),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--prompt-file", "b"], "either"),
        (["check"], "--model"),
        (["check", "mini-diff"], "diffscope check --model mini-diff"),
        (["measure", "--model", "mini-diff", "--prompt-file", "nowhere.txt"], "nowhere.txt"),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--dtype", "int7"], "float32"),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--span", "answer"], "NAME=TEXT"),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--span", "=a"], "NAME=TEXT"),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--span", "x=a", "--span", "x=a"], "twice"),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--out", "statistics.txt"], ".parquet"),
        (["measure", "--model", "mini-diff", "--prompt", "at 12:30 a", "--span", "x=12:30"], "or the tokens as x=012:30"),
        (
            ["measure", "--model", "mini-diff", "--prompt", "a b c d", "--queries", "1:90"],
            "1:90 goes beyond the prompt, which has",
        ),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--span", "x:=~y"], "made of 'y'"),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--span", "x:=not y"], "before(…)"),
        (["capture", "--model", "mini-diff", "--prompt", "a", "--out", "paris.pdf"], "name it 'paris.dscope'"),
        (["check", "--model", "mini-diff", "--out", "report.html"], "end the name in .tex, .md"),
        (["measure", "--model", "mini-diff", "--prompt", "a", "--out", "no/such/statistics.csv"], "no/such"),
        (["measure", "nowhere.dscope"], "nowhere.dscope"),
        (["measure", "nowhere.dscope", "--model", "mini-diff"], "--model"),
        (["figure", "nowhere.dscope"], "--out"),
        (["train", "laptop"], "--out FOLDER"),
        (["train", "no-such-recipe", "--arm", "mini-diff", "--out", "."], "no-such-recipe"),
        (["train", "laptop", "--arm", "no-such-arm", "--out", "."], "no-such-arm"),
        (["train", "laptop", "--device", "tpu", "--out", "runs"], "'tpu' is unknown"),
        (["train", "laptop", "--seed", "-1", "--out", "runs"], "--seed"),
        (["train", "laptop", "--report", "--out", "runs"], "no folder runs"),
        (["evaluate", "--model", "mini-diff", "--template", " The {number} of {city}."], "no other braces"),
        (["evaluate", "--model", "mini-diff", "--questions", "2", "--near-duplicates"], "leave out --near-duplicates"),
        (["evaluate", "--model", "mini-diff", "--questions", "9"], "9 questions about 4 needles"),
        (["evaluate", "--model", "mini-diff", "--prompts", "12"], "do not spread"),
        (["evaluate", "--model", "mini-diff", "--seed", "-1"], "--seed"),
        (["test", "--model", "mini-diff", "--template", "bad"], "template 'bad' has to hold {city}"),
        (["check", "--model", "mini-diff", "--length", "8"], "greater than or equal to 25"),
        (["capture", "--model", "", "--prompt", "a"], "no model given"),
        (["capture", "--model", "mini-diff@²", "--prompt", "a"], "mini-diff has no checkpoint '²'"),
        (["app", "--port", "99999"], "--port"),
        (["app", "--host", "0.0.0.0"], "add --share"),
        (["app", "--host", "192.0.2.1"], "add --share"),
        (["app", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["app", "--models", "no/such/folder"], "no/such/folder"),
        (["app", "--share", "--models", "no/such/folder"], "no/such/folder"),
    ],
    ids=name,
)
def test_bad_arguments_are_one_line(run, arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert is_one_line(err) and says in err, err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["measure", "--statistics", "entorpy"], "entorpy"),
        (["measure", "--statistics", ","], "--statistics"),
        (["measure", "--layer", "99"], "99"),
        (["measure", "--head", "99"], "99"),
        (["measure", "--queries", "5:2"], "no query was chosen"),
        (["figure", "--layer", "99", "--head", "0", "--out", "maps.pdf"], "99"),
        (["figure", "--layer", "0", "--head", "0", "--out", "maps.docx"], "docx"),
        (["figure", "--layer", "0", "--head", "0", "--out", "maps.pdf", "--venue", "nowhere"], "nowhere"),
        (["figure", "--kind", "portrait", "--out", "maps.pdf"], "portrait"),
        (["figure", "--kind", "maps", "--statistic", "gini", "--out", "maps.pdf"], "does not take 'statistic'"),
    ],
    ids=name,
)
def test_bad_questions_to_a_capture_are_one_line(run, saved, arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(arguments[0], saved, *arguments[1:])
    assert (status, out) == (2, "")
    assert is_one_line(err) and says in err, err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        ["--prompt", ""],
        ["--prompt", PROMPT, "--span", "answer=nowhere"],
        ["--prompt", PROMPT, "--span", "answer=5:5000"],
        ["--prompt", PROMPT, "--device", "nowhere"],
        ["--prompt", "long " * 20_000],
    ],
    ids=["empty", "span", "range", "device", "long"],
)
def test_what_a_model_cannot_do_is_one_line(run, tiny_diff_folder, options):
    status, out, err = run("capture", "--model", tiny_diff_folder, *options)
    assert (status, out) == (2, "")
    assert is_one_line(err), err


def test_text_that_is_none(run, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"\xff\xfe\x00")
    status, _, err = run("capture", "--model", "mini-diff", "--prompt-file", tmp_path / "prompt.txt")
    assert status == 2
    assert is_one_line(err) and "UTF-8" in err


def test_a_model_that_is_none(run, tmp_path):
    status, _, err = run("capture", "--model", tmp_path, "--prompt", PROMPT)
    assert status == 2
    assert is_one_line(err), err


def test_a_file_that_is_no_capture(run, tmp_path):
    (tmp_path / "x.dscope").write_text("something else")
    status, _, err = run("measure", tmp_path / "x.dscope")
    assert status == 2
    assert is_one_line(err), err


def test_statistics_are_no_capture(run, saved, tmp_path):
    assert run("measure", saved, "--out", tmp_path / "a.nc")[0] == 0
    status, out, err = run("measure", tmp_path / "a.nc")
    assert (status, out) == (2, "") and is_one_line(err) and "not a capture but a Dataset" in err


def test_a_folder_is_not_overwritten(run, tiny_diff_folder, tmp_path):
    (tmp_path / "kept").touch()
    status, out, err = run("capture", "--model", tiny_diff_folder, "--prompt", PROMPT, "--out", tmp_path)
    assert (status, out) == (2, "")
    assert is_one_line(err) and "is a folder" in err
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nSee documentation"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: not enough memory: you tried to allocate"),
        RuntimeError("[enforce fail] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
    ids=["cuda", "windows", "linux", "python"],
)
def test_out_of_memory_is_one_line(run, monkeypatch, error):
    monkeypatch.setattr(diffscope, "load", raiser(error))
    status, out, err = run("capture", "--model", "mini-diff", "--prompt", PROMPT)
    assert (status, out) == (2, "")
    assert is_one_line(err) and "out of memory; use a shorter prompt" in err


def test_another_runtime_error_is_not_hidden(run, monkeypatch):
    monkeypatch.setattr(diffscope, "load", raiser(RuntimeError("a defect")))
    with pytest.raises(RuntimeError, match="a defect"):
        run("capture", "--model", "mini-diff", "--prompt", PROMPT)


def raiser(error):
    def fail(*_, **__):
        raise error

    return fail


def test_an_interrupt_is_130(run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(diffscope, "load", interrupt)
    assert run("capture", "--model", "mini-diff", "--prompt", PROMPT) == (130, "", "stopped; nothing was kept\n")


def test_a_closed_stdout_is_one_line(run, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    status, _, err = run("models")
    assert status == 2 and is_one_line(err) and "stdout is closed" in err


def test_a_reader_that_has_enough():
    done = subprocess.run(f"{sys.executable} -m diffscope --help | true", shell=True, capture_output=True, text=True)
    assert done.stderr == ""


# The dashboard


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_a_port_that_is_taken(run):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
        status, out, err = run("app", "--port", port)
    assert (status, out) == (2, "")
    assert is_one_line(err) and str(port) in err and "--port" in err


def test_the_dashboard_is_started_with_what_its_readers_may_do(run, port, tmp_path, monkeypatch):
    """A token is random, is told to the server and to the address alone, and nothing is fetched where others come in."""
    started, said = [], []
    server = SimpleNamespace(poll=lambda: 0, returncode=0)
    monkeypatch.setattr(app.subprocess, "Popen", lambda command, env, **_: started.append((command, env)) or server)
    monkeypatch.setattr(app, "wait_until_up", lambda *_: True)
    monkeypatch.setattr(app.signal, "signal", lambda *_: None)
    for options in (["--share"], ["--share"], ["--share", "--host", "localhost"], [], ["--models", tmp_path]):
        status, out, _ = run("app", "--port", port, *options)
        assert status == 0
        said.append(out.split()[3])
    tokens = [env["DIFFSCOPE_TOKEN"] for _, env in started]
    assert len({*tokens[:3]}) == 3 and min(map(len, tokens[:3])) >= 32 and tokens[3:] == ["", ""]
    assert all(address.endswith(f"?token={token}") for address, token in zip(said[:3], tokens)) and "?" not in said[3]
    assert not any(token in argument for (command, _), token in zip(started[:3], tokens) for argument in command)
    scripts = [command[4].rpartition("/")[2] for command, _ in started]
    assert scripts == ["server.py"] * 3 + ["main.py"] * 2
    assert [env.get("HF_HUB_OFFLINE") for _, env in started[:3]] == ["1"] * 3
    assert "--server.address=0.0.0.0" in started[0][0] and "--server.address=localhost" in started[2][0]
    assert "--server.address=localhost" in started[3][0] and "--server.allowedHosts=localhost" in started[3][0]
    assert started[4][1]["DIFFSCOPE_MODELS"] == str(tmp_path) and started[3][1]["DIFFSCOPE_MODELS"] == ""


STANDS_IN = """
import signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass

signal.signal(signal.SIGINT, lambda *_: sys.exit())
(port,) = (int(option.partition("=")[2]) for option in sys.argv if option.startswith("--server.port="))
HTTPServer(("localhost", port), Answers).serve_forever()
"""
IN_A_BACKGROUND = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as what a script starts in the background has it
from diffscope.cli import main
sys.exit(main(sys.argv[1:]))
"""
BESIDE_A_STAND_IN = f"import sys; from diffscope.cli import app, main; app.SERVE = {STANDS_IN!r}; sys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.parametrize(
    "program, asked, status",
    [(IN_A_BACKGROUND, signal.SIGINT, 130), (BESIDE_A_STAND_IN, signal.SIGTERM, 0)],
    ids=["Ctrl-C in a background", "terminated beside a server that is there at once"],
)
def test_the_dashboard_answers_and_stops(port, tmp_path, program, asked, status):
    assert find_app().is_file()
    command = [sys.executable, "-c", program, "app", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        address = f"http://localhost:{port}"
        assert address in server.stdout.readline()
        with urlopen(address, timeout=60) as page:
            assert page.status == 200
        server.send_signal(asked)
        _, err = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == status
    assert "Traceback" not in err


def test_the_server_ends_with_a_command_that_cannot_print_its_address(port, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)  # as of a pipe into a program that has ended
    program = [sys.executable, "-c", BESIDE_A_STAND_IN, "app", "--port", str(port)]
    command = subprocess.Popen(program, stdout=writer, stderr=subprocess.DEVNULL, cwd=tmp_path, start_new_session=True)
    os.close(writer)
    try:
        assert command.wait(timeout=120)
        assert app.port_is_free("localhost", port)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)


def test_what_a_user_should_know_is_noted(run, tiny_diff_folder, tmp_path):
    """Once by the command, in its own words, and again where the capture is opened; not as a Python warning."""
    from diffscope.families.bundled import Bundled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bundled, "warnings", lambda self, layer: ["its keys are shared"])
        copy = tmp_path / "a.dscope"
        status, out, err = run("capture", "--model", tiny_diff_folder, "--prompt", "a city is found", "--out", copy)
    assert status == 0 and err.count("warnings: its keys are shared") == 1 and "DiffscopeWarning" not in err
    status, out, err = run("measure", copy)
    assert status == 0 and "warnings: its keys are shared" in err and "warnings" not in out


def test_evaluate_answers_several_questions_and_prompts_of_ones_own(run, tmp_path):
    status, out, _ = run("evaluate", "--model", "mini-diff", "--prompts", 10, "--looks", 10, "--questions", 2, "--json")
    shown = json.loads(out)
    assert status == 0 and shown["questions"] == 2 and shown["answers"]["chance"] == 1 / 16 and shown["answers"]["exact"] > 0.5
    file = tmp_path / "my.jsonl"
    text = "The magic number: Paris 7421. The magic number: Rome 2174. The magic number: Paris"
    whole = {"prompt": text, "answer": " 7421", "distractors": ["2174"], "spans": {"answer": "7421", "needles": "Rome 2174"}}
    file.write_text(json.dumps(whole))
    status, out, _ = run("evaluate", "--model", "mini-diff", "--prompts", file, "--json")
    (row,) = json.loads(out)["prompts"]
    assert status == 0 and row["exact"] and row["log_odds"] > 0 and row["on answer"] > row["on needles"]
    file.write_text(json.dumps({"prompt": text}))
    status, out, _ = run("evaluate", "--model", "mini-diff", "--prompts", file)
    assert status == 1 and '"answer": "…"' in out and '"spans": {"answer": "…"}' in out
    for command, options, named in (
        ("evaluate", ["--near-duplicates", "--sentences", 4, "--seed", 5], "--sentences, --near-duplicates, --seed"),
        ("test", ["--length", 160, "--seed", 5], "--length"),  # the seed is that of untrained models too
    ):
        status, _, err = run(command, "--model", "mini-diff", "--prompts", file, *options)
        assert status == 2 and err.startswith(f"error: {named}: prompts of your own are taken as they are"), err
    file.write_text(json.dumps({"prompt": "word " * 600, "name": "mine"}))
    status, _, err = run("evaluate", "--model", "mini-diff", "--prompts", file)
    assert status == 2 and "prompt 'mine' and its answer are" in err and "mini-diff has positions for 512" in err


def test_evaluate_weighs_unknown_by_evidence(run, monkeypatch):
    from diffscope.lab.training import grid

    kept, weigh = {}, grid.unknown_by_evidence

    def once(model, task, cells, seed):  # for it is shown in two ways
        return kept[cells] if cells in kept else kept.setdefault(cells, weigh(model, task, cells, seed))

    monkeypatch.setattr(grid, "unknown_by_evidence", once)
    asked = ("evaluate", "--model", "mini-diff", "--prompts", 10, "--looks", 10, "--unanswerable")
    status, out, _ = run(*asked, "--json")
    evidence = json.loads(out)["evidence"]
    assert status == 0 and list(evidence["sensitivity"]) == ["nothing", "qualifier", "city"]
    unknown = {grade: cell["mean"] for grade, cell in evidence["unknown"].items()}
    assert evidence["sensitivity"]["nothing"]["mean"] == pytest.approx(unknown["nothing"] - unknown["stated"])
    status, out, _ = run(*asked)
    assert status == 0 and "sensitivity" in out and f"{unknown['stated 4']:+.2f}" in out
    status, out, _ = run(*asked, "--length", 64, "--sentences", 10)
    assert status == 0 and "exact answers" in out and "not weighed by evidence: 13 needles do not fit 64 tokens" in out


def test_evaluate_gives_a_model_of_bigram_backcopy_its_task(run, tmp_path):
    from diffscope.tasks import Backcopy

    tiny.own(vocab_size=64, pad_token_id=None).save_pretrained(tmp_path)
    Backcopy().tokenizer.save_pretrained(tmp_path)
    asked = ("evaluate", "--model", tmp_path, "--length", 48, "--prompts", 10, "--looks", 10)
    status, out, _ = run(*asked, "--json")
    shown = json.loads(out)
    assert status == 0 and shown["excess"] == pytest.approx(shown["bigram"] - shown["entropy"]) and shown["copied"] > 1
    assert shown["first_token"]["dims"] == ["queries", "layer", "head", "map"]
    status, out, _ = run(*asked)
    assert status == 0 and f"{shown['copied']:.4f}" in out and "A2, dormant" in " ".join(out.split())
    for options in (["--near-duplicates"], ["--template", " {city} {number}."], ["--questions", "2"]):
        status, _, err = run(*asked, *options)
        assert status == 2 and "is asked nothing; leave out --near-duplicates" in err
    status, _, err = run(
        "sweep",
        "--model",
        "mini-diff",
        "--statistics",
        "gini",
        "--prompts",
        "backcopy:count=2,length=48",
        "--out",
        tmp_path / "out",
    )
    assert status == 2 and "other tokens than the Bigram-Backcopy task" in err
    status, out, _ = run("test", "--model", tmp_path)
    assert status == 1 and "this tokenizer cannot split the text of prompts" in out


# What fits a screen


@pytest.mark.parametrize("width", [60, 80, 132])
def test_no_word_is_cut_on_a_screen(monkeypatch, width):
    printed = StringIO()
    console = partial(Console, file=printed, width=width, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(output, "_console", console)
    assert main(["test", "--list"]) == 0 and main(["models"]) == 0
    output.show_table(["token", "weight"], [["word " * 30, 0.5], ["Wörter" * 9, None]])
    lines = printed.getvalue().splitlines()
    assert max(cell_len(line) for line in lines) <= width and "…" not in printed.getvalue()
    words = printed.getvalue().split()
    for test in TESTS.values():
        assert test.id in words or f"{test.id}:" in words
        assert set(test.rule.split()) <= set(words)
    parameters = {str(card["parameters"]) for card in diffscope.models.bundled()}
    assert {"mini-standard", "checkpoints", "parameters", *parameters} <= set(words)


def test_tables_are_kept_by_the_name_of_the_file(run, saved, tmp_path):
    assert run("measure", saved, "--statistics", "gini,span_mass", "--queries", "last", "--out", tmp_path / "s.tex")[0] == 0
    assert run("measure", saved, "--statistics", "gini", "--out", tmp_path / "s.md")[0] == 0
    latex, markdown = ((tmp_path / name).read_text(encoding="utf-8") for name in ("s.tex", "s.md"))
    assert r"\toprule" in latex and "answer, share" in latex and "| gini | D |" in markdown
    status, _, err = run("check", "--model", "mini-diff", "--out", tmp_path / "c.tex")
    assert status == 0 and "saved" in err and r"$\lambda$" in (tmp_path / "c.tex").read_text(encoding="utf-8")


def test_spans_of_spans_on_the_command_line(run, tiny_diff_folder):
    asked = ("capture", "--model", tiny_diff_folder, "--prompt", PROMPT, "--span", "answer=7421", "--json")
    _, out, _ = run(*asked, "--span", "ahead:=before(answer) - sink", "--span", "rest:=~(answer | sink | ahead)")
    spans = json.loads(out)["spans"]
    assert spans["ahead"] == list(range(1, spans["answer"][0]))
    assert spans["rest"] == list(range(spans["answer"][-1] + 1, len(json.loads(out)["tokens"])))


DAMAGED = """
import sys
from types import SimpleNamespace
from diffscope.cli import serve

def damaged():
    raise OSError("the first model is damaged")

serve.import_module = lambda name: SimpleNamespace(prepare_first_view=damaged, main=lambda prog_name: print(prog_name, "is run"))
serve.main()
"""


def test_the_dashboard_starts_although_its_first_model_cannot_be_read():
    run = subprocess.run([sys.executable, "-c", DAMAGED], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "streamlit is run"), run.stderr
