"""Watch a model while it trains: the statistics of captures, measured on fixed prompts every so many steps."""

from diffscope.monitoring.monitors import Monitor, monitor
from diffscope.monitoring.record import open_record

__all__ = ["Monitor", "monitor", "open_record"]
