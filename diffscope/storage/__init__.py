"""Files: written whole or not at all, with a checksum, and read back."""

from typing import Any

__all__ = ["open_statistics", "save_statistics"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from diffscope.storage import statistics

    return getattr(statistics, name)
