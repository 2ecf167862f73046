"""``diffscope figure`` draws every figure, with every option of it."""

import inspect
import json
from functools import partial

import numpy as np
import pytest

import diffscope
from diffscope.cli.figure_options import keyword_of, options_of
from diffscope.figures import FIGURES
from diffscope.storage.statistics import save_statistics

PROMPT = "The magic number: Paris 7421. The magic number: Rome 2174. The magic number: Paris"
GIVEN = ["--model", "mini-diff", "--prompt", PROMPT, "--span", "answer=7421"]
#: what only a script has: arrays that belong to the values, what is measured already, dictionaries, one prompt of a batch
OF_SCRIPTS = set("prompt length measured low high references at looks error points".split())
#: what is no keyword of its function, since it says of what a figure is
OF_SUBJECTS = {"statistic", "where", "source", "layer", "head", "query", "key", "map", "against"}


@pytest.fixture
def run(run):
    return partial(run, "figure")


def test_every_keyword_of_every_figure_is_an_option(run):
    for name, function in FIGURES.items():
        keywords = {word for word, parameter in inspect.signature(function).parameters.items() if parameter.kind == 3}
        assert keywords - OF_SCRIPTS <= {keyword_of(option.name) for option in options_of(name)} <= keywords | OF_SUBJECTS, name
    status, out, _ = run("--list")
    assert status == 0 and [line.split()[0] for line in out.splitlines()] == sorted(FIGURES)


def test_the_help_of_a_figure_lists_its_own_options(run):
    _, out, _ = run("--kind", "heads", "--help")
    assert "--key-set" in out and "--venue" in out and "--out" in out and "--layers" not in out
    assert "--layers" in run("--help")[1]


def test_what_a_figure_takes_is_said_in_its_functions_words(run):
    _, out, _ = run("--kind", "heads", "--list")
    assert "--key-set" in out and "negative ones count from the prompt's end" in out
    assert "paper format whose widths" in out and "As of" not in out and "--measured" not in out


def drawn(run, tmp_path, *arguments):
    status, _, err = run(*GIVEN, *arguments, "--out", tmp_path / "figure.json")
    assert status == 0, err
    return json.loads((tmp_path / "figure.json").read_text())


def test_options_say_what_is_drawn(run, tmp_path):
    cap = diffscope.load("mini-diff").capture(PROMPT, spans={"answer": "7421"})
    data = drawn(run, tmp_path, "--layer", 2, "--head", 1, "--queries", "5:12", "--keys", ":9", "--names", "A1,D")
    assert list(data["data_vars"]) == ["A1", "D"]
    np.testing.assert_allclose(data["data_vars"]["D"]["data"], cap.map("D", 2, 1).values[5:12, :9], atol=1e-6)
    grid = drawn(run, tmp_path, "--layers", "0,2", "--heads", "all", "--names", "lambda_A2")
    assert grid["coords"]["layer"]["data"] == [0, 2] and grid["coords"]["head"]["data"] == [0, 1]
    heads = ["--kind", "heads", "--statistic", "span_mass", "--map", "A2", "--key-set", "sink", "--normalisation", "raw"]
    values = drawn(run, tmp_path, *heads, "--query", 7)["data_vars"]["span_mass"]["data"]
    expected = cap.measure(["span_mass"])["span_mass"].sel(map="A2", span="sink", normalisation="raw", query=7)
    np.testing.assert_allclose(values, expected.transpose("layer", "head"), atol=1e-6)
    assert drawn(run, tmp_path, *heads, "--query", "mean")["attrs"]["selection"].startswith("A2, sink, raw, mean over")
    two = drawn(run, tmp_path, "--baseline", "mini-standard", "--layer", "2,1", "--head", "1,0")
    assert two["attrs"]["models"] == ["mini-diff", "mini-standard"]


def test_signal_and_noise_are_asked_with_an_answer_and_others(run, tmp_path):
    kind = ["--kind", "signal_to_noise", "--quantity", "ratio"]
    others = [word for number in ("1983", "2174") for word in ("--distractor", number)]
    data = drawn(run, tmp_path, *kind, *others, "--baseline", "mini-standard")
    measured = diffscope.instruments.signal_to_noise(
        diffscope.load("mini-diff"), PROMPT, spans={"answer": "7421"}, answers=["1983", "2174"]
    )
    np.testing.assert_allclose(
        data["data_vars"]["value"]["data"][0][2][:6], measured["snr"].sel(output="D", stage="before").values.ravel(), rtol=1e-5
    )
    assert [panel.split(":")[0] for panel in data["coords"]["panel"]["data"]] == ["mini-diff", "mini-diff", "mini-standard"]


def test_patches_are_of_two_prompts(run, tmp_path):
    prompts = [PROMPT, PROMPT.replace("7421", "9053")]
    given = ["--model", "mini-diff", "--kind", "patching", "--prompt", prompts[0], "--source", prompts[1]]
    status, _, err = run(*given, "--quantity", "share", "--out", tmp_path / "figure.json")
    assert status == 0, err
    want = diffscope.readings.patched_heads(diffscope.load("mini-diff"), *prompts)
    data = json.loads((tmp_path / "figure.json").read_text())
    drawn_values = dict(zip(data["coords"]["panel"]["data"], np.array(data["data_vars"]["value"]["data"], float)))
    assert len(drawn_values) == want.estimates.sizes["what"]
    (output,) = [values for name, values in drawn_values.items() if name == "output"]
    np.testing.assert_allclose(output, want.estimates["share"].sel(what="output"), atol=1e-5)


def test_a_score_is_of_the_cell_that_is_named(run, tmp_path):
    given = ["--model", "mini-diff", "--prompt", PROMPT, "--kind", "score_parts", "--layer", 1, "--head", 1, "--key", 9]
    status, _, err = run(*given, "--map", "A2", "--against", "row", "--out", tmp_path / "figure.json")
    assert status == 0, err
    want = diffscope.attribution.score_attribution(diffscope.load("mini-diff"), PROMPT, 1, 1, -1, 9, map="A2", against="row")
    data = json.loads((tmp_path / "figure.json").read_text())
    assert np.array(data["data_vars"]["value"]["data"]).ravel()[-1] == pytest.approx(float(want["total"]), abs=1e-5)


def test_width_title_and_what_lies_beside_it(run, tmp_path):
    out = tmp_path / "row.pdf"
    status, _, err = run(*GIVEN, "--kind", "row", "--width", 4, "--title", "mine", "--out", out, "--sidecars", "latex,provenance")
    assert status == 0, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["row.figure.tex", "row.pdf", "row.provenance.json"]
    record = json.loads((tmp_path / "row.provenance.json").read_text())
    assert record["drawn"] == {"venue": None, "width_in": 4.0, "title": "mine"}


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--kind", "heads", "--layers", "all"], "does not take 'layers'"),
        (["--kind", "curves"], "does not read --model"),
        (["--kind", "by_depth"], "does not read --prompt"),
        (["--length", "64"], "the figure maps does not read --length"),
        (["--answer", "7421"], "the figure maps does not read --answer"),
        (["--baseline", "mini-diff"], "--baseline is --model"),
        (["--kind", "heads", "--statistic", "gini", "--key-set", "answer"], "gini is not measured by span"),
        (["--layer", "2", "--heads", "all"], "leave layer, head, scale and limit out"),
        (["--layers", "all", "--names", "A2", "--baseline", "mini-standard"], "has one map, and no A2"),
        (["--kind", "attribution"], "--answer TEXT"),
        (["--kind", "patching"], "does not read --span"),
        (["--kind", "score_parts", "--head", "1"], "does not read --span"),
        (["--kind", "anatomy", "--baseline", "mini-standard"], "does not read --baseline"),
        (["--layer", "two"], "two is no number"),
        (["--kind", "sweep", "--where", "layer=1", "--where", "map"], "--where 'map' is not DIMENSION=LABEL"),
        (["--kind", "sweep", "--where", "map=D", "--where", "map=A1"], "--where 'map' is given twice"),
        (["--kind", "maps", "--kind=heads"], "--kind is given 2 times"),
        (["--sidecars", "pictures"], "there are data, latex, provenance"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(run, tmp_path, arguments, words):
    status, _, err = run(*GIVEN, *arguments, "--out", tmp_path / "figure.json")
    assert status == 2 and words in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["heads"], "there is no file 'heads'; to draw that kind of figure, give --kind heads"),
        (["--kind", "patching"], "give --source TEXT"),
        (["--kind", "patching", "--source", "a", *["--distractor", "b"] * 2], "give --distractor once"),
        (["--kind", "score_parts", "--head", "1"], "give --layer, --key"),
    ],
)
def test_what_a_figure_is_of_is_asked_for(run, tmp_path, arguments, words):
    status, _, err = run("--model", "mini-diff", "--prompt", PROMPT, *arguments, "--out", tmp_path / "figure.json")
    assert status == 2 and words in err and err.count("\n") == 1


def test_without_a_place_to_draw_it_says_so(run):
    assert run(*GIVEN)[2] == "error: nothing says where to draw; give --out FILE, or see what there is with --list\n"


def test_values_of_a_file_are_drawn_along_their_dimensions(run, tmp_path):
    measured = diffscope.load("mini-diff").capture(PROMPT).measure(["gini"], queries="last").isel(query=0, drop=True)
    save_statistics(measured, tmp_path / "gini.nc")
    arguments = ["--kind", "curves", "--statistic", "gini", "--where", "map=D", "--x", "layer", "--series", "head"]
    status, _, err = run(tmp_path / "gini.nc", *arguments, "--style", "points", "--out", tmp_path / "figure.json")
    assert status == 0, err
    data = json.loads((tmp_path / "figure.json").read_text())
    np.testing.assert_allclose(data["data_vars"]["value"]["data"][0], measured["gini"].sel(map="D").transpose("head", "layer"))
    wrong = run(tmp_path / "gini.nc", *arguments[:4], "--where", "map=E", "--out", tmp_path / "x.pdf")
    assert "there is no such label; map has A1, A2, D" in wrong[2]
