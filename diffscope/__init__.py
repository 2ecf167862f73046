"""An instrument for looking inside differential attention.

>>> import diffscope
>>> scope = diffscope.load("mini-diff")
>>> capture = scope.capture("The code is 7421.", spans={"answer": "7421"})
>>> capture.map("D", layer=2, head=1).dims
('query', 'key')

Importing diffscope costs nothing: a public name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffscope.errors import *  # noqa: F403 (every error, and nothing else)
from diffscope.errors import __all__ as _ERRORS

__version__ = "0.1.0"

#: Every public name and the module that it is in; None where it is that module of diffscope itself.
_NAMES = {
    **dict.fromkeys(_ERRORS, "errors"),
    "Capture": "capture",
    "Chars": "prompts",
    "Comparison": "scope.comparison",
    "SpanExpr": "prompts",
    "QuerySample": "stats.sampling",
    "Scope": "scope",
    "average": "stats.averaging",
    "check": "conformance",
    "compare": "scope.comparison",
    "figure": "figures",
    "load": "scope",
    "open": "opening",
    **dict.fromkeys(
        (
            "attention",
            "attribution",
            "conformance",
            "edits",
            "errors",
            "families",
            "figures",
            "hypotheses",
            "instruments",
            "lab",
            "lens",
        ),
        None,
    ),
    **dict.fromkeys(("models", "prompts", "readings", "stats", "storage", "tables", "tasks"), None),
}

# What `from diffscope import *` brings: names that are here already. Others would import torch, or shadow `open`.
__all__ = sorted(name for name, home in _NAMES.items() if home == "errors")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'diffscope' has no attribute {name!r}")
    home = _NAMES[name]
    value = import_module(f"diffscope.{name}") if home is None else getattr(import_module(f"diffscope.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


if TYPE_CHECKING:  # the same names, for editors and type checkers
    from diffscope import attention as attention
    from diffscope import attribution as attribution
    from diffscope import conformance as conformance
    from diffscope import edits as edits
    from diffscope import errors as errors
    from diffscope import families as families
    from diffscope import figures as figures
    from diffscope import hypotheses as hypotheses
    from diffscope import instruments as instruments
    from diffscope import lab as lab
    from diffscope import lens as lens
    from diffscope import models as models
    from diffscope import prompts as prompts
    from diffscope import readings as readings
    from diffscope import stats as stats
    from diffscope import storage as storage
    from diffscope import tables as tables
    from diffscope import tasks as tasks
    from diffscope.capture import Capture as Capture
    from diffscope.conformance import check as check
    from diffscope.figures import figure as figure
    from diffscope.opening import open as open
    from diffscope.prompts import Chars as Chars
    from diffscope.prompts import SpanExpr as SpanExpr
    from diffscope.scope import Scope as Scope
    from diffscope.scope import load as load
    from diffscope.scope.comparison import Comparison as Comparison
    from diffscope.scope.comparison import compare as compare
    from diffscope.stats.averaging import average as average
    from diffscope.stats.sampling import QuerySample as QuerySample
