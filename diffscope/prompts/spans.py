"""Combine spans of one prompt into others: tokens before one, after one, in both, or in neither."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from diffscope.errors import SpanError
from diffscope.fields import shown

GRAMMAR = "names of spans, before(…), after(…), ~ (all others), | (or), & (and), - (without) and brackets"
SETS: dict[type, Callable[[frozenset, frozenset], frozenset]] = {
    ast.BitOr: frozenset.union,
    ast.BitAnd: frozenset.intersection,
    ast.Sub: frozenset.difference,
}


@dataclass(frozen=True)
class SpanExpr:
    """A span given by other spans: ``SpanExpr("before(answer) - sink")``.

    ``before(x)`` are the tokens before the first one of x, ``after(x)`` those after its last, ``~x`` all tokens but x;
    ``x | y`` are those of either, ``x & y`` of both, ``x - y`` of x alone. A name that is no plain word stands in quotes.

    Attributes
    ----------
    text : str

    Raises
    ------
    SpanError
        It cannot be read.
    """

    text: str
    _tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_tree", ast.parse(self.text.strip(), mode="eval").body)
            _names(self._tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError, AttributeError, TypeError):
            raise SpanError(f"{shown(self.text)} is no span made of others; it takes {GRAMMAR}") from None

    @property
    def names(self) -> set[str]:
        """Spans that the expression names."""
        return _names(self._tree)

    def positions(self, spans: Mapping[str, frozenset[int]], n: int) -> frozenset[int]:
        """Return the token positions in a prompt of n tokens that has these spans, by name."""
        return _positions(self._tree, spans, n)


def _names(tree: ast.expr) -> set[str]:
    """Return the spans that an expression names; ValueError if it is no expression."""
    match tree:
        case ast.Name(name) | ast.Constant(str(name)):
            return {name}
        case ast.Call(ast.Name("before" | "after"), [inner], []) | ast.UnaryOp(ast.Invert(), inner):
            return _names(inner)
        case ast.BinOp(left, operator, right) if type(operator) in SETS:
            return _names(left) | _names(right)
    raise ValueError(ast.dump(tree))


def _positions(tree: ast.expr, spans: Mapping[str, frozenset[int]], n: int) -> frozenset[int]:
    match tree:
        case ast.Name(name) | ast.Constant(str(name)):
            return spans[name]
        case ast.Call(ast.Name(side), [inner]):
            within = _positions(inner, spans, n)
            ends = (0, min(within, default=0)) if side == "before" else (max(within, default=n) + 1, n)
            return frozenset(range(*ends))
        case ast.UnaryOp(_, inner):
            return frozenset(range(n)) - _positions(inner, spans, n)
        case ast.BinOp(left, operator, right):
            return SETS[type(operator)](_positions(left, spans, n), _positions(right, spans, n))
    raise ValueError(ast.dump(tree))


def resolved(given: Mapping[str, SpanExpr], found: Mapping[str, tuple[int, ...]], n: int) -> dict[str, tuple[int, ...]]:
    """Return sorted token positions of expressions of spans, which may name each other.

    Raises SpanError if a span that is named is not there, is made of itself, or nothing is left of one.

    Parameters
    ----------
    found : mapping of str to tuple of int
        The prompt's other spans.
    n : int
        Tokens of the prompt.
    """
    known = {name: frozenset(at) for name, at in found.items()}
    waiting = dict(given)
    for name, span in given.items():
        if missing := span.names - known.keys() - given.keys():
            there = ", ".join(sorted({*known, *given} - {name}))
            raise SpanError(f"span {name!r} is made of {min(missing)!r}, which is no span of this prompt; there are {there}")
    while waiting:
        ready = [name for name, span in waiting.items() if span.names <= known.keys()]
        if not ready:
            raise SpanError(f"span {min(waiting)!r} is made of itself ({waiting[min(waiting)].text}); name others")
        for name in ready:
            known[name] = waiting.pop(name).positions(known, n)
            if not known[name]:
                raise SpanError(
                    f"span {name!r}: {given[name].text!r} holds no token of this prompt; leave it out, or name others"
                )
    return {name: tuple(sorted(known[name])) for name in given}
