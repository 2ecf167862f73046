"""Hold what all checks of one model share: the model, its prompts, its report and the count of its runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from diffscope.conformance.prompts import Prompts
from diffscope.conformance.report import Report
from diffscope.scope import Scope

Progress = Callable[[int, int, str], object]


class CheckRun(NamedTuple):
    """One check of a model.

    Attributes
    ----------
    scope : Scope
    report : Report
        Grows with each check.
    prompts : Prompts
    announce : callable
        Takes the words for a run of the model that begins.
    """

    scope: Scope
    report: Report
    prompts: Prompts
    announce: Callable[[str], None]

    def logits(self, prompt: Any, columns: list[int] | None = None) -> Tensor:
        """Return the logits (token, vocabulary) of one prompt in float32, at some positions or at all."""
        return self.scope.run(self.scope.prepare(prompt, embedded=True), columns)[0].float()


def count_runs(progress: Progress | None, total: int) -> Callable[[str], None]:
    """Return a function that reports each run by its words to `progress`, with its number and the planned total."""
    count = itertools.count()

    def announce(words: str) -> None:
        if progress:
            progress(min(next(count), total), total, words)

    return announce
