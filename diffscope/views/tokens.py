"""The prompt as running text, each token on the colour of what one query gives it: what a browser is given to draw it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from diffscope.capture.capture import Capture
from diffscope.figures import theme
from diffscope.figures.escaping import readable, visible
from diffscope.figures.inputs import layer_at, position_of, visible_cells
from diffscope.views.attention import LOOK, prompt_name, spans_of
from diffscope.views.component import Component

#: Draws the tokens. Its events are ``"query"``, the position of a token that is clicked, and ``"marked"``, a list of marks that
#: are not answered yet, each the name, first and last position of tokens that are marked as a span.
COMPONENT = Component(("token_strip.js",), triggers=("query", "marked"))
MARKS = ("answer", "needles", "query")  # names that tokens are marked with


def data(capture: Capture, layer: int, head: int, query: int, markable: bool = False, marked: Collection[str] = ()) -> dict:
    """Return everything that the strip needs, as plain data.

    If it is `markable`, tokens can be selected and marked as a span; further tokens join those that were `marked` here, where
    they replace other spans. ``shares`` is of each key its part of the row's absolute sum, with the sign of D, from −1 to 1; None
    where it is not ``seen`` by the query, or the row is zero everywhere. ``shown`` are the tokens with whitespace made visible.
    The colours end at the whole, so that strips of different rows compare.
    """
    capture.check_one_side("the text")
    attention = layer_at(capture, layer, head)
    query = position_of(query, capture.n_tokens)
    place = {"layer": layer, "head": head, "queries": [query]}
    encoded = capture.prompts[0]
    signs = np.sign(capture.map("D", **place).values[0])
    shares = capture.map("share", **place).values[0] * signs  # (key,)
    seen = visible_cells(attention, [query], range(capture.n_tokens))[0]  # (key,)
    return {
        "prompt": prompt_name(capture),
        "tokens": capture.tokens,
        "shown": [visible(token) for token in readable(encoded)],
        "shares": [float(share) if here else None for share, here in zip(shares, seen & signs.any())],
        "seen": seen.tolist(),
        "signed": attention.differential,
        "of": "Σ|D|" if attention.differential else "Σ A",
        "layer": layer,
        "head": head,
        "query": query,
        "marks": theme.span_colours(MARKS) if markable else {},
        "marked": list(marked),
        "spans": spans_of(encoded, theme.span_colours(encoded.spans)),
        "look": LOOK,
    }
