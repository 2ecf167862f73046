"""An instrument for looking inside differential attention.

>>> import diffscope
>>> scope = diffscope.load("mini-diff")
>>> capture = scope.capture("The code is 7421.", spans={"answer": "7421"})
>>> capture.map("D", layer=2, head=1).dims
('query', 'key')

Importing diffscope is cheap: a public name is imported when it is first used. All of them are listed in ``__init__.pyi``, which
editors, type checkers and this file read.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from diffscope.errors import *  # noqa: F403 (every error, and nothing else)

# What `from diffscope import *` brings: names that are here already. Others would import torch, or shadow `open`.
from diffscope.errors import __all__ as __all__

__version__ = "0.1.0"

_STUB = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
#: The module of every public name that is imported when it is used; ``diffscope`` for its modules.
_MODULES = {alias.name: str(node.module) for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
del _MODULES["*"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'diffscope' has no attribute {name!r}")
    module = _MODULES[name]
    value = import_module(f"diffscope.{name}") if module == "diffscope" else getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
