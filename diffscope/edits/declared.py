"""The declaration of an edit: what it computes instead, where it acts and what it needs.

Each edit is declared once, on its function. What ``diffscope.edits`` exports, the table of docs/edits.md, the golden values and
the controls of the app are made from the declarations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Literal, ParamSpec

from diffscope.edits.base import Edit, Stage

Needs = Literal["", "A2", "norm"]
PLACES = ("layers", "heads")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """An edit, as its function declares it.

    Attributes
    ----------
    function : callable
        Make the edit.
    computes : str
        What is computed instead, in Markdown.
    stage : Stage
        The stage of the computation that it changes.
    needs : {"", "A2", "norm"}
        What a layer must have.
    example : mapping
        Arguments to try it with. An edit made from captures needs none.
    """

    function: Callable[..., Edit]
    computes: str
    stage: Stage
    needs: Needs
    example: Mapping[str, Any]

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return its parameters by name, without `layers` and `heads`."""
        return {name: x for name, x in inspect.signature(self.function).parameters.items() if name not in PLACES}

    @property
    def of_captures(self) -> bool:
        """Return whether it is made from captures of other prompts."""
        return "captures" in self.parameters

    @property
    def of_source(self) -> bool:
        """Return whether it is made from the capture of one other prompt."""
        return "source" in self.parameters

    @property
    def of_heads(self) -> bool:
        """Return whether it acts on single heads."""
        return "heads" in inspect.signature(self.function).parameters


#: every edit by name, in the order of the files that declare them
EDITS: dict[str, Declared] = {}
Arguments = ParamSpec("Arguments")


def declare(
    computes: str, *, stage: Stage, needs: Needs = "", example: Mapping[str, Any] | None = None
) -> Callable[[Callable[Arguments, Edit]], Callable[Arguments, Edit]]:
    """Declare the edit that the decorated function makes.

    It gets this stage, or keeps a later one of its own, and needs a second map if the declaration says so.

    Parameters
    ----------
    computes, stage, needs, example
        The fields of :class:`Declared`.
    """

    def declared(function: Callable[Arguments, Edit]) -> Callable[Arguments, Edit]:
        @wraps(function)
        def made(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Edit:
            edit = function(*args, **kwargs)
            return replace(edit, stage=max(stage, edit.stage), needs_a2=edit.needs_a2 or needs == "A2")

        if function.__name__ in EDITS:
            raise ValueError(f"two edits are called {function.__name__!r}; give each a name of its own")
        EDITS[function.__name__] = Declared(
            function=made, computes=computes, stage=stage, needs=needs, example=dict(example or {})
        )
        return made

    return declared
