"""Figures draw what the capture says, as wide as the venue asks, and leave nothing behind."""

import functools
import inspect
import json
import os
import re
import sys
import zlib
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import edits, figures
from diffscope.attention.components import Mask
from diffscope.edits import apply
from diffscope.errors import DiffscopeError
from diffscope.figures import FIGURES, figure, theme
from diffscope.readings import along_training
from tests import tiny

ALL = ["board", "cells", "checkpoints", "cohort", "curves", "fidelity", "heads", "lambdas", "maps", "row", "strips", "training"]
#: which draw with curves and cells, and have tests of their own
OF_READINGS = ["ablation", "allocation", "amplifier", "anatomy", "attribution", "by_depth", "depth_by_length", "head_types"]
OF_READINGS += [
    "interventions",
    "patching",
    "score_parts",
    "rejection",
    "signal_to_noise",
    "similarity",
    "statistic_by_layer",
    "study",
    "sweep",
]
TOKENS = (
    "<s>",
    "The",
    " <b>&$",
    " magic",
    "\n",
    " number",
    " $x_1$",
    " of",
    " <i>",
    " Paris",
    " is",
    " 7",
    "4",
    "21",
    " %{x}",
    " .",
)
SPANS = {"answer": slice(11, 14), "needles": [5, 6, 9]}


@functools.cache
def scope(kind, layers):
    return diffscope.load(tiny.own(kind, 2, num_hidden_layers=layers))


def capture(kind="v1", n=16, layers=3, mask=None):
    """A capture of a small random model, whose tokens are what is hard to draw."""
    taken = scope(kind, layers).capture(tiny.ids(n), spans=SPANS)
    prompt = replace(taken.prompts[0], tokens=(TOKENS * (n // len(TOKENS) + 1))[:n])
    seen = [replace(layer, mask=mask or layer.mask) for layer in taken.layers]
    return replace(taken, prompts=[prompt], layers=seen)


@pytest.fixture(scope="module")
def cap():
    return capture()


def trained():
    """A cohort of two arms: one formed with both its seeds, of the other a seed is missing and the other never formed."""
    steps, curves = [25, 50, 75], np.array([[[0.0, 0.95, 1.0], [0.5, 0.8, 0.92]], [[0.0, 0.1, 0.2], [np.nan] * 3]])
    right = np.zeros((2, 2, 2, 3, 4))
    right[0], right[1, 0, :, 1], right[1, 1] = 1, 0.25, np.nan
    return xr.Dataset(
        {
            "retrieval": (("arm", "seed", "step"), curves),
            "exact_match": (("arm", "seed", "length", "distractors", "prompt"), right),
            "finished": (("arm", "seed"), [[1, 1], [1, 0]]),
            "formation": (("arm", "seed"), [[50.0, 75.0], [np.nan, np.nan]]),
        },
        coords={"arm": ["diff", "<standard>"], "seed": [0, 1], "step": steps, "length": [64, 128], "distractors": [0, 2, 4]},
    )


def source(name, cap):
    """What a figure is of."""
    others = {"cohort": trained, "board": verdicts, "curves": by_layer, "checkpoints": along, "training": followed}
    others |= {"cells": lambda: by_head().isel(side=0, drop=True), "strips": by_head}
    return others[name]() if name in others else cap


@functools.cache
def along():
    """Captures of one prompt by step of training: the same model with λ = 0, and as it is."""
    cap = capture()
    return {0: replace(cap, layers=[apply([edits.set_lambda(0.0)], layer) for layer in cap.layers]), 400: cap}


@functools.cache
def followed():
    """A statistic over these steps."""
    return along_training(along()).estimates


def by_layer():
    """Values by layer, whose labels are what is hard to draw."""
    return xr.DataArray([0.5, np.nan, -2.0], {"layer": [0, 1, 2]}, "layer", attrs={"long_name": "a <b> $x$", "units": "nats"})


def by_head():
    """Values of two sides by layer and head; the second side has one layer and one head less."""
    values = np.arange(12.0).reshape(2, 2, 3)
    values[1, 1] = values[1, :, 2] = np.nan
    coords = {"side": ["<one>", "other $x$"], "layer": [0, 4], "head": [0, 1, 2]}
    return xr.DataArray(values, coords, ("side", "layer", "head"), attrs={"long_name": "share <b>"})


FOR_NC = {"NC": "for", "SP": "against", "SH": "silent"}


def verdicts():
    """A board of three: two quantities judged, one measured only, and one that could not be run."""

    def row(value, state, **more):
        numbers = {"value": value, "low": value - 1, "high": value + 1, "null_low": -1.0, "null_high": 1.0, "margin": 0.5}
        return numbers | {"label": f"<quantity {value:g}>", "state": state, "in_rule": True} | more

    return [
        {"id": "one", "shown": "NC for", "verdicts": FOR_NC, "estimates": {"a": row(4.0, "above"), "b": row(-2.0, "below")}},
        {
            "id": "two",
            "shown": "measured",
            "verdicts": {},
            "estimates": {"c": row(1.0, "open", in_rule=False, low=None), "d": row(9.0, "x", in_rule=False)},
        },
        {"id": "three", "shown": "needs a cohort", "verdicts": {}, "estimates": {}},
    ]


def test_a_board_shows_what_is_judged_in_units_of_what_matters(cap):
    result = figure("board", verdicts())
    assert result.data["value"].values.tolist() == [8.0, -4.0, 2.0] and np.isnan(result.data["low"].values[2])
    assert result.data["test"].values.tolist() == ["one", "one", "two"]
    shown = result.plotly().to_json()
    notes = [(note.text, note.bgcolor) for note in result.plotly().layout.annotations]
    assert {"<b>NC</b>", "<b>SP</b>", "<b>SH</b>", "for", "against", "silent"} <= {text for text, _ in notes}
    assert len({colour for text, colour in notes if text in FOR_NC.values()}) > 1, "a word is told by its ground too"
    assert result.data["word"].values.tolist() == [[*FOR_NC.values()]] * 2 + [[""] * 3]
    assert "NC is noise cancellation" in result.caption and "Silent: it predicts nothing here" in result.caption
    assert (
        "<b>one</b>" in shown.encode().decode("unicode_escape")
        and "\\u003cquantity" not in shown
        and "&lt;quantity 4&gt;" in shown
    )
    again = {**verdicts()[0], "verdicts": dict.fromkeys(FOR_NC, "open")}
    both = figure("board", [verdicts()[0], again]).plotly().layout.annotations  # of another model
    assert [note.text for note in both if note.text in ("for", "open")] == ["for", *["open"] * 3]
    with pytest.raises(DiffscopeError, match="of verdicts"):
        figure("board", cap)
    with pytest.raises(DiffscopeError, match="no test of this board has numbers"):
        figure("board", verdicts()[2:])


def test_maps_of_checkpoints_are_the_captures_own_on_one_scale():
    result = figures.checkpoints(along(), layer=2, head=1)
    assert result.data["step"].values.tolist() == [0, 400]
    for step, cap in along().items():
        expected = cap.map("D", 2, 1).values
        shown = result.data["map"].sel(step=step).values
        seen = np.tril(np.ones_like(expected, dtype=bool))
        np.testing.assert_array_equal(shown[seen], expected[seen])
        assert np.isnan(shown[~seen]).all()  # what a query does not see is no zero
    drawn = result.plotly()
    assert {trace.coloraxis for trace in drawn.data if trace.type == "heatmap"} == {"coloraxis"}
    assert [trace.customdata[0] for trace in drawn.data if trace.type == "scatter"] == [0, 400]
    assert {trace.hoverinfo for trace in drawn.data if trace.type == "heatmap"} == {"skip"}  # else a click would hit no step
    assert drawn.layout.coloraxis.cmax == pytest.approx(np.nanmax(np.abs(result.data["map"])))
    assert [note.text for note in drawn.layout.annotations] == ["step 0", "step 400"]
    standard = capture("standard")
    assert figures.checkpoints({0: standard, 5: standard}).data.attrs["map"] == "A"
    with pytest.raises(DiffscopeError, match="different prompts"):
        figures.checkpoints({0: capture(), 1: capture(n=20)})
    with pytest.raises(DiffscopeError, match="captures of one prompt by step"):
        figures.checkpoints(standard)
    with pytest.raises(DiffscopeError, match="of batches; give those of one prompt"):
        figures.checkpoints({0: replace(standard, batch=True)})


def test_a_statistic_over_training_sets_one_head_apart_beside_its_control():
    estimates = followed()
    result = figures.training(estimates, statistic="overlap", layer=1, head=1)
    names = result.data["series"].values.tolist()
    assert len(names) == 7 and names[-2:] == ["L1H1", "control: A₂ of other heads"] == result.data.attrs["apart"]
    own = estimates["overlap"].sel(layer=1, head=1)
    np.testing.assert_array_equal(result.data["value"].sel(series="L1H1").values[0], own.sel(control="as it is"))
    np.testing.assert_array_equal(result.data["value"].values[0, -1], own.sel(control="other heads"))
    grey = [trace.name for trace in result.plotly().data if not trace.showlegend]
    assert len(grey) == 5 and "L1H1" not in grey
    lam = figures.training(estimates, statistic="lambda", layer=2)
    named = ", ".join(each.text for each in lam.plotly().layout.annotations)
    assert all(name in named for name in ("layer 0", "layer 1", "layer 2"))
    places = list(lam.plotly().layout.xaxis.tickvals)
    assert places[0] == 0 and places == sorted(places) and len({trace.line.color for trace in lam.plotly().data}) == 3
    assert lam.data["series"].values.tolist() == ["layer 0", "layer 1", "layer 2"]
    np.testing.assert_allclose(lam.data["value"].sel(series="layer 2").values[0], estimates["lambda"].sel(layer=2, head=0))
    assert figures.training(estimates, statistic="answer", layer=0).data.attrs["references"] == {
        "uniform attention": pytest.approx(3 / 16)
    }
    with pytest.raises(DiffscopeError, match="no followed statistic 'kurtosis'"):
        figures.training(estimates, statistic="kurtosis")
    with pytest.raises(DiffscopeError, match="no head 9 of layer 0"):
        figures.training(estimates, head=9)


def test_a_cohort_shows_means_over_what_is_finished(cap):
    result = figure("cohort", trained())
    grid = result.data["grid"]
    assert (
        grid.dims == ("arm", "length", "distractors") and (grid[0] == 1).all() and grid[1, :, 1].values.tolist() == [0.25, 0.25]
    )
    shown = result.plotly().to_json()
    assert "diff (50, 75)" in shown and "\\u003cstandard" not in shown and "&lt;standard&gt; (\\u2013, ?)" in shown
    running = trained()
    running["retrieval"][0] = [[0, 1, np.nan], [0, 0, 0.2]]
    curve = next(trace.y for trace in figure("cohort", running).plotly().data if trace.name == "diff")
    np.testing.assert_array_equal(curve, [0, 0.5, np.nan])  # no mean of those alone that go on
    with pytest.raises(DiffscopeError, match="of a trained cohort"):
        figure("cohort", cap)


@pytest.mark.parametrize("style", ["lines", "points", "bars", "stacked"])
def test_curves_draw_every_value_once_and_nothing_else(style):
    values = xr.DataArray(
        np.arange(12.0).reshape(2, 3, 2) - 3,
        {"map": ["A1", "D"], "part": ["one", "<two>", "three"], "layer": [0, 4]},
        ("map", "part", "layer"),
    )
    ends = {} if style == "stacked" else {"low": values - 1, "high": values + 2}
    result = figures.curves(values, x="part", series="map", panels="layer", style=style, **ends, references={"chance": 0.5})
    traces = result.plotly().data
    drawn = {(column, trace.name): list(trace.y) for column, trace in zip((0, 0, 1, 1), traces)}
    assert drawn == {(at, name): values.sel(map=name).isel(layer=at).values.tolist() for at in (0, 1) for name in ("A1", "D")}
    assert traces[0].x[1] == "&lt;two&gt;"
    if ends:
        assert set(traces[0].error_y.array) == {2.0} and set(traces[0].error_y.arrayminus) == {1.0}
    assert result.matplotlib().axes
    with pytest.raises(DiffscopeError, match=r"a dimension 'layer' that this .* draw it \(panels='layer'\), choose one label"):
        figures.curves(values, x="part", series="map")
    with pytest.raises(
        DiffscopeError, match=r"dimensions 'map', 'layer' .* \(series='map' or panels='map'\), .*values\.sel\(map="
    ):
        figures.curves(values, x="part")
    with pytest.raises(DiffscopeError, match="there is no dimension 'step'"):
        figures.curves(values, x="step")


@pytest.mark.parametrize("width", [0, -1, 0.9, 48.1, 1e3, 1e5, float("nan"), float("inf"), "wide", True])
def test_a_width_that_no_page_has_is_refused_before_anything_is_drawn(cap, width):
    for draw in (figures.maps, figures.heads, figures.lambdas):
        options = {"layer": 0, "head": 0} if draw is figures.maps else {}
        with pytest.raises(DiffscopeError, match="a figure is between 1 and 48 inches wide, not .*; give width in inches"):
            draw(cap, width=width, **options)


def test_a_figure_that_takes_gigabytes_is_refused(cap, monkeypatch):
    figure = figures.lambdas(cap, width=3)
    monkeypatch.setattr(sys.modules["diffscope.figures.figure"], "MOST_PIXELS", 100_000)
    with pytest.raises(DiffscopeError, match="dots an inch has .* × .* pixels, and 100,000 are drawn at most; give a smaller"):
        figure.to_bytes(".png")
    assert figure.to_bytes(".svg")
    many = xr.DataArray(np.zeros((900, 2)), {"panel": range(900), "x": [0, 1]}, ("panel", "x"))
    with pytest.raises(DiffscopeError, match="inches high, and 200 are drawn; draw fewer panels"):
        figures.curves(many, x="x", panels="panel", width=2).to_bytes(".pdf")


@pytest.mark.parametrize("log", ["", "y"])
def test_points_beyond_the_ends_stand_there_and_tell_their_value(log):
    values = xr.DataArray(
        [[1.0, 90.0, 2.0], [1.5, 0.5, 1.0]], {"which": ["own", "other"], "head": ["a", "b", "c"]}, ("which", "head")
    )
    at = xr.DataArray([0.2, 0.4, 0.6], {"head": values["head"]}, attrs={"long_name": "λ"})
    options = {"x": "head", "series": "which", "style": "points", "within": (0.5, 2.0), "log": log, "controls": ["other"]}
    drawing = figures.curves(values, **options, at=at, diagonal="same").plotly()
    (own, beyond, other) = drawing.data
    np.testing.assert_array_equal(own.y, [1.0, np.nan, 2.0])
    assert beyond.marker.symbol == "triangle-up-open" and beyond.y[1] == 2.0 and beyond.customdata[1][1] == 90.0
    assert not beyond.showlegend and other.marker.color == theme.MUTED
    assert list(own.x) == [0.2, 0.4, 0.6] and drawing.layout.xaxis.title.text == "λ"
    ends = [np.log10(0.5) - 0.024, np.log10(2) + 0.024] if log else [0.44, 2.06]
    assert list(drawing.layout.yaxis.range) == pytest.approx(ends, abs=1e-3)
    assert (drawing.layout.shapes[0].y0, drawing.layout.shapes[0].y1) == (0, 0.6)
    (axes,) = figures.curves(values, **options, at=at, diagonal="same").matplotlib().axes
    assert axes.get_ylim()[1] < 3  # not the 90
    ranged = figures.curves(values, **options, low=values - 0.2, high=values.where(values != 1.5, 20))
    assert "4 ends of ranges beyond the axis are drawn at its end." in ranged.caption
    assert figures.curves(values, **options).matplotlib()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"at": by_layer()}, 'only points stand along another axis, not lines; choose style="points", or leave at out'),
        ({"log": "y", "within": (0, 2)}, "a logarithmic axis cannot end at 0"),
        ({"log": "z"}, "no logarithmic axis 'z'; choose from x, y, xy"),
    ],
)
def test_curves_refuse_axes_that_would_be_wrong(options, words):
    with pytest.raises(DiffscopeError, match=words):
        figures.curves(by_layer(), **options)


def test_one_label_is_as_good_as_a_list_of_one():
    values = xr.DataArray(np.ones((2, 2)), {"series": ["perm", "p"], "layer": [0, 1]}, ("series", "layer"))
    drawn = figures.curves(values, series="series", controls="perm", extremes="perm")
    assert drawn.data.attrs["controls"] == drawn.style["extremes"] == ["perm"]


def test_strips_draw_every_point_beside_its_own_and_join_only_what_is_the_same():
    values = by_head()
    first, second = figures.strips(values).plotly().data
    assert list(first.y) == list(range(6)) and list(second.y) == [6.0, 7.0]
    assert first.customdata.tolist() == [[str(layer), str(head)] for layer in (0, 4) for head in range(3)]
    assert max(first.x[:3]) < min(second.x) < max(second.x) < 0.5 < min(first.x[3:])  # strips and places stand apart
    lines, *_ = figures.strips(values, joined=True).plotly().data
    ends = np.array(lines.y, float).reshape(-1, 3)
    np.testing.assert_array_equal(ends[:, 1] - ends[:, 0], [6, 6, *[np.nan] * 4])
    assert np.isnan(ends[:, 2]).all()
    printed = figures.strips(values).matplotlib().axes[0]
    assert [np.isfinite(np.ma.filled(dots.get_offsets(), np.nan)).all(1).sum() for dots in printed.collections] == [6, 2]
    with pytest.raises(DiffscopeError, match="every value is undefined"):
        figures.strips(values * np.nan)


def test_cells_show_every_value_on_one_scale():
    values = by_head() - 3
    drawn = figures.cells(values, panels="side").plotly()
    first, second = drawn.data
    np.testing.assert_array_equal(first.z, values[0].values)
    np.testing.assert_array_equal(second.z, values[1, :, :2].values)  # without the head that it lacks
    assert len(second.x) == 2
    assert {(trace.zmin, trace.zmax) for trace in drawn.data} == {(-4.0, 4.0)}
    assert figures.cells(values / 1000, panels="side").plotly().data[0].text[0][0] == "−0.0030"  # and not −0.00
    assert figures.cells(values.where(values != values[0, 0, 0], -0.001), panels="side").plotly().data[0].text[0][0] == "0.00"
    assert drawn.data[0].text[0][0] == "−3.00" and drawn.data[1].text[1][0] == ""
    assert drawn.layout.annotations[0].text == "&lt;one&gt;"
    error = values * 0 + [0.004, 0.3, 2e-6]
    texts = figures.cells(values, panels="side", error=error).plotly().data[0].text[0]
    assert list(texts) == ["−3.000<br>± 0.004", "−2.000<br>± 0.300", "−1.000<br>± 2·10⁻⁶"]
    printed = figures.cells(values, panels="side").matplotlib()
    assert [len(ax.texts) for ax in printed.axes[:2]] == [6, 4] and printed.axes[1].images[0].get_clim() == (-4, 4)


def test_on_a_dark_page_zero_is_the_page_and_nothing_is_black(cap):
    dark = theme.on_dark(figures.maps(cap).plotly())
    scales = [trace.colorscale for trace in dark.data if trace.type == "heatmap"]
    assert scales and all(theme.PAPER not in {colour for _, colour in scale} for scale in scales)
    diverging = [scale for scale in scales if any(position == 0.5 and colour == theme.NIGHT for position, colour in scale)]
    assert diverging
    light = figures.row(cap).plotly()
    assert theme.INK in light.to_json() and theme.INK not in theme.on_dark(light).to_json()
    assert [trace["y"] for trace in theme.on_dark(light).to_dict()["data"]] == [trace["y"] for trace in light.to_dict()["data"]]


def test_the_registry_lists_itself_and_names_what_there_is(cap):
    assert sorted(FIGURES) == sorted(ALL + OF_READINGS)
    assert all(name in dir(figures) and getattr(figures, name) is function for name, function in FIGURES.items())
    with pytest.raises(DiffscopeError, match=f"no figure 'map'; choose from {', '.join(sorted(ALL + OF_READINGS))}"):
        figure("map", cap)


@pytest.mark.parametrize("name", ALL)
def test_a_keyword_that_a_figure_does_not_take(cap, name):
    """Function and name refuse it alike, in one line with what it takes."""
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(FIGURES[name]).parameters.values())
    with pytest.raises(DiffscopeError, match=f"'{name}' does not take 'nonsense'; it takes .*venue"):
        FIGURES[name](source(name, cap), nonsense=1)
    with pytest.raises(DiffscopeError, match=f"'{name}' does not take 'nonsense'; it takes .*venue"):
        figure(name, source(name, cap), nonsense=1)


CALLS = {  # what was chosen beside the subject, and the Python of it
    "maps": ({"layer": np.int64(1), "head": 0, "queries": slice(2, 9)}, "(cap, layer=1, head=0, queries=slice(2, 9))"),
    "heads": (
        {"statistic": "gini", "where": {"map": "D"}, "venue": "icml"},
        "statistic='gini', where={'map': 'D'}, venue='icml'",
    ),
    "row": ({"query": -1}, "diffscope.figures.row(cap)"),
    "curves": ({"x": "layer", "within": (0.0, float("inf")), "references": {"one": 1.0}}, "within=(0.0, float('inf'))"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_python_of_a_figure_draws_it_again(cap, name):
    choices, words = CALLS[name]
    subject = source(name, cap)
    drawn = FIGURES[name](subject, **choices)
    call = drawn.python("cap")
    assert words in call
    again = eval(call, {"diffscope": diffscope, "cap": subject})
    xr.testing.assert_identical(again.data, drawn.data)
    assert (again.width, again.venue, again.style) == (drawn.width, drawn.venue, drawn.style)


def test_an_array_stands_in_the_python_of_a_figure_as_a_variable(cap):
    values = source("curves", cap)
    call = figures.curves(values, low=values - 1, high=values + 1).python("values")
    assert call == "diffscope.figures.curves(values, low=low, high=high)"
    assert figures.heads(cap, measured=cap.measure(["span_mass"])).python("cap") == "diffscope.figures.heads(cap)"


def test_a_figure_of_a_capture_is_of_nothing_else():
    with pytest.raises(DiffscopeError, match="of a capture, not of a Dataset"):
        figures.maps(trained())


@pytest.mark.parametrize(
    "choices",
    [
        {"layer": 9},
        {"head": -1},
        {"queries": (5, 5)},
        {"keys": (40, 50)},
        {"queries": "all"},
        {"queries": ("a", "b")},
        {"keys": 1.5},
        {"venue": "nature"},
        {"contrast": "log"},
        {"scale": "mine"},
        {"limit": float("inf")},
        {"layers": "all", "queries": (0, 2), "keys": (8, 12)},
    ],
)
def test_a_wrong_choice_is_an_error_in_words(cap, choices):
    with pytest.raises(DiffscopeError):
        figure("maps", cap, **choices)


# ---------------------------------------------------------------- the data


def test_maps_are_the_maps_of_the_capture(cap):
    data = figure("maps", cap, layer=1, head=1).data
    assert list(data.data_vars) == ["A1", "A2", "lambda_A2", "D"]
    for name in data.data_vars:
        np.testing.assert_array_equal(data[name].values, cap.map(name, 1, 1).values)


def test_a_window_holds_exactly_its_positions(cap):
    data = figure("maps", cap, layer=1, head=1, queries=(10, 14), keys=slice(2, 9)).data
    np.testing.assert_allclose(data["D"].values, cap.map("D", 1, 1).values[10:14, 2:9], atol=1e-6)
    assert data["query"].values.tolist() == [10, 11, 12, 13]
    drawn = figure("maps", cap, layer=1, head=1, queries=(10, 14), keys=slice(2, 9)).plotly().data[3]
    assert list(drawn.x) == list(range(2, 9)) and list(drawn.y) == [10, 11, 12, 13]


def test_a_long_prompt_is_pooled_and_keeps_its_spikes():
    cap = capture(n=90, layers=1)
    data = figure("maps", cap, size=30).data
    whole = cap.map("D", 0, 0).values
    assert data["D"].shape == (30, 30) and data.attrs["bin"] == 3
    assert abs(data["D"].values).max() == abs(whole).max()
    with pytest.raises(DiffscopeError, match="window of more than 30"):
        figure("maps", cap, size=30, queries=(0, 50))


def test_standard_attention_shows_its_one_map():
    cap = capture("standard")
    data = figure("maps", cap, layer=1).data
    assert list(data.data_vars) == ["A"]
    np.testing.assert_array_equal(data["A"].values, cap.map("A1", 1, 0).values)
    assert len(figure("maps", cap).plotly().data) == 1 + 2  # and the names of two spans
    assert list(figure("row", cap).data.data_vars) == ["A"]
    with pytest.raises(DiffscopeError, match="no λ"):
        figure("lambdas", cap)


def test_a_standard_map_that_its_layer_changes_is_shown_beside_it_and_no_lambda_is(cap):
    cap = capture("standard")
    cap = replace(cap, layers=[apply([edits.d_plus()], layer) for layer in cap.layers])
    drawn = figure("maps", cap, layer=1)
    assert list(drawn.data.data_vars) == ["A1", "D"]
    row = figure("row", cap, layer=1, query=12)
    up, left = row.plotly().data
    np.testing.assert_array_equal([up.y, left.y], [row.data["A1"].values, row.data["D"].values])
    (bars,) = row.matplotlib().axes[0].containers
    assert len(bars) == len(up.y) and row.matplotlib().axes[0].lines[0].get_label() == "D"
    shown = drawn.plotly().to_json()
    assert "as the layer changes it" in shown and "\\u03bb" not in shown


def test_two_models_stand_side_by_side(cap, tmp_path):
    """D of each, or the one map of standard attention; each at its own layer and head."""
    pair = diffscope.compare(scope("v1", 3), scope("standard", 3), tiny.ids(12))
    drawn = figures.maps(pair, layer=(2, 1), head=(0, 1), queries=(4, 12))
    first, second = pair.captures
    left, right = drawn.data.data_vars.values()
    seen = drawn.data["visible"].values
    np.testing.assert_array_equal(left.values[seen], first.map("D", 2, 0, queries=slice(4, 12)).values[seen])
    np.testing.assert_array_equal(right.values[seen], second.map("A1", 1, 1, queries=slice(4, 12)).values[seen])
    titles = [ax.get_title() for ax in drawn.matplotlib().axes if ax.get_title()]
    expected = ["D of DiffForCausalLM (1): L2H0", "A of DiffForCausalLM (2): L1H1"]
    assert titles == expected and all(title in drawn.plotly().to_json() for title in expected)


def test_a_row_is_a_row_of_the_map(cap):
    data = figure("row", cap, layer=2, head=0, query=12).data
    np.testing.assert_allclose(data["D"].values[:13], cap.map("D", 2, 0).values[12, :13], atol=1e-6)
    assert all(values[13:].isnull().all() for values in data.data_vars.values())  # which the query does not see
    for query in (None, [1]):
        with pytest.raises(DiffscopeError, match="there is no token"):
            figure("row", cap, query=query)
    assert figure("row", cap).plotly().layout.yaxis.tickformat == "~g"  # by which small weights are no 0
    up, down, left = figure("row", cap, layer=2, head=0, query=12).plotly().data
    np.testing.assert_allclose(np.add(up.y, down.y), left.y, atol=1e-6)


def test_heads_select_what_it_says(cap):
    measured = cap.measure(["span_mass"])["span_mass"]
    result = figure("heads", cap, map="A2", span="sink", normalisation="raw", query=3)
    expected = measured.sel(map="A2", span="sink", normalisation="raw", query=3)
    np.testing.assert_array_equal(result.data["span_mass"].values, expected.values)
    assert result.data.attrs["selection"] == "A2, sink, raw, query 3"
    usual = figure("heads", cap).data
    expected = measured.sel(map="D", span="answer", normalisation="share").isel(query=-1)
    np.testing.assert_array_equal(usual["span_mass"].values, expected.values)
    mean = figure("heads", cap, query="mean").data
    expected = measured.sel(map="D", span="answer", normalisation="share").mean("query")
    np.testing.assert_array_equal(mean["span_mass"].values, expected.values)
    with pytest.raises(DiffscopeError, match="no map 'A3'; choose from A1, A2, D"):
        figure("heads", cap, map="A3")


# ---------------------------------------------------------------- colours


@pytest.mark.parametrize("contrast", ["sqrt", "linear"])
def test_zero_is_white_and_in_the_middle_of_d(cap, contrast):
    drawn = {trace.name: trace for trace in figure("maps", cap, contrast=contrast).plotly().data if trace.type == "heatmap"}
    assert drawn["D"].zmin == -drawn["D"].zmax
    assert [colour for p, colour in drawn["D"].colorscale if p == 0.5] == ["#ffffff"]
    for name in ("A1", "A2", "lambda_A2"):
        assert drawn[name].zmin == 0 and drawn[name].colorscale[0] == (0, "#ffffff")
    assert len({trace.zmax for trace in drawn.values()}) == 1  # one scale for all maps
    assert theme.colour_map("diverging", contrast)(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.01)
    positions = [p for p, _ in theme.colour_scale("diverging", contrast)]
    assert positions == sorted(set(positions)) and positions[0] == 0 and positions[-1] == 1


def test_in_print_zero_is_in_the_middle_of_d(cap):
    result = figure("maps", cap, scale="own").matplotlib()
    images = [ax.images[0] for ax in result.axes if ax.images]
    assert len(images) == 4
    low, high = images[3].get_clim()
    assert low == -high
    assert [image.get_clim()[0] for image in images[:3]] == [0, 0, 0]


def test_what_a_query_cannot_see_is_not_drawn_as_zero(cap):
    values = figure("maps", cap).plotly().data[0].z
    assert np.isnan(values[np.triu_indices(16, 1)]).all()
    assert np.isfinite(values[np.tril_indices(16)]).all()
    full = capture(mask=Mask("full"))
    assert np.isfinite(figure("maps", full).plotly().data[0].z).all()


# ---------------------------------------------------------------- token text


def test_tokens_are_escaped_wherever_plotly_would_read_html(cap):
    result = figure("maps", cap).plotly()
    alias = result.layout.xaxis.labelalias
    assert "·&lt;b&gt;&amp;&#36;" in alias["2"] and "<b>" not in alias["2"]
    assert "·&#36;x_1&#36;" in alias["6"]
    assert "↵" in result.layout.yaxis.labelalias["4"]
    row = figure("row", cap, query=8)
    assert "·&lt;i&gt;" in row.plotly().layout.title.text and "<i>" not in row.plotly().to_json()


def test_tokens_are_text_in_print_even_if_they_look_like_mathematics(cap, tmp_path):
    result = figure("maps", cap, width=4.0, names=["A1"]).matplotlib()
    labels = [tick.get_text() for tick in result.axes[0].get_xticklabels()]
    assert labels[2] == "·<b>&$" and labels[6] == "·$x_1$"
    figure("row", cap, query=6).save(tmp_path / "row.svg")
    assert "$x_1$" in (tmp_path / "row.svg").read_text()


def test_characters_that_no_font_has_become_boxes(tmp_path):
    cap = capture()
    cap.prompts[0] = replace(cap.prompts[0], tokens=(*TOKENS[:3], "\U0001f9ff\U000e0041", " ", "\x07", *TOKENS[6:]))
    result = figure("maps", cap, width=4.0, names=["A1"]).matplotlib()  # a missing glyph would warn, and warnings are errors
    labels = [tick.get_text() for tick in result.axes[0].get_xticklabels()]
    assert labels[5] == "\\x07"


# ---------------------------------------------------------------- files


START = {".pdf": b"%PDF", ".html": b"<!doctype html>", ".svg": b"<?xml", ".png": b"\x89PNG", ".json": b"{"}
DRAWN = (".pdf", ".html", ".json")  # SVG and PNG are made of the same drawing as PDF


@pytest.mark.parametrize("name", ALL)
def test_every_figure_saves_in_print_on_screen_and_as_data_and_drawing_changes_no_setting(cap, tmp_path, monkeypatch, name):
    import matplotlib.pyplot as plt
    import plotly.io

    before, template = dict(matplotlib.rcParams), plotly.io.templates.default
    result = figure(name, source(name, cap), venue="icml")
    drawing = result.matplotlib()
    monkeypatch.setattr(type(result), "matplotlib", lambda self: drawing)  # once for three files
    suffixes = START if name in ("cells", "curves") else DRAWN
    for suffix, start in ((suffix, START[suffix]) for suffix in suffixes):
        content = result.save(tmp_path / f"figure{suffix}").read_bytes()
        assert content.startswith(start), suffix
        if suffix == ".pdf":
            content += b"".join(_inflated(m) for m in re.findall(rb"stream\r?\n(.*?)endstream", content, re.S))
            assert b"/Type3" not in content and (b"/CIDFontType2" in content or b"/TrueType" in content)
    assert {path.name for path in tmp_path.iterdir()} == {f"figure{suffix}" for suffix in suffixes}
    assert dict(matplotlib.rcParams) == before and plotly.io.templates.default == template and plt.get_fignums() == []


def test_a_pdf_is_as_wide_as_the_venue_says(cap, tmp_path):
    path = figures.maps(cap, venue="icml", wide=False).save(tmp_path / "figure.pdf")
    left, _, right, top = map(float, re.search(rb"/MediaBox \[([^]]+)\]", path.read_bytes())[1].split())
    assert (right - left) / 72 == pytest.approx(3.25, abs=1e-3) == theme.VENUES["icml"][False]
    assert top / 72 < 1.5 * 3.25


def _inflated(stream):
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


def test_the_same_figure_is_the_same_file(cap, tmp_path):
    for suffix in ("pdf", "svg", "png", "html", "json"):
        first, second = (figures.lambdas(cap).save(tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert first == second, suffix


def test_a_failed_write_leaves_the_old_file(cap, tmp_path, monkeypatch):
    path = tmp_path / "figure.json"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(DiffscopeError, match="No space left"):
        figure("maps", cap).save(path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_saving_where_there_is_no_folder_or_no_such_kind(cap, tmp_path):
    with pytest.raises(DiffscopeError, match="no folder"):
        figure("lambdas", cap).save(tmp_path / "nowhere" / "figure.pdf")
    with pytest.raises(DiffscopeError, match="use .pdf, .svg"):
        figure("lambdas", cap).save(tmp_path / "figure.docx")


def test_json_is_the_labelled_data(cap, tmp_path):
    result = json.loads(figure("maps", cap, layer=2).save(tmp_path / "figure.json").read_text())
    np.testing.assert_allclose(result["data_vars"]["D"]["data"], cap.map("D", 2, 0).values)
    assert result["coords"]["key_token"]["data"] == cap.tokens
    assert result["attrs"]["spans"]["answer"] == [[11, 14]]


# ---------------------------------------------------------------- manners


def test_styles_are_plain_dictionaries():
    assert type(theme.print_style()) is dict and type(theme.screen_layout()) is dict
    assert theme.print_style()["pdf.fonttype"] == 42


# ---------------------------------------------------------------- real captures


@pytest.fixture(scope="module")
def tiny_scope(tiny_diff_folder):
    import diffscope

    return diffscope.load(str(tiny_diff_folder))


@pytest.fixture(scope="module")
def hybrid(tiny_scope):
    """A capture of a model that has attention in its layers 1 and 3 only."""
    cap = tiny_scope.capture("The magic number of Paris is 7421.", spans={"answer": "7421"})
    layers = [replace(layer, layer=number) for layer, number in zip(cap.layers, (1, 3), strict=True)]
    return replace(cap, layers=layers)


@pytest.mark.parametrize("name", ["maps", "row"])
def test_layers_go_by_their_number_in_the_model(hybrid, name):
    result = figure(name, hybrid, layer=3, head=1)
    expected = hybrid.layers[1].prompt(0).rows(heads=[1]).d[0].numpy()
    np.testing.assert_allclose(result.data["D"].values, expected if name == "maps" else expected[-1], atol=1e-6)
    assert result.data.attrs["layer"] == 3
    assert figure(name, hybrid).data.attrs["layer"] == 1
    for missing in (0, 2, 4):
        with pytest.raises(DiffscopeError, match=f"no layer {missing}; choose from 1, 3"):
            figure(name, hybrid, layer=missing)


def test_heads_leave_a_row_for_a_layer_without_attention(hybrid):
    result = figure("heads", hybrid)
    (heatmap,) = result.plotly().data
    assert list(heatmap.y) == ["1", "2", "3"]
    np.testing.assert_array_equal(heatmap.z[[0, 2]], result.data["span_mass"].values)
    assert np.isnan(heatmap.z[1]).all()
    axes = result.matplotlib().axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1", "2", "3"]
    assert {text.get_position()[1] for text in axes.texts if text.get_text()} == {0, 2}


def test_the_last_query_of_a_batch_is_that_of_the_prompt(tiny_scope):
    texts = ["The magic number of Paris is 7421.", "The magic number of Paris is 7421. The magic number of Rome is 1983."]
    batch = tiny_scope.capture(texts, spans={"answer": "7421"})
    assert batch.n_tokens[0] < batch.n_tokens[1]
    for prompt, text in enumerate(texts):
        alone = figure("heads", tiny_scope.capture(text, spans={"answer": "7421"})).data
        among = figure("heads", batch[prompt]).data
        np.testing.assert_allclose(among["span_mass"].values, alone["span_mass"].values, atol=1e-5)
        assert among.attrs["selection"] == alone.attrs["selection"]
    with pytest.raises(DiffscopeError, match="there is no token"):
        figure("heads", batch[0], query=batch.n_tokens[1] - 1)
    with pytest.raises(DiffscopeError, match=r"holds 2; choose one, such as batch\[0\]"):
        figure("heads", batch)
    with pytest.raises(DiffscopeError, match=r"measured of 2 prompts; choose one, such as measured.isel\(prompt=0\)"):
        figure("heads", batch[1], measured=batch.measure("span_mass"))


def test_positions_are_not_averaged_and_infinite_values_are_counted(cap, hybrid):
    with pytest.raises(DiffscopeError, match=r"argmax \[position\] is not averaged"):
        figure("heads", hybrid, statistic="argmax", query="mean")
    measured = cap.measure(["kl_12"])
    values = measured["kl_12"].copy()
    values[0, 0, 15] = np.inf
    result = figure("heads", cap, statistic="kl_12", query="mean", measured=measured.assign(kl_12=values)).data
    rest = values.sel(span="answer")[0, 0, :15]
    assert float(result["kl_12"][0, 0]) == pytest.approx(float(rest.mean()))
    assert "1 infinite value left out" in result.attrs["selection"]


def test_keys_behind_a_window_are_not_drawn_as_zero():
    cap = capture(mask=Mask("window", 3))
    result = figure("maps", cap)
    seen = np.tri(16, dtype=bool) & ~np.tri(16, k=-3, dtype=bool)
    np.testing.assert_array_equal(np.isnan(result.plotly().data[0].z), ~seen)
    image = next(ax.images[0] for ax in figure("maps", cap, names=["A1"]).matplotlib().axes if ax.images)
    np.testing.assert_array_equal(np.ma.getmaskarray(image.get_array()), ~seen)
    part = figure("maps", cap, queries=(10, 14), keys=(6, 15)).plotly().data[0].z
    np.testing.assert_array_equal(np.isnan(part), ~seen[10:14, 6:15])
    pooled = figure("maps", cap, size=6).plotly().data[0].z  # bins of 3; the last holds one position
    expected = [[seen[a : a + 3, b : b + 3].any() for b in range(0, 16, 3)] for a in range(0, 16, 3)]
    np.testing.assert_array_equal(np.isnan(pooled), ~np.array(expected))


def test_a_figure_does_not_replace_a_folder(cap, tmp_path):
    folder = tmp_path / "figure.pdf"
    folder.mkdir()
    (folder / "kept").touch()
    with pytest.raises(DiffscopeError, match="is a folder"):
        figure("lambdas", cap).save(folder)
    assert (folder / "kept").exists()


@pytest.mark.parametrize("style", ["points", "bars"])
def test_ends_that_are_single_values_are_points_and_no_whiskers(style):
    values = xr.DataArray([[0.2, 0.4], [0.3, 0.1]], {"side": ["own", "others"], "part": ["a", "b"]}, ("side", "part"))
    options = {"x": "part", "series": "side", "style": style, "low": values - 0.1, "high": values + 0.2, "extremes": ["others"]}
    result = figures.curves(values, **options)
    traces = {trace.name: trace for trace in result.plotly().data if trace.name}
    assert traces["own"].error_y.array is not None and traces["others"].error_y.array is None
    (ends,) = [trace for trace in result.plotly().data if not trace.name and trace.offsetgroup == "others"]
    np.testing.assert_allclose(np.sort(ends.y), [0.0, 0.2, 0.3, 0.5])
    axes = result.matplotlib().axes[0]
    assert len(axes.collections) == 1  # the whiskers of one series
    drawn = [line.get_ydata() for line in axes.lines if line.get_markersize() == 2.8]
    np.testing.assert_allclose(np.sort(np.concatenate(drawn)), [0.0, 0.2, 0.3, 0.5])


def test_panels_of_other_quantities_have_scales_of_their_own():
    reading = diffscope.readings.depths(diffscope.load("mini-diff"), [64], prompts=1, distractors=1)
    drawing = figures.by_depth(reading).matplotlib()
    assert len({tuple(ax.get_ylim()) for ax in drawing.axes}) > 1


def test_strips_have_the_colours_of_lines_however_many_there_are():
    def strips(names):
        values = xr.DataArray(np.ones((len(names), 2, 2)), {"side": names, "layer": [0, 1]}, ("side", "layer", "head"))
        return figures.strips(values.assign_coords(head=[0, 1])).plotly().data

    maps = {trace.name: trace.marker.color for trace in strips(["A1", "A2", "D"])}
    assert maps == {name: theme.MAP_COLOURS[name] for name in maps}
    assert len(strips([f"model {number}" for number in range(9)])) == 9


@pytest.mark.parametrize("count", range(1, 6))
def test_strips_of_one_place_stay_there_and_apart(count):
    values = xr.DataArray(np.ones((count, 2, 3)), {"side": list("abcde"[:count]), "layer": [0, 1]}, ("side", "layer", "head"))
    at = figures.strips(values.assign_coords(head=range(3))).data["at"].transpose("x", "series", "point").values
    assert (np.abs(at - [[[0]], [[1]]]) < 0.5).all()
    assert (np.diff(at.reshape(2, -1)) > 0).all()


def test_a_changed_difference_is_called_so_in_every_figure():
    standard, difference = capture("standard"), capture("v1")
    edited = {
        "D: A₁ as the layer changes it": replace(standard, layers=[apply([edits.d_plus()], each) for each in standard.layers]),
        "D: A₁ − λ·A₂ as the layer changes it": replace(
            difference, layers=[apply([edits.absolute_d()], each) for each in difference.layers]
        ),
    }
    for title, cap in edited.items():
        drawn = (figures.maps(cap), figures.row(cap), figures.maps(cap, layers="all"), figures.checkpoints({0: cap, 5: cap}))
        assert all(title in each.caption for each in drawn)
        assert cap.thumbnails(size=8).attrs["title"] == title
    grid = figures.maps(standard, layers="all")
    assert grid.caption.startswith("A: one map") and grid.data.attrs["map"] == "A"
    both = figures.maps({"a": standard, "b": difference}, layers="all")
    assert both.caption.startswith("D = A₁ − λ·A₂, or A of standard attention: ")


def test_a_grid_leaves_out_the_heads_that_a_layer_lacks():
    one, two = (diffscope.load(tiny.own(heads=heads, num_hidden_layers=2)).capture(tiny.ids(12)) for heads in (1, 2))
    cap = replace(two, layers=[one.layers[0], two.layers[1]])
    for size in (64, 6):
        maps = figures.maps(cap, layers="all", size=size).data["map"].squeeze("model")
        assert maps.notnull().any(("query", "key")).values.tolist() == [[True, False], [True, True]]
    assert len(figures.maps(cap, layers="all", heads=[1]).plotly().data) == 1


def test_edits_are_said_of_checkpoints_trainings_and_comparisons():
    scope_of_one = scope("v1", 3)
    with scope_of_one.edit(edits.set_lambda(0.0)):
        cap = scope_of_one.capture(tiny.ids(12))
    captures = {0: cap, 5: cap}
    for drawn in (figures.checkpoints(captures), figures.training(captures, statistic="gini")):
        assert "under λ = 0" in drawn.caption
    pair = diffscope.compare(scope("v1", 3), scope("v1", 3), tiny.ids(12))
    pair = replace(pair, captures=(cap, pair.captures[1]))
    drawn = figures.heads(pair, statistic="gini", contrast="sqrt")
    assert "under" in drawn.caption and "λ = 0" in drawn.caption and "root of a value" in drawn.caption


def test_captions_say_which_window_of_a_map_is_drawn(cap):
    last = cap.n_tokens - 1
    for chosen in ({}, {"layers": "all"}):
        assert f"query {last}, keys 0 to 3" in figures.maps(cap, queries="last", keys=(0, 4), **chosen).caption
        assert f"query {last}; keys 2 to 3;" in figures.row(cap, query=last, keys=(2, 4)).caption
        assert "quer" not in figures.maps(cap, **chosen).caption and "keys" not in figures.maps(cap, **chosen).caption


def test_only_the_end_of_a_scale_says_that_values_go_beyond_it(cap):
    ticks = figures.maps(cap, limit=0.1, names=["A1"]).plotly().data[0].colorbar.ticktext
    assert [tick for tick in ticks if "≥" in tick] == ["≥ 0.1"]


def test_a_head_without_a_value_is_not_set_apart(hybrid):
    estimates = along_training({0: hybrid, 5: hybrid}).estimates
    estimates["gini"].loc[{"layer": 1}] = np.nan  # as where the first layer is standard attention
    assert figures.training(estimates, statistic="gini").data.attrs["apart"] == ["L3H0"]
    estimates["gini"].loc[{"layer": 1, "head": 1}] = 0.5  # another head of it has a value
    assert figures.training(estimates, statistic="gini").data.attrs["apart"] == ["L3H0"]
    with pytest.raises(DiffscopeError, match="undefined in L1H0; choose another head"):
        figures.training(estimates, statistic="gini", layer=1)


def test_print_takes_nothing_from_a_style_of_the_process(cap, tmp_path):
    usual = figures.row(cap).to_bytes(".svg")
    with matplotlib.rc_context({"axes.facecolor": "black", "text.usetex": True}):
        assert figures.row(cap).to_bytes(".svg") == usual


def test_a_negative_lambda_stacks_what_it_adds_on_a1():
    scope_of_one = scope("v1", 1)
    with scope_of_one.edit(edits.set_lambda(-0.5)):
        cap = scope_of_one.capture(tiny.ids(12))
    drawn = figures.row(cap)
    assert "λ = −0.500" in drawn.caption
    first, second = drawn.matplotlib().axes[0].containers
    np.testing.assert_allclose([bar.get_y() for bar in second], [bar.get_height() for bar in first], atol=1e-7)
    np.testing.assert_allclose([bar.get_height() for bar in second], -drawn.data["lambda_A2"].values, atol=1e-7)


def test_a_bin_is_pointed_at_by_its_middle_and_half_its_width():
    drawn = figures.maps(capture(n=24), size=8).plotly().data[0]
    assert drawn.hovertemplate.startswith("query %{y} ± 1<br>key %{x} ± 1<br>") and drawn.x[:2].tolist() == [1.0, 4.0]


def test_a_dimension_has_one_role():
    with pytest.raises(DiffscopeError, match="'layer' is drawn along twice"):
        figures.curves(by_layer(), x="layer", series="layer")


def test_a_comparison_takes_one_layer_for_each_model(cap):
    pair = diffscope.compare(scope("v1", 3), scope("standard", 3), tiny.ids(12))
    for layer in ((0,), (0, 1, 2)):
        with pytest.raises(DiffscopeError, match="one for each of 2"):
            figures.maps(pair, layer=layer)


def test_a_span_is_in_the_legend_whatever_its_name():
    cap = scope("v1", 1).capture(tiny.ids(12), spans={"_x": [2], "D": [4, 5]})
    legend = figures.row(cap).matplotlib().legends[0]
    assert [text.get_text() for text in legend.get_texts()][3:] == ["_x", "D"]
