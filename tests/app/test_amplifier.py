"""Numbers, logits and noise: every section draws what the library measures, or says in a line why it cannot."""

import ast
import base64
import functools
import json
import time

import numpy as np
import pytest
from looks import fine
from small_models import PROMPT, example

OTHER, OWN = "a folder or a saved capture", "own text"
SIGMAS = (0.1, 0.2, 0.5, 1.0, 2.0)


@pytest.fixture
def amplifier(app):
    """The page with all its rows open, as a function of a query string's values."""
    rows = [f"amplifier-more-{name}" for name in ("lambda", "gains", "signal", "logits")]
    return lambda **query: fine(app(opened=rows, **{"part": "Numbers"} | query))


@pytest.fixture
def logits(amplifier):
    return lambda **query: amplifier(**query, part="Logits")


@pytest.fixture
def noise(app):
    """The page Change with its row of noise opened."""
    return lambda **query: fine(app("change", opened=["change-noise"], **query))


@pytest.fixture(scope="module")
def scope(folders):
    import diffscope

    return diffscope.load(str(folders["small-diff"]))


@pytest.fixture(scope="module")
def cap(scope):
    return scope.capture(PROMPT, spans={"answer": "7421"})


def numbers(values):
    """What plotly is sent, as numbers."""
    if isinstance(values, dict):
        values = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
    return np.array(values, dtype=float)


def chart(test, title):
    """The series of the chart whose vertical axis has this title, in the order of its panels: a list of y for each name."""
    specs = [json.loads(element.proto.spec) for element in test.get("plotly_chart")]
    (spec,) = [spec for spec in specs if spec["layout"]["yaxis"].get("title", {}).get("text", "") == title]
    series = {}
    for trace in spec["data"]:
        series.setdefault(trace["name"], []).append(numbers(trace["y"]))
    return series


def titles(test):
    specs = [json.loads(element.proto.spec) for element in test.get("plotly_chart")]
    return [spec["layout"]["yaxis"].get("title", {}).get("text", "") for spec in specs]


def words(test):
    """What warnings, infos, captions and paragraphs say."""
    parts = (*test.warning, *test.info, *test.caption, *test.markdown)
    return " ".join(part.value for part in parts).replace("\\", "")


def by_head(values):
    return values.transpose("layer", "head", ...).values.reshape(values["layer"].size * values["head"].size, -1).squeeze()


def test_every_section_shows_the_numbers_of_the_library(amplifier, scope, cap):
    import diffscope
    from diffscope import readings
    from diffscope.readings import other_prompts

    test = amplifier()
    assert not test.warning, words(test)
    gains = readings.amplifier(cap, ranks=False).estimates
    shown = {"λ": ("λ", gains["lambda"]), "CMRR, dB": ("", gains["cmrr"])}
    for title, (name, values) in shown.items():
        np.testing.assert_allclose(chart(test, title)[name][0], by_head(values))
    for title in ("lambda_star", "noise_gain", "signal_gain"):
        drawn = chart(test, {"lambda_star": "λ*"}.get(title, title.replace("_", " ")))["own A₂"]
        for panel, span in zip(drawn, ("irrelevant", "answer"), strict=True):
            own = by_head(gains[title].sel(span=span, control="as it is"))
            inside = np.isfinite(panel)
            np.testing.assert_allclose(panel[inside], own[inside], rtol=1e-6)
        assert gains[title].attrs["says"] in words(test) and gains[title].attrs["reads"] in words(test)
    signal = diffscope.instruments.signal_to_noise(scope, PROMPT, spans=example("as on the page").spans)
    drawn = chart(test, "signal-to-noise gain, dB")
    for series, a2 in {"own A₂": "own", "uniform A₂": "uniform", "A₂ of the next head": "next head"}.items():
        for panel, stage in enumerate(("before", "after")):
            np.testing.assert_allclose(drawn[series][panel], by_head(signal["snr_gain"].sel(a2=a2, stage=stage)), rtol=1e-6)
    assert "more with the answer than with the text around it" in words(test)
    measured = cap.measure("effective_rank")["effective_rank"].sel(definition="erank")
    drawn = chart(test, "erank")
    for panel, name in enumerate(("lambda_A2", "A1", "D")):
        for series, control in {"the map": "map", "uniform map": "uniform", "its rows permuted": "permuted"}.items():
            np.testing.assert_allclose(drawn[series][panel], by_head(measured.sel(ranked_map=name, control=control)))
    anatomy = diffscope.instruments.anatomy(cap, other_prompts(scope, cap, 6))["shapley"]
    drawn = chart(test, "share of the map")
    for panel, name in enumerate(("A2", "A1")):
        np.testing.assert_allclose(drawn["rest"][panel], by_head(anatomy.sel(map=name, part="rest")), rtol=1e-6)
        np.testing.assert_allclose(sum(part[panel] for part in drawn.values()), 1, rtol=1e-6)
    fine(test.selectbox(key="amplifier-definition").set_value("r90").run())
    ranks = cap.measure("effective_rank")["effective_rank"].sel(definition="r90", ranked_map="D", control="map")
    np.testing.assert_allclose(chart(test, "r90")["the map"][2], by_head(ranks))
    assert "r90 by head" in words(test)


def test_logits_are_those_of_the_library(logits, scope, cap):
    import diffscope
    from diffscope.readings import question

    test = logits()
    asked = question(scope, cap, "7421")
    table = diffscope.attribution.branch_attribution(scope, PROMPT, asked.answer, list(asked.distractors.values())).isel(prompt=0)
    by_branch, account = [json.loads(element.proto.spec) for element in test.get("plotly_chart")][-2:]
    drawn = [trace for trace in by_branch["data"] if trace["type"] == "bar"]
    for trace, branch in zip(drawn, ("A1", "A2")):
        np.testing.assert_allclose(numbers(trace["y"]), by_head(table["answer"].sel(branch=branch)), rtol=1e-5)
    answer = sum(numbers(trace["y"]).sum() for trace in account["data"] if trace["xaxis"] == "x")
    assert answer == pytest.approx(float(table["logit"][0]), abs=1e-4)


def test_noise_is_that_of_the_library(noise, scope, cap):
    import diffscope
    from diffscope.readings import question

    test = noise()
    injected = diffscope.instruments.cmrr_by_injection(cap, spans=["irrelevant"], sigmas=SIGMAS)["cmrr_injected"].sel(sigma=0.5)
    np.testing.assert_allclose(chart(test, "CMRR by injection, dB")["own A₂"][0], by_head(injected))
    asked = question(scope, cap, "7421")
    lost = diffscope.instruments.log_odds_under_noise(
        scope, asked.ids, asked.answer, list(asked.distractors.values()), spans=asked.spans, sigmas=SIGMAS
    )
    drawn = chart(test, "log-odds lost, nats")
    for name, mode in {"common noise": "common", "opposite noise": "differential"}.items():
        np.testing.assert_allclose(drawn[name][0], lost["log_odds_lost"].sel(mode=mode))


def test_of_standard_attention_it_says_what_cannot_be_asked_and_shows_what_can(amplifier, logits, noise, folders):
    standard = {"model": str(folders["small-standard"])}
    test = amplifier(**standard)
    assert "has one map and subtracts nothing" in words(test) and not test.warning
    assert titles(test) == ["signal-to-noise ratio, dB", "erank", "share of the map"]
    assert "A2" not in " ".join(chart(test, "share of the map"))
    assert titles(logits(**standard)) == ["added, directly, nats"] * 2
    test = noise(**standard)
    assert titles(test) == ["log-odds lost, nats"] and "either mode is the same" in words(test)


def test_noise_is_what_the_reader_chooses_and_the_address_says(noise, cap):
    import diffscope

    test = noise(**{"amplifier-sigma": "2", "amplifier-keys": "answer"})
    drawn = chart(test, "CMRR by injection, dB")["own A₂"][0]
    expected = diffscope.instruments.cmrr_by_injection(cap, spans=["answer"], sigmas=SIGMAS)["cmrr_injected"]
    np.testing.assert_allclose(drawn, by_head(expected.sel(sigma=2.0)))
    fine(test.select_slider(key="amplifier-sigma").set_value("0.1").run())
    np.testing.assert_allclose(chart(test, "CMRR by injection, dB")["own A₂"][0], by_head(expected.sel(sigma=0.1)))
    assert test.query_params["amplifier-sigma"] in ("0.1", ["0.1"])


def test_without_an_answer_only_what_needs_one_is_left_out(amplifier, logits, noise):
    shown = [page(example=OWN, prompt=PROMPT) for page in (amplifier, logits, noise)]
    for test in shown:
        (warning,) = test.warning
        assert "none is known" in warning.value
    assert {"λ", "noise gain", "erank", "share of the map"} <= set(titles(shown[0]))
    assert titles(shown[2])[0] == "CMRR by injection, dB"


def test_numbers_ask_for_distractors_where_they_are_exchanged_for_the_answer(amplifier):
    def asked(test):
        return [field for field in test.text_input if field.key == "distractors"]

    assert not asked(amplifier())  # of 7421, for which numbers are drawn
    assert "Signal" in asked(amplifier(example=OWN, prompt=PROMPT, answer="Rome"))[0].help


def test_distractors_are_those_that_the_reader_gives(logits):
    test = logits(distractors="1983, Rome, 7421")
    assert "Distractors: 1983, Rome." in words(test)


@pytest.mark.parametrize("text", ["x", "<script>alert(1)</script> `$x$` é\u200b\U0001f9ff"])
def test_any_prompt_is_shown_or_refused_in_words(amplifier, text):
    test = amplifier(example=OWN, prompt=text)
    assert titles(test) and "<script>" not in words(test)


def test_a_saved_capture_has_gains_and_ranks_and_no_model_to_run(amplifier, cap, tmp_path):
    cap.save(tmp_path / "kept.dscope")
    test = amplifier(model=OTHER, path=str(tmp_path / "kept.dscope"))
    assert {"λ", "noise gain", "erank"} <= set(titles(test))
    assert len(test.warning) == 2 and all("no model to run" in warning.value for warning in test.warning)


def test_long_work_waits_for_a_button_and_runs_in_the_background(amplifier, monkeypatch):
    import background
    import prepare

    monkeypatch.setattr(background, "AT_ONCE", -1.0)
    monkeypatch.setattr(prepare, "LONGEST", -1.0)  # so that nothing is measured unasked
    test = amplifier()
    assert not titles(test)
    fine(test.button(key="measure-effective ranks").click().run())
    for _ in range(100):
        if "erank" in titles(test):
            break
        time.sleep(0.2)
        fine(test.run())
    assert titles(test) == ["erank"] and "measure-gains" in [button.key for button in test.button]


def test_every_view_can_be_exported_and_its_python_draws_the_same(amplifier, logits, noise, tmp_path, monkeypatch):
    """Every figure is made and drawn; what a drawing is as a file, tests of figures see."""
    from blocks import show

    import diffscope
    from diffscope.figures import Figure

    taken = {}
    monkeypatch.setattr(show, "export_menu", lambda name, **parts: taken.update({name: parts}))
    for page in (amplifier, logits, noise):
        page()
    taken = {name: parts for name, parts in taken.items() if name.startswith("small-diff-") and "changes" not in name}
    assert len(taken) == 17
    for number, parts in enumerate(taken.values()):
        assert all(show.table(parts["data"](), suffix) for suffix in (".nc", (".csv", ".parquet")[number % 2]))
        assert parts["figure"]().matplotlib()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(diffscope, "load", functools.cache(diffscope.load))
    monkeypatch.setattr(Figure, "to_bytes", lambda self, suffix: self.name.encode())
    given = {}  # what is measured before figures are made, which several have alike
    for parts in taken.values():
        *measuring, drawing = ast.parse(parts["code"]).body
        if (code := ast.unparse(measuring)) not in given:
            given[code] = {}
            exec(code, given[code])
        exec(ast.unparse(drawing), given[code])
    assert len(list(tmp_path.glob("*.pdf"))) == 17


def test_what_numbers_and_logits_show_is_measured_while_explore_is_read(app, monkeypatch):
    import background
    import prepare

    monkeypatch.setattr(prepare, "REST", 0.2)
    fine(app())

    kinds = ("gains", "signal and noise", "effective ranks", "what the maps are made of", "what each branch adds")
    end = time.monotonic() + 120
    while not all(len(background.results(kind)) for kind in kinds):
        assert time.monotonic() < end, {kind: len(background.results(kind)) for kind in kinds}
        time.sleep(0.2)
    kept = []
    monkeypatch.setattr(background.Results, "keep", lambda self, key, result: kept.append(key) or result)
    for part in ("Numbers", "Logits"):
        test = fine(app(part=part))
        assert not any("measure-" in button.key for button in test.button) and test.get("plotly_chart")
    assert not kept


def test_the_score_of_the_cell_that_is_locked_is_explained(app, scope):
    """The address has the cell; a click in the maps leaves its key there."""
    from diffscope import readings
    from diffscope.attribution import score_attribution

    cell = {"layer": "1", "head": "0", "query": "9", "cell-key": "4", "cell-map": "A2"}
    test = fine(app(part="Logits", **cell))
    assert not any("scores key" in text.value for text in test.markdown)  # nothing is measured before it is opened
    test.session_state["amplifier-more-scores"] = True
    test = fine(test.run())
    ids = list(scope.encode(PROMPT).ids)
    from messages import escape_markdown  # of the app, which has been started

    table = score_attribution(scope, ids, 1, 0, 9, 4, map="A2", against="row")
    said = escape_markdown(readings.score_parts(table).sentence.partition(":")[0])
    assert any(said in text.value for text in (*test.markdown, *test.caption))
    assert test.number_input(key="cell-key").value == 4
    area = next(area for area in test.text_area if area.key.startswith("_text"))
    test = fine(area.set_value(f"Now. {PROMPT}").run())
    assert test.number_input(key="cell-key").value != 4  # it was a token of the prompt before
