"""A pytest plugin for machines without hypothesis: ``pytest -p benchmarks.bare``. Tests of properties are skipped there."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest


class _Anything(ModuleType):
    """A module of which every name is something that can be called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self


def _given(*args, **kwargs):
    return pytest.mark.skip(reason="needs hypothesis")


def _settings(*args, **kwargs):
    return lambda function: function


try:
    import hypothesis  # noqa: F401
except ImportError:
    for _name in ("hypothesis", "hypothesis.strategies", "hypothesis.extra", "hypothesis.extra.numpy"):
        _module = sys.modules[_name] = _Anything(_name)
    sys.modules["hypothesis"].given = _given
    sys.modules["hypothesis"].settings = _settings
    sys.modules["hypothesis"].strategies = sys.modules["hypothesis.strategies"]
