"""The maps of one head for the browser: values under the pointer, zoom shared by all maps."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import for_html, shorten
from diffscope.figures.panels import edges, end_label, heading, labels, panels, positions, span_colours, spans_in_view

EVERY_TOKEN = 26  # a label at each token up to here; above, the browser thins them out
ALL_VALUES = 100 * 100  # cells up to which the pointer shows the values of all maps at once
GAP = 0.022


def draw(
    data: xr.Dataset,
    contrast: str = "linear",
    scale: str = "shared",
    limit: float | str | None = None,
    title: str | None = None,
    height: int = 430,
):
    """Draw for the screen; parameters as of ``diffscope.figures.maps``."""
    import plotly.graph_objects as go

    shown = panels(data, scale, limit)
    columns = len(shown)
    span = (1.0 - GAP * (columns - 1)) / columns if columns > 1 else 0.36
    figure = go.Figure()
    layout = theme.screen_layout(
        height=height,
        margin={"l": 8, "r": 20, "t": 92 if title != "" else 66, "b": 34},
        hovermode="closest",
        dragmode="zoom",
        plot_bgcolor=theme.UNSEEN,
    )
    values = _all_values(data)
    for i in range(columns):
        left = i * (span + GAP)
        x, y = ("x", "y") if i == 0 else (f"x{i + 1}", f"y{i + 1}")
        figure.add_trace(_heatmap(data, shown, i, x, y, left, span, contrast, values))
        layout[f"xaxis{x[1:]}"] = _axis(
            data,
            "key",
            domain=[left, left + span],
            anchor=y,
            matches=None if i == 0 else "x",
            title_text="key" if data.attrs.get("bin", 1) > 1 else "",
        )
        layout[f"yaxis{y[1:]}"] = _axis(
            data,
            "query",
            domain=[0, 1],
            anchor=x,
            matches=None if i == 0 else "y",
            title_text="query" if i == 0 else "",
            showticklabels=i == 0,
        )
    marks, spans = _span_marks(data, columns)
    layout["shapes"] = marks
    line = heading(data) if title is None else title
    layout["annotations"] = [_words(f"<b>{for_html(panel.title)}</b>", i * (span + GAP), 36) for i, panel in enumerate(shown)]
    if line:
        layout["annotations"].append(_words(for_html(line), 0, 62, size=13))
    figure.update_layout(**layout)
    _name_spans(figure, spans)
    return figure


def _name_spans(figure, spans: dict[str, str]) -> None:
    """Add a legend with the colours of the spans."""
    import plotly.graph_objects as go

    for name, colour in spans.items():
        line = {"color": colour, "width": 4}
        look = {"mode": "lines", "line": line, "hoverinfo": "skip", "showlegend": True}
        figure.add_trace(go.Scatter(x=[None], y=[None], name=for_html(name), **look))
    place = {"y": -0.02, "yref": "container", "yanchor": "bottom", "x": 0, "xanchor": "left"}
    figure.update_layout(legend=place, showlegend=bool(spans))


def _hover(shown, i: int, all_values: bool, bin_size: int) -> str:
    """Return what the pointer reads on map i: its value, of few cells those of the others too, and of a bin its middle."""
    half = f" ± {(bin_size - 1) / 2:g}" if bin_size > 1 else ""
    place = [f"query %{{y}}{half}", f"key %{{x}}{half}"]
    if not all_values:
        return f"{'<br>'.join(place)}<br><b>{for_html(shown[i].short)}  %{{z:.4f}}</b><extra></extra>"
    lines = [f"{for_html(panel.short)}  %{{customdata[{k}]:.4f}}" for k, panel in enumerate(shown)]
    lines[i] = f"<b>{lines[i]}</b>"
    return "<br>".join([*place, *lines]) + "<extra></extra>"


def _heatmap(data, shown, i, x, y, left, span, contrast, values):
    import plotly.graph_objects as go

    panel = shown[i]
    low, high = panel.limits
    ticks = [low, 0, high] if low < 0 else [0, high / 2, high]
    bar = {
        "orientation": "h",
        "x": left,
        "xanchor": "left",
        "xref": "paper",
        "len": span,
        "y": 1.0,
        "yanchor": "bottom",
        "thickness": 5,
        "outlinewidth": 0,
        "ypad": 9,
        "xpad": 0,
        "ticklen": 2,
        "tickcolor": theme.RULE,
        "tickvals": ticks,
        "ticktext": [end_label(tick, panel) for tick in ticks],
        "tickfont": {"size": 9, "color": theme.MUTED},
    }
    return go.Heatmap(
        z=panel.values,
        x=positions(data, "key") + (data.attrs.get("bin", 1) - 1) / 2,
        y=positions(data, "query") + (data.attrs.get("bin", 1) - 1) / 2,
        xaxis=x,
        yaxis=y,
        zmin=low,
        zmax=high,
        colorscale=[[p, c] for p, c in theme.colour_scale(panel.kind, contrast)],
        colorbar=bar,
        name=panel.name,
        customdata=values,
        hoverongaps=False,
        hovertemplate=_hover(shown, i, values is not None, data.attrs.get("bin", 1)),
    )


def _all_values(data: xr.Dataset) -> np.ndarray | None:
    first = next(iter(data.data_vars.values()))
    if first.size > ALL_VALUES or len(data.data_vars) == 1:
        return None
    return np.stack([np.asarray(a.values, dtype=np.float32) for a in data.data_vars.values()], axis=-1)


def _axis(data, dim, matches=None, title_text="", **more):
    low, high = edges(data, dim)
    firsts = positions(data, dim)
    bin_size = data.attrs.get("bin", 1)
    axis = theme.screen_axis(range=[low, high] if dim == "key" else [high, low], **more)
    axis |= {"ticklen": 7, "tickcolor": "rgba(0,0,0,0)"}  # the marks of spans lie where ticks would be
    axis["title"] = {**axis["title"], "text": title_text}
    if matches:
        axis["matches"] = matches
    if bin_size == 1:
        # a linear axis whose labels are tokens: the browser thins them out and brings them back on zooming in
        axis["labelalias"] = {str(p): _token_label(p, token, dim) for p, token in zip(firsts, labels(data, dim), strict=True)}
        if len(firsts) <= EVERY_TOKEN:
            axis["dtick"] = 1
            axis["tickfont"] = {"size": 9, "color": theme.INK}
        else:
            axis["nticks"] = 16
        axis["tickformat"] = "d"
        axis["separatethousands"] = False
        if dim == "key":
            axis["tickangle"] = -90 if len(firsts) > 6 else 0
    return axis


def _token_label(position: int, token: str, dim: str) -> str:
    text = for_html(shorten(token))
    number = f'<span style="color:{theme.MUTED}">{position}</span>'
    return f"{text} {number}" if dim == "query" else f"{number} {text}"


def _words(text, left, above, size=12):
    return {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "x": left,
        "y": 1.0,
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": -2,
        "yshift": above,
        "showarrow": False,
        "font": {"size": size, "color": theme.INK},
    }


def _span_marks(data: xr.Dataset, columns: int) -> tuple[list[dict], dict[str, str]]:
    """Return brackets above the keys of every map and left of the first one's queries, and the colours of the spans in view."""
    colours = span_colours(data)
    marks = []
    in_view = {}
    for name, dim, first, last in spans_in_view(data):
        in_view[name] = colours[name]
        look = {"type": "rect", "fillcolor": colours[name], "line": {"width": 0}, "layer": "above"}
        for i in range(columns if dim == "key" else 1):
            number = "" if i == 0 else str(i + 1)
            if dim == "key":
                place = {"xref": f"x{number}", "yref": f"y{number} domain", "x0": first, "x1": last}
                place |= {"ysizemode": "pixel", "yanchor": 1, "y0": 2, "y1": 6}
            else:
                place = {"xref": f"x{number} domain", "yref": f"y{number}", "y0": first, "y1": last}
                place |= {"xsizemode": "pixel", "xanchor": 0, "x0": -6, "x1": -2}
            marks.append(look | place)
    return marks, in_view
