"""The Compare page: each side is what it says, nobody else sees an edit, and its Python gives the same again."""

import functools
import json
import shutil
import struct
import time

import numpy as np
import pytest
import torch
from looks import fine
from small_models import PROMPT

import diffscope
from diffscope import edits, readings
from diffscope.figures import Figure

OTHER, OWN = "a folder or a saved capture", "own text"
EDIT = "with and without an edit"
SPANS = {"answer": "7421"}


@pytest.fixture
def compare(app):
    """The page, at an address with these values."""

    def start(**query):
        query = {name.replace("_", "-"): value for name, value in query.items()}
        return fine(app("compare", **query))

    return start


def views(test):
    """What the view of each side is given, beside its tensors."""
    found = []
    for view in test.get("bidi_component"):
        (length,) = struct.unpack("<Q", view.proto.bytes[:8])
        found.append(json.loads(json.loads(view.proto.bytes[8 : 8 + length])["__metadata__"]["view"]))
    return found


def titles(test):
    return [view["title"] for view in views(test)]


def chart(test, kind, at=0):
    """The drawing of a chart of this kind."""
    return [c for c in map(json.loads, (e.proto.spec for e in test.get("plotly_chart"))) if c["data"][0]["type"] == kind][at]


def answered(test):
    """The spans of the second side."""
    return {span["name"] for span in views(test)[1]["spans"] if span["ranges"]}


def bars(test):
    """The bars of each side, by its name; above them are rows of heads."""
    return {trace["name"]: values(trace["y"]) for trace in chart(test, "bar", -1)["data"] if trace["type"] == "bar"}


def values(packed):
    """Numbers of a chart, which are sent as they are or as bytes."""
    if isinstance(packed, dict):
        import base64

        return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).tolist()
    return packed


def said(test):
    return [each.value.replace("\\", "") for each in (*test.warning, *test.info)]


def capture(folder, *changes, prompt=PROMPT):
    scope = diffscope.load(str(folder))
    with scope.edit(*changes):
        return scope.capture(prompt, spans=SPANS)


def strongest(cap):
    mass = cap.measure("span_mass", queries=[-1])["span_mass"].sel(map="D", span="answer", normalisation="share").isel(query=0)
    best = mass.isel(mass.argmax(...))
    return f"L{int(best['layer'])}H{int(best['head'])}"


def test_two_models_are_shown_each_at_its_strongest_head_with_one_scale(compare, folders):
    test = compare()
    for title, view, (name, folder) in zip(titles(test), views(test), folders.items(), strict=True):
        assert name in title and strongest(capture(folder)) in title
        assert view["group"] == "compare"
    caps = [capture(folder) for folder in folders.values()]
    answer = [
        float(readings.allocation(cap).estimates["over_layers"].sel(part="answer", map="D", normalisation="share"))
        for cap in caps
    ]
    drawn = bars(test)
    np.testing.assert_allclose([drawn[name][2] for name in folders], answer, rtol=1e-5)
    assert list(drawn) == [*folders, "uniform attention"] and sum(drawn["uniform attention"]) == pytest.approx(1)
    assert not said(test)
    frame = next(frame.value for frame in test.dataframe if "difference" in frame.value)
    np.testing.assert_allclose(frame["small-diff"] - frame["small-standard"], frame["difference"], rtol=1e-6)
    assert "head" not in frame  # head h of one is not head h of the other


def test_each_side_has_a_head_of_its_own_where_the_models_differ(compare):
    test = compare()
    before = titles(test)
    fine(test.number_input(key="compare-layer").set_value(0).run())
    fine(test.number_input(key="compare-head").set_value(0).run())
    assert titles(test)[0] == before[0] and "L0H0" in titles(test)[1]
    chosen = [option for option in test.selectbox(key="compare-heads").options if option != "mean over all heads"]
    all_heads = bars(test)
    fine(test.selectbox(key="compare-heads").set_value(chosen[0]).run())
    assert bars(test)["small-standard"] != all_heads["small-standard"]


def test_a_statistic_of_every_kind_is_shown_of_both_sides_or_said_to_be_undefined(compare):
    from statistic_picker import QUESTIONS

    from diffscope.stats import STATISTICS

    asked = [name for of_question in QUESTIONS.values() for name in of_question]
    for name in {(STATISTICS[name].kind, STATISTICS[name].dims): name for name in asked}.values():
        test = compare(span="irrelevant", statistic=name)
        assert test.selectbox(key="statistic").value == name and not said(test), name
        cells = [np.array(values(trace["z"]), dtype=float) for trace in chart(test, "heatmap")["data"]]
        lacking = any("No head of small" in caption.value for caption in test.caption)
        assert [np.isfinite(each).any() for each in cells] == [True, not lacking], name
        assert lacking == (STATISTICS[name].kind in ("branch", "layer")), name


def test_the_statistic_says_that_it_is_of_the_last_token_whichever_is_looked_at(compare, app):
    test = compare(query="3")
    assert test.session_state["query"] == 3  # which Explore goes on with
    assert test.selectbox(key="rows").options == ["the last token", "all tokens, mean"]
    assert any("query 21" in caption.value for caption in test.caption)
    assert fine(app(query="3")).selectbox(key="rows").options[0] == "this token"


def test_an_edit_is_on_one_side_and_nobody_else_sees_it(compare, folders):
    folder = folders["small-diff"]
    test = compare(compare_by=EDIT, edit="set_lambda(0.5)", layer="1", head="1")
    first, second = titles(test)
    assert "L1H1" in first and "L1H1" in second and "λ = 0.500" in second and "λ = 0.500" not in first
    expected = readings.allocation(capture(folder, edits.set_lambda(0.5))).estimates["over_layers"]
    drawn = bars(test)
    np.testing.assert_allclose(drawn["λ = 0.5"], expected.sel(map="D", normalisation="share"), rtol=1e-5)
    unedited = readings.allocation(capture(folder)).estimates["over_layers"].sel(map="D", normalisation="share")
    np.testing.assert_allclose(drawn["as it is"], unedited, rtol=1e-5)
    import cache

    cap = cache.scope(str(folder), cache.stamp_of(str(folder))).capture(PROMPT, spans=SPANS)
    np.testing.assert_array_equal(cap.lam, capture(folder).lam)
    frame = next(frame.value for frame in test.dataframe if "difference" in frame.value)
    assert "head" in frame
    fine(test.toggle(key="compare-same").set_value(False).run())
    fine(test.number_input(key="compare-layer").set_value(0).run())
    assert "L1H1" in titles(test)[0] and "L0H" in titles(test)[1]


def test_the_first_sentence_has_its_control_and_says_what_is_counted(compare, folders):
    names = [folders["small-diff"].name, folders["small-standard"].name]

    def first(test):
        return next(m.value for m in test.markdown if "give the answer half" in m.value).replace("\\", "")

    words = first(compare())
    assert f"heads of {names[0]} give the answer half of |D| or more, whatever its sign, and " in words
    assert (
        f"heads of {names[1]} half of A or more; " in words and "differs more than exchanging heads at random gives.**" in words
    )
    assert "at random" not in first(compare(compare_by=EDIT))  # of one model heads are matched


def test_edits_are_stacked_as_on_change(compare, folders):
    test = compare(compare_by=EDIT, edit=["zero_a2()", "absolute_d()"])
    assert len(views(test)) == 2 and not said(test) and "with 2 edits" in bars(test)
    fine(test.button(key="change-undo-1").click().run())
    assert "A₂ → 0" in bars(test)
    fine(test.button(key="change-undo-0").click().run())
    assert said(test) == ["Add an edit in the sidebar."]
    fine(test.selectbox(key="change-add").set_value("ablate_heads").run())
    assert "heads ablated" in next(m.value for m in test.markdown if "differences between" in m.value)
    fine(test.selectbox(key="model").set_value(str(folders["small-standard"])).run())
    assert not any("A₂" in option for option in test.selectbox(key="change-add").options) and not said(test)


def test_two_prompts_are_linked_only_where_their_tokens_are_the_same(compare):
    test = compare(compare_by="two prompts")
    assert not any("not linked" in caption.value for caption in test.caption)  # both examples have one text
    test = compare(
        compare_by="two prompts", compare_example=OWN, compare_prompt="In Rome it is 1983. " + PROMPT, compare_answer="7421"
    )
    assert any("not linked" in caption.value for caption in test.caption) and len(views(test)) == 2 and not said(test)
    assert [name for name in bars(test) if "uniform" in name] == [
        f"uniform attention, {which} prompt" for which in ("first", "second")
    ]
    assert any("needs two models or an edit" in caption.value for caption in test.caption)
    fine(test.text_area(key="compare-prompt").set_value(f"{PROMPT} {PROMPT}").run())
    assert "answer" not in answered(test) and "stands 2 times" in test.radio(key="compare-answer-at").label
    fine(test.radio(key="compare-answer-at").set_value(str(PROMPT.index("7421"))).run())
    assert "answer" in answered(test)
    fine(test.text_area(key="compare-prompt").set_value(" ").run())
    assert said(test) == ["Write a second prompt to look at."]


def test_checkpoints_of_a_training(compare, folders, tmp_path):
    test = compare(compare_by="two checkpoints")
    assert said(test) == ["no checkpoints of the training of small-diff are kept; choose another model"]
    run = shutil.copytree(folders["small-diff"], tmp_path / "run")
    scope = diffscope.load(str(run))
    with torch.no_grad():
        for layer in scope.model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    scope.model.save_pretrained(run / "checkpoints" / "step-3")
    prompt = {"example": OWN, "prompt": PROMPT, "answer": "7421"}
    test = compare(compare_by="two checkpoints", model=OTHER, path=str(run), **prompt)
    drawn = bars(test)
    np.testing.assert_allclose(drawn["run, step 3"], drawn["uniform attention"], atol=1e-6)  # it looks at everything alike
    assert not np.allclose(drawn["run, end of training"], drawn["uniform attention"], atol=1e-3)
    assert test.toggle(key="compare-same").value


def test_of_cross_attention_the_maps_are_compared(compare, tmp_path):
    from tests import encoder_decoders

    scope, prompt = diffscope.load(encoder_decoders.model("bart")), encoder_decoders.prompt("bart")
    saved, other = (str(tmp_path / f"{name}.dscope") for name in ("both", "other"))
    scope.capture(prompt).save(saved)
    scope.capture(prompt | {"input_ids": prompt["input_ids"].flip(1)}).save(other)
    given = {"model": OTHER, "path": saved, "kind": "cross", "compare_model": OTHER}
    for path, labels in (
        (other, ["Export the maps of both.dscope", "Export the maps of other.dscope"]),
        (saved, ["Export the maps"]),
    ):
        test = compare(**given, compare_model_path=path)
        offered = [popover.proto.popover.label.replace("\\", "") for popover in test.get("popover")]
        assert [label for label in offered if label.startswith("Export")] == labels
    assert [(view["queries"], view["keys"]) for view in views(test)] == [(5, 9)] * 2
    assert [line.partition(".")[0] for line in said(test)] == ["Of cross-attention only the maps are compared"]


def test_a_model_with_an_encoder_is_compared_by_saved_captures(compare, app, tmp_path):
    from tests import encoder_decoders, tiny

    encoder_decoders.model("t5").save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    words = f"{tmp_path.name} has an encoder and a decoder: Explore shows its maps, and Compare those of saved captures"
    given = {"model": OTHER, "path": str(tmp_path), "example": OWN, "prompt": PROMPT}
    assert said(compare(**given)) == [words]
    assert said(compare(compare_model=OTHER, compare_model_path=str(tmp_path))) == [words]
    assert said(fine(app("change", **given))) == [words]


def test_a_saved_capture_is_a_side_where_that_makes_sense(compare, folders, tmp_path):
    saved = str(tmp_path / "kept.dscope")
    capture(folders["small-diff"]).save(saved)
    test = compare(compare_model=OTHER, compare_model_path=saved)
    assert [view["group"] for view in views(test)] == ["compare"] * 2
    assert said(test) == ["a saved capture has maps but no model to run; choose a model for this"]  # of retrieval alone
    test = compare(model=OTHER, path=saved, compare_model=str(folders["small-standard"]))
    cap = capture(folders["small-standard"])
    expected = readings.allocation(cap).estimates["over_layers"].sel(map="D", normalisation="share")
    np.testing.assert_allclose(bars(test)["small-standard"], expected, rtol=1e-5)  # on the prompt and the spans of the capture
    for kind in ("two prompts", "two checkpoints", EDIT):
        test = compare(compare_by=kind, model=OTHER, path=saved)
        assert len(said(test)) == 1 and "no model to run" in said(test)[0] and not views(test)


def test_an_answer_that_cannot_be_marked_is_one_line_and_the_rest_is_shown(compare):
    test = compare(example=OWN, prompt=PROMPT, answer="7422", compare_by=EDIT)
    assert len(said(test)) == 2 and "is not in your text" in said(test)[0] and "none is marked" in said(test)[1]
    assert len(views(test)) == 2 and chart(test, "heatmap")


def test_spans_by_token_of_a_chat_are_not_put_on_other_tokens(compare, folders, tmp_path):
    paths = {}
    for name, before in (("small-diff", ""), ("small-standard", "<< ")):
        paths[name] = shutil.copytree(folders[name], tmp_path / name)
        (paths[name] / "chat_template.jinja").write_text(before + "{{ messages[0].content }}")
    chat = {"example": "a chat", "chat": "user: The number is 7421.", "spans": "answer:3"}
    both = chat | {"model": OTHER, "path": str(paths["small-diff"]), "compare_model": OTHER}
    test = compare(**both, compare_model_path=str(paths["small-standard"]))
    assert len(said(test)) == 1 and "spans by token are of the tokens that small-diff has" in said(test)[0] and not views(test)
    assert "answer" in answered(compare(**both, compare_model_path=str(paths["small-diff"])))


@pytest.mark.parametrize("kind", ["two models", "two prompts", EDIT])
def test_the_python_of_every_view_runs_and_gives_the_same(compare, kind, tmp_path, monkeypatch):
    """Every figure is made; what its drawing is as a file, tests of figures see."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Figure, "to_bytes", lambda self, suffix: self.name.encode())
    monkeypatch.setattr(diffscope, "load", functools.cache(diffscope.load))
    test = compare(compare_by=kind, edit=["knock_out('answer')", "mean_a2(2)"])
    codes = [code.value for code in test.code if code.language == "python"]
    assert len(codes) == 4
    for code in codes:
        names = {}
        exec(code, names)
        cap = names["comparison"].captures[1]
        assert cap.differential == (kind != "two models") and ("edits" in cap.facts) == (kind == EDIT)
    assert {path.name for path in tmp_path.iterdir()} == {"maps.pdf", "bars.pdf", "heads.pdf"}


def test_retrieval_is_measured_in_the_background_and_kept(compare, folders):
    settings = {"compare_lengths": "128", "compare_prompts": "2", "compare_distractors": "1"}
    test = compare(**settings)
    assert any(caption.value.startswith("10 prompts a side") for caption in test.caption)
    fine(test.button(key="compare-measure").click().run())
    end = time.monotonic() + 120
    while any(button.label == "Stop" for button in test.button) and time.monotonic() < end:
        time.sleep(0.2)
        fine(test.run())
    expected = readings.depths(diffscope.load(str(folders["small-diff"])), (128,), prompts=2, distractors=1).estimates
    cells = chart(test, "heatmap", -1)["data"]
    shares = expected["mass"].sel(length=128, map="D", span="answer", normalisation="share").values
    np.testing.assert_allclose(values(cells[0]["z"]), shares.ravel(), rtol=1e-5)
    uniform = expected["uniform"].sel(length=128, span="answer")
    np.testing.assert_allclose(values(cells[2]["z"]), uniform.values.ravel(), rtol=1e-5)
    fine(test.selectbox(key="compare-cells").set_value("log_odds").run())
    code = next(code.value for code in test.code if "readings.contrast" in code.value)
    assert "lengths=(128,), prompts=2, distractors=1" in code and "depth_by_length(named, quantity='log_odds'" in code


@pytest.mark.parametrize(
    "edit, measured", [("knock_out('answer')", False), ("uniform_a2()", True), (f"patch('A1', {PROMPT!r})", False)]
)
def test_retrieval_is_measured_under_no_edit_of_the_prompt_above(compare, edit, measured):
    """Positions of its tokens are others' in prompts of retrieval."""
    test = compare(compare_by=EDIT, edit=edit)
    assert ("compare-measure" in [button.key for button in test.button]) == measured
    assert any("is an edit of the prompt above" in caption.value for caption in test.caption) != measured


def test_a_failure_in_the_background_is_one_line(compare):
    test = compare(compare_lengths="64", compare_prompts="2", compare_distractors="20")
    fine(test.button(key="compare-measure").click().run())
    end = time.monotonic() + 60
    while not test.warning and time.monotonic() < end:
        time.sleep(0.2)
        fine(test.run())
    assert len(said(test)) == 1 and "21 needles do not fit 64 tokens" in said(test)[0]
    assert test.button(key="compare-measure")


@pytest.mark.parametrize("kind", ["gone", "two prompts", EDIT])
def test_an_address_that_names_nothing_real_is_the_page_as_it_begins(compare, kind):
    nonsense = dict.fromkeys(["layer", "head", "prompts", "distractors", "lambda"], "-99999")
    nonsense |= dict.fromkeys(["model", "example", "edit", "lengths", "ablated", "same", "heads", "map", "normalisation"], "gone")
    test = compare(compare_by=kind, **{f"compare_{name}": value for name, value in nonsense.items()})
    assert len(views(test)) == 2 and not said(test)
