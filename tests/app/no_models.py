"""Imported before ``background``, it takes the place of what opens models, which takes seconds to import."""

import sys
from types import ModuleType

if "diffscope.scope" not in sys.modules:
    sys.modules["diffscope.scope"] = ModuleType("diffscope.scope")
    sys.modules["diffscope.scope"].Scope = object
