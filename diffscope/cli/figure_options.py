"""Options of ``diffscope figure``: those of the chosen figure, from the signature and the docstring of its function."""

import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import typer
from typer.core import TyperCommand
from typer.main import get_command

from diffscope.errors import DiffscopeError, check_choice

PARAMETER = re.compile(r"^(?P<names>\w[\w, ]*?) ?(?: : .*)?$")
VARIABLE = {
    "statistic": (str, "Which variable of the file."),
    "where": (Mapping[str, str], "A label along any other dimension."),
}
CELL = {
    "layer": (int, "The layer of the head."),
    "head": (int, "The head."),
    "query": (int, "The token that looks; by default the last, -1."),
    "key": (int, "The token that is looked at; -1 is the last."),
    "map": (Literal["A1", "A2"], "Whose score; by default of A1."),
    "against": (int | Literal["row"], "Another key, or the mean of the row, whose score is taken away; by default nothing."),
}
#: what a figure is of, if options say it that are no keywords of its function: their types, and what they mean
OF_SUBJECT: dict[str, dict] = {
    **dict.fromkeys(("cells", "curves", "strips"), VARIABLE),
    "patching": {"source": (str, "The other prompt, of as many tokens.")},
    "score_parts": CELL,
}
SUBJECT = ("length",)  # keywords whose names are options of what a figure is of
KEY_SET = "key_set"  # what the keyword span is called here, where --span names a part of the prompt
#: options that are not called like their keyword
NAMES = {"wide": ["--wide/--column"]}
INTEGERS, LABELS = "a sequence of numbers", "a sequence of names"
ONLY_PYTHON = "an array, or a mapping to anything but labels"  # what is no option
CHOICES = "diffscope.figure.choices"  # what was chosen, in the context of the command


def numbers(text):
    """Read ``3`` as a number, ``0,2`` as two of them."""
    try:
        several = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text} is no number, nor numbers with commas between them") from None
    return several[0] if len(several) == 1 else tuple(several)


def heads(text):
    """Read ``0,2`` as a list of numbers; ``all``."""
    if text == "all":
        return text
    chosen = numbers(text)
    return [chosen] if isinstance(chosen, int) else list(chosen)


def window(text):
    """Read ``10:40`` as a range of positions, ``7`` as one position."""
    if match := re.fullmatch(r"(\d*):(\d*)", text):
        return slice(*(int(end) if end else None for end in match.groups()))
    return numbers(text)


def number_or_word(kind):
    """Return what reads ``0.1`` as a number of this kind, and anything else as it is."""

    def read(text):
        try:
            return kind(text)
        except ValueError:
            return text

    return read


def ends(text):
    """Read ``0,2`` as two ends of an axis."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text} is not two numbers with a comma between them") from None
    return low, high


def words(text):
    """Read ``A1,D`` as a list of names."""
    return [word.strip() for word in text.split(",") if word.strip()]


def word_or_words(text):
    """Read ``A1,D`` as a list of names, ``D`` as a name."""
    several = words(text)
    return several[0] if len(several) == 1 else several


def labels(pairs):
    """Read ``map=D`` and the like as a dict."""
    named: dict[str, str] = {}
    for pair in pairs:
        dimension, _, label = pair.partition("=")
        if not (dimension and label):
            raise DiffscopeError(f"--where {pair!r} is not DIMENSION=LABEL; for example --where map=D")
        if dimension in named:
            raise DiffscopeError(f"--where {dimension!r} is given twice; give each dimension one label")
        named[dimension] = label
    return named


class FigureCommand(TyperCommand):
    """The command ``figure``: beside its own options it has those of the figure that --kind names."""

    def parse_args(self, ctx, args):
        """Parse what was typed; an option of another figure is refused in the words of this one."""
        kind = kind_of(args)
        check_kind(kind)
        ctx.meta[CHOICES] = kind
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            name = str(getattr(error, "option_name", ""))
            word = next((word for word, spelled in NAMES.items() if name in "/".join(spelled).split("/")), name.lstrip("-"))
            check_taken(kind, keyword_of(word.replace("-", "_")))
            raise

    def get_params(self, ctx):
        """Return the options of the command, then those of the chosen figure."""
        *own, last = super().get_params(ctx)  # the last is --help
        return [*own, *options_of(ctx.meta.get(CHOICES, "maps")), last]

    def invoke(self, ctx):
        """Run the command; what its function does not take by name is left in the context."""
        own = {option.name for option in self.params}
        ctx.meta[CHOICES] = {keyword_of(name): ctx.params.pop(name) for name in list(ctx.params) if name not in own}
        return super().invoke(ctx)


def keyword_of(name):
    """Return the keyword that an option is, by its name."""
    return "span" if name == KEY_SET else name


def kind_of(args):
    """Return the figure that the arguments of the command name, by default the maps."""
    kinds = [value for arg, value in pairwise(args) if arg == "--kind"]
    kinds += [arg.partition("=")[2] for arg in args if arg.startswith("--kind=")]
    if len(kinds) > 1:
        raise DiffscopeError(f"--kind is given {len(kinds)} times; a figure is of one kind")
    return kinds[0] if kinds else "maps"


def check_kind(kind):
    """Refuse a figure that there is not."""
    from diffscope.figures import FIGURES

    check_choice("figure", kind, sorted(FIGURES))


def check_taken(kind, word):
    """Refuse a keyword that other figures take and this one does not."""
    from diffscope.figures.declaration import FIGURES, check_keywords

    if any(word in inspect.signature(function).parameters for function in FIGURES.values()):
        check_keywords(kind, inspect.signature(FIGURES[kind]), {word: None})


def options_of(kind):
    """Return the options of a figure: one for each keyword that can be typed."""
    from diffscope.figures import FIGURES

    function = FIGURES[kind]
    told = about(function)[1]
    options = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in SUBJECT:
            spelled = KEY_SET if name == "span" else name
            options[spelled] = option(spelled, annotation_of(function, parameter), told.get(name, ""))
    options |= {name: option(name, annotation, told) for name, (annotation, told) in OF_SUBJECT.get(kind, {}).items()}
    taken = {name: annotated for name, annotated in options.items() if annotated is not None}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, keyword, default=None, annotation=each) for name, each in taken.items()]

    def typed():
        pass

    typed.__signature__ = inspect.Signature(parameters)  # what Typer makes options of
    typed.__annotations__ = taken
    app = typer.Typer(add_completion=False)
    app.command()(typed)
    return get_command(app).params


def annotation_of(function, parameter):
    """Return what an annotation of a figure's function is, which is a text in its module."""
    alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})  # others may name what is not imported
    return typing.get_type_hints(alone, inspect.unwrap(function).__globals__)[parameter.name]


def option(name, annotation, told):
    """Return a keyword as an option of Typer, or None if its values can only be given in Python."""
    kinds = set(members(annotation))
    if ONLY_PYTHON in kinds:
        return None
    flags = NAMES.get(name, [f"--{name.replace('_', '-')}"])
    choices = [kind for kind in members(annotation) if isinstance(kind, str) and kind not in (INTEGERS, LABELS)]
    if bool in kinds:
        return Annotated[bool | None, typer.Option(*flags, help=told)]
    if Mapping in kinds:
        return Annotated[list[str] | None, typer.Option(*flags, metavar="DIM=LABEL", help=f"{told} Repeatable.")]
    parser, metavar = reading(kinds, choices)
    if parser is None:
        return Annotated[kinds.pop() | None if not choices else str | None, typer.Option(*flags, metavar=metavar, help=told)]
    return Annotated[str | None, typer.Option(*flags, parser=parser, metavar=metavar, help=told)]


def reading(kinds, choices):
    """Return how a value of these kinds is read, None if Typer does, and how it is described."""
    listed = "|".join(choices)
    if slice in kinds:
        return window, "FROM:TO"
    if INTEGERS in kinds:
        return heads, f"N,M|{listed}"
    if LABELS in kinds:
        return (word_or_words if str in kinds else words), "A,B"
    if tuple in kinds:
        return (numbers, "N") if int in kinds else (ends, "FROM,TO")
    if (int in kinds or float in kinds) and (choices or str in kinds):
        return number_or_word(int if int in kinds else float), f"{'N' if int in kinds else 'VALUE'}|{listed or 'last'}"
    return None, listed or None


def members(annotation):
    """Yield the types and words that an annotation is made of; sequences as ``INTEGERS`` or ``LABELS``."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        for each in arguments:
            yield from members(each)
    elif origin is Literal:
        yield from arguments
    elif origin is Sequence:
        yield Sequence
        yield INTEGERS if arguments == (int,) else LABELS
    elif origin is Mapping:
        simple = set(typing.get_args(arguments[1]) or [arguments[1]]) <= {str, float} and str in members(arguments[1])
        yield Mapping if simple else ONLY_PYTHON
    elif origin is not None:
        yield origin
    elif annotation is not types.NoneType:
        yield ONLY_PYTHON if annotation.__module__.startswith("xarray") else annotation


def about(function):
    """Return the first line of a figure's description, and what its docstring says of each keyword.

    Returns
    -------
    (str, dict of str to str)
    """
    first, told = _told(function)
    if any(words.startswith("As of") for words in told.values()):
        from diffscope.figures import FIGURES

        of_maps = _told(FIGURES["maps"])[1]
        told = {name: of_maps.get(name, words) if words.startswith("As of") else words for name, words in told.items()}
    return first, told


def _told(function):
    doc = re.sub(r":func:`([\w.]+)`|``?", lambda match: match[1] or "", inspect.getdoc(function) or "")
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
    taken = {name for name, each in inspect.signature(function).parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}
    return first, {name: words for name, words in told.items() if name in taken}
