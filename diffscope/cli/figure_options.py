"""Options of ``diffscope figure``: one for each keyword that figures take, and what their functions say of it."""

import inspect
import re
from typing import Annotated

import typer

from diffscope.errors import DiffscopeError

PARAMETER = re.compile(r"^(?P<names>\w[\w, ]*?) ?(?: : .*)?$")


def numbers(text):
    """``3`` as a number, ``0,2`` as two of them."""
    try:
        several = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text} is no number, nor numbers with commas between them") from None
    return several[0] if len(several) == 1 else tuple(several)


def heads(text):
    """``0,2`` as a list of numbers; ``all``."""
    if text == "all":
        return text
    chosen = numbers(text)
    return [chosen] if isinstance(chosen, int) else list(chosen)


def window(text):
    """``10:40`` as a range of positions, ``7`` as one position."""
    if match := re.fullmatch(r"(\d*):(\d*)", text):
        return slice(*(int(end) if end else None for end in match.groups()))
    return numbers(text)


def query(text):
    """``-1`` as a position; ``last`` and ``mean`` as they are."""
    return text if text in ("last", "mean") else numbers(text)


def limit(text):
    """``0.1`` as a number; ``robust`` as it is."""
    try:
        return text if text == "robust" else float(text)
    except ValueError:
        raise typer.BadParameter(f"{text} is no number, nor robust") from None


def words(text):
    """``A1,D`` as a list of names."""
    return [word.strip() for word in text.split(",") if word.strip()]


def labels(pairs):
    """``map=D`` and the like as a dict."""
    named = dict(pair.partition("=")[::2] for pair in pairs)
    if not all(named.values()):
        raise DiffscopeError(f"--where {pairs[0]!r} is not DIMENSION=LABEL; for example --where map=D")
    return named


def _option(name, parser, metavar, words):
    return Annotated[str | None, typer.Option(name, parser=parser, metavar=metavar, help=words)]


Layer = _option("--layer", numbers, "N", "Which layer, as the model numbers it; of two models N,M.")
Head = _option("--head", numbers, "N", "Which head; of two models N,M.")
Layers = _option("--layers", heads, "N,M|all", "maps: a grid of these layers.")
Heads = _option("--heads", heads, "N,M|all", "maps: a grid of these heads.")
Queries = _option("--queries", window, "FROM:TO", "maps: only these queries.")
Keys = _option("--keys", window, "FROM:TO", "maps, row: only these keys.")
Query = _option("--query", query, "N|last|mean", "At which query; negative ones count from the end.")
Names = _option("--names", words, "A1,D", "maps: which maps.")
Arms = _option("--arms", words, "diff,standard", "study: which arms.")
Where = Annotated[list[str] | None, typer.Option(metavar="DIM=LABEL", help="A label along any other dimension. Repeatable.")]
Statistic = Annotated[str | None, typer.Option("--statistic", "--stats", metavar="NAME", help="Which statistic.")]
Map = Annotated[str | None, typer.Option(metavar="A1|A2|D|…", help="Of which map.")]
KeySet = Annotated[str | None, typer.Option("--key-set", metavar="NAME", help="On which key set, such as answer or sink.")]
Normalisation = Annotated[str | None, typer.Option(metavar="NAME", help="raw, share, signed or positive.")]
Quantity = Annotated[str | None, typer.Option(metavar="NAME", help="Which of the quantities that a figure offers.")]
Way = Annotated[str | None, typer.Option(metavar="NAME", help="anatomy: how what several parts explain is divided.")]
Along = Annotated[str | None, typer.Option("--x", metavar="DIM", help="Of measured values: along which dimension or field.")]
Down = Annotated[str | None, typer.Option("--y", metavar="DIM", help="cells: down which dimension.")]
Series = Annotated[str | None, typer.Option(metavar="DIM", help="Of measured values: a colour for each label of this.")]
Panels = Annotated[str | None, typer.Option(metavar="DIM", help="Of measured values: a panel for each label of this.")]
Points = Annotated[str | None, typer.Option(metavar="DIM", help="strips: a point for each label of this.")]
Style = Annotated[str | None, typer.Option(metavar="lines|points|bars|stacked", help="curves: how values are drawn.")]
Log = Annotated[str | None, typer.Option(metavar="x|y|xy", help="curves: which axes are logarithmic.")]
Sigma = Annotated[float | None, typer.Option(help="rejection: one strength of the noise, in nats.")]
Length = Annotated[list[int] | None, typer.Option(min=1, metavar="TOKENS", help="Lengths of prompts that are drawn. Repeatable.")]
Size = Annotated[int | None, typer.Option(min=1, help="maps: tokens a side above which bins are drawn.")]
Contrast = Annotated[str | None, typer.Option(metavar="sqrt|linear", help="Colours follow the root of a value, or the value.")]
Scale = Annotated[str | None, typer.Option(metavar="shared|own", help="maps: one colour scale for all maps, or one each.")]
Limit = _option("--limit", limit, "VALUE|robust", "maps: the value at the end of the colour scale.")
Venue = Annotated[str | None, typer.Option(help="Widths and font sizes of a venue, for example neurips, icml, acl.")]
Wide = Annotated[bool | None, typer.Option("--wide/--column", help="As wide as the page, or as a column.")]
Width = Annotated[float | None, typer.Option(metavar="INCHES", help="Another width, between 1 and 48.")]
Title = Annotated[str | None, typer.Option(help='Instead of the line that says what is seen; "" for none.')]


def about(function):
    """The first line of a figure's description, and what its docstring says of each keyword.

    Returns
    -------
    (str, dict of str to str)
    """
    doc = inspect.getdoc(function) or ""
    first = doc.partition("\n")[0]
    section = doc.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    told: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line[:1].strip() and (match := PARAMETER.match(line)):
            names = [name.strip() for name in match["names"].split(",")]
            told |= dict.fromkeys(names, "")
        else:
            told |= {name: f"{told[name]} {line.strip()}".strip() for name in names}
    keywords = inspect.signature(function).parameters.values()
    taken = {parameter.name for parameter in keywords if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    return first, {name: words for name, words in told.items() if name in taken}
