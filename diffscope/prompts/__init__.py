"""Prompts as tokens with named spans."""

from diffscope.prompts.encoded import Chars, ChatText, Encoded, encode
from diffscope.prompts.spans import SpanExpr

__all__ = ["Chars", "ChatText", "Encoded", "SpanExpr", "encode"]
