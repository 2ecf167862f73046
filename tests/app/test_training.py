"""The Training page: checkpoints on a slider that plays, curves of all heads, and when the model begins to answer."""

import json
import shutil
import time

import numpy as np
import pytest
from looks import at_rest, fine, shown
from safetensors.numpy import load
from small_models import PROMPT

import diffscope
from diffscope import readings
from diffscope.lab.accuracy import accuracy_over_training
from diffscope.lab.training.run import checkpoints_of, save_checkpoint
from diffscope.models import DiffForCausalLM
from diffscope.views import attention as attention_view

FOLDER = "a folder or a saved capture"
SPANS = {"answer": "7421"}


@pytest.fixture
def run(small_run):
    return small_run


@pytest.fixture
def page(app, run):
    def opened(**query):
        own = {"model": FOLDER, "path": str(run), "example": "own text", "prompt": PROMPT, "answer": "7421"}
        return fine(app("training", **own | query))

    return opened


def drawn(test):
    """D as the view of the maps has it."""
    return next(load(view)["D"] for view in shown_views(test) if "D" in load(view))


def shown_views(test):
    """What views of maps are given."""
    return [view.proto.bytes for view in test.get("bidi_component") if view.proto.bytes]


def charts(test):
    return {element.proto.id.rpartition("-")[2]: json.loads(element.proto.spec) for element in test.get("plotly_chart")}


def captures(run):
    names = checkpoints_of(str(run)).names
    return {step: diffscope.load(name).capture(PROMPT, spans=SPANS) for step, name in names.items()}


def test_the_slider_shows_the_maps_of_each_checkpoint_and_keeps_the_head(page, run):
    test = page(layer="2", head="1")
    slider = test.select_slider(key="step")
    assert slider.options == ["0", "4", "10 (the end)"] and slider.value == "end of training"
    expected = captures(run)
    seen = []
    for option, step in (("0", 0), ("4", 4), ("end of training", 10)):
        fine(test.select_slider(key="step").set_value(option).run())
        np.testing.assert_array_equal(drawn(test), load(attention_view.buffer(expected[step], 2, 1))["D"])
        seen.append(drawn(test).tobytes())
    assert len(set(seen)) == 3
    assert (test.number_input(key="layer").value, test.number_input(key="head").value) == (2, 1)
    reading = readings.along_training(expected)
    assert reading.sentence in shown(test.markdown)
    curve = charts(test)["answer"]["data"]
    chosen = next(trace for trace in curve if trace["name"] == "L2H1")
    assert chosen["showlegend"] and sum(trace["showlegend"] for trace in curve) == 1 and len(curve) == 6
    assert not {"cosine", "sink", "entropy"} & charts(test).keys()
    test.session_state["training-others"] = True  # what a click on the row does
    assert {"cosine", "sink", "entropy"} <= charts(fine(test.run())).keys()


def test_a_checkpoint_that_was_saved_again_is_read_again(app, run, tmp_path):
    """On this page and by its own name, FOLDER@STEP."""
    folder = shutil.copytree(run, tmp_path / "seed-0")
    given = {"model": FOLDER, "example": "own text", "prompt": PROMPT, "answer": "7421"}
    curves = []
    for _ in range(2):
        now = captures(folder)
        test = fine(app("training", **given, path=str(folder), layer="1", head="0"))
        assert readings.along_training(now).sentence in shown(test.markdown)
        curves.append(charts(test)["answer"]["data"])
        test = fine(app("explore", **given, path=f"{folder}@4", layer="1", head="0"))
        np.testing.assert_array_equal(drawn(test), load(attention_view.buffer(now[4], 1, 0))["D"])
        shutil.rmtree(folder / "checkpoints" / "step-000004")
        save_checkpoint(DiffForCausalLM.from_pretrained(folder), folder / "checkpoints" / "step-000004")
    assert curves[0] != curves[1]


def test_numbers_of_the_last_checkpoint_are_not_taken_for_those_of_the_model(page, run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "seed-1")
    (folder / "metrics.jsonl").unlink()  # without its last step the model itself is no checkpoint
    test = page(path=str(folder))
    test.switch_page("app_pages/explore.py").run()
    cap = diffscope.load(str(folder)).capture(PROMPT, spans=SPANS)
    mass = cap.measure("span_mass", queries=[-1])["span_mass"].sel(map="D", span="answer", normalisation="share").isel(query=0)
    (grid,) = (each.proto.bytes for each in fine(test).get("bidi_component") if each.proto.component_name == "diffscope_heads")
    np.testing.assert_allclose(load(grid)["values"], mass, rtol=1e-5)


def test_it_plays_through_the_checkpoints_stops_at_the_end_and_shows_a_step_chosen_by_hand(page, monkeypatch):
    import training_views

    def click(test):
        """A click for which the step does not change, however long the page takes."""
        with monkeypatch.context() as patch:
            patch.setattr(training_views, "PACE", 60.0)
            return fine(test.button(key="training-play").click().run())

    monkeypatch.setattr(training_views, "PACE", 0.4)
    test = click(page())
    seen = []
    end = time.monotonic() + 60
    while test.button(key="training-play").label == "Pause":
        assert time.monotonic() < end, "it plays for ever"
        seen.append(test.select_slider(key="step").value)
        time.sleep(0.1)
        fine(test.run())
    assert list(dict.fromkeys(seen)) == ["0", "4", "end of training"]  # from the end it begins anew
    click(test)
    time.sleep(0.5)  # longer than a step is shown
    fine(test.select_slider(key="step").set_value("4").run())
    assert test.select_slider(key="step").value == "4" and test.button(key="training-play").label == "Pause"
    click(test)
    time.sleep(0.5)
    fine(test.run())
    assert test.button(key="training-play").label == "Play" and test.select_slider(key="step").value == "4"


def test_checkpoints_are_asked_in_the_background_and_what_cannot_be_asked_is_one_line(page, run):
    test = page()
    fine(test.number_input(key="training-length").set_value(4096).run())
    at_rest(fine(test.button(key="training-ask").click().run()))
    assert "positions for 2048" in shown(test.warning)
    test.number_input(key="training-prompts").set_value(10)
    fine(test.number_input(key="training-length").set_value(96).run())
    at_rest(fine(test.button(key="training-ask").click().run()))
    names = checkpoints_of(str(run)).names
    expected = accuracy_over_training(names, 10, 96)
    assert expected.attrs["sentence"] in shown(test.markdown) and "10 prompts" in expected.attrs["sentence"]
    assert charts(test)["log_odds"]["data"][0]["x"] == ["0", "4", "10"]
    assert "training-ask" not in [button.key for button in test.button]


def test_the_step_is_the_same_on_other_pages(app, run, monkeypatch):
    import diffscope.models

    card = {"name": str(run), "path": str(run), "attention": "v1", "checkpoints": [0, 4]}
    test = app()
    monkeypatch.setattr(diffscope.models, "bundled", lambda: [card])
    import streamlit as st

    st.cache_resource.clear()
    fine(test.run())
    fine(test.selectbox(key="model").set_value(str(run)).run())
    fine(test.switch_page("app_pages/training.py").run())
    fine(test.select_slider(key="step").set_value("4").run())
    fine(test.switch_page("app_pages/explore.py").run())
    assert test.select_slider(key="step").value == "4"
    assert any("seed-0@4" in element.value.replace("\\", "") for element in test.markdown)


def test_what_has_no_training_is_one_line(page, tmp_path):
    test = page(path="/nowhere")
    assert "no folder or file '/nowhere'" in shown(test.warning) and not shown_views(test)
    capture = tmp_path / "kept.dscope"
    capture.touch()
    test = page(path=str(capture))
    assert "has no training" in shown(test.warning) and not shown_views(test)


def test_a_model_without_checkpoints_says_which_have_them(page, folders):
    test = page(path=str(folders["small-standard"]))
    assert "No checkpoints of small-standard were kept" in shown(test.info) and "diffscope train" in shown(test.info)
