"""Edits: changes mid-forward, between a layer's attention inputs and its output projection.

>>> import diffscope
>>> scope = diffscope.load("mini-diff")
>>> with scope.edit(diffscope.edits.set_lambda(1.0), diffscope.edits.uniform_a2(layers=[2])):
...     capture = scope.capture("The code is 7421.")
>>> float(capture.lam.max())
1.0

Every edit takes the keywords `layers` and `heads`, an index or several, by default all; an edit of the norm takes `layers` alone.
Whatever the order in which edits are given, they act in the order of the computation: fields of the layer (λ, pairing, norm)
first, then scores, maps, difference and output. Within one of these the order given counts.
"""

from typing import TYPE_CHECKING

from diffscope.edits import edits, from_captures, patching  # they declare the edits
from diffscope.edits.base import Edit, apply
from diffscope.edits.declared import EDITS

if TYPE_CHECKING:  # the names of the edits, for editors and type checkers
    from diffscope.edits.edits import *
    from diffscope.edits.from_captures import *
    from diffscope.edits.patching import *

__all__ = ["EDITS", "Edit", "apply", *EDITS]
globals().update({name: edit.function for name, edit in EDITS.items()})
