"""What a colour means, and how few words a legend takes to say it."""

import colorsys

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import figures, readings
from diffscope.figures import theme
from diffscope.views import tokens


def lines_of(looks, **options):
    """A figure of one line a label, with these colours and dashes."""
    values = xr.DataArray(np.arange(2.0 * len(looks)).reshape(-1, 2), {"line": list(looks), "x": [0, 1]}, ("line", "x"))
    return figures.curves(values, x="x", series="line", looks=looks, **options)


def legend_of(figure):
    """The words of a printed legend."""
    drawing = figure.matplotlib()
    (legend,) = [*drawing.legends, *(ax.get_legend() for ax in drawing.axes if ax.get_legend())]
    return [text.get_text() for text in legend.get_texts()]


def test_words_that_lines_share_stand_once_in_a_printed_legend():
    one, two = theme.SERIES[:2]
    looks = {"ours: answer": (one, "solid"), "ours: noise": (one, "dash"), "theirs: answer": (two, "solid")}
    looks |= {"theirs: noise": (two, "dash"), "uniform: answer": (theme.MUTED, "solid"), "uniform: noise": (theme.MUTED, "dash")}
    assert legend_of(lines_of(looks)) == ["ours", "theirs", "uniform", "answer", "noise"]
    controls = {"ours": (one, "solid"), "theirs": (two, "solid"), "ours: random": (one, "dot"), "theirs: random": (two, "dot")}
    assert legend_of(lines_of(controls)) == ["ours", "theirs", "random"]


@pytest.mark.parametrize(
    "looks",
    [
        {"a: b": ("#4b3a78", "solid"), "a: c": ("#3a9188", "solid"), "d: b": ("#a0456b", "solid"), "d: c": ("#9a9140", "solid")},
        {"a: b": ("#4b3a78", "solid"), "a: c": ("#4b3a78", "dash"), "d: b": ("#3a9188", "dash"), "d: c": ("#3a9188", "solid")},
    ],
)
def test_a_legend_names_every_line_where_its_parts_would_not_tell_them_apart(looks):
    assert legend_of(lines_of(looks)) == list(looks)


def test_a_legend_stands_where_a_row_of_panels_leaves_a_place():
    values = xr.DataArray(np.ones((3, 2, 2)), {"p": list("abc"), "line": ["own", "other"], "x": [0, 1]}, ("p", "line", "x"))
    drawing = figures.curves(values, x="x", series="line", panels="p", width=3.0).matplotlib()
    assert not drawing.legends and drawing.axes[-1].get_legend() is not None


def test_blue_and_orange_are_maps_and_grey_is_a_control():
    names = ["A₁", "−λ·A₂", "ours", "theirs", "uniform attention", "permuted"]
    values = xr.DataArray(np.ones((6, 2)), {"line": names, "x": [0, 1]}, ("line", "x"))
    drawing = figures.curves(values, x="x", series="line", style="bars", controls=["permuted"]).plotly()
    colours = {bar.name: bar.marker.color for bar in drawing.data}
    assert [colours[name] for name in names[:2]] == [theme.MAP_COLOURS["A1"], theme.MAP_COLOURS["lambda_A2"]]
    assert [colours[name] for name in names[2:4]] == theme.SERIES[:2]
    assert [colours[name] for name in names[4:]] == theme.CONTROLS[:2]


def test_no_colour_of_a_model_is_blue_or_orange_and_neighbours_differ_in_grey_print():
    light = []
    for colour in theme.SERIES:
        red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        hue, saturation, _ = colorsys.rgb_to_hsv(red, green, blue)
        assert saturation < 0.4 or not (15 <= 360 * hue <= 45 or 195 <= 360 * hue <= 245), colour
        light.append(0.299 * red + 0.587 * green + 0.114 * blue)
    assert min(abs(np.diff(light))) > 0.05


def test_heads_that_a_model_does_not_have_take_no_room_in_print():
    values = xr.DataArray(np.ones((2, 1, 4)), dims=("model", "layer", "head"), coords={"model": ["ours", "theirs"]})
    values = values.assign_coords(layer=[0], head=range(4))
    values[0, 0, 2:] = np.nan
    ours, theirs, _ = figures.cells(values, panels="model").matplotlib().axes
    assert [len(ax.get_xticks()) for ax in (ours, theirs)] == [2, 4]
    values[0, 0, :2] = [np.nan, 1.0]  # a head that is undefined, before one that is not, keeps its place
    ours, *_ = figures.cells(values, panels="model").matplotlib().axes
    assert len(ours.get_xticks()) == 2


def test_bars_that_grey_print_would_not_tell_apart_have_hatches():
    values = xr.DataArray(np.ones((4, 2)), {"part": ["A1", "−λ·A₂", "uniform attention", "rest"], "x": [0, 1]}, ("part", "x"))
    for style in ("bars", "stacked"):
        figure = figures.curves(values, x="x", series="part", style=style)
        patterns = {trace.name: trace.marker.pattern for trace in figure.plotly().data}
        assert patterns["A1"].shape == patterns["uniform attention"].shape == "" and patterns["−λ·A₂"].shape
        assert {pattern.fillmode for pattern in patterns.values()} == {"overlay"}  # else a bar has no colour but its hatch
        handles, labels = figure.matplotlib().axes[0].get_legend_handles_labels()
        hatches = {label: handle[0].get_hatch() for handle, label in zip(handles, labels)}
        assert not hatches[labels[0]] and hatches[labels[1]] and hatches[labels[1]] == hatches[labels[3]]


def test_the_control_of_a_model_is_grey_and_has_its_marker():
    names = ["a", "a: permuted", "b", "b: permuted"]
    values = xr.DataArray(np.ones((4, 2)), {"series": names, "x": [0, 1]}, ("series", "x"))
    looks = {
        name: (theme.CONTROLS[at // 2] if at % 2 else theme.SERIES[at // 2], "dash" if at % 2 else "solid")
        for at, name in enumerate(names)
    }
    figure = figures.curves(values, x="x", series="series", looks=looks)
    markers = {trace.name: (trace.marker.symbol, trace.marker.color) for trace in figure.plotly().data}
    assert markers["a"][0] == markers["a: permuted"][0] != markers["b"][0] == markers["b: permuted"][0]
    assert markers["b: permuted"][1] == theme.CONTROLS[1]
    (legend,) = figure.matplotlib().legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "permuted"]
    assert [handle.get_color() for handle in legend.get_lines()][-1] == theme.MUTED


def test_a_legend_names_other_lines_only_if_there_are_some():
    captures = {step: diffscope.load(f"mini-diff@{step}").capture("Paris 7421. Rome 2174. Paris") for step in (0, 400)}
    course = readings.along_training(captures).estimates
    assert legend_of(figures.training(course, statistic="lambda", layer=1, head=1)) == ["layer 0", "layer 1", "layer 2"]
    assert legend_of(figures.training(course, statistic="overlap", layer=1, head=1))[-1] == "other heads"


def test_spans_of_one_prompt_have_colours_of_their_own(mini_diff):
    spans = {"answer": slice(2, 4), "ab": [4], "ba": [5], "bb": [6], "query": [7], "aa": [8], "cc": [9], "dd": [10]}
    cap = mini_diff.capture(list(range(2, 14)), spans=spans)
    figure = figures.maps(cap, layer=0)
    names = [name for name in cap.spans if name != "sink"]
    in_print = {line.get_label(): line.get_color() for line in figure.matplotlib().legends[0].get_lines()}
    on_screen = {trace.name: trace.line.color for trace in figure.plotly().data if trace.showlegend}
    assert len(set(in_print.values())) == len(names) and in_print == on_screen
    assert in_print["answer"] == theme.SPAN_COLOURS["answer"]
    assert [span["colour"] for span in tokens.data(cap, 0, 0, -1)["spans"] if span["name"] != "sink"] == [*in_print.values()]
    added = theme.span_colours([*names, "one more"])
    assert [added[name] for name in names] == [in_print[name] for name in names]


def test_no_two_of_many_series_look_alike():
    names = [f"layer {number}" for number in range(14)]
    plain = xr.DataArray(np.ones((14, 2)), {"series": names, "x": [0, 1]}, ("series", "x"))
    models = {name: (colour, "solid") for name, colour in theme.model_colours(names).items()}
    for figure in (figures.curves(plain, x="x", series="series", looks=looks) for looks in (None, models)):
        on_screen = {(line.marker.symbol, line.line.color, line.line.dash) for line in figure.plotly().data}
        drawn = [line for line in figure.matplotlib().axes[0].lines if len(line.get_xdata())]
        in_print = {(line.get_marker(), line.get_color(), line.get_linestyle()) for line in drawn}
        assert len(on_screen) == len(in_print) == 14
    assert len({line.line.dash for line in figures.curves(plain, x="x", series="series").plotly().data}) == 2


@pytest.mark.parametrize("style", ["lines", "points", "bars", "stacked"])
def test_a_label_that_begins_with_an_underscore_is_in_the_legend(style):
    names = ["_run3", "run"]
    values = xr.DataArray(np.ones((2, 2)), {"side": names, "layer": [0, 1]}, ("side", "layer"))
    drawn = figures.curves(values, series="side", style=style, references={"_chance": 0.5})
    assert legend_of(drawn) == ["_chance", *names]
    assert legend_of(figures.strips(values.expand_dims(head=[0, 1]))) == names
