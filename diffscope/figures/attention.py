"""Figures of attention: maps, rows, heads, λ, and how exact a capture is; of trained cohorts and of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol, Unpack

import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.capture.comparison import Comparison
from diffscope.errors import DiffscopeError
from diffscope.figures import by_head as _by_head
from diffscope.figures import cohort_chart as _cohort_chart
from diffscope.figures import images as _images
from diffscope.figures import layers as _layers
from diffscope.figures import map_data as _map_data
from diffscope.figures import rows as _rows
from diffscope.figures import verdict_chart as _verdict_chart
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.inputs import Captures, captures_of
from diffscope.figures.values import cells
from diffscope.numbers import listed

Window = slice | tuple[int, int] | int
Heads = int | Sequence[int] | Literal["all"]
Contrast = Literal["sqrt", "linear"]


class Verdict(Protocol):
    """What ``diffscope.hypotheses.test`` gives for each test."""

    def as_dict(self) -> dict: ...


@figure()
def maps(
    cap: Captures,
    *,
    layer: int | tuple[int, int] | None = None,
    head: int | tuple[int, int] | None = None,
    layers: Heads | None = None,
    heads: Heads | None = None,
    queries: Window | None = None,
    keys: Window | None = None,
    size: int | None = None,
    names: Sequence[str] | None = None,
    contrast: Contrast = "linear",
    scale: Literal["shared", "own"] = "shared",
    limit: float | Literal["robust"] | None = None,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw the maps of one head side by side: A1, A2, λ·A2, D; of a comparison D of both models; or one map of many heads.

    Parameters
    ----------
    cap : Capture or Comparison
        Each of one prompt, such as ``batch[0]``. For a grid also several captures of one prompt, in a sequence or by name.
    layer : int, optional
        As the model numbers it, by default its first; of a comparison also one for each model.
    head : int, optional
        By default the first; of a comparison also one for each model.
    layers, heads : int, sequence of int or "all", optional
        A grid instead: one map of each of these heads, a row a layer and a column a head, all on one scale; of a comparison the
        grids of both models side by side. Where one of the two is not given it is "all".
    queries, keys : slice, (start, stop) or int, optional
        The window to draw. Without one, a prompt of more than `size` tokens is drawn in bins of which each shows its value of
        largest magnitude.
    size : int
        The most tokens a side that are drawn one by one: 512, of a grid 64. Longer prompts are drawn in at most 256 bins.
    names : sequence of str, optional
        Which of A1, A2, lambda_A2, D and share, of differential attention; not of a comparison. Of a grid one, by default D.
    contrast : {"linear", "sqrt"}
        Whether a colour follows the weight, or its root, which shows small weights beside a sink.
    scale : {"shared", "own"}
        One colour scale for all maps, or one each.
    limit : float or "robust", optional
        The value at the end of the colour scale; "robust" is the 99.9th percentile of the weights that are drawn. Larger ones are
        drawn like it, and the scale says so. By default the largest; where that is ten times as large in a picture of bins, of
        which it would leave nothing to see, "robust".

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such layer, head, window, map or venue.

    Examples
    --------
    >>> import diffscope
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> capture = diffscope.load("mini-diff").capture(text, spans={"answer": "7421"})
    >>> diffscope.figures.maps(capture, layer=2, head=1, venue="icml")
    <diffscope figure 'maps' of A1, A2, lambda_A2, D (query: 15, key: 15)>
    >>> diffscope.figures.maps(capture, layers="all", heads="all", venue="icml")
    <diffscope figure 'maps' of map (model: 1, layer: 3, head: 2, query: 15, key: 15)>
    """
    if size is not None and size < 1:
        raise DiffscopeError(f"a map of {size} tokens a side shows nothing; give size=1 or more")
    if layers is not None or heads is not None:
        if layer is not None or head is not None or scale != "shared" or limit is not None:
            raise DiffscopeError(
                "a grid is chosen by layers= and heads=, and has one scale; leave layer, head, scale and limit out"
            )
        captures = {name: capture.only() for name, capture in captures_of(cap, one_side=False).items()}
        data = _images.grid_data(captures, layers, heads, _one_name(names), queries, keys, size or _images.SIZE)
        about = f"{data.attrs['title']}: one map of many heads: a row a layer, a column a head"
        return Drawing(_images.CHART, data, {"contrast": contrast}, about)
    if isinstance(cap, Comparison) and names is not None:
        raise DiffscopeError("of a comparison D of both models is drawn; leave names out, or draw each capture")
    data = _map_data.data(cap, layer, head or 0, queries, keys, size or _map_data.LARGEST, names)
    about = _titles(data) if "models" in data.attrs else f"{_titles(data)} of one head"
    return Drawing(_map_data.CHART, data, {"contrast": contrast, "scale": scale, "limit": limit}, about)


def _titles(data: xr.Dataset) -> str:
    """Return what the maps of a dataset are called, in a row of words."""
    return listed([array.attrs["title"] for array in data.data_vars.values()])


def _one_name(names: Sequence[str] | None) -> str:
    chosen = [names] if isinstance(names, str) else list(names or ["D"])
    if len(chosen) != 1:
        raise DiffscopeError(f'a grid is of one map, not of {len(chosen)}: names=["D"]')
    return chosen[0]


@figure()
def row(
    cap: Capture,
    *,
    layer: int | None = None,
    head: int = 0,
    query: int | str = -1,
    keys: Window | None = None,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw what one query attends to: A1 as bars up, λ·A2 as bars down, and what is left, D, as points.

    Parameters
    ----------
    cap : Capture
        Of one prompt.
    layer, head, keys
        As of :func:`maps`; at most 4,096 keys.
    query : int or "last"
        A token; negative ones count from the end.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import diffscope
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> capture = diffscope.load("mini-diff").capture(text, spans={"answer": "7421"})
    >>> diffscope.figures.row(capture, layer=1, head=0)
    <diffscope figure 'row' of A1, lambda_A2, D (key: 15)>
    """
    data = _rows.data(cap, layer, head, query, keys)
    return Drawing(_rows.CHART, data, about=f"{_titles(data)} of one query")


@figure(wide=False, known=["measured"])
def heads(
    cap: Capture | Comparison,
    *,
    statistic: str = "span_mass",
    query: int | str | None = -1,
    map: str | None = None,
    span: str | None = None,
    normalisation: str | None = None,
    where: Mapping[str, str] | None = None,
    measured: xr.Dataset | None = None,
    contrast: Contrast = "linear",
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw a statistic by layer and head; of a comparison of both models side by side, on one scale.

    Parameters
    ----------
    cap : Capture or Comparison
        Of one prompt.
    statistic : str
        A name from ``diffscope.stats.STATISTICS``.
    query : int, "last" or "mean"
        At which query; negative ones count from the prompt's end. "mean" is over all queries.
    map, span, normalisation : str, optional
        Where the statistic has that dimension: which label. By default D, the span "answer" (else the sink) and "share".
    where : mapping of str to str, optional
        The same along other dimensions, by their names.
    measured : xarray.Dataset, optional
        What ``cap.measure`` returned, where the caller has it; of a comparison that has its dimension ``model``.
    contrast
        As of :func:`maps`.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such statistic, query or label, the statistic has no meaningful mean, or there are several prompts.

    Examples
    --------
    >>> import diffscope
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> capture = diffscope.load("mini-diff").capture(text, spans={"answer": "7421"})
    >>> diffscope.figures.heads(capture, statistic="gini")
    <diffscope figure 'heads' of gini (layer: 3, head: 2)>
    """
    labels = {"map": map, "span": span, "normalisation": normalisation, **(where or {})}
    if isinstance(cap, Comparison):
        values = _by_head.of_two(cap, statistic, query, measured, labels)
        drawing = cells.drawing(values, panels="model")
        about = {name: values.attrs[name] for name in ("signs", "edits")}
        return replace(drawing, data=drawing.data.assign_attrs(about), style=drawing.style | {"contrast": contrast}, wide=True)
    data = _by_head.data(cap, statistic, query, measured, **labels)
    return Drawing(_by_head.CHART, data, {"contrast": contrast})


@figure(wide=False)
def lambdas(
    cap: Capture,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw λ by layer: mean and range over heads and queries, beside its initial value.

    Parameters
    ----------
    cap : Capture
        Of one prompt.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        Standard attention has no λ, or the capture is of several prompts.

    Examples
    --------
    >>> import diffscope
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> capture = diffscope.load("mini-diff").capture(text, spans={"answer": "7421"})
    >>> diffscope.figures.lambdas(capture)
    <diffscope figure 'lambdas' of lam, lowest, highest, lam_init (layer: 3)>
    """
    data = _layers.lambdas_data(cap)
    ends = "; small points are the least and the largest of heads and tokens" if _layers.has_range(data) else ""
    return Drawing(_layers.CHART, data, about=f"λ by layer, with its initial value{ends}")


@figure(wide=False)
def fidelity(
    cap: Capture,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw the error of the rebuilt attention output by layer, beside its tolerance.

    Parameters
    ----------
    cap : Capture

    Returns
    -------
    Figure

    Examples
    --------
    >>> import diffscope
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> capture = diffscope.load("mini-diff").capture(text, spans={"answer": "7421"})
    >>> diffscope.figures.fidelity(capture)
    <diffscope figure 'fidelity' of error, tolerance (layer: 3)>
    """
    return Drawing(_layers.CHART, _layers.fidelity_data(cap), about="error of the capture by layer, beside its tolerance")


@figure()
def cohort(
    dataset: xr.Dataset,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw every arm of a trained cohort: its curves, when it formed, its answers by length and number of distractors.

    Parameters
    ----------
    dataset : xarray.Dataset
        What ``diffscope train`` measured; ``diffscope.open`` opens it.

    Returns
    -------
    Figure
    """
    about = "every arm of a trained cohort: curves, formation, answers by length and distractors"
    return Drawing(_cohort_chart.CHART, _cohort_chart.data(dataset), about=about)


@figure()
def board(
    verdicts: Sequence[Verdict | Mapping],
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw tests of the hypotheses: each estimate with its interval, beside what there would be without an effect.

    Parameters
    ----------
    verdicts : sequence of Verdict, or of dict
        What ``diffscope.hypotheses.test`` gives, or a board of a study, or what their ``as_dict`` gives.

    Returns
    -------
    Figure
    """
    return Drawing(_verdict_chart.CHART, _verdict_chart.data(verdicts))
