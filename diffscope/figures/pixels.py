"""A map as bytes for a canvas or an image: levels on the scale that colours are on, and what turns them back into values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from diffscope.errors import DiffscopeError

LEVELS = {"uint8": 255, "uint16": 65535}
Depth = Literal["uint8", "uint16", "float16"]


@dataclass(frozen=True)
class Pixels:
    """Values as small numbers.

    Attributes
    ----------
    levels : ndarray of uint8, uint16 or float16, any shape
        Whole numbers from 0 to the most that the type holds; of a signed scale the middle, rounded down, is zero. float16 holds
        the position on the scale itself, from 0 or −1 to 1.
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
        position = self.levels.astype(np.float32)
        if self.levels.dtype != np.float16:
            most = LEVELS[str(self.levels.dtype)]
            position = (position - most // 2) / (most // 2) if self.signed else position / most
        share = np.sign(position) * position**2 if self.contrast == "sqrt" else position
        return share * np.float32(self.limit)

    def scale(self) -> dict:
        """Return what a receiver has to know beside the bytes."""
        return {"limit": self.limit, "signed": self.signed, "contrast": self.contrast, "dtype": str(self.levels.dtype)}


def pixels(values: np.ndarray, limit: float | None = None, contrast: str = "sqrt", depth: Depth = "uint8") -> Pixels:
    """Return values as levels of a colour scale.

    Parameters
    ----------
    values : ndarray, any shape
        NaN becomes zero.
    limit : float, optional
        The size of the value at the end of the scale, such as one that several maps share; by default the largest. What is
        larger is drawn as that.
    contrast : {"sqrt", "linear"}
    depth : {"uint8", "uint16", "float16"}

    Raises
    ------
    DiffscopeError
        Unknown contrast or depth, or a limit that is not positive.
    """
    if contrast not in ("sqrt", "linear"):
        raise DiffscopeError(f"a scale's contrast is 'sqrt' or 'linear', not {contrast!r}")
    if depth not in (*LEVELS, "float16"):
        raise DiffscopeError(f"pixels are of 'uint8', 'uint16' or 'float16', not {depth!r}")
    values = np.nan_to_num(np.asarray(values, dtype=np.float32), nan=0.0)
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    limit = largest if limit is None else float(limit)
    if not limit > 0:
        raise DiffscopeError(f"the end of a scale is above 0, not {limit:g}")
    signed = bool((values < 0).any())
    share = np.clip(values / limit, -1, 1)
    position = np.sign(share) * np.sqrt(np.abs(share)) if contrast == "sqrt" else share
    if depth == "float16":
        return Pixels(position.astype(np.float16), limit, signed, contrast)
    most = LEVELS[depth]
    levels = np.rint(position * (most // 2)) + most // 2 if signed else np.rint(position * most)
    return Pixels(levels.astype(depth), limit, signed, contrast)
