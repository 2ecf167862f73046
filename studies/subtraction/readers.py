"""Paragraphs of running English, out of the formats in which Debian ships documentation."""

from __future__ import annotations

import gzip
import html
import re
from collections.abc import Iterator

FEWEST_WORDS = 12
FEWEST_LETTERS = 0.82  # share of the characters that are letters of the English alphabet or spaces
FEWEST_FUNCTION_WORDS = 0.20  # share of the words
ENDS = re.compile(r"[.!?:][)\]\"'”’»]*$")
WORD = re.compile(r"[A-Za-z]+(?:['’][A-Za-z]+)*")
LETTERS_AND_SPACES = re.compile(r"[A-Za-z ]")
WHITE = re.compile(r"\s+")
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff\ufffd\u00b6\uf000-\uf0ff]")  # and the sign of a link to a heading
HOLE = "\ufffc"  # stands for text that a page does not hold itself
FUNCTION_WORDS = frozenset(
    "a about after all also an and any are as at be because been before being between both but by can could did do does each "
    "either for from had has have he her here his how i if in into is it its may might more most must my no nor not of on once "
    "one only or other our out over same shall she should so some such than that the their them then there these they this "
    "those through to under until up upon us very was we were what when where whether which while who whose why will with "
    "within without would you your".split()
)


def is_running_english(paragraph: str) -> bool:
    """Return whether a paragraph, its white space collapsed, is prose: no code, table, heading or list of names."""
    words = WORD.findall(paragraph)
    if len(words) < FEWEST_WORDS or not ENDS.search(paragraph):
        return False
    letters = len(LETTERS_AND_SPACES.findall(paragraph))
    function_words = sum(word.lower() in FUNCTION_WORDS for word in words)
    return letters >= FEWEST_LETTERS * len(paragraph) and function_words > FEWEST_FUNCTION_WORDS * len(words)


def collapsed(text: str) -> str:
    """Return a text on one line, without characters that are not seen."""
    return WHITE.sub(" ", INVISIBLE.sub("", text)).strip()


def decoded(name: str, data: bytes) -> str:
    """Return the text of a file, which may be compressed; what is not UTF-8 is taken for the Latin alphabet of old web pages."""
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


RAW = re.compile(r"<(script|style)\b[^>]*(?<!/)>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
TAG = re.compile(
    r"""<!--.*?-->|<[!?][^>]*>|<(?P<ends>/?)(?P<name>[A-Za-z][^\s/>]*)(?P<rest>(?:[^>"']++|"[^"]*+"|'[^']*+')*+)>""", re.DOTALL
)
NO_PROSE = frozenset("button footer head math nav noscript pre screen script select style svg".split())  # all that is in them
INLINE = frozenset(
    "a abbr acronym app b big bdi bdo br cite cmd code dfn em file font gui guiseq i img input ins kbd key keyseq label link "
    "mark output q s samp small span strike strong sub sup sys tt u var wbr".split()
)


def of_html(text: str) -> Iterator[str]:
    """Blocks of an HTML page, or of an XML page of GNOME's help; one of which a part is elsewhere is left out.

    The standard library's parser would take six times as long, and its versions differ in how they mend pages.
    """
    pieces: list[str] = []
    for piece in _shown(RAW.sub(" ", text)):
        if piece is not None:
            pieces.append(piece)
            continue
        block = "".join(pieces)
        if block and HOLE not in block:
            yield html.unescape(block)
        pieces = []


def _shown(source: str) -> Iterator[str | None]:
    """Yield the text that a page shows, piece by piece, and None where a block ends."""
    left_out: list[str] = []  # the open elements that hold no prose
    end = 0
    for tag in TAG.finditer(source):
        if not left_out:
            yield source[end : tag.start()]
        end = tag.end()
        name = (tag["name"] or "").lower()  # none of a comment
        alone = (tag["rest"] or "").endswith("/")
        _open_or_close(left_out, name, bool(tag["ends"]), alone)
        if name and name not in INLINE:
            yield None
        elif name == "br":
            yield " "
        elif name == "link" and alone and not left_out:  # shown by the title of another page
            yield HOLE
    yield source[end:]
    yield None


def _open_or_close(left_out: list[str], name: str, ends: bool, alone: bool) -> None:
    if ends and name in left_out:  # with whatever was left open within
        del left_out[left_out.index(name) :]
    elif name == "body":  # ends a head, whose own end may be left to the reader
        left_out.clear()
    elif name in NO_PROSE and not ends and not alone:
        left_out.append(name)


def of_plain_text(text: str) -> Iterator[str]:
    """Paragraphs of a text file, which blank lines separate; a line that begins with a bullet begins one as well."""
    for block in re.split(r"\n[ \t]*(?:\n\s*|(?=[-*•][ \t]))", text.replace("\r\n", "\n")):
        yield re.sub(r"^\s*[-*•][ \t]+", "", block)


POD_CODE = re.compile(r"([A-Z])(?:<(?!<)([^<>]*)>|<<+\s+((?:(?!<<)(?!>>).)*?)\s+>>+)", re.DOTALL)
POD_NAMES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/"}


def of_pod(text: str) -> Iterator[str]:
    """Paragraphs of Perl's documentation, their formatting codes replaced by what they show."""
    inside = False  # of what is documentation, for `=begin` to `=end` is for other programs
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        if block.startswith("="):
            command, _, rest = block.partition(" ")
            inside = command not in ("=begin", "=cut")
            block = rest if command == "=item" else ""
        if inside and not block.startswith((" ", "\t")):  # those are code
            yield _without_codes(block)


def _without_codes(block: str) -> str:
    shown = None
    while shown != block:  # from the innermost outwards
        shown, block = block, POD_CODE.sub(_inner, block)
    return block


def _inner(match: re.Match) -> str:
    code, inner = match[1], match[2] if match[2] is not None else match[3]
    if code in "XZ":
        return ""
    if code == "E":
        return POD_NAMES.get(inner, "")
    if code == "L":
        label, bar, target = inner.partition("|")
        return label if bar else target or label.strip("/").replace('"', "").replace("/", " in ")
    return inner


READERS = {"html": of_html, "page": of_html, "txt": of_plain_text, "pod": of_pod}


def running_english(name: str, data: bytes) -> list[str]:
    """Return the paragraphs of running English of a file, in its order.

    Parameters
    ----------
    name : str
        Says the format: .html, .page, .txt or .pod, each perhaps with .gz.
    data : bytes
    """
    read = READERS[name.removesuffix(".gz").rpartition(".")[2]]
    blocks = (collapsed(block) for block in read(decoded(name, data)))
    return [block for block in blocks if is_running_english(block)]
