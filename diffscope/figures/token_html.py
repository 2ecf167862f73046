"""The prompt itself, each token on the colour of the weight that one query gives it."""

from __future__ import annotations

import html

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import visible
from diffscope.figures.panels import marked_spans, positions


def token_html(data: xr.Dataset, name: str | None = None, contrast: str = "sqrt") -> str:
    """A row (the data of the figure "row") as coloured text; everything a token says is escaped."""
    name = name or ("D" if "D" in data.data_vars else "A")
    kind = theme.SCALES[name]
    values = np.asarray(data[name].values, dtype=float)
    low, high = theme.colour_limits(kind, float(np.abs(values).max(initial=0.0)))
    scale = theme.colour_scale(kind, contrast)
    marks = {p: theme.span_colour(span) for span, runs in marked_spans(data).items() for a, b in runs for p in range(a, b)}
    pieces = []
    for place, token, value in zip(positions(data, "key"), data["key_token"].values, values, strict=True):
        paper = _colour((value - low) / (high - low), scale)
        ink = theme.PAPER if _luminance(paper) < 0.45 else theme.INK
        line = f";box-shadow:inset 0 -2px 0 {marks[place]}" if place in marks else ""
        edge = ";outline:1.5px solid " + theme.INK if place == data.attrs["query"] else ""
        words = html.escape(visible(str(token)))
        pieces.append(
            f'<span title="{place}: {name} = {value:.4f}" style="background:rgb{paper};color:{ink}{line}{edge};'
            f'padding:1px 1px;border-radius:2px">{words}</span>' + ("<br>" if "\n" in str(token) else "")
        )
    return (
        '<div style="font:12.5px/1.75 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;word-break:break-word">'
        + "<wbr>".join(pieces)
        + "</div>"
    )


def _colour(share: float, scale) -> tuple[int, int, int]:
    places = [p for p, _ in scale]
    channels = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for _, c in scale])
    return tuple(round(float(np.interp(share, places, channels[:, i]))) for i in range(3))


def _luminance(rgb) -> float:
    return (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255
