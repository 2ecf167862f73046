"""The Training page on the folder of a monitor: it follows a training, and says what is missing."""

import pytest
from looks import fine, shown
from test_training import charts


@pytest.fixture
def page(app, tmp_path):
    return fine(app("training", **{"training-folder": str(tmp_path / "out")}))


def test_it_shows_each_new_step_with_its_curves_alarms_and_maps(page, monitored, tmp_path):
    assert "There is no" in shown(page.info) and "appears when the training measures its first step" in shown(page.info)
    (tmp_path / "out" / "monitor").mkdir(parents=True)
    (tmp_path / "out" / "monitor" / ".writing").touch()  # the first step is being measured
    fine(page.run())
    assert "There is no" in shown(page.info) and not page.warning
    monitored(0, 1)
    fine(page.run())
    assert "at step 1, loss 3" in shown(page.markdown) and "Step 1: entropy (A1) of L1H3" in shown(page.warning)
    drawn = charts(page)
    assert {"loss", "lambda", "overlap", "entropy"} <= drawn.keys() and "logit_outliers" not in drawn
    assert drawn["loss"]["data"][0]["x"] == [0, 1]
    assert any(trace["name"].startswith("control") for trace in drawn["overlap"]["data"])
    assert "Maps were kept of layer 1" in shown(page.info)
    fine(page.selectbox(key="layer").set_value(1).run())
    assert page.select_slider(key="step").options == ["0 (the last so far)"]
    monitored(2)
    fine(page.run())
    assert page.select_slider(key="step").options == ["0", "2 (the last so far)"]
    assert page.select_slider(key="step").value == "end of training"  # which it follows
    assert charts(page)["loss"]["data"][0]["x"] == [0, 1, 2]
    monitored(3, told=False)
    fine(page.run())
    assert "at step 3, loss 2 at step 2." in shown(page.markdown)
    page.session_state["training-others"] = True  # what a click on the row does
    assert len(charts(fine(page.run()))["logit_outliers"]["data"]) == 2  # a line for each layer


def test_a_damaged_folder_and_one_of_something_else_say_what_to_do(page, monitored, tmp_path):
    monitored(0, 1)
    file = tmp_path / "out" / "monitor" / "step-00000001.nc"
    file.write_bytes(file.read_bytes()[:-40] + b"x" * 40)
    fine(page.run())
    assert "step-00000001.nc" in shown(page.warning) and "damaged" in shown(page.warning) and not charts(page)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    fine(page.text_input(key="training-folder").set_value(str(tmp_path / "mine")).run())
    assert "holds no measurements of a training" in shown(page.warning)


def test_readers_who_may_name_no_folder_have_no_field(app, monkeypatch, tmp_path):
    import access

    access.rules.cache_clear()
    monkeypatch.setenv("DIFFSCOPE_TOKEN", "secret")
    test = app("training", token="secret", **{"training-folder": str(tmp_path)})
    access.rules.cache_clear()
    assert not test.exception and not [field for field in test.text_input if field.key == "training-folder"]
