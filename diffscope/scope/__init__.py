"""A model opened for looking: loading, running, capturing and measuring it, and two models side by side."""

from diffscope.scope.scope import Scope, load

__all__ = ["Scope", "load"]
