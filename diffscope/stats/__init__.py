"""Statistics of attention, each declared once on its function, and the measuring that streams blocks of rows through them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_MODULES = {"KINDS": "statistic", "STATISTICS": "registry", "Statistic": "statistic", "measure_layer": "measure"}
__all__ = ["KINDS", "STATISTICS", "Statistic", "measure_layer"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: intervals need no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'diffscope.stats' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"diffscope.stats.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:  # the same names, for editors and type checkers
    from diffscope.stats.measure import measure_layer as measure_layer
    from diffscope.stats.registry import STATISTICS as STATISTICS
    from diffscope.stats.statistic import KINDS as KINDS
    from diffscope.stats.statistic import Statistic as Statistic
