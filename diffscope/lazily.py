"""Public names of a package that are imported when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package; `modules` has the module of each public name."""
    held = vars(sys.modules[package])

    def imported(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        held[name] = getattr(import_module(f"{package}.{modules[name]}"), name)
        return held[name]

    return imported, lambda: sorted({*held, *modules}), sorted(modules)
