"""The attention contract: what one layer attended with, and what turns it into maps."""

from diffscope.attention.changes import Change, RowContext
from diffscope.attention.components import Mask, Norm, Pairing, Rows
from diffscope.attention.layer import LayerAttention

__all__ = ["Change", "LayerAttention", "Mask", "Norm", "Pairing", "RowContext", "Rows"]
