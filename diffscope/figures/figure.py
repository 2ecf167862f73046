"""What a figure is: labelled data, a chart that draws it for the screen and for print, and the call that made it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypedDict, cast

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, MissingExtra
from diffscope.figures import theme, typeface
from diffscope.figures.escaping import lacking, short_name, visible
from diffscope.render import as_latex
from diffscope.storage.atomic import check_target, replacing, to_json

PRINTED = (".pdf", ".svg", ".png", ".pgf")
ALSO = {"data": ".data.json", "latex": ".figure.tex", "provenance": ".provenance.json"}
LEAST_WIDTH, MOST_WIDTH = 1.0, 48.0  # inches of a printed figure: from a thumbnail to a poster
MOST_PIXELS = 200_000_000  # of a picture, which takes some bytes a pixel several times
FINE = 600  # dots an inch of what is no vector
COARSER = {".png": 300, ".svg": 400}  # whose images have no palette
PACKAGES = ("diffscope-attention", "torch", "transformers", "numpy", "scipy", "xarray", "matplotlib")
SHOWN = 12  # characters without a glyph that are named
#: what the data of a figure says of itself, in the order in which a caption lists it
FACTS = {
    "layer": "layer {}",
    "head": "head {}",
    "query": "query {}",
    "n_tokens": "a prompt of {} tokens",
    "selection": "{}",
    "normalisation": "normalisation: {}",
    "averaged_over": "mean over {}",
    "prompts": "n = {} prompts",
    "bin": "the value of largest magnitude of each {0} × {0} tokens",
    "edits": "under {}",
}

PGF_HEADER = r"""%% {name}: \usepackage{{pgf}} in the preamble, \input{{{name}}} in the text
%% Its images, {stem}-img0.png and so on, lie beside it. Characters beyond Latin and Greek need LuaLaTeX or XeLaTeX.
"""

P = ParamSpec("P")


class Printing(TypedDict, total=False):
    """The options that all figures take."""

    venue: str | None
    wide: bool | None
    width: float | None
    title: str | None


#: what these options mean, for the docstring of every figure
PRINTING = """\
venue : {"icml", "neurips", "iclr", "acl", "cvpr", "aaai", "tmlr"}, optional
    Whose widths and font sizes to print with.
wide : bool, optional
    Printed as wide as the page, or as one column; by default what suits the figure.
width : float, optional
    Printed so many inches wide.
title : str, optional
    Instead of the heading that says what is seen; ``""`` for none."""


@dataclass(frozen=True)
class Chart:
    """A way of drawing labelled data: ``plotly(data, **style)`` and ``matplotlib(data, width, **style)``."""

    plotly: Callable[..., Any]
    matplotlib: Callable[..., Any]


@dataclass(frozen=True)
class Drawing:
    """What the function of a figure returns: data, and how it is drawn.

    Attributes
    ----------
    chart : Chart
    data : xarray.Dataset
        Its attributes say of what it is.
    style : dict
        Keywords of both ways of drawing.
    about : str
        What is seen, for the caption of data that does not say it.
    wide : bool, optional
        Whether it suits the width of a page, where that differs from the other drawings of this function.
    """

    chart: Chart
    data: xr.Dataset
    style: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    wide: bool | None = None

    def described(self, caption: str, *, edits: str = "", **facts: Any) -> Drawing:
        """Return the drawing with a caption, which names the edits, and with facts in the attributes of its data."""
        sentence = f"{caption} Under {edits}." if edits else caption
        known = {name: value for name, value in {"edits": edits or None, **facts}.items() if value is not None}
        return replace(self, data=self.data.assign_attrs(caption=sentence, **known))


class FigureFunction(Protocol[P]):
    """The public function of a figure; ``drawing`` is the function below it, for figures that build on it."""

    __name__: str
    drawing: Callable[P, Drawing]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Figure: ...


#: the function of every figure, by its name
FIGURES: dict[str, Callable[..., Figure]] = {}


def figure(*, wide: bool = True, known: Sequence[str] = ()) -> Callable[[Callable[P, Drawing]], FigureFunction[P]]:
    """Declare the function of a figure: it takes the options of ``Printing`` and returns a ``Figure``.

    The function itself returns a ``Drawing``. It declares ``**printing: Unpack[Printing]``, which it never sees.

    Parameters
    ----------
    wide : bool
        Whether it suits the width of a page, or that of a column.
    known : sequence of str
        Keywords that only save the time to compute what follows from the subject. ``Figure.python`` leaves them out.
    """

    def declare(function: Callable[P, Drawing]) -> FigureFunction[P]:
        name = function.__name__
        signature = _with_printing(inspect.signature(function))

        @functools.wraps(function)
        def made(*args: P.args, **kwargs: P.kwargs) -> Figure:
            check_keywords(name, signature, kwargs)
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise DiffscopeError(
                    f"the figure {name!r} cannot be drawn, {error}; see help(diffscope.figures.{name})"
                ) from None
            own = {word: value for word, value in kwargs.items() if word not in Printing.__annotations__}
            drawing = function(*args, **own)  # type: ignore[arg-type]  # mypy takes all keywords for needed
            _, *rest = signature.parameters.values()
            call = {each.name: bound[each.name] for each in rest if each.name not in known and _differs(bound, each)}
            return _figure(name, drawing, call, wide, cast(Printing, bound))

        made.__doc__ = _documented(inspect.getdoc(function) or "")
        made.__signature__ = signature.replace(return_annotation="Figure")  # type: ignore[attr-defined]
        made.drawing = function  # type: ignore[attr-defined]
        FIGURES[name] = made
        return cast("FigureFunction[P]", made)

    return declare


def _with_printing(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature with the options of printing in place of ``**printing``."""
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = {word: getattr(kind, "__forward_arg__", kind) for word, kind in Printing.__annotations__.items()}
    only = inspect.Parameter.KEYWORD_ONLY
    return signature.replace(
        parameters=[*own, *(inspect.Parameter(word, only, default=None, annotation=kind) for word, kind in options.items())]
    )


def _documented(doc: str) -> str:
    """Return a docstring whose parameters end with those of printing."""
    before, returns, after = doc.partition("\n\nReturns\n-------\n")
    return f"{before}\n{PRINTING}{returns}{after}" if returns else doc


def _differs(bound: Mapping[str, Any], parameter: inspect.Parameter) -> bool:
    """Return whether an argument was given that is not the default."""
    if parameter.name not in bound:
        return False
    value = bound[parameter.name]
    return value is not parameter.default and python_literal(value, "?") != python_literal(parameter.default, "")


def check_keywords(name: str, signature: inspect.Signature, keywords: Mapping[str, Any]) -> None:
    """Refuse keywords that a figure does not take."""
    if unknown := [word for word in keywords if word not in signature.parameters]:
        known = [word for word, each in signature.parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY]
        raise DiffscopeError(f"the figure {name!r} does not take {unknown[0]!r}; it takes {', '.join(known)}")


def _figure(name: str, drawing: Drawing, call: Mapping[str, Any], wide: bool, printing: Printing) -> Figure:
    """Return a drawing as a figure, printed as asked for."""
    venue, width, chosen = (printing.get(word) for word in ("venue", "width", "wide"))
    suits = wide if drawing.wide is None else drawing.wide
    inches = theme.width(venue, suits if chosen is None else chosen) if width is None else checked_width(width)
    style = drawing.style | {"title": printing.get("title")}
    _check_style(style)
    data = drawing.data.copy(deep=False)
    data.attrs = {"figure": name} | {key: value for key, value in drawing.data.attrs.items() if key != "figure"}
    return Figure(name, drawing.chart, data, float(inches), venue, style, drawing.about, call)


def _check_style(style: Mapping[str, Any]) -> None:
    if style.get("contrast", "sqrt") not in ("sqrt", "linear"):
        raise DiffscopeError(f"no contrast {style['contrast']!r}: there are sqrt and linear")
    if style.get("scale", "shared") not in ("shared", "own"):
        raise DiffscopeError(f"no scale {style['scale']!r}: there are shared (one for all maps) and own")
    limit = style.get("limit")
    if limit is not None and limit != "robust" and not (isinstance(limit, (int, float)) and limit > 0):
        raise DiffscopeError(f'the end of a scale is a number above 0, or "robust", not {limit!r}')


def python_literal(value: Any, name: str) -> str:
    """Return a value as Python that evaluates to it; `name` stands for what has no such form, an array for example."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, slice):
        ends = (value.start, value.stop) if value.step is None else (value.start, value.stop, value.step)
        return f"slice({', '.join(python_literal(end, name) for end in ends)})"
    if isinstance(value, tuple):
        return f"({', '.join(python_literal(each, name) for each in value)}{',' * (len(value) == 1)})"
    if isinstance(value, (list, range)):
        return f"[{', '.join(python_literal(each, name) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{python_literal(key, name)}: {python_literal(each, name)}' for key, each in value.items())}}}"
    return name


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
        Whose font sizes are used in print.
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
        """A ``plotly.graph_objects.Figure`` to explore; what `style` says holds for this drawing."""
        _need("plotly")
        return self.chart.plotly(self.data, **{**self.style, **style})

    def matplotlib(self) -> Any:
        """A ``matplotlib.figure.Figure`` to print; it belongs to no pyplot window."""
        _need("matplotlib")
        with theme.styled(self.venue):
            drawing = self.chart.matplotlib(self.data, self.width, **self.style)
            drawing.draw_without_rendering()  # whatever reads the style does so now
        return drawing

    @property
    def caption(self) -> str:
        """What is seen, of which model, layer, head and prompt, averaged over what: for below the figure in a paper."""
        return _caption(self)

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
            "latex": lambda: _latex(self, path),
            "provenance": lambda: to_json(_provenance(self)),
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
            page = drawing.to_html(include_plotlyjs=True, full_html=True, config=look, div_id=self.name)
            return page.encode()
        return self._printed(suffix.removeprefix("."), dpi=COARSER.get(suffix, FINE))

    def _pgf(self, path: Path) -> dict[Path, bytes]:
        """The files of a figure as PGF, images first: what names them is there last."""
        check_target(path)
        drawing = self.matplotlib()
        with tempfile.TemporaryDirectory() as folder:
            with theme.styled(self.venue):
                _write_pgf(drawing, Path(folder) / path.name, FINE)
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
        return f"<diffscope figure {self.name!r} of {', '.join(map(str, self.data.data_vars))} ({sizes})>"


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


def _caption(figure: Figure) -> str:
    """What is seen, and of what: one sentence of what the figure is, one of the facts that its data tells."""
    attrs = figure.data.attrs
    models = str(attrs.get("model") or "")
    several = " and " in models or ", " in models
    facts = [f"models {models}" if several else f"model {short_name(models)}"] if models else []
    if not attrs.get("caption"):  # which tells them itself
        facts += [words.format(attrs[name]) for name, words in FACTS.items() if _told(name, attrs.get(name))]
    lam = attrs.get("lam")
    if lam is not None:
        facts.append(f"λ {lam}" if isinstance(lam, str) else f"λ = {float(lam):.3f}")
    about = _about(figure)
    sentences = [about, "; ".join(facts)]
    if attrs.get("signs"):  # of weights that are summed by size
        sentences.append(str(attrs["signs"]).rstrip("."))
    if figure.style.get("contrast") == "sqrt":
        sentences.append("colours follow the root of a weight, and zero is white")
    if boxes := lacking("".join(map(visible, _texts(figure)))):
        sentences.append(f"□ stands for characters that no font of this machine has: {boxes[:SHOWN]}")
    return " ".join(f"{_begun(sentence)}." for sentence in sentences if sentence)


def _begun(sentence: str) -> str:
    """With a capital, but for letters that mean something else as capitals, such as λ."""
    return sentence[:1].upper() + sentence[1:] if sentence[0].isascii() else sentence


def _about(figure: Figure) -> str:
    """Return what is seen, without its place: what the data says of itself, else what its values are called."""
    attrs = figure.data.attrs
    words = attrs.get("caption") or figure.about or attrs.get("long_name") or attrs.get("value") or attrs.get("y") or ""
    return str(words).rstrip(".")


def _texts(figure: Figure) -> set[str]:
    """The labels of a figure's data, tokens among them."""
    labels = (coordinate.values.ravel() for coordinate in figure.data.coords.values() if coordinate.dtype.kind in "UO")
    return {str(label) for values in labels for label in values}


def _told(name: str, value: Any) -> bool:
    """Whether a fact is there and is worth its words: bins of one token are none."""
    return value is not None and value != "" and not (name == "bin" and value == 1)


def _latex(figure: Figure, path: Path) -> str:
    """The lines of a paper that show the figure at `path`, as wide as it was drawn."""
    column, page = theme.VENUES.get((figure.venue or "neurips").lower(), (figure.width, figure.width))
    environment = "figure*" if column < figure.width - 0.005 and column < page else "figure"
    place = [str(figure.data.attrs[name]) for name in ("layer", "head") if name in figure.data.attrs]
    label = "-".join(["fig:" + figure.name, *place])
    show = {
        ".pgf": f"\\input{{{path.name}}}% needs \\usepackage{{pgf}}",
        ".svg": f"\\includesvg[width={figure.width:.4g}in]{{{path.name}}}% needs \\usepackage{{svg}}",
    }
    picture = f"\\includegraphics[width={figure.width:.4g}in]{{{path.name}}}% needs \\usepackage{{graphicx}}"
    return "\n".join(
        [
            f"\\begin{{{environment}}}",
            "  \\centering",
            f"  {show.get(path.suffix.lower(), picture)}",
            f"  \\caption{{{as_latex(_caption(figure))}}}",
            f"  \\label{{{label}}}",
            f"\\end{{{environment}}}",
            "",
        ]
    )


def _provenance(figure: Figure) -> dict:
    """Where the numbers of a figure come from: what its data says of itself, its digest, how it is drawn, versions, command."""
    plain = {name: value for name, value in figure.data.attrs.items() if isinstance(value, (str, int, float, bool, np.number))}
    content = to_json(figure.data.to_dict()).encode()
    return {
        "figure": figure.name,
        "caption": _caption(figure),
        "data": plain | {"sha256": hashlib.sha256(content).hexdigest()},
        "python": figure.python(),
        "drawn": {"venue": figure.venue, "width_in": figure.width} | figure.style,
        "versions": {"python": ".".join(map(str, sys.version_info[:3]))} | _versions(),
        "command": _command(),
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _command() -> str:
    """How the program was called; a notebook's kernel is told a file of the moment, which says nothing."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    return "a notebook" if "ipykernel" in program else shlex.join([program, *sys.argv[1:]])


def _write_pgf(drawing, path: Path, dpi: int) -> None:
    """Write a matplotlib figure to `path`, and its images beside it.

    Parameters
    ----------
    drawing : matplotlib.figure.Figure
        Laid out already.
    path : pathlib.Path
        Its name without the suffix begins those of the images.
    dpi : int
        Of the images.
    """
    from matplotlib.backends.backend_mixed import MixedModeRenderer

    drawing.set_dpi(dpi)  # of vectors and images alike, so that both lie on one grid
    width, height = drawing.get_size_inches()
    with open(path, "w", encoding="utf-8") as file:
        file.write(PGF_HEADER.format(name=path.name, stem=path.stem))
        file.write("\\begingroup\n\\makeatletter\n\\begin{pgfpicture}%\n")
        file.write(f"\\pgfpathrectangle{{\\pgfpointorigin}}{{\\pgfqpoint{{{width:f}in}}{{{height:f}in}}}}%\n")
        file.write("\\pgfusepath{use as bounding box, clip}%\n")
        drawing.draw(MixedModeRenderer(drawing, width, height, dpi, _pgf_renderer(drawing, file, path)))
        file.write("\\end{pgfpicture}%\n\\makeatother\n\\endgroup\n")


def _pgf_renderer(drawing, file, path: Path):
    """Matplotlib's renderer, without the LaTeX that it would run to measure texts and to learn how images are included."""
    from matplotlib.backends.backend_pgf import RendererPgf
    from PIL import Image

    measure = drawing.canvas.get_renderer().get_text_width_height_descent

    class Renderer(RendererPgf):
        def get_text_width_height_descent(self, s, prop, ismath):
            return measure(s, prop, ismath)

        def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
            super().draw_text(gc, x, y, as_latex(s), prop, angle, ismath, mtext)

        def draw_image(self, gc, x, y, im, transform=None):
            height, width = im.shape[:2]
            if not height or not width:
                return
            name = f"{path.stem}-img{self.image_counter}.png"
            self.image_counter += 1
            Image.fromarray(im[::-1]).save(path.with_name(name))
            inch = 1 / self.dpi
            at = f"x={x * inch:f}in,y={y * inch:f}in,left,bottom"
            size = f"width={width * inch:f}in,height={height * inch:f}in"
            file.write("\\begin{pgfscope}%\n")
            self._print_pgf_clip(gc)
            file.write(f"\\pgftext[{at}]{{\\includegraphics[{size}]{{{name}}}}}%\n\\end{{pgfscope}}%\n")

    return Renderer(drawing, file)
