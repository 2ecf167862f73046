"""Open models: load, run, capture, measure and edit them, and compare two."""

from diffscope.scope.scope import Scope, load

__all__ = ["Scope", "load"]
