"""What the process that interprets is given to run; a module of its own, that it may be found there by its name."""

import os
import sys
import warnings
from unittest import mock

import torch

from diffscope.stats.kernels import rows


def prepare():
    """Import Triton anew, which reads once, when it is imported, whether it is to interpret."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [name for name in sys.modules if name.split(".")[0] == "triton" and not name.startswith("triton._C")]:
        del sys.modules[name]
    torch.set_num_threads(1)
    from triton.language import standard
    from triton.runtime import interpreter

    # Every call of one function by another replaces all of Triton's language anew, which takes half the time. Once is enough.
    interpreter._patch_lang(standard.sum.fn)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)


def moments(layer, *args, scratch=rows.SCRATCH_ROWS, **kwargs):
    """rows.moments with the histograms of so many rows in memory at a time."""
    with mock.patch.object(rows, "SCRATCH_ROWS", scratch):
        return rows.moments(layer, *args, **kwargs)


def measured_with_wrong_kernels(layer, moment, wrong, times=2):
    """Measure by kernels of which one moment is wrong; return the datasets and the warnings, and forget what was compared."""
    from diffscope.stats import measure_layer
    from diffscope.stats.kernels import guard

    right = rows.moments

    def planted(*args, **kwargs):
        moments = right(*args, **kwargs)
        if wrong is None:
            raise RuntimeError("PassManager::run failed\nmore")
        return {name: {key: wrong(x) if key == moment else x for key, x in of.items()} for name, of in moments.items()}

    with (
        mock.patch.object(rows, "moments", planted),
        mock.patch.object(guard, "_compared", set()),
        mock.patch.object(guard, "_refused", set()),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        found = [measure_layer(layer, "row", backend="triton") for _ in range(times)]
    return found, [str(each.message) for each in caught]


def slightly_more(x):
    """A thousandth more, as a kernel that misses a key."""
    return x * 1.001


def one_more(x):
    """One more of every count, the key after every position."""
    return x + 3


def read(*args):
    """brackets.read, whose module imports Triton."""
    from diffscope.stats.kernels import histogram_programs as brackets

    return brackets.read(*args)
