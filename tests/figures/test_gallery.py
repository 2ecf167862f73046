"""The scripts of the gallery run, every figure has one, what they draw can be read in a column, and a colour means one thing."""

import dataclasses
import functools
from pathlib import Path

import pytest

import diffscope
from diffscope import readings
from diffscope.figures import FIGURES, theme
from tools.figure_sheet import colour_faults, text_faults

SCRIPTS = sorted((Path(__file__).parents[2] / "docs" / "gallery").glob("*.py"))
FEWER = {  # prompts, untrained models and draws, whose number no drawing depends on, and tokens
    "tasks.examples())": "tasks.examples()[:2])",
    "tasks.examples(), ": "tasks.examples()[:2], ",
    "prompts=3)": "prompts=2)",
    '"length": 128': '"length": 96',
    "prompts=10)": "prompts=10, untrained=2, length=96)",
    "[96, 192]": "[96, 160]",
    'load("mini-diff"), example.text, spans=example.spans)': 'load("mini-diff"), example.text, spans=example.spans, draws=4)',
    '"count": 3': '"count": 2',
}
OF_A_TRAINING = {"cohort"}  # needs a cohort, whose training takes hours


@pytest.fixture(scope="module")
def depths():
    """`readings.depths` that measures each bundled model once for all scripts."""
    real = readings.depths
    return functools.cache(lambda model, lengths, prompts: real(diffscope.load(model), lengths, prompts=prompts))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_draws_what_can_be_read_in_a_column(script, depths, monkeypatch):
    monkeypatch.setattr(readings, "depths", lambda scope, lengths, prompts: depths(scope.name, tuple(lengths), prompts))
    source, names = script.read_text(encoding="utf-8"), {}
    for usual, fewer in FEWER.items():
        source = source.replace(usual, fewer)
    exec(compile(source, str(script), "exec"), names)
    if "figure" in names and script.stem != "view":  # which is no printed figure
        narrow = dataclasses.replace(names["figure"], venue="acl", width=theme.width("acl", False))
        drawing = narrow.matplotlib()
        assert not text_faults(drawing)
        assert not colour_faults(drawing)
        assert narrow.caption and "None" not in narrow.caption
    else:
        assert len(names["table"].to_latex()) > 100 if "table" in names else names["figure"]


def test_what_is_shortened_is_in_a_script():
    texts = [script.read_text(encoding="utf-8") for script in SCRIPTS]
    assert all(any(usual in text for text in texts) for usual in FEWER)


def test_every_figure_has_a_script():
    assert set(FIGURES) - {script.stem for script in SCRIPTS} == OF_A_TRAINING
