"""Draw what differential attention computes on a head of a model: small pictures of A1 − λ·A2 = D."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diffscope.figures import theme

if TYPE_CHECKING:
    from diffscope.capture.capture import Capture

BINS = 16  # a side of a picture
PARTS = ("A1", "lambda_A2", "D")
BLUE, ORANGE = theme.BLUES[6], theme.ORANGES[6]


def equation(capture: Capture, layer: int, head: int) -> str:
    """Return small pictures of A1, λ·A2 and D of a head as SVG, whose text has the colour of the page.

    The capture is of one prompt and differential attention. A cell is the largest weight of its bin: blue if positive, orange if
    negative.
    """
    maps = capture.pooled_maps(layer, [head], PARTS, size=BINS).isel(head=0)
    limit = max(float(np.nanmax(np.abs(maps[name].values))) for name in PARTS) or 1.0
    seen = maps["visible"]
    parts = []
    for number, name in enumerate(PARTS):
        left = 108 * number
        title = theme.TITLES[name].partition(" = ")[0]
        parts.append(f'<text x="{left + 40}" y="98">{title}</text>{_cells(maps[name].where(seen).values, left, limit)}')
    signs = '<text x="94" y="45" font-size="17">−</text><text x="202" y="45" font-size="17">=</text>'
    style = "font-family='system-ui, sans-serif' font-size='13' fill='currentColor' text-anchor='middle'"
    return f'<svg viewBox="0 0 300 104" width="300" role="img" aria-label="A₁ − λ·A₂ = D" {style}>{signs}{"".join(parts)}</svg>'


def _cells(values: np.ndarray, left: float, limit: float) -> str:
    """Return the cells of one map, (query, key), 80 units a side; what no query sees is left out."""
    high, wide = (80 / count for count in values.shape)
    return "".join(
        f'<rect x="{left + wide * key:.1f}" y="{high * query:.1f}" width="{wide:.1f}" height="{high:.1f}" '
        f'fill="{BLUE if weight >= 0 else ORANGE}" fill-opacity="{(abs(weight) / limit) ** 0.5:.2f}"/>'
        for (query, key), weight in np.ndenumerate(values)
        if np.isfinite(weight)
    )
