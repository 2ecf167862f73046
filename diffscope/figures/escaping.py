"""Token text made fit to be seen: whitespace visible, and escaped for whatever will interpret it."""

from __future__ import annotations

import html
import unicodedata

from diffscope.figures.typeface import drawable
from diffscope.prompts.encoded import Encoded

LOST = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer makes of bytes that are no character by themselves
VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "⇤", "\u00a0": "⍽", "": "∅"}


def readable(prompt: Encoded) -> list[str]:
    """Return the tokens of a prompt, each as a text that can be read.

    Where the bytes of a character are spread over several tokens, each of these has the character and says which part it is:
    ``🙂‹part 1/4›``. Bytes that belong to no character of the prompt's text stay as the tokenizer decodes them.
    """
    tokens = list(prompt.tokens)
    for parts in _split_characters(prompt):
        for number, at in enumerate(parts, 1):
            start, stop = prompt.offsets[at]
            tokens[at] = f"{(prompt.text or '')[start:stop]}‹part {number}/{len(parts)}›"
    return tokens


def _split_characters(prompt: Encoded) -> list[list[int]]:
    """Return runs of tokens, two or more, that share characters of the text and are none by themselves."""
    runs: list[list[int]] = []
    stop = 0  # of the last token's characters
    for at, (token, offsets) in enumerate(zip(prompt.tokens, prompt.offsets)):
        if LOST not in token:
            stop = 0
            continue
        if offsets[0] < stop:
            runs[-1].append(at)
        else:
            runs.append([at])
        stop = offsets[1]
    return [run for run in runs if len(run) > 1]


def visible(token: str) -> str:
    """Return the token with its whitespace and control characters made visible."""
    if token == "":
        return VISIBLE[""]
    return "".join(_visible_character(c) for c in str(token))


def _visible_character(c: str) -> str:
    if c in VISIBLE:
        return VISIBLE[c]
    if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"\\u{ord(c):04x}" if ord(c) > 0xFF else f"\\x{ord(c):02x}"
    return c


def shorten(text: str, longest: int = 12) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def for_html(text: str) -> str:
    """Escape a text for plotly, whose labels and hover boxes read HTML, and read dollars as mathematics."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def for_print(text: str) -> str:
    """Replace characters that no font can draw by a box."""
    return "".join(c if c.isascii() or drawable(ord(c)) else "□" for c in text)


def lacking(text: str) -> str:
    """Return the characters of a text that become a box in print, each once."""
    return "".join(dict.fromkeys(c for c in text if not c.isascii() and not drawable(ord(c))))


def short_name(model: str) -> str:
    """Return a model's name; of a folder its last part."""
    return model.rstrip("/").rpartition("/")[2] or model
