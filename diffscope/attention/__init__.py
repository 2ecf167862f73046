"""The contract of attention: the inputs of one layer, and how they become maps."""

from diffscope.attention.changes import Change, RowContext
from diffscope.attention.components import Mask, Norm, Pairing, Rows
from diffscope.attention.layer import LayerAttention

__all__ = ["Change", "LayerAttention", "Mask", "Norm", "Pairing", "RowContext", "Rows"]
