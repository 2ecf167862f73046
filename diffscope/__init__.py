"""An instrument for looking inside differential attention.

>>> import diffscope
>>> scope = diffscope.load("mini-diff")                                     # doctest: +SKIP
>>> capture = scope.capture("The code is 7421.", spans={"answer": "7421"})  # doctest: +SKIP
>>> capture.map("D", layer=3, head=1)                                       # doctest: +SKIP

The public names are imported when they are first used, so that importing diffscope itself costs nothing.
"""

from importlib import import_module

from diffscope.errors import (
    CorruptFile,
    DiffscopeError,
    DiffscopeWarning,
    FidelityError,
    MissingExtra,
    ModelNotFound,
    OutOfMemoryAhead,
    PromptError,
    SpanError,
    Stopped,
    UnsupportedModel,
)

__version__ = "0.1.0"

_NAMES = {
    "Capture": "diffscope.capture",
    "Chars": "diffscope.prompts",
    "Sample": "diffscope.stats.sampling",
    "average": "diffscope.stats.averaging",
    "check": "diffscope.conformance",
    "Scope": "diffscope.scope",
    "figure": "diffscope.figures",
    "load": "diffscope.scope",
    "open": "diffscope.capture",
    "test": "diffscope.hypotheses",
}
_ROOMS = ("edits", "families", "hypotheses", "lens", "models", "stats", "tasks")

__all__ = [
    "Capture",
    "Chars",
    "CorruptFile",
    "DiffscopeError",
    "DiffscopeWarning",
    "FidelityError",
    "MissingExtra",
    "ModelNotFound",
    "OutOfMemoryAhead",
    "PromptError",
    "Sample",
    "Scope",
    "SpanError",
    "Stopped",
    "UnsupportedModel",
    "average",
    "check",
    "edits",
    "families",
    "figure",
    "hypotheses",
    "lens",
    "load",
    "models",
    "open",
    "stats",
    "tasks",
    "test",
]


def __getattr__(name):
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"diffscope.{name}")
    else:
        raise AttributeError(f"module 'diffscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
