"""Make random prompts that can fail a check: longer than an attention window, of tokens or of images."""

from __future__ import annotations

import math
from typing import Any

import torch

from diffscope.errors import DiffscopeError
from diffscope.prompts.selection import whole_number
from diffscope.scope import Scope
from diffscope.scope.images import ImageModel
from diffscope.scope.two_sides import Denoiser, EncoderDecoder

LONGEST = 4096
LENGTH = 48  # tokens of the long prompt, if no other length is asked for
SHORT = 24  # tokens of prompts that are run many times


class Prompts:
    """Random prompts of the kind that a model takes.

    Parameters
    ----------
    scope : Scope
    seed : int
    long : int
        Tokens of the long prompt.
    """

    def __init__(self, scope: Scope, seed: int, long: int) -> None:
        self.scope = scope
        self.long = long
        self.generator = torch.Generator().manual_seed(seed)

    def of_length(self, n: int) -> Any:
        """Return n random token ids; of a model of images an image, whatever n is."""
        if isinstance(self.scope.runner, ImageModel):
            return self.scope.runner.random_image(self.generator)
        if isinstance(self.scope.runner, Denoiser):
            return self.scope.runner.random_prompt(n, self.generator)
        size = self.scope.runner.vocabulary
        if size is None:
            raise DiffscopeError(f"{self.scope.name} has no embedding of tokens, so no prompt for it can be made up")
        ids = torch.randint(min(2, size - 1), size, (n,), generator=self.generator).tolist()
        if not isinstance(self.scope.runner, EncoderDecoder):
            return ids
        if "input_ids" not in self.scope.runner.parameters:
            raise DiffscopeError(f"{self.scope.name} takes more than token ids, so no prompt for it can be made up")
        return {"input_ids": ids[: n // 2], "decoder_input_ids": ids}  # sides of two lengths


def declared_window(scope: Scope) -> int | None:
    """Return the widest attention window, in tokens, that the model or its attention modules declare; None if none do."""
    holders = [getattr(scope.model, "config", None), *scope.family.modules(scope.model)]
    names = ("sliding_window", "window_size", "sliding_window_size")
    declared = [getattr(holder, name, None) for holder in holders for name in names]
    widths = [width for each in declared for width in (each if isinstance(each, tuple | list) else [each])]  # some list layers'
    return max((int(width) for width in widths if isinstance(width, int) and width > 0), default=None)


def check_length(scope: Scope, length: int) -> None:
    """Refuse a length of prompts that the model or the check does not take."""
    whole_number(length, 1, math.inf, "the length of prompts is a whole number from 1")
    if length == LENGTH or isinstance(scope.runner, ImageModel):
        return
    if scope.max_length is not None and length > scope.max_length:
        raise DiffscopeError(
            f"{scope.name} has positions for {scope.max_length:,} tokens, and prompts of {length:,} were asked for; "
            f"give a length of at most {min(scope.max_length, LONGEST):,}"
        )
    if length > LONGEST:
        raise DiffscopeError(f"prompts of {length:,} tokens were asked for, and at most {LONGEST:,} are checked; give less")


def long_enough(scope: Scope, length: int, window: int | None) -> int:
    """Return the tokens of the long prompt: beyond the window, within the positions of the model."""
    wanted = max(length, SHORT + 1, (window or 0) + 16)
    return min(wanted, LONGEST, scope.max_length or LONGEST)
