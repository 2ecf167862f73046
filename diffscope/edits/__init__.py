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

from diffscope.edits.base import Edit, apply
from diffscope.edits.edits import (
    a2_of_head,
    ablate_heads,
    absolute_d,
    d_plus,
    drop_sink,
    inject_noise,
    knock_out,
    low_rank_a2,
    normalise_d,
    plus,
    quantise_logits,
    remove_norm,
    scale_lambda,
    set_lambda,
    share_a2,
    top_k_a1,
    uniform_a2,
    zero_a2,
)
from diffscope.edits.from_captures import mean_a2, positional_a2, scalar_norm

__all__ = [
    "Edit",
    "a2_of_head",
    "ablate_heads",
    "absolute_d",
    "apply",
    "d_plus",
    "drop_sink",
    "inject_noise",
    "knock_out",
    "low_rank_a2",
    "mean_a2",
    "normalise_d",
    "plus",
    "positional_a2",
    "quantise_logits",
    "remove_norm",
    "scalar_norm",
    "scale_lambda",
    "set_lambda",
    "share_a2",
    "top_k_a1",
    "uniform_a2",
    "zero_a2",
]
