"""What a figure is: labelled data, a chart that draws it for the screen and for print, and the call that made it."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, MissingExtra
from diffscope.figures import theme, typeface
from diffscope.figures.captions import caption_of, latex_of, provenance_of
from diffscope.figures.literals import python_literal
from diffscope.figures.pgf import write_pgf
from diffscope.storage.atomic import check_target, replacing, to_json

PRINTED = (".pdf", ".svg", ".png", ".pgf")
ALSO = {"data": ".data.json", "latex": ".figure.tex", "provenance": ".provenance.json"}
LEAST_WIDTH, MOST_WIDTH = 1.0, 48.0  # inches of a printed figure: from a thumbnail to a poster
MOST_PIXELS = 200_000_000  # of a picture, which takes some bytes a pixel several times
FINE = 600  # dots an inch of what is no vector
COARSER = {".png": 300, ".svg": 400}  # whose images have no palette


@dataclass(frozen=True)
class Chart:
    """A way of drawing labelled data: ``plotly(data, **style)`` and ``matplotlib(data, width, **style)``."""

    plotly: Callable[..., Any]
    matplotlib: Callable[..., Any]


@dataclass(frozen=True)
class Figure:
    """Labelled data with a drawing for the screen (plotly) and one for print (matplotlib).

    Attributes
    ----------
    name : str
        Of the function in ``diffscope.figures`` that made it.
    chart : Chart
        How it is drawn.
    data : xarray.Dataset
        What is drawn.
    width : float
        In print, in inches.
    venue : str or None
        Whose widths it goes by.
    style : dict
        What both drawings take, such as the title.
    about : str
        What is seen, for the caption of data that does not say it.
    call : dict
        The keywords it was made with that differ from their defaults.
    """

    name: str
    chart: Chart
    data: xr.Dataset
    width: float
    venue: str | None = None
    style: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    call: Mapping[str, Any] = field(default_factory=dict)

    def python(self, subject: str = "subject") -> str:
        """Return the call that makes this figure, as Python.

        Parameters
        ----------
        subject : str
            The Python of what the figure is of: the name of a variable, or any expression.

        Returns
        -------
        str
            Such as ``diffscope.figures.maps(cap, layer=2, head=1)``. A value that cannot be written as a literal, an array for
            example, stands as a variable with the name of its keyword.
        """
        keywords = [f"{word}={python_literal(value, word)}" for word, value in self.call.items()]
        return f"diffscope.figures.{self.name}({', '.join([subject, *keywords])})"

    def plotly(self, **style: Any) -> Any:
        """Draw for the screen, as a ``plotly.graph_objects.Figure``; `style` holds for this drawing alone."""
        _need("plotly")
        return self.chart.plotly(self.data, **{**self.style, **style})

    def matplotlib(self) -> Any:
        """Draw for print, as a ``matplotlib.figure.Figure`` that belongs to no pyplot window."""
        _need("matplotlib")
        with theme.styled():
            drawing = self.chart.matplotlib(self.data, self.width, **self.style)
            drawing.draw_without_rendering()  # whatever reads the style does so now
        return drawing

    @property
    def caption(self) -> str:
        """What is seen, of which model, layer, head and prompt, averaged over what, for below the figure in a paper."""
        return caption_of(self.data, self.about, self.style)

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
        drawn = {"venue": self.venue, "width_in": self.width} | self.style
        contents = {
            "data": lambda: to_json(self.data.to_dict()),
            "latex": lambda: latex_of(self.name, self.data, path, self.width, self.venue, self.caption),
            "provenance": lambda: to_json(provenance_of(self.name, self.data, self.caption, self.python(), drawn)),
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
        """Return what ``save`` would write under a name with this suffix."""
        suffix = suffix.lower()
        check_suffix(Path(f"figure{suffix}"))
        if suffix == ".pgf":
            raise DiffscopeError("a figure as .pgf is several files: save it under a name")
        if suffix == ".json":
            return to_json(self.data.to_dict()).encode()
        if suffix == ".html":
            drawing = self.plotly()
            drawing.update_layout(paper_bgcolor=theme.PAPER)
            look = {"displaylogo": False, "responsive": True}
            page = drawing.to_html(include_plotlyjs=True, full_html=True, config=look, div_id=self.name)
            return page.encode()
        return self._printed(suffix.removeprefix("."), dpi=COARSER.get(suffix, FINE))

    def _pgf(self, path: Path) -> dict[Path, bytes]:
        """Return the files of a figure as PGF. Images are first, so that the file that names them is written last."""
        check_target(path)
        drawing = self.matplotlib()
        with tempfile.TemporaryDirectory() as folder:
            with theme.styled():
                write_pgf(drawing, Path(folder) / path.name, FINE)
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
        about: dict[str, str | None] = {"Title": f"{self.name}: {self.data.attrs.get('model', '')}".rstrip(": ")}
        if kind == "pdf":
            about |= {"Creator": "diffscope", "Producer": "diffscope", "CreationDate": None}
        elif kind == "svg":
            about |= {"Creator": "diffscope", "Date": None}
        with theme.styled():
            drawing.savefig(buffer, format=kind, metadata=about, dpi=dpi)
        return typeface.for_the_web(buffer.getvalue()) if kind == "svg" else buffer.getvalue()

    def picture(self, dpi: int = 150) -> bytes:
        """Return the drawing for print as a PNG of so many dots an inch."""
        return self._printed("png", dpi=dpi)

    def _repr_png_(self) -> bytes:
        return self.picture()  # a notebook keeps its pictures: a quarter of the size in print

    def __repr__(self) -> str:
        dims = dict.fromkeys(dim for array in self.data.data_vars.values() for dim in array.dims)
        sizes = ", ".join(f"{dim}: {self.data.sizes[dim]}" for dim in dims)
        return f"<diffscope figure {self.name!r} of {', '.join(map(str, self.data.data_vars))} ({sizes})>"


def checked_width(width: Any) -> float:
    """Return a width of a printed figure in inches; refuse one that is not from ``LEAST_WIDTH`` to ``MOST_WIDTH``."""
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
    """Return the names of what is written beside a figure."""
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
