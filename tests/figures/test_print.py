"""Printed figures: as wide as the venue asks, every text read and apart from the next, and the same bytes each time."""

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import diffscope
from diffscope import figures
from diffscope.errors import DiffscopeError
from diffscope.figures import theme, typeface
from diffscope.render import as_latex
from tests import tiny
from tests.figures.test_figures import ALL, TOKENS, capture, source
from tools.figure_sheet import text_faults, texts

NARROWEST = ("acl", False)
WIDE = ("neurips", True)
OF_TOKENS = ("maps", "row", "cohort")  # in a column too; the others are held to it as the gallery draws them


@pytest.fixture(scope="module")
def cap():
    return capture()


def drawn(name, cap, venue, wide):
    return figures.figure(name, source(name, cap), venue=venue, wide=wide)


@pytest.mark.parametrize("name, venue, wide", [*((name, *WIDE) for name in ALL), *((name, *NARROWEST) for name in OF_TOKENS)])
def test_texts_are_within_the_figure_apart_and_no_mathematics(cap, name, venue, wide):
    assert not text_faults(drawn(name, cap, venue, wide).matplotlib())


@pytest.fixture(params=["narrow letters", "wide letters"])
def letters(request, monkeypatch):
    """A layout holds with the typeface of the package, and with one whose letters are a tenth wider."""
    if request.param == "wide letters":
        monkeypatch.setattr(typeface, "families", lambda: ["DejaVu Sans"])


@pytest.mark.usefixtures("letters")
def test_a_long_title_and_long_names_stand_on_several_lines():
    values = figures.curves(by_words()).data["value"]
    name = "the share of what a head takes away from everything that is not the answer, in octaves"
    long = values.isel(panel=0, series=0, drop=True).rename(x="layer").assign_attrs(long_name=name)
    drawing = figures.curves(long, title=f"{name} · {name}", venue="acl").matplotlib()
    width, height = drawing.get_size_inches() * 72
    assert all(box[0] >= 0 and box[2] <= width and box[1] >= 0 and box[3] <= height for _, box, _ in texts(drawing))
    assert "\n" in drawing.axes[0].get_ylabel()


def by_words():
    return source("curves", None)


@pytest.mark.parametrize("venue", sorted(theme.VENUES))
def test_a_figure_is_as_wide_as_each_venue_says(venue):
    small = figures.curves(by_words(), venue=venue, wide=False)
    large = figures.curves(by_words(), venue=venue, wide=True)
    assert [drawing.matplotlib().get_figwidth() for drawing in (small, large)] == list(theme.VENUES[venue])


@pytest.mark.parametrize("count, columns", [(16, 4), (40, 2)])
def test_every_token_keeps_its_name_up_to_forty_at_the_width_of_a_page(count, columns):
    """One axis has the names for all maps beside it; more tokens stand two by two."""
    drawing = figures.maps(capture(n=count), venue="neurips").matplotlib()
    first, *others = [ax for ax in drawing.axes if ax.images and ax.get_title() == ""][:4]
    assert len(first.get_yticks()) == count and first.get_yticklabels()[0].get_size() >= 4.2
    named = [any(label.get_visible() for label in ax.get_yticklabels()) for ax in (first, *others)]
    lefts = {round(ax.get_position().x0, 2) for ax in (first, *others)}
    assert len(lefts) == columns and named == [number % columns == 0 for number in range(4)]


@pytest.mark.usefixtures("letters")
def test_the_names_below_maps_two_by_two_stand_above_the_legend():
    text = "If the name of the file is empty, an error is raised. " * 2 + "Return the name of the"
    cap = diffscope.load("mini-text").capture(text)
    assert not text_faults(figures.maps(cap, layer=1, width=6.5).matplotlib())


def test_of_more_tokens_those_of_spans_have_names_and_of_many_positions_stand_there():
    narrow = {"width": 1.75, "names": ["A1"]}  # one map, as wide as each of four on a page
    ax = figures.maps(capture(n=60), venue="neurips", **narrow).matplotlib().axes[0]
    at = ax.get_xticks()
    assert {5, 11} <= set(at) and np.diff(sorted(at)).min() >= 4  # where the spans begin
    assert [label.get_text() for label in ax.get_xticklabels()][list(at).index(11)] == "·7"
    many = figures.maps(capture(n=160, layers=1), venue="neurips", **narrow).matplotlib().axes[0]
    assert [label.get_text() for label in many.get_xticklabels()][1].isdigit()


def test_two_tokens_and_many_are_readable():
    for n in (2, 200):
        cap = capture(n=n, layers=1) if n > 13 else bare(n)
        drawing = figures.maps(cap, venue="acl", wide=False, names=["A1", "D"]).matplotlib()
        assert all(b[2] - b[0] > 0 for _, b, _ in texts(drawing))
        assert all(ax.get_window_extent().height > 0.4 * drawing.dpi for ax in drawing.axes if ax.images and not ax.get_title())


def bare(n):
    return diffscope.load(tiny.own("v1", 2, num_hidden_layers=1)).capture(tiny.ids(n))


# ---------------------------------------------------------------- grids


def test_a_grid_shows_each_head_of_each_model_on_one_scale():
    first, second = (diffscope.load(tiny.own(kind, 2, num_hidden_layers=layers)) for kind, layers in (("v1", 3), ("standard", 2)))
    pair = diffscope.compare(first, second, tiny.ids(12))
    grid = figures.maps(pair, layers=[0, 1], heads=[1], venue="neurips")
    diff, standard = pair.captures
    seen = np.tril(np.ones((12, 12), bool))
    for layer in (0, 1):
        drawn = grid.data["map"].sel(layer=layer, head=1).values
        np.testing.assert_array_equal(drawn[0][seen], diff.map("D", layer, 1).values[seen])
        np.testing.assert_array_equal(drawn[1][seen], standard.map("A1", layer, 1).values[seen])
        assert np.isnan(drawn[:, ~seen]).all()
    images = grid.matplotlib().axes[0].images
    assert len(images) == 4 and len({image.get_clim() for image in images}) == 1 and images[0].get_clim()[0] < 0
    everything = figures.maps(pair, layers="all").data["map"]
    assert everything.sizes["layer"] == 3 and np.isnan(everything.sel(layer=2)[1]).all()  # the second model has no such layer
    assert len(figures.maps(pair, layers="all").plotly().data) == 2 * (3 + 2)
    alone = figures.maps(diff, heads=0, names=["lambda_A2"])
    assert alone.data.sizes["layer"] == 3 and float(alone.data["map"].min()) >= 0


@pytest.mark.parametrize(
    "choices, words",
    [
        ({"layers": [0, 9]}, "no layer 9"),
        ({"layers": 9}, "no layer 9"),
        ({"heads": "every"}, 'or "all"'),
        ({"heads": []}, 'or "all"'),
        ({"layers": "all", "names": ["A1", "D"]}, "a grid is of one map, not of 2"),
        ({"layers": "all", "queries": (0, 12), "size": 4}, "window of more than 4"),
        ({"layer": 1, "heads": "all"}, "leave layer, head, scale and limit out"),
    ],
)
def test_a_grid_that_cannot_be_drawn(cap, choices, words):
    with pytest.raises(DiffscopeError, match=words):
        figures.maps(cap, **choices)


def test_more_heads_than_a_column_holds_are_refused(cap):
    with pytest.raises(DiffscopeError, match=r"2 heads in a row do not fit 1 inches: choose heads"):
        figures.maps(cap, layers=[0], width=1.0).matplotlib()


# ---------------------------------------------------------------- files


def _pdf(content):
    streams = re.findall(rb"stream\r?\n(.*?)endstream", content, re.S)
    return content + b"".join(zlib.decompress(part) if part[:1] == b"x" else b"" for part in streams)


def test_a_long_prompts_maps_are_small_files_whose_text_is_text(tmp_path):
    drawn = figures.maps(capture(n=250, layers=1), venue="icml", names=["D"], width=1.75)
    first, second = (drawn.save(tmp_path / name).read_bytes() for name in ("a.pdf", "b.pdf"))
    assert first == second and len(first) < 150_000
    assert b"/ToUnicode" in _pdf(first) and b"/Type3" not in _pdf(first)
    assert len(drawn.save(tmp_path / "a.svg").read_bytes()) < 150_000


@pytest.mark.parametrize("suffix", [".pdf", ".svg"])
def test_a_figure_is_the_same_bytes_whatever_fonts_a_machine_has(cap, monkeypatch, suffix):
    from matplotlib import font_manager

    drawn = figures.maps(cap, width=2.0, names=["D"], title="λ·A₂ → D")
    expected = drawn.to_bytes(suffix)
    wide = next(entry for entry in font_manager.fontManager.ttflist if entry.name == "DejaVu Sans")
    impostors = [replace(wide, name=name) for name in ("Arimo", "Arial", "Helvetica", "Liberation Sans", "Noto Sans CJK JP")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [wide, *impostors])
    font_manager.fontManager._findfont_cached.cache_clear()
    assert drawn.to_bytes(suffix) == expected


def test_beside_a_figure_lie_its_data_its_lines_of_a_paper_and_where_it_comes_from(cap, tmp_path):
    drawn = figures.row(cap, layer=1, head=1, venue="icml", wide=True)
    for run in ("1", "2"):
        (tmp_path / run).mkdir()
        drawn.save(tmp_path / run / "row.pdf", also="all")
    names = ["row.data.json", "row.figure.tex", "row.pdf", "row.provenance.json"]
    first, second = (sorted((tmp_path / run).iterdir()) for run in ("1", "2"))
    assert [path.name for path in first] == names
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    lines = (tmp_path / "1" / "row.figure.tex").read_text()
    assert "\\begin{figure*}" in lines and "{row.pdf}" in lines and "layer 1; head 1; query 15; a prompt of 16 tokens" in lines
    record = json.loads((tmp_path / "1" / "row.provenance.json").read_text())
    assert record["data"]["layer"] == 1 and record["versions"]["torch"] and len(record["data"]["sha256"]) == 64
    with pytest.raises(DiffscopeError, match="there are data, latex, provenance, or all"):
        drawn.save(tmp_path / "row.pdf", also=["csv"])
    assert not (tmp_path / "row.pdf").exists()
    one_column = figures.row(cap, venue="icml", wide=False)
    assert "{figure*}" not in one_column.save(tmp_path / "b.pdf", also="latex").with_suffix(".figure.tex").read_text()


def test_pgf_is_written_without_latex_and_what_latex_would_read_is_text(cap, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    drawn = figures.maps(cap, venue="acl", width=4.0, names=["lambda_A2"])
    path = drawn.save(tmp_path / "maps.pgf")
    text = path.read_text()
    images = sorted(other.name for other in tmp_path.iterdir() if other != path)
    assert images and all(f"{{{name}}}" in text for name in images)
    assert r"\$x\_1\$" in text and r"\textless{}b\textgreater{}\&\$" in text and r"$\lambda$" in text
    again = tmp_path / "again"
    again.mkdir()
    assert drawn.save(again / "maps.pgf").read_bytes() == path.read_bytes()
    with pytest.raises(DiffscopeError, match="several files"):
        drawn.to_bytes(".pgf")


def test_latex_reads_no_command_in_a_text():
    assert as_latex(r"a_b {c} \d 50% #&$~^ <x>") == (
        r"a\_b \{c\} \textbackslash{}d 50\% \#\&\$\textasciitilde{}\textasciicircum{} \textless{}x\textgreater{}"
    )
    assert as_latex("10⁻¹² A₁ − λ·A₂") == r"10$^{-12}$ A$_{1}$ $-$ $\lambda$$\cdot$A$_{2}$"
    assert as_latex("东京") == "东京"


def test_a_caption_says_what_is_known(cap):
    assert figures.maps(cap, layer=2, head=1, contrast="sqrt").caption == (
        "A₁, A₂, λ·A₂ and D = A₁ − λ·A₂ of one head. "
        f"Model {cap.model_name}; layer 2; head 1; a prompt of 16 tokens; λ = {float(cap.map('D', 2, 1).attrs['lam']):.3f}. "
        "Colours follow the root of a value, and zero is white."
    )
    assert "D, answer, share of |D|, query 15" in figures.heads(cap).caption
    assert figures.maps(capture("standard")).caption.startswith("A of one head. ")
    assert "attention on each key set" in figures.heads(cap).caption.lower()


# ---------------------------------------------------------------- colours


def test_in_grey_what_is_darker_than_the_middle_is_above_zero():
    """The eye's lightness, CIE L*: below zero it ends where blue is half way."""

    def lightness(position):
        colour = np.array(theme.colour_map("diverging", "linear")(position)[:3])
        linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        y = linear @ [0.2126, 0.7152, 0.0722]
        return 116 * np.cbrt(y) - 16

    below = [lightness(p) for p in np.linspace(0, 0.5, 50)]
    above = [lightness(p) for p in np.linspace(0.5, 1, 50)]
    assert np.all(np.diff(below) > 0) and np.all(np.diff(above) < 0)
    assert below[0] > 55 and above[-1] < 25 and above[0] > 99


def test_tokens_of_every_kind_are_drawn(tmp_path):
    cap = capture(layers=1)
    hard = ("$x_1$", "a&b", "50%", "\\frac{1}{2}", "东京", "🙂", "line\nbreak", "a" * 60)
    drawn = figures.maps(replace(cap, prompts=[replace(cap.prompts[0], tokens=(*hard, *TOKENS[8:]))]), venue="neurips")
    drawing = drawn.matplotlib()
    names = [label.get_text() for label in drawing.axes[0].get_yticklabels()][:8]
    assert names[:4] == [*hard[:3], "\\frac{1}…"] and names[6] == "line↵bre…" and names[7] == "a" * 8 + "…"
    assert all(len(name) for name in names[4:6])  # or boxes, where no font has them
    width, _ = drawing.get_size_inches() * 72
    assert width == 5.5 * 72 and all(box[0] > -1 and box[2] < width + 1 for _, box, _ in texts(drawing))
    if boxes := [name for name in names[4:6] if "□" in name]:
        assert "no font of this machine has" in drawn.caption and len(boxes) <= 2


# ---------------------------------------------------------------- what labels say


def test_in_a_comparison_each_model_has_the_name_of_its_own_map():
    first, second = (diffscope.load(tiny.own(kind, 2, num_hidden_layers=2)) for kind in ("v1", "standard"))
    pair = diffscope.compare(first, second, tiny.ids(12))
    drawn = figures.heads(pair, statistic="gini")
    assert "query 11 · D or A" in drawn.caption
    diff, standard = (cap.measure(["gini"])["gini"].sel(map="D").isel(query=-1) for cap in pair.captures)
    np.testing.assert_array_equal(drawn.data["value"].values, np.stack([diff, standard]))
    assert "or A of standard attention" in figures.maps(pair, layers="all").caption
    with pytest.raises(DiffscopeError, match="has one map, and no lambda_A2"):
        figures.maps(pair, layers="all", names=["lambda_A2"])


def test_a_changed_model_is_said_to_be_changed(cap):
    scope = diffscope.load(tiny.own("v1", 2, num_hidden_layers=1))
    with scope.edit(diffscope.edits.set_lambda(0.0)):
        changed = scope.capture(tiny.ids(12))
    for drawn in (figures.maps(changed), figures.row(changed), figures.heads(changed), figures.lambdas(changed)):
        assert "under λ = 0" in drawn.caption
    assert "under" not in figures.maps(cap).caption


def test_a_file_of_somebody_elses_is_not_replaced(cap, tmp_path):
    (tmp_path / "paper.tex").write_text("mine")
    (tmp_path / "paper-img0.png").write_text("mine")
    figures.lambdas(cap).save(tmp_path / "paper.pdf", also="all")
    with pytest.raises(DiffscopeError, match="paper-img0.png would be replaced"):
        figures.maps(cap, names=["A1"]).save(tmp_path / "paper.pgf")
    assert {path.read_text() for path in (tmp_path / "paper.tex", tmp_path / "paper-img0.png")} == {"mine"}


def test_a_scale_that_values_go_beyond_says_so():
    cap = capture(n=16, layers=1)
    data = figures.maps(cap).data
    exact = [image.get_clim() for ax in figures.maps(cap, names=["A1", "D"]).matplotlib().axes for image in ax.images[:1]]
    largest = max(float(np.abs(data[name].where(data["visible"])).max()) for name in ("A1", "D"))
    assert max(high for _, high in exact) == pytest.approx(largest)
    lowest = -float(data["D"].where(data["visible"]).min())
    for limit, below in (
        (0.5 * lowest, ["≤"]),
        (1.5 * lowest, []),
    ):  # at each end by itself: nothing of D is below −1.5 times that
        short = figures.maps(cap, limit=limit, names=["A1", "D"]).matplotlib()
        labels = [text for text, *_ in texts(short) if text[:1] in "≤≥"]
        assert labels == [f"≥ {limit:.2g}", *(f"{sign} −{limit:.2g}" for sign in below), f"≥ {limit:.2g}"]
    robust = figures.maps(cap, limit="robust", names=["A1"])
    weights = np.abs(robust.data["A1"].where(robust.data["visible"]).values)
    expected = np.quantile(weights[np.isfinite(weights) & (weights > 0)], 0.999)
    (high,) = [ax.images[0].get_clim()[1] for ax in robust.matplotlib().axes if ax.images][:1]
    assert high == pytest.approx(expected, rel=1e-5) and robust.plotly().data[0].zmax == pytest.approx(high)
    with pytest.raises(DiffscopeError, match="a number above 0"):
        figures.maps(cap, limit=-1)


@pytest.mark.parametrize("picture", sorted((Path(__file__).parents[2] / "docs").glob("**/*.svg")), ids=lambda path: path.stem)
def test_the_pictures_of_the_pages_are_in_the_typeface_of_the_package(picture):
    if "_build" in picture.parts:
        pytest.skip("made with the site")
    families = set(re.findall(r"font-family: ([^;\"]*)", picture.read_text(encoding="utf-8")))
    assert families <= {typeface.ON_THE_WEB}  # what is of outlines names none
