"""Imported before ``background``, it takes the place of what opens models, which takes seconds to import."""

import sys
from types import ModuleType

scope = sys.modules.setdefault("diffscope.scope", ModuleType("diffscope.scope"))
scope.Scope = object
