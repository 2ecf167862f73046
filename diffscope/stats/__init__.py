"""Statistics of attention: pure functions on blocks of rows, and the engine that streams the blocks through them."""

from diffscope.stats.engine import GROUPS, STATISTICS, Statistic, measure

__all__ = ["GROUPS", "STATISTICS", "Statistic", "measure"]
