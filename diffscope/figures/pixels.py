"""A map as bytes for a canvas or an image: levels on the scale that colours are on, and what turns them back into values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diffscope.errors import DiffscopeError

MOST = 255  # levels above 0


@dataclass(frozen=True)
class Pixels:
    """Values as small numbers.

    Attributes
    ----------
    levels : ndarray of uint8, any shape
        Of a signed scale 127 is zero.
    limit : float
        The size of the value at the end of the scale.
    signed : bool
        Whether the scale begins at −limit.
    contrast : {"sqrt", "linear"}
        Whether the position on the scale goes with the root of the value's share of the limit, as colours do
        (:func:`diffscope.figures.theme.colour_scale`), or with the share.
    """

    levels: np.ndarray
    limit: float
    signed: bool
    contrast: str

    def values(self) -> np.ndarray:
        """Return the values that the levels stand for, float32."""
        levels = self.levels.astype(np.float32)
        position = (levels - MOST // 2) / (MOST // 2) if self.signed else levels / MOST
        share = np.sign(position) * position**2 if self.contrast == "sqrt" else position
        return share * np.float32(self.limit)


def pixels(values: np.ndarray, limit: float | None = None, contrast: str = "linear") -> Pixels:
    """Return values as levels of a colour scale, NaN as zero.

    `limit` is the size of the value at the end of the scale, such as one that several maps share; by default the largest. What is
    larger is drawn as that. DiffscopeError if it is not positive, or there is no such contrast.
    """
    if contrast not in ("sqrt", "linear"):
        raise DiffscopeError(f"a scale's contrast is 'sqrt' or 'linear', not {contrast!r}")
    values = np.nan_to_num(np.asarray(values, dtype=np.float32), nan=0.0)
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    limit = largest if limit is None else float(limit)
    if not limit > 0:
        raise DiffscopeError(f"the end of a scale is above 0, not {limit:g}")
    signed = bool((values < 0).any())
    share = np.clip(values / limit, -1, 1)
    position = np.sign(share) * np.sqrt(np.abs(share)) if contrast == "sqrt" else share
    levels = np.rint(position * (MOST // 2)) + MOST // 2 if signed else np.rint(position * MOST)
    return Pixels(levels.astype(np.uint8), limit, signed, contrast)
