"""The attention contract: what one layer attended with, and what turns it into maps."""

from diffscope.attention.changes import At, Change
from diffscope.attention.components import Mask, Norm, Pairing, Rows
from diffscope.attention.layer import LayerAttention

__all__ = ["At", "Change", "LayerAttention", "Mask", "Norm", "Pairing", "Rows"]
