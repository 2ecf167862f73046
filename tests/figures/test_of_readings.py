"""Figures of readings draw their numbers, beside their controls, on screen and in print."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import edits, figures, readings
from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.readings.logits import OTHER
from diffscope.readings.map_structure import NEXT
from diffscope.tasks import examples

TEXTS = xr.Dataset({"is_type": ("text", [0, 0])}, {"text": ["random tokens", "prompts"]})


@pytest.fixture(scope="module")
def retrieval(mini_diff, mini_standard):
    """Both models on the same prompts of two lengths."""
    return {one.name: readings.depths(one, [64, 96], prompts=2, distractors=1) for one in (mini_diff, mini_standard)}


def drawn_on_both(figure):
    assert figure.plotly().data and figure.matplotlib().axes
    return figure


def test_attention_by_depth_is_the_mean_over_prompts_in_all_normalisations(retrieval):
    figure = drawn_on_both(figures.by_depth(retrieval, length=64))
    assert figure.data["panel"].values.tolist() == ["raw", "share", "signed", "positive"]
    for name, reading in retrieval.items():
        for span, words in {"answer": "answer", "irrelevant": "irrelevant tokens"}.items():
            prompts = (
                reading.estimates["mass_of_prompt"]
                .sel(map="D", length=64, span=span)
                .transpose("normalisation", "depth", "prompt")
            )
            shown = figure.data.sel(series=f"{name}: {words}")
            np.testing.assert_allclose(shown["value"], prompts.values.mean(-1), rtol=1e-6)
            error = prompts.values.std(-1, ddof=1) / 2**0.5
            np.testing.assert_allclose(shown["high"] - shown["value"], error, rtol=1e-4, atol=1e-9)
    uniform = figure.data["value"].sel(series="uniform attention: answer")
    np.testing.assert_allclose(uniform, np.tile(reading.estimates["uniform"].sel(length=64, span="answer"), (4, 1)), rtol=1e-6)
    first, second = (figure.data.attrs["looks"][f"{name}: answer"] for name in retrieval)
    assert first[0] != second[0] and figure.data.attrs["looks"]["mini-diff: irrelevant tokens"] == [first[0], "dash"]
    assert figures.by_depth(retrieval).data.attrs["length"] == 96  # the longest


def test_panels_that_would_be_too_narrow_stand_in_rows(retrieval):
    narrow, wide = (figures.by_depth(retrieval, width=width).matplotlib() for width in (3.25, 5.5))
    rows = [len({round(ax.get_position().y0, 2) for ax in drawing.axes}) for drawing in (narrow, wide)]
    assert rows == [2, 1]
    for drawing in (narrow, wide):
        (box,) = (legend.get_window_extent() for legend in drawing.legends)
        assert box.x0 >= 0 and box.x1 <= drawing.bbox.width  # all of it is seen


@pytest.mark.parametrize("quantity", ["exact", "log_odds", "answer"])
def test_cells_by_depth_and_length_have_their_errors(retrieval, quantity):
    figure = drawn_on_both(figures.depth_by_length(retrieval, quantity=quantity))
    estimates = retrieval["mini-standard"].estimates
    shown = figure.data.sel(panel="mini-standard")
    expected = {
        "exact": estimates["exact_of_prompt"].mean("prompt"),
        "log_odds": estimates["log_odds_of_prompt"].mean("prompt"),
        "answer": estimates["by_head"].sel(map="D", span="answer", normalisation="share").mean(["head", "layer"]),
    }[quantity]
    np.testing.assert_allclose(shown["value"], expected, rtol=1e-5)
    if quantity == "log_odds":
        error = estimates["log_odds_of_prompt"].std("prompt", ddof=1) / 2**0.5
        np.testing.assert_allclose(shown["error"], error, rtol=1e-5)
        assert f"± {float(error[0, 0]):.2f}" in figure.plotly().data[1].text[0][0]
    assert ("uniform attention" in figure.data["panel"]) == (quantity == "answer")


def test_models_by_depth_are_of_the_same_prompts_and_of_lengths_that_all_have(retrieval):
    ours, theirs = (reading.estimates for reading in retrieval.values())
    shorter = {"ours": ours.isel(length=[1, 0]), "theirs": theirs.isel(length=[0])}
    figure = figures.by_depth(shorter)
    assert figure.data.attrs["length"] == 64 and "prompts of 64 tokens" in figure.caption
    xr.testing.assert_equal(figure.data, figures.by_depth({"ours": ours, "theirs": theirs}, length=64).data)
    assert figures.by_depth(ours.isel(length=[1, 0])).data.attrs["length"] == 96  # the longest, wherever it stands
    cells = figures.depth_by_length(shorter, quantity="log_odds").data
    assert cells["y"].values.tolist() == [64] and cells["value"].notnull().all()
    for draw in (figures.by_depth, figures.depth_by_length):
        with pytest.raises(DiffscopeError, match=r"ours and theirs were measured on other prompts \(seed: 20000 and 7\)"):
            draw({"ours": ours, "theirs": theirs.assign_attrs(seed=7)})
        with pytest.raises(DiffscopeError, match="no length of prompts in common"):
            draw({"ours": ours.isel(length=[1]), "theirs": theirs.isel(length=[0])})


def test_lines_and_cells_may_be_of_any_span(retrieval):
    lines = drawn_on_both(figures.by_depth(retrieval, length=64, span="needles"))
    cells = figures.depth_by_length(retrieval, quantity="needles", normalisation="raw")
    assert lines.data["series"].values.tolist() == ["mini-diff", "mini-standard", "uniform attention"]
    assert "on distractors by depth" in lines.caption and cells.caption.startswith("Attention on distractors (raw of D)")
    for name, reading in retrieval.items():
        prompts = reading.estimates["mass_of_prompt"].sel(map="D", span="needles", normalisation="raw")
        np.testing.assert_allclose(cells.data["value"].sel(panel=name), prompts.mean("prompt"), rtol=1e-6)
        shown = lines.data["value"].sel(panel="raw", series=name)
        np.testing.assert_allclose(shown, prompts.sel(length=64).mean("prompt"), rtol=1e-6)
    for draw in (partial(figures.by_depth, span="nowhere"), partial(figures.depth_by_length, quantity="nowhere")):
        with pytest.raises(DiffscopeError, match="'nowhere'.*; choose from .*needles"):
            draw(retrieval)


def test_uniform_attention_is_never_averaged_over_models(retrieval):
    """Another tokenizer has other keys on the same prompts, and other layers see others of them."""
    ours, theirs = (reading.estimates for reading in retrieval.values())
    other = theirs.assign(uniform=theirs["uniform"] * 0.5)
    labels = ["uniform attention (ours)", "uniform attention (theirs)"]
    lines = figures.by_depth({"ours": ours, "theirs": other}).data
    cells = figures.depth_by_length({"ours": ours, "theirs": other}, quantity="answer").data
    assert cells["panel"].values.tolist()[2:] == labels
    for label, estimates in zip(labels, (ours, other)):
        uniform = estimates["uniform"].sel(span="answer")
        np.testing.assert_array_equal(cells["value"].sel(panel=label), uniform)
        np.testing.assert_array_equal(lines["value"].sel(series=f"{label}: answer")[0], uniform.sel(length=96))
    looks = lines.attrs["looks"]
    assert looks["uniform attention (theirs): answer"] == [theme.CONTROLS[1], looks["theirs: answer"][1]]
    unknown = theirs.assign(uniform=theirs["uniform"].where(False))  # no capture of the prompts fits into memory
    series = figures.by_depth({"ours": ours, "theirs": unknown}).data["series"].values.tolist()
    assert series[4:] == ["uniform attention (ours): answer", "uniform attention (ours): irrelevant tokens"]


def test_captions_tell_edits_and_no_error_of_one_prompt(mini_diff):
    reading = readings.depths(mini_diff, [64], prompts=1, distractors=1, edits=[edits.set_lambda(0.0)])
    figure = figures.by_depth({"cut": reading, "whole": reading.estimates.assign_attrs(edits="")})
    assert figure.data.attrs["edits"] == "λ = 0 (cut)" and "Under λ = 0 (cut)." in figure.caption
    assert "±" not in figure.caption and figure.data["low"].isnull().all()
    cells = figures.depth_by_length(reading, quantity="log_odds")
    assert "mean over 1 prompt a cell. Under λ = 0." in cells.caption


def test_values_of_an_edit_ascend_and_prompts_are_counted_by_score(mini_diff):
    alone = replace(examples()[1], distractors=())
    reading = readings.interventions(mini_diff, [examples()[0], alone], {k: edits.top_k_a1(k) for k in (8, 1)})
    figure = figures.interventions(reading)
    assert figure.data["x"].values.tolist() == [1, 8]
    shown = figure.data["value"].isel(panel=1).sel(series="mini-diff")
    np.testing.assert_array_equal(shown, reading.estimates["loss"].sel(edit=[1, 8]))
    assert "(n = log-odds of the answer: 1; loss of the text: 2) ± standard error" in figure.caption
    one = figures.interventions(reading, quantity="log_odds")
    assert "(n = 1) by" in one.caption and "±" not in one.caption and one.data["low"].isnull().all()


def test_edits_stand_beside_the_unedited_model_and_every_prompt_behind_its_mean(mini_diff, mini_standard):
    tried = {k: edits.top_k_a1(k) for k in (1, 8)}
    found = {one.name: readings.interventions(one, examples()[:2], tried, along="keys") for one in (mini_diff, mini_standard)}
    figure = drawn_on_both(figures.interventions(found, quantity=["log_odds", "loss", "exact"]))
    for name, reading in found.items():
        for panel, score in enumerate(("log_odds", "loss", "exact")):
            shown = figure.data.isel(panel=panel)
            np.testing.assert_array_equal(shown["points"].sel(series=name), reading.estimates[f"{score}_of_prompt"])
            np.testing.assert_allclose(shown["value"].sel(series=name), reading.estimates[f"{score}_of_prompt"].mean("prompt"))
            unedited = float(reading.estimates[f"unedited_{score}"])
            assert shown["value"].sel(series=f"{name}, unedited").values.tolist() == [unedited] * 2
    assert figure.data.attrs["x"] == "keys" and figure.style["style"] == "lines"
    words = readings.interventions(mini_diff, examples()[0], {"no norm": edits.remove_norm()})
    drawing = figures.interventions(words, quantity="loss").plotly()
    symbols = {trace.name: trace.marker.symbol for trace in drawing.data if trace.name}
    assert symbols == {"mini-diff": "circle", "mini-diff, unedited": "circle-open"}


def test_heads_are_worth_what_the_reading_says(mini_diff, mini_standard):
    found = {one.name: readings.ablations(one, examples()[:2], layers=[0, 1]) for one in (mini_diff, mini_standard)}
    figure = drawn_on_both(figures.ablation(found))
    for panel, reading in zip(range(2), found.values()):
        heads = reading.estimates.sizes["head"]  # the other model may have more
        np.testing.assert_array_equal(figure.data["value"][panel][:, :heads], reading.estimates["change"])
        np.testing.assert_array_equal(figure.data["error"][panel][:, :heads], reading.estimates["change_se"])
        np.testing.assert_array_equal(figure.data["value"][panel][:, -1], reading.estimates["layer_change"])
        whole = f"{float(reading.estimates['everything']):+.1f}".replace("-", "−")
        assert f"(all heads of layers 0 and 1: {whole})" in str(figure.data["panel"].values[panel])


def test_the_amplifier_is_drawn_of_captures_and_of_readings_alike(mini_capture, mini_standard):
    reading = readings.amplifier(mini_capture, ranks=False)
    for quantity, variable in {"floor": "residual_floor", "lambda": "lambda", "cmrr": "cmrr"}.items():
        figure = drawn_on_both(figures.amplifier(mini_capture, quantity=quantity))
        xr.testing.assert_equal(figure.data, figures.amplifier(reading, quantity=quantity).data)
        values = reading.estimates[variable]
        values = values.sel(span="irrelevant", control="as it is") if "span" in values.dims else values
        np.testing.assert_array_equal(figure.data["value"].isel(panel=0, series=0), values.values.ravel())
    assert figures.amplifier(mini_capture, quantity="floor").caption.count("other heads (mean and range)") == 1
    best = drawn_on_both(figures.amplifier({"one": mini_capture, "two": mini_capture}))
    assert "low" not in best.data and "other heads (median)" in best.caption
    assert best.data["panel"].values.tolist() == ["one: irrelevant", "one: answer", "two: irrelevant", "two: answer"]
    np.testing.assert_array_equal(best.data["value"][0], best.data["value"][2])
    gated = reading.estimates.assign(gain=reading.estimates["gain"] * 2)
    both = figures.amplifier({"one": reading, "two": gated}).data
    assert (both.attrs["x"], both.attrs["diagonal"]) == ("λ / g", "λ* = λ / g")  # of one model as well
    with pytest.raises(DiffscopeError, match="undefined everywhere, as it is of standard attention"):
        figures.amplifier(mini_standard.capture("The code is 7421."), quantity="cmrr")


def test_rejection_is_drawn_along_sigma_of_all_heads_or_of_one(mini_capture):
    reading = readings.rejection(mini_capture, sigmas=(0.5, 1.0), draws=2)
    estimates = reading.estimates["cmrr_injected"]
    figure = drawn_on_both(figures.rejection(reading))
    for series, control in {"own A₂": "as it is", "A₂ of other heads": "other heads"}.items():
        heads = estimates.sel(control=control).transpose("sigma", "layer", "head").values.reshape(2, -1)
        shown = figure.data.sel(series=series).isel(panel=0)
        np.testing.assert_array_equal(shown["points"], heads)
        np.testing.assert_allclose(shown["value"], np.nanmedian(heads, -1))
    one = drawn_on_both(figures.rejection(reading, layer=2, head=1)).data["value"].sel(series="own A₂")
    np.testing.assert_array_equal(one[0], estimates.sel(layer=2, head=1, control="as it is"))
    at = figures.rejection(reading, sigma=1.0).data["value"].sel(series="own A₂")
    np.testing.assert_array_equal(at[0], estimates.sel(sigma=1.0, control="as it is").values.ravel())


def test_rejection_stands_beside_its_ceiling_or_says_that_there_is_none(mini_capture):
    reading = readings.rejection(mini_capture, sigmas=(0.5, 1.0), draws=2)
    ceiling = reading.estimates["cmrr_ceiling"]
    for figure, expected in (
        (figures.rejection(reading, sigma=1.0), ceiling.sel(sigma=1.0).values.ravel()),
        (figures.rejection(reading, layer=2, head=1), ceiling.sel(layer=2, head=1).values),
        (figures.rejection(reading), np.median(ceiling.values.reshape(6, 2), 0)),
    ):
        (series,) = [name for name in figure.data["series"].values if "ceiling" in name]
        np.testing.assert_allclose(figure.data["value"].sel(series=series)[0], expected)
        assert "Ceiling: A2 with A1's shape" in figure.caption
    without = figures.rejection(reading.estimates.drop_vars("cmrr_ceiling"))
    assert "Ceiling not measured." in without.caption and without.data.sizes["series"] == 2


def test_signal_and_noise_are_drawn_with_their_errors(mini_diff, mini_standard):
    told = {"spans": examples()[0].spans, "draws": 3}
    reading = readings.signal_to_noise(mini_diff, examples()[0].text, **told)
    estimates = reading.estimates
    gain = drawn_on_both(figures.signal_to_noise(reading)).data
    for series, a2 in {"own A₂": "own", "uniform A₂": "uniform", "A₂ of the next head": "next head"}.items():
        for panel, stage in enumerate(("before", "after")):
            expected = estimates["snr_gain"].sel(a2=a2, stage=stage).values.ravel()
            np.testing.assert_allclose(gain["value"].sel(series=series)[panel], expected)
    own = gain.sel(series="own A₂").isel(panel=0)
    error = estimates["snr_gain_error"].sel(a2="own", stage="before").values.ravel()
    np.testing.assert_allclose(own["high"] - own["value"], error)
    ratio = drawn_on_both(figures.signal_to_noise(estimates, quantity="ratio")).data["value"]
    expected = estimates["snr"].sel(output="lambda_A2", stage="after").values.ravel()
    np.testing.assert_allclose(ratio.sel(series="λ·A₂·V")[1], expected)
    sides = drawn_on_both(figures.signal_to_noise(reading, quantity="sides")).data["value"]
    np.testing.assert_allclose(sides.sel(series="signal")[0] - sides.sel(series="noise")[0], own["value"])
    lone = readings.signal_to_noise(mini_standard, examples()[0].text, **told)
    assert figures.signal_to_noise(lone, quantity="ratio").data["panel"].size == 1  # there is no norm
    assert "Undefined: theirs." in figures.signal_to_noise({"ours": reading, "theirs": lone}).caption
    with pytest.raises(DiffscopeError, match="undefined everywhere, as it is of standard attention"):
        figures.signal_to_noise(lone)


def test_what_a2_is_made_of_stands_beside_the_next_heads(mini_diff, mini_standard, mini_capture):
    reading = readings.composition(mini_capture, readings.other_prompts(mini_diff, mini_capture, 2))
    figure = drawn_on_both(figures.anatomy(reading))
    shares = reading.estimates["shapley"]
    for panel, (name, control) in enumerate((("A2", "as it is"), ("A2", NEXT), ("A1", "as it is"))):
        expected = shares.sel(map=name, control=control).transpose("part", "layer", "head").values.reshape(5, -1)
        np.testing.assert_array_equal(figure.data["value"][panel], expected)
    lone = mini_standard.capture(examples()[0].text)
    without = readings.composition(lone, readings.other_prompts(mini_standard, lone, 2))
    assert "next head" not in figures.anatomy(without).caption  # it has no second map
    assert "beside A2 of the next head of ours;" in figures.anatomy({"ours": reading, "theirs": without}).caption


def test_what_branches_add_is_a_mean_over_prompts_with_its_error(mini_diff, mini_capture):
    text = "The magic number: Paris 7421. The magic number: Rome 2174. The magic number:"
    table = diffscope.attribution.branch_attribution(
        mini_diff, [f"{text} Paris", f"{text} Rome"], [" 7421", " 2174"], [[" 2174"], [" 7421"]], control=True
    )
    figure = drawn_on_both(figures.attribution(table))
    margin = table["margin"].sel(branch="A2").values.reshape(2, -1)  # (prompt, head)
    shown = figure.data.sel(series="−λ·A₂", panel="answer − distractors")
    np.testing.assert_allclose(shown["value"], margin.mean(0))
    np.testing.assert_allclose(shown["high"] - shown["value"], abs(margin[0] - margin[1]) / 2, atol=1e-12)
    control = table["other_a2"].sel(candidate=0).mean("prompt").values.ravel()
    np.testing.assert_allclose(figure.data["value"].sel(series=OTHER, panel="answer"), control)
    looks = {trace.name: trace.marker.color for trace in figure.plotly().data}
    assert looks[OTHER] == theme.MUTED
    asked = readings.question(mini_diff, mini_capture, examples()[0].answer, examples()[0].distractors)
    reading = readings.branches(mini_diff, asked)
    np.testing.assert_array_equal(
        figures.attribution(reading).data["value"].sel(series="A₁", panel="answer"),
        reading.estimates["contribution"].sel(branch="A₁", target="answer").values.ravel(),
    )


def test_a_training_is_drawn_of_captures_by_step(mini_capture):
    opened = {0: diffscope.load("mini-diff@0").capture(examples()[0].text, spans=examples()[0].spans), 1900: mini_capture}
    straight, read = (
        figures.training(opened, statistic="overlap"),
        figures.training(readings.along_training(opened), statistic="overlap"),
    )
    xr.testing.assert_equal(straight.data, read.data)
    assert straight.data.attrs["model"] == "mini-diff" and read.data.attrs["model"] == ""  # which estimates do not tell
    with pytest.raises(DiffscopeError, match="captures of one prompt by step"):
        figures.training({0: "capture"})


@pytest.mark.parametrize(
    "draw, words",
    [
        (lambda mini_capture, found: figures.by_depth(mini_capture), "of diffscope.readings.depths"),
        (lambda mini_capture, found: figures.by_depth(found, length=7), "no length 7; choose from 64, 96"),
        (lambda mini_capture, found: figures.depth_by_length(found, quantity="loss"), "no quantity 'loss'; choose from exact"),
        (lambda mini_capture, found: figures.interventions(found), r"of diffscope.readings.interventions\(scope"),
        (lambda mini_capture, found: figures.ablation({}), "there is no reading to draw"),
        (
            lambda mini_capture, found: figures.amplifier(mini_capture, quantity="gain"),
            "no quantity 'gain'; choose from best_lambda",
        ),
        (lambda mini_capture, found: figures.amplifier(found), r"of diffscope.readings.amplifier\(cap\)"),
        (lambda mini_capture, found: figures.rejection(mini_capture, layer=1), "choose one head along σ"),
        (
            lambda mini_capture, found: figures.rejection(mini_capture, layer=1, head=8),
            "no head 8; choose from 0, 1",
        ),
        (lambda mini_capture, found: figures.anatomy(mini_capture), r"of diffscope.readings.composition\(cap"),
        (lambda mini_capture, found: figures.attribution(mini_capture), "of diffscope.readings.branches"),
        (lambda mini_capture, found: figures.signal_to_noise(mini_capture), r"of diffscope.readings.signal_to_noise\(scope"),
        (
            lambda mini_capture, found: figures.signal_to_noise(mini_capture, quantity="snr"),
            "no quantity 'snr'; choose from gain",
        ),
        (
            lambda mini_capture, found: figures.head_types({"a": TEXTS, "b": TEXTS.isel(text=[1])}),
            "no text 'random tokens'; choose from prompts",
        ),
        (
            lambda mini_capture, found: figures.patching(dict.fromkeys("ab", xr.Dataset({"lead_of_source": 0.0}))),
            "of one reading, and 2 were given",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line(mini_capture, retrieval, draw, words):
    with pytest.raises(DiffscopeError, match=words):
        draw(mini_capture, retrieval)


@pytest.fixture(scope="module")
def swept():
    """A swept dataset: two models, six prompts of two lengths, in which each value says where it stands."""
    shape = {"model": 2, "prompt": 6, "layer": 2, "head": 2, "map": 3}
    values = np.random.default_rng(0).random(tuple(shape.values()))
    values[1, :, 1, 1] = np.nan
    coords = {"model": ["a", "b"], "map": ["A1", "A2", "D"], "layer": [0, 3], "length": ("prompt", [64.0, 128.0] * 3)}
    array = xr.DataArray(values, coords, tuple(shape), attrs={"long_name": "Gini index"})
    return xr.Dataset({"gini": array, "tokens": (("model", "prompt"), np.ones((2, 6)))})


def test_a_sweep_is_averaged_over_heads_then_layers_then_prompts(swept):
    figure = drawn_on_both(figures.sweep(swept, statistic="gini"))
    values = swept["gini"].sel(map="D").values  # (model, prompt, layer, head)
    of_prompt = np.nanmean(np.nanmean(values, -1), -1).reshape(2, 3, 2)  # (model, prompt, length)
    shown = figure.data.isel(panel=0)
    assert shown["x"].values.tolist() == [64, 128] and shown["series"].values.tolist() == ["a", "b"]
    np.testing.assert_allclose(shown["value"], of_prompt.mean(1))
    np.testing.assert_allclose(shown["high"] - shown["value"], of_prompt.std(1, ddof=1) / 3**0.5)
    heads = values.reshape(2, 3, 2, 4).mean(1)  # (model, length, head)
    np.testing.assert_allclose(shown["points"], heads)


def test_prompts_of_a_task_without_the_field_are_left_out_where_it_is_drawn_along(swept):
    of_two_tasks = swept.assign_coords(length=("prompt", [64.0, 128.0, 64.0, 128.0, np.nan, np.nan]))
    drawn = figures.sweep(of_two_tasks, statistic="gini")
    assert drawn.data["x"].values.tolist() == [64, 128]
    np.testing.assert_array_equal(drawn.data["value"], figures.sweep(swept.isel(prompt=range(4)), statistic="gini").data["value"])


def test_a_sweep_is_drawn_along_any_dimension_or_field(swept):
    figure = figures.sweep(swept, statistic="gini", x="layer", series="map", panels="length", where={"model": "b"})
    assert figure.data["panel"].values.tolist() == ["length 64", "length 128"]
    expected = np.nanmean(swept["gini"].sel(model="b", map="A2").values[::2], axis=(0, 2))
    np.testing.assert_allclose(figure.data["value"].sel(series="A2", panel="length 64"), expected)
    for wrong, words in (
        ({"statistic": "overlap"}, "no swept statistic 'overlap'; choose from gini, tokens"),
        ({"statistic": "gini", "x": "depth"}, "no dimension or field 'depth'; choose from model"),
        ({"statistic": "gini", "x": "length", "series": "map"}, "several of model"),
        ({"statistic": "gini", "where": {"map": "A3"}}, "no map 'A3'; choose from A1, A2, D"),
    ):
        with pytest.raises(DiffscopeError, match=words):
            figures.sweep(swept, **wrong)
    with pytest.raises(DiffscopeError, match="of a swept dataset"):
        figures.sweep(swept.isel(prompt=0), statistic="gini")


def test_what_is_chosen_of_a_sweep_is_selected_and_nothing_unknown_is(swept):
    values = swept["gini"].sel(map="D", model="a").values  # (prompt, layer, head)
    chosen = figures.sweep(swept, statistic="gini", where={"model": "a", "layer": 3, "head": 0})
    np.testing.assert_allclose(chosen.data["value"].values.ravel(), values[:, 1, 0].reshape(3, 2).mean(0))
    assert "points" not in chosen.data and "D, a, layer 3, head 0" in chosen.caption and chosen.data.attrs["model"] == "a"
    of_prompts = figures.sweep(swept, statistic="gini", x="layer", where={"model": "a", "length": 64})
    np.testing.assert_allclose(of_prompts.data["value"].values.ravel(), values[::2].mean((0, 2)))
    assert "length 64" in of_prompts.caption and "3 prompts a place" in of_prompts.caption
    assert "query 5" in figures.sweep(swept.expand_dims(query=[5, 9]), statistic="gini", where={"model": "a"}).caption
    for where, words in (
        ({"length": 65}, "no length '65'; choose from 64, 128"),
        ({"lenght": 64}, "no dimension or field 'lenght'; choose from layer, head, map, length"),
        ({"layer": 1}, "no layer '1'; choose from 0, 3"),
        ({"prompt": 0}, "no dimension or field 'prompt'"),
    ):
        with pytest.raises(DiffscopeError, match=words):
            figures.sweep(swept, statistic="gini", where={"model": "a", **where})
    with pytest.raises(DiffscopeError, match="layer is drawn along"):
        figures.sweep(swept, statistic="gini", x="layer", where={"layer": 3})


def test_a_sweep_of_ratios_is_of_medians_and_one_of_positions_is_refused(swept):
    ratio = swept.assign(ratio=swept["gini"].assign_attrs(averaged="median"))
    uneven = ratio.assign_coords(length=("prompt", [64.0, 64, 64, 64, 64, 128]))
    figure = drawn_on_both(figures.sweep(uneven, statistic="ratio", where={"model": "a", "layer": 0, "head": 1}))
    prompts = swept["gini"].sel(model="a", map="D", layer=0, head=1).values
    shown = figure.data.isel(panel=0, series=0)
    np.testing.assert_allclose(shown["value"], [np.median(prompts[:5]), prompts[5]])
    np.testing.assert_allclose(shown["low"][0], np.quantile(prompts[:5], 0.25))
    np.testing.assert_allclose(shown["high"][0], np.quantile(prompts[:5], 0.75))
    assert np.isnan(shown["low"][1]) and np.isnan(shown["high"][1])  # of one prompt
    assert "median over 1 to 5 prompts a place, with the quartiles of prompts" in figure.caption
    whole = figures.sweep(ratio, statistic="ratio", where={"model": "a"})
    heads = swept["gini"].sel(model="a", map="D").values
    by_prompt = np.median(np.median(heads, -1), -1).reshape(3, 2)
    np.testing.assert_allclose(whole.data["value"].values.ravel(), np.median(by_prompt, 0))
    lone = uneven.assign(gini=swept["gini"])
    assert np.isnan(figures.sweep(lone, statistic="gini").data["low"].sel(x=128)).all()
    with pytest.raises(DiffscopeError, match="has no mean that would say anything"):
        place = swept["gini"].isel(layer=0, head=0, drop=True).assign_attrs(averaged="not")
        figures.sweep(swept.assign(place=place), statistic="place", where={"model": "a"})
