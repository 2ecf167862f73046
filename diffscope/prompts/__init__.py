"""Prompts as tokens with named spans."""

from diffscope.prompts.arguments import Arguments
from diffscope.prompts.encoded import Chars, ChatText, Encoded, encode
from diffscope.prompts.spans import SpanExpr

__all__ = ["Arguments", "Chars", "ChatText", "Encoded", "SpanExpr", "encode"]
