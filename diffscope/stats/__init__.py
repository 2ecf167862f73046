"""Statistics of attention, each declared once on its function, and the measuring that streams blocks of rows through them."""

from typing import TYPE_CHECKING

from diffscope.lazily import lazily

# imported on first use, since intervals need no torch
_MODULES = {"KINDS": "statistic", "STATISTICS": "registry", "Statistic": "statistic", "measure_layer": "measure"}
__getattr__, __dir__, __all__ = lazily(__name__, _MODULES)

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from diffscope.stats.measure import measure_layer as measure_layer
    from diffscope.stats.registry import STATISTICS as STATISTICS
    from diffscope.stats.statistic import KINDS as KINDS
    from diffscope.stats.statistic import Statistic as Statistic
