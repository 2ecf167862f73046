"""Write files whole or not at all, with a digest, and read them back. Statistics, and xarray with them, load when used."""

from typing import Any

__all__ = ["open_statistics", "save_statistics"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from diffscope.storage import statistics

    return getattr(statistics, name)
