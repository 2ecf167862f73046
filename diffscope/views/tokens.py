"""The prompt as running text, each token on the colour of what one query gives it: what a browser is given to draw it."""

from __future__ import annotations

import numpy as np

from diffscope.capture.capture import Capture
from diffscope.figures import theme
from diffscope.figures.escaping import readable, visible
from diffscope.figures.inputs import layer_at, visible_cells
from diffscope.views.attention import LOOK
from diffscope.views.component import Component

#: Draws the tokens. Its events are ``"query"``, the position of a token that is clicked, and ``"marked"``, the name, first and
#: last position of tokens that are marked as a span.
COMPONENT = Component(("token_strip.js",), triggers=("query", "marked"))


def data(capture: Capture, layer: int, head: int, query: int, markable: bool = False) -> dict:
    """Return everything that the strip needs, as plain data.

    Parameters
    ----------
    capture : Capture
    layer, head, query : int
        As of ``capture.map``.
    markable : bool
        Whether tokens can be selected and marked as a span.

    Returns
    -------
    dict
        ``shares``: of each key its part of the row's absolute sum, with the sign of D, from −1 to 1; None where the query does
        not see it, or the row is zero everywhere. ``shown``: the tokens with whitespace made visible. The colours end at the
        whole, so that strips of different rows compare.

    Raises
    ------
    DiffscopeError
        There is no such layer, head or query.
    """
    attention = layer_at(capture, layer, head)
    query = query % capture.n_tokens
    place = {"layer": layer, "head": head, "queries": [query]}
    signs = np.sign(capture.map("D", **place).values[0])
    shares = capture.map("share", **place).values[0] * signs  # (key,)
    seen = visible_cells(attention, [query], range(capture.n_tokens))[0] & np.isfinite(shares)
    spans = [
        {"name": name, "colour": theme.span_colour(name), "positions": list(positions)}
        for name, positions in capture.prompts[0].spans.items()
    ]
    return {
        "prompt": f"{capture.model_name} {hash(capture.prompts[0].ids)}",
        "tokens": capture.tokens,
        "shown": [visible(token) for token in readable(capture.prompts[0])],
        "shares": [float(share) if here else None for share, here in zip(shares, seen)],
        "signed": attention.differential,
        "of": "Σ|D|" if attention.differential else "Σ A",
        "layer": layer,
        "head": head,
        "query": query,
        "markable": markable,
        "spans": spans,
        "look": LOOK,
    }
