"""A pytest plugin for machines without hypothesis: ``pytest -p benchmarks.bare``. Tests of properties are skipped there."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest


class _Anything(ModuleType):
    """A module of which every name is something that can be called, or joined to others, and gives the same again."""

    def __init__(self, name):
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __or__(self, other):
        return self

    def __iter__(self):
        return iter(())


def _given(*args, **kwargs):
    return pytest.mark.skip(reason="needs hypothesis")


class _Settings:
    def __init__(self, *args, **kwargs):
        """Whatever is set."""

    def __call__(self, function):
        return function

    @staticmethod
    def register_profile(*args, **kwargs):
        """Nothing is drawn by it."""

    load_profile = register_profile


try:
    import hypothesis  # noqa: F401
except ImportError:
    for _name in ("hypothesis", "hypothesis.strategies", "hypothesis.extra", "hypothesis.extra.numpy"):
        _module = sys.modules[_name] = _Anything(_name)
    sys.modules["hypothesis"].given = _given
    sys.modules["hypothesis"].settings = _Settings
    sys.modules["hypothesis"].strategies = sys.modules["hypothesis.strategies"]
