"""Write files atomically and with a digest, and read them back. Statistics, and with them xarray, are imported on first use."""

from typing import Any

__all__ = ["open_statistics", "save_statistics"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from diffscope.storage import statistics

    return getattr(statistics, name)
