"""What every figure is: labelled data, and two ways of drawing it."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, MissingExtra
from diffscope.figures import facts, pgf, theme, typeface
from diffscope.storage.atomic import check_target, replacing, to_json

PRINTED = (".pdf", ".svg", ".png", ".pgf")
ALSO = {"data": ".data.json", "latex": ".figure.tex", "provenance": ".provenance.json"}
LEAST_WIDTH, MOST_WIDTH = 1.0, 48.0  # inches of a printed figure: from a thumbnail to a poster
MOST_PIXELS = 200_000_000  # of a picture, which takes some bytes a pixel several times
FINE = 600  # dots an inch of what is no vector
COARSER = {".png": 300, ".svg": 400}  # whose images have no palette


@dataclass(frozen=True)
class Kind:
    """A kind of figure: how to get its data, and how to draw them."""

    name: str
    about: str
    data: Callable[..., xr.Dataset]
    plotly: Callable[..., Any]
    matplotlib: Callable[..., Any]
    wide: bool  # full text width, or one column

    def figure(self, data: xr.Dataset, venue: str | None, wide: bool | None, width: float | None, **style: Any) -> Figure:
        """A figure of these data.

        Parameters
        ----------
        data : xarray.Dataset
        venue, wide, width
            As of the functions of ``diffscope.figures``.
        **style
            What the drawings take: ``title``, ``contrast``, ``scale``.
        """
        inches = theme.width(venue, self.wide if wide is None else wide) if width is None else checked_width(width)
        if style.get("contrast", "sqrt") not in ("sqrt", "linear"):
            raise DiffscopeError(f"no contrast {style['contrast']!r}: there are sqrt and linear")
        if style.get("scale", "shared") not in ("shared", "own"):
            raise DiffscopeError(f"no scale {style['scale']!r}: there are shared (one for all maps) and own")
        limit = style.get("limit")
        if limit is not None and limit != "robust" and not (isinstance(limit, (int, float)) and limit > 0):
            raise DiffscopeError(f'the end of a scale is a number above 0, or "robust", not {limit!r}')
        return Figure(self, data, float(inches), venue, style)


#: every kind of figure there is, by name
KINDS: dict[str, Kind] = {}


def register(
    name: str,
    about: str,
    *,
    data: Callable[..., xr.Dataset],
    plotly: Callable[..., Any],
    matplotlib: Callable[..., Any],
    wide: bool = True,
) -> Kind:
    """Make a kind of figure known."""
    KINDS[name] = Kind(name, about, data, plotly, matplotlib, wide)
    return KINDS[name]


@dataclass(frozen=True)
class Figure:
    """Labelled data with a drawing for the screen (plotly) and one for print (matplotlib).

    Attributes
    ----------
    kind : Kind
    data : xarray.Dataset
        What is drawn.
    width : float
        In print, in inches.
    venue : str or None
        Whose font sizes are used in print.
    style : dict
        What both drawings take, such as the title.
    """

    kind: Kind
    data: xr.Dataset
    width: float
    venue: str | None = None
    style: dict = field(default_factory=dict)

    def plotly(self, **style: Any) -> Any:
        """A ``plotly.graph_objects.Figure`` to explore; what `style` says holds for this drawing."""
        _need("plotly")
        return self.kind.plotly(self.data, **{**self.style, **style})

    def matplotlib(self) -> Any:
        """A ``matplotlib.figure.Figure`` to print; it belongs to no pyplot window."""
        _need("matplotlib")
        with theme.styled(self.venue):
            drawing = self.kind.matplotlib(self.data, self.width, **self.style)
            drawing.draw_without_rendering()  # whatever reads the style does so now
        return drawing

    @property
    def caption(self) -> str:
        """What is seen, of which model, layer, head and prompt, averaged over what: for below the figure in a paper."""
        return facts.caption(self)

    def save(self, path: str | os.PathLike, also: Sequence[str] | str = ()) -> Path:
        """Write the figure, whole or not at all.

        Parameters
        ----------
        path : path-like
            Ends in .pdf, .svg, .png or .pgf to print, .html to explore, .json for the data. The images of a .pgf lie beside it.
        also : sequence of str, or "all"
            What is written beside it, under its name: ``data`` (.data.json), ``latex`` (.figure.tex: the lines that show it in a
            paper, with its caption), ``provenance`` (.provenance.json: what it was made of, the versions, the command).

        Returns
        -------
        pathlib.Path

        Raises
        ------
        DiffscopeError
            The suffix is another one, or the file cannot be written.
        """
        path = Path(path)
        check_suffix(path)
        words = _beside(also)
        files = self._pgf(path) if path.suffix.lower() == ".pgf" else {path: self.to_bytes(path.suffix)}
        contents = {
            "data": lambda: to_json(self.data.to_dict()),
            "latex": lambda: facts.latex(self, path),
            "provenance": lambda: to_json(facts.provenance(self)),
        }
        files |= {path.with_name(path.stem + ALSO[word]): contents[word]().encode() for word in words}
        try:
            for name, content in files.items():
                with replacing(name) as unfinished:
                    unfinished.write_bytes(content)
        except OSError as error:
            raise DiffscopeError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
        return path

    def to_bytes(self, suffix: str) -> bytes:
        """What ``save`` would write under a name with this suffix."""
        suffix = suffix.lower()
        if suffix == ".pgf":
            raise DiffscopeError("a figure as .pgf is several files: save it under a name")
        if suffix == ".json":
            return to_json(self.data.to_dict()).encode()
        if suffix == ".html":
            drawing = self.plotly()
            drawing.update_layout(paper_bgcolor=theme.PAPER)
            look = {"displaylogo": False, "responsive": True}
            page = drawing.to_html(include_plotlyjs=True, full_html=True, config=look, div_id=self.kind.name)
            return page.encode()
        return self._printed(suffix.removeprefix("."), dpi=COARSER.get(suffix, FINE))

    def _pgf(self, path: Path) -> dict[Path, bytes]:
        """The files of a figure as PGF, images first: what names them is there last."""
        check_target(path)
        drawing = self.matplotlib()
        with tempfile.TemporaryDirectory() as folder:
            with theme.styled(self.venue):
                pgf.write(drawing, Path(folder) / path.name, FINE)
            written = sorted(Path(folder).iterdir(), key=lambda file: file.name == path.name)
            files = {path.with_name(file.name): file.read_bytes() for file in written}
        foreign = [file.name for file in files if file.exists() and not path.exists()]
        if foreign:
            raise DiffscopeError(
                f"{foreign[0]} would be replaced, and {path.name} is not there that it could be of; choose another name"
            )
        return files

    def _printed(self, kind: str, dpi: int) -> bytes:
        drawing = self.matplotlib()
        if kind == "png":
            _check_pixels(*drawing.get_size_inches(), dpi)
        buffer = io.BytesIO()
        about: dict[str, str | None] = {"Title": f"{self.kind.name}: {self.data.attrs.get('model', '')}".rstrip(": ")}
        if kind == "pdf":
            about |= {"Creator": "diffscope", "Producer": "diffscope", "CreationDate": None}
        elif kind == "svg":
            about |= {"Creator": "diffscope", "Date": None}
        with theme.styled(self.venue):
            drawing.savefig(buffer, format=kind, metadata=about, dpi=dpi)
        return typeface.for_the_web(buffer.getvalue()) if kind == "svg" else buffer.getvalue()

    def picture(self, dpi: int = 150) -> bytes:
        """The drawing for print as a PNG of so many dots an inch."""
        return self._printed("png", dpi=dpi)

    def _repr_png_(self) -> bytes:
        return self.picture()  # a notebook keeps its pictures: a quarter of the size in print

    def __repr__(self) -> str:
        dims = dict.fromkeys(dim for array in self.data.data_vars.values() for dim in array.dims)
        sizes = ", ".join(f"{dim}: {self.data.sizes[dim]}" for dim in dims)
        return f"<diffscope figure {self.kind.name!r} of {', '.join(map(str, self.data.data_vars))} ({sizes})>"


def checked_width(width: Any) -> float:
    """Return a width of a printed figure in inches.

    Raises
    ------
    DiffscopeError
        It is no number, or not between ``LEAST_WIDTH`` and ``MOST_WIDTH``.
    """
    if isinstance(width, bool) or not isinstance(width, (int, float, np.number)) or not LEAST_WIDTH <= width <= MOST_WIDTH:
        raise DiffscopeError(
            f"a figure is between {LEAST_WIDTH:g} and {MOST_WIDTH:g} inches wide, not {width!r}; give width in inches, or a venue"
        )
    return float(width)


def _check_pixels(width: float, height: float, dpi: int) -> None:
    """Refuse a picture that would take gigabytes of memory."""
    across, down = round(width * dpi), round(height * dpi)
    if across * down > MOST_PIXELS:
        raise DiffscopeError(
            f"a picture of {width:.3g} × {height:.3g} inches at {dpi} dots an inch has {across:,} × {down:,} pixels, and "
            f"{MOST_PIXELS:,} are drawn at most; give a smaller width, or save it as .pdf or .svg"
        )


def check_suffix(path: Path) -> None:
    """Refuse a name that no figure can be written under."""
    if path.suffix.lower() not in (*PRINTED, ".html", ".json"):
        suffix = path.suffix or "a file without a suffix"
        raise DiffscopeError(f"cannot write a figure as {suffix!r}: use .pdf, .svg, .png, .pgf, .html or .json")


def _beside(also: Sequence[str] | str) -> list[str]:
    """What is written beside a figure, by name."""
    if also == "all":
        return list(ALSO)
    words = [also] if isinstance(also, str) else list(also)
    for word in words:
        if word not in ALSO:
            raise DiffscopeError(f"nothing called {word!r} is written beside a figure: there are {', '.join(ALSO)}, or all")
    return words


def _need(package: str) -> None:
    try:
        __import__(package)
    except ImportError as error:
        raise MissingExtra(f"drawing needs {package}, which is not installed: pip install {package}") from error
