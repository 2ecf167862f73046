"""Two models on the same prompts: ``diffscope.compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffscope.errors import DiffscopeError
from diffscope.scope.comparison import Comparison
from diffscope.scope.scope import Scope


def compare(
    first: Scope,
    second: Scope,
    prompts: Any,
    spans: Mapping | Sequence[Mapping] | None = None,
) -> Comparison:
    """Two models on the same prompts.

    Parameters
    ----------
    first, second : Scope
    prompts, spans
        As for :meth:`diffscope.scope.Scope.capture`.

    Returns
    -------
    Comparison

    Raises
    ------
    DiffscopeError
        The models' tokenizers differ, so that the same prompts would be other tokens.
    PromptError, SpanError, FidelityError, InsufficientMemory
        As of :meth:`diffscope.scope.Scope.capture`.
    """
    captures = first.capture(prompts, spans), second.capture(prompts, spans)
    same_ids = all(left.ids == right.ids for left, right in zip(*(capture.prompts for capture in captures)))
    vocabularies = [scope.tokenizer.get_vocab() for scope in (first, second) if scope.tokenizer is not None]
    if not same_ids or any(vocabulary != vocabularies[0] for vocabulary in vocabularies):
        raise DiffscopeError(f"{first.name} and {second.name} have different tokenizers; compare models that share one")
    number = (" (1)", " (2)") if first.name == second.name else ("", "")
    return Comparison((first.name + number[0], second.name + number[1]), captures)
