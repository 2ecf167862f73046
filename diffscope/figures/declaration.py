"""How a figure is declared: a function returns data and a chart, and is called as one that returns a figure."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, Protocol, TypedDict, cast

import xarray as xr

from diffscope.errors import DiffscopeError, check_choice
from diffscope.figures import theme
from diffscope.figures.figure import Chart, Figure, checked_width
from diffscope.figures.literals import python_literal

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
    The paper format whose widths to print with.
wide : bool, optional
    Printed as wide as the page, or as one column; by default what suits the figure.
width : float, optional
    Printed so many inches wide.
title : str, optional
    Instead of the heading that says what is seen; ``""`` for none."""


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
    check_choice("contrast", style.get("contrast", "linear"), ("linear", "sqrt"))
    check_choice("scale", style.get("scale", "shared"), ("shared", "own"))
    limit = style.get("limit")
    if limit is not None and limit != "robust" and not (isinstance(limit, (int, float)) and 0 < limit < math.inf):
        raise DiffscopeError(f'the end of a scale is a number above 0, or "robust", not {limit!r}')
