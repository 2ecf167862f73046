"""Statistics of attention: pure functions on blocks of rows, and the engine that streams the blocks through them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["GROUPS", "STATISTICS", "Statistic", "measure"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: intervals need no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'diffscope.stats' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("diffscope.stats.engine"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:  # the same names, for editors and type checkers
    from diffscope.stats.engine import GROUPS as GROUPS
    from diffscope.stats.engine import STATISTICS as STATISTICS
    from diffscope.stats.engine import Statistic as Statistic
    from diffscope.stats.engine import measure as measure
