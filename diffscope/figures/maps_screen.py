"""The maps of one head for the browser: values under the pointer, zoom shared by all maps."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import for_html, shorten
from diffscope.figures.panels import edges, heading, labels, marked_spans, panels, positions

EVERY_TOKEN = 26  # a label at each token up to here; above, the browser thins them out
ALL_VALUES = 100 * 100  # cells up to which the pointer shows the values of all maps at once
GAP = 0.022


def draw(data: xr.Dataset, contrast: str = "sqrt", scale: str = "shared", title: str | None = None, height: int = 430):
    import plotly.graph_objects as go

    shown = panels(data, scale)
    columns = len(shown)
    span = (1.0 - GAP * (columns - 1)) / columns if columns > 1 else 0.36
    made = go.Figure()
    layout = theme.screen_layout(
        height=height,
        margin={"l": 8, "r": 20, "t": 92 if title != "" else 66, "b": 34},
        hovermode="closest",
        dragmode="zoom",
        plot_bgcolor=theme.UNSEEN,
    )
    every = _all_values(data)
    for i, panel in enumerate(shown):
        left = i * (span + GAP)
        x, y = ("x", "y") if i == 0 else (f"x{i + 1}", f"y{i + 1}")
        made.add_trace(_heatmap(data, panel, x, y, left, span, contrast, every, i))
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
    marks, names = _span_marks(data, columns)
    layout["shapes"] = marks
    line = heading(data) if title is None else title
    layout["annotations"] = [_words(f"<b>{panel.title}</b>", i * (span + GAP), 36) for i, panel in enumerate(shown)]
    if line:
        layout["annotations"].append(_words(for_html(line), 0, 62, size=13))
    made.update_layout(**layout)
    for name in names:
        made.add_trace(
            go.Scatter(
                x=[None],
                y=[None],
                mode="lines",
                name=for_html(name),
                line={"color": theme.span_colour(name), "width": 4},
                hoverinfo="skip",
                showlegend=True,
            )
        )
    made.update_layout(
        legend={**layout["legend"], "y": -0.02, "yref": "container", "yanchor": "bottom", "x": 0, "xanchor": "left"},
        showlegend=bool(names),
    )
    return made


def _heatmap(data, panel, x, y, left, span, contrast, every, i):
    import plotly.graph_objects as go

    lines = [f"query %{{y}}<br>key %{{x}}<br><b>{panel.title.split(' ')[0]}  %{{z:.4f}}</b>"]
    if every is not None:
        names = [theme.TITLES[name].split(" ")[0] for name in data.data_vars]
        lines = [
            "query %{y}<br>key %{x}<br>"
            + "<br>".join(
                (f"<b>{name}  %{{customdata[{k}]:.4f}}</b>" if k == i else f"{name}  %{{customdata[{k}]:.4f}}")
                for k, name in enumerate(names)
            )
        ]
    low, high = panel.limits
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
        "tickvals": [low, 0, high] if low < 0 else [0, high / 2, high],
        "ticktext": [_number(v) for v in ([low, 0, high] if low < 0 else [0, high / 2, high])],
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
        customdata=every,
        hoverongaps=False,
        hovertemplate=lines[0] + "<extra></extra>",
    )


def _all_values(data: xr.Dataset) -> np.ndarray | None:
    first = next(iter(data.data_vars.values()))
    if first.size > ALL_VALUES or len(data.data_vars) == 1:
        return None
    return np.stack([np.asarray(a.values, dtype=np.float32) for a in data.data_vars.values()], axis=-1)


def _axis(data, dim, matches=None, title_text="", **more):
    low, high = edges(data, dim)
    there, bin_size = positions(data, dim), data.attrs.get("bin", 1)
    axis = theme.screen_axis(range=[low, high] if dim == "key" else [high, low], **more)
    axis |= {"ticklen": 7, "tickcolor": "rgba(0,0,0,0)"}  # the marks of spans lie where ticks would be
    axis["title"] = {**axis["title"], "text": title_text}
    if matches:
        axis["matches"] = matches
    if bin_size == 1:
        # a linear axis whose labels are tokens: the browser thins them out and brings them back on zooming in
        axis["labelalias"] = {str(p): _token_label(p, token, dim) for p, token in zip(there, labels(data, dim), strict=True)}
        if len(there) <= EVERY_TOKEN:
            axis["dtick"] = 1
            axis["tickfont"] = {"size": 9, "color": theme.INK}
        else:
            axis["nticks"] = 16
        axis["tickformat"] = "d"
        axis["separatethousands"] = False
        if dim == "key":
            axis["tickangle"] = -90 if len(there) > 6 else 0
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


def _span_marks(data, columns):
    """Thin brackets above the keys and left of the queries, and the names of the spans that have any."""
    marks, names = [], []
    for name, where in marked_spans(data).items():
        colour = theme.span_colour(name)
        for dim in ("key", "query"):
            low, high = edges(data, dim)
            for start, stop in where:
                a, b = max(start - 0.5, low), min(stop - 0.5, high)
                if a >= b:
                    continue
                names.append(name)
                for i in range(columns if dim == "key" else 1):
                    n = "" if i == 0 else str(i + 1)
                    line = {"type": "rect", "fillcolor": colour, "line": {"width": 0}, "layer": "above"}
                    if dim == "key":
                        line |= {
                            "xref": f"x{n}",
                            "yref": f"y{n} domain",
                            "x0": a,
                            "x1": b,
                            "ysizemode": "pixel",
                            "yanchor": 1,
                            "y0": 2,
                            "y1": 6,
                        }
                    else:
                        line |= {
                            "xref": f"x{n} domain",
                            "yref": f"y{n}",
                            "y0": a,
                            "y1": b,
                            "xsizemode": "pixel",
                            "xanchor": 0,
                            "x0": -6,
                            "x1": -2,
                        }
                    marks.append(line)
    return marks, list(dict.fromkeys(names))


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}".replace("-", "−")
