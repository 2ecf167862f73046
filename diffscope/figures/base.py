"""What every figure is: labelled data, and two ways of drawing it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr

from diffscope.errors import DiffscopeError, MissingExtra
from diffscope.figures import theme
from diffscope.files import replacing, to_json

PRINTED = (".pdf", ".svg", ".png")


@dataclass(frozen=True)
class Kind:
    """An entry of the registry: how to get the data of a figure, and how to draw it."""

    name: str
    about: str
    data: Callable[..., xr.Dataset]
    plotly: Callable[..., Any]
    matplotlib: Callable[..., Any]
    wide: bool  # full text width, or one column

    def __call__(self, cap, **choices) -> Figure:
        style = {k: choices.pop(k) for k in ("venue", "width", "contrast", "scale", "title") if k in choices}
        wide = choices.pop("wide", self.wide)
        inches = style.pop("width", None) or theme.width(style.get("venue"), wide)
        if style.get("contrast", "sqrt") not in ("sqrt", "linear"):
            raise DiffscopeError(f"no contrast {style['contrast']!r}: there are sqrt and linear")
        if style.get("scale", "shared") not in ("shared", "own"):
            raise DiffscopeError(f"no scale {style['scale']!r}: there are shared (one for all maps) and own")
        try:
            data = self.data(cap, **choices)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            word = str(error).rpartition("argument")[2].strip()
            raise DiffscopeError(f"the figure {self.name!r} does not take {word}") from error
        return Figure(self, data, float(inches), style)


#: every kind of figure there is, by name
FIGURES: dict[str, Kind] = {}


def register(name: str, about: str, *, data, plotly, matplotlib, wide: bool = True) -> Kind:
    FIGURES[name] = Kind(name, about, data, plotly, matplotlib, wide)
    return FIGURES[name]


@dataclass(frozen=True)
class Figure:
    """Labelled data with a drawing for the screen (plotly) and one for print (matplotlib)."""

    kind: Kind
    data: xr.Dataset
    width: float  # inches, in print
    style: dict = field(default_factory=dict)

    def plotly(self):
        """A `plotly.graph_objects.Figure` to explore."""
        _need("plotly")
        return self.kind.plotly(self.data, **{k: v for k, v in self.style.items() if k != "venue"})

    def matplotlib(self):
        """A `matplotlib.figure.Figure` to print; it belongs to no pyplot window."""
        _need("matplotlib")
        style = {k: v for k, v in self.style.items() if k != "venue"}
        with theme.styled(self.style.get("venue")):
            made = self.kind.matplotlib(self.data, self.width, **style)
            made.draw_without_rendering()  # whatever reads the style does so now
        return made

    def save(self, path: str | os.PathLike) -> Path:
        """Write the figure whole or not at all: .pdf .svg .png to print, .html to explore, .json the data."""
        path = Path(path)
        check_suffix(path)
        content = self.to_bytes(path.suffix)
        try:
            with replacing(path) as unfinished:
                unfinished.write_bytes(content)
        except OSError as error:
            raise DiffscopeError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
        return path

    def to_bytes(self, suffix: str) -> bytes:
        """What `save` would write."""
        suffix = suffix.lower()
        if suffix == ".json":
            return to_json(self.data.to_dict()).encode()
        if suffix == ".html":
            made = self.plotly()
            made.update_layout(paper_bgcolor=theme.PAPER)
            page = made.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False, "responsive": True})
            return page.encode()
        return self._printed(suffix.removeprefix("."))

    def _printed(self, kind: str) -> bytes:
        made = self.matplotlib()
        where = io.BytesIO()
        about = {"Title": f"{self.kind.name}: {self.data.attrs.get('model', '')}".rstrip(": ")}
        if kind == "pdf":
            about |= {"Creator": "diffscope", "Producer": "diffscope", "CreationDate": None}
        elif kind == "svg":
            about |= {"Creator": "diffscope", "Date": None}
        with theme.styled(self.style.get("venue")):
            made.savefig(where, format=kind, metadata=about, dpi=300 if kind == "png" else 600)
        return where.getvalue()

    def _repr_png_(self) -> bytes:
        return self._printed("png")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {size}" for name, size in self.data.sizes.items())
        return f"<diffscope figure {self.kind.name!r} of {', '.join(map(str, self.data.data_vars))} ({sizes})>"


def check_suffix(path: Path) -> None:
    """Refuse a name that no figure can be written under."""
    if path.suffix.lower() not in (*PRINTED, ".html", ".json"):
        said = path.suffix or "a file without a suffix"
        raise DiffscopeError(f"cannot write a figure as {said!r}: use .pdf, .svg, .png, .html or .json")


def _need(package: str) -> None:
    try:
        __import__(package)
    except ImportError as error:
        raise MissingExtra(f"drawing needs {package}, which is not installed: pip install {package}") from error
