"""The statistics themselves, for attention maps of any origin: functions on arrays, without models or files.

Every row statistic takes a map (..., query, key), a numpy array or a torch tensor of probabilities or of signed weights, and
gives one value (or a few) of each row, in the kind of array that it was given:

>>> import numpy as np
>>> from diffscope.stats.formulas import entropy
>>> causal = np.tri(3, dtype=bool)
>>> entropy(causal / causal.sum(-1, keepdims=True), visible=causal).round(4)
array([   nan, 0.6931, 1.0986])

Statistics of two branches take the rows of both, on all keys or on some; ranks take the singular values of a whole map.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch

from diffscope.stats.definitions import ROW
from diffscope.stats.formulas import branches, distribution, redundancy, spans
from diffscope.stats.ranks import exact as rank

Array = TypeVar("Array", np.ndarray, torch.Tensor)


def _like(result: torch.Tensor, array: Array) -> Array:
    return result.numpy() if isinstance(array, np.ndarray) else result


def _tensor(x: Any) -> Any:
    """Arrays and numbers as a tensor; anything else as it is."""
    if isinstance(x, np.ndarray):
        return torch.as_tensor(np.ascontiguousarray(x))
    return torch.tensor(x, dtype=torch.float64) if isinstance(x, float) else x


def _of_arrays(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The function for numpy arrays too; then its result is one."""

    @wraps(function)
    def on_arrays(*args: Any, **kwargs: Any) -> Any:
        tensors = [_tensor(x) for x in args]
        named = {name: _tensor(x) for name, x in kwargs.items()}
        result = function(*tensors, **named)
        return result.numpy() if not any(isinstance(x, torch.Tensor) for x in (*args, *kwargs.values())) else result

    return on_arrays


def _rows(a: Array, visible: Array | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights in float32 or float64 with zeros where a row does not see, what it sees, both (..., query, key), and how many."""
    x = _tensor(a).detach()
    if not x.is_floating_point():
        x = x.double()
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    seen = torch.ones_like(x, dtype=torch.bool) if visible is None else torch.as_tensor(visible).bool().expand(x.shape)
    return x.masked_fill(~seen, 0), seen, seen.sum(-1)


def _row_statistic(name: str) -> Callable[..., Any]:
    words = ROW[name]
    more = {"top_k_mass": ", k", "quantiles": ", quantile"}.get(name, "")

    def statistic(a: Array, visible: Array | None = None) -> Array:
        x, _, n = _rows(a, visible)
        return _like(distribution.of(name, x, n), a)

    statistic.__name__ = statistic.__qualname__ = name
    statistic.__doc__ = f"""{words.description[0].upper()}{words.description[1:]}: {words.formula}.

    With p = |x| / sum|x| the shares of a row x and n the number of keys that it sees. Source: {words.source}.

    Parameters
    ----------
    a : array (..., query, key)
        Rows of probabilities, or of signed weights such as A1 - lambda·A2.
    visible : bool array, broadcastable to (..., query, key), optional
        Which keys each row sees; by default all.

    Returns
    -------
    array (..., query{more})
        In units of {words.units}, from {words.range[0]} to {words.range[1]}. NaN: {words.undefined}.
    """
    return statistic


entropy = _row_statistic("entropy")
entropy_normalised = _row_statistic("entropy_normalised")
effective_tokens = _row_statistic("effective_tokens")
participation = _row_statistic("participation")
gini = _row_statistic("gini")
hoyer = _row_statistic("hoyer")
pseudo_norm = _row_statistic("pseudo_norm")
near_zero = _row_statistic("near_zero")
top_k_mass = _row_statistic("top_k_mass")
quantiles = _row_statistic("quantiles")
argmax = _row_statistic("argmax")
negative_share = _row_statistic("negative_share")
negative_count = _row_statistic("negative_count")
row_sum = _row_statistic("row_sum")


def span_mass(a: Array, keys: Array, visible: Array | None = None) -> Array:
    """How much of each row falls on some keys, in the four normalisations of :func:`diffscope.stats.formulas.spans.span_mass`.

    Parameters
    ----------
    a : array (..., query, key)
    keys : int array (chosen,)
        Key positions.
    visible : bool array, broadcastable to (..., query, key), optional
        Which keys each row sees; by default all.

    Returns
    -------
    array (..., query, normalisation)
        In the order of ``spans.NORMALISATIONS``; NaN in rows that see none of the keys, or only them.
    """
    x, seen, n = _rows(a, visible)
    chosen = torch.as_tensor(keys)
    if chosen.dtype == torch.bool or len(chosen.unique()) < len(chosen):
        raise ValueError("span_mass takes positions of keys, each once; of a mask they are numpy.flatnonzero(mask)")
    chosen = chosen.long()
    below = spans.denominators(x.abs().sum(-1), x.clamp_min(0).sum(-1), x.sum(-1))
    mass = spans.span_mass(x, [chosen], below, n, spans.take(seen, chosen).sum(-1, keepdim=True))
    return _like(mass[..., 0, :], a)


cosine = _of_arrays(branches.cosine)
lambda_star = _of_arrays(branches.lambda_star)
residual_noise = _of_arrays(branches.residual_noise)
residual_floor = _of_arrays(branches.residual_floor)
noise_gain = _of_arrays(branches.noise_gain)
signal_gain = _of_arrays(branches.signal_gain)
selectivity = _of_arrays(branches.selectivity)
rho = _of_arrays(branches.rho)
overlap = _of_arrays(branches.overlap)
kl = _of_arrays(branches.kl)
js = _of_arrays(branches.js)
shape_overlap = _of_arrays(branches.shape_overlap)
cmrr = _of_arrays(branches.cmrr)
head_cka = _of_arrays(redundancy.head_cka)
singular_values = _of_arrays(rank.singular_values)
ranks = _of_arrays(rank.ranks)
rank_residual = _of_arrays(rank.rank_residual)
uniform_map = _of_arrays(rank.uniform_map)
