"""The statistics as functions on arrays, for attention maps of any origin, without models or files.

Every row statistic takes a map (..., query, key) of probabilities or of signed weights, and returns one value (or a few) of each
row. Of a torch tensor the result is a tensor; of a numpy array, a DataArray of xarray or nested lists it is a numpy array:

>>> import numpy as np
>>> from diffscope.stats.formulas import entropy
>>> causal = np.tri(3, dtype=bool)
>>> entropy(causal / causal.sum(-1, keepdims=True), visible=causal).round(4)
array([   nan, 0.6931, 1.0986])

Statistics of two branches take the rows of both, on all keys or on some; ranks take the singular values of a whole map. The
functions of rows and branches are generated from the declarations of the statistics.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch

from diffscope.errors import DiffscopeError
from diffscope.prompts.selection import token_positions
from diffscope.stats import branches, heads, rows, spans
from diffscope.stats.collect import Columns
from diffscope.stats.ranks import exact
from diffscope.stats.statistic import DECLARED, Statistic

Array = TypeVar("Array", np.ndarray, torch.Tensor)

ON_KEYS = "array (..., X)\n    Rows on keys X, with zeros on those that a row does not see."
OF_BRANCHES = {
    "gain": "array (...) or float\n    g of each row, 1 except in V3.",
    "total": "array (...)\n    Sum |D| of each whole row.",
    "total_a1": "array (...) or float\n    Sum A1 of each whole row, less than 1 if a sink logit takes part.",
    "seen": "int array (...), optional\n    How many of the keys X each row sees; by default all.",
}


def _like(result: torch.Tensor, array: Array) -> Array:
    return result if isinstance(array, torch.Tensor) else result.numpy()


def _tensor(x: Any) -> Any:
    """Return arrays (of xarray too), nested lists and numbers as a tensor, in float32 at least if it is not of truth values.

    Anything else is returned as it is.
    """
    if not isinstance(x, torch.Tensor) and (hasattr(x, "__array__") or isinstance(x, (int, float, list, tuple))):
        x = torch.as_tensor(np.asarray(x, order="C"))
    if not isinstance(x, torch.Tensor) or x.dtype == torch.bool:
        return x
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x.double()


def _of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the parameters of a function that are tensors be numpy arrays too; then its result is one."""
    signature = inspect.signature(function)
    arrays = {name for name, parameter in signature.parameters.items() if "Tensor" in str(parameter.annotation)}

    @wraps(function)
    def on_arrays(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        result = function(**{name: _tensor(x) if name in arrays else x for name, x in given.items()})
        return result if any(isinstance(x, torch.Tensor) for x in given.values()) else result.numpy()

    if statistic := _BRANCHES.get(function):
        # A single key of a whole row counts only where the function is told how many keys a row sees.
        undefined = statistic.undefined if "seen" in arrays else statistic.undefined.removeprefix(f"{branches.ONE_KEY}; ")
        shapes = "\n".join(f"{name} : {OF_BRANCHES.get(name, ON_KEYS)}" for name in signature.parameters)
        on_arrays.__doc__ = (
            f"{inspect.getdoc(function)}\n\nParameters\n----------\n{shapes}\n\n"
            f"Returns\n-------\narray (...)\n    {_values(statistic)} NaN: {undefined}.\n"
        )
    return on_arrays


def _values(statistic: Statistic) -> str:
    """Say in which units a statistic is, and in which range."""
    units = "Dimensionless" if statistic.units == "1" else f"In {statistic.units}"
    return f"{units}, from {statistic.range[0]} to {statistic.range[1]}."


def _rows(a: Array, visible: Array | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weights in float32 or float64 with zeros where a row does not see, what it sees, (..., query, key), and how many."""
    x = _tensor(a)
    if not isinstance(x, torch.Tensor) or x.dim() < 1:
        raise DiffscopeError(
            f"a map is an array (..., query, key), not {type(a).__name__}; give a window of cap.map, for example"
        )
    x = x.detach() if x.is_floating_point() else x.double()
    seen = torch.ones_like(x, dtype=torch.bool) if visible is None else torch.as_tensor(_tensor(visible)).bool().expand(x.shape)
    return x.masked_fill(~seen, 0), seen, seen.sum(-1)


def _of_row(statistic: Statistic) -> Callable[..., Any]:
    description = statistic.description
    more = "".join(f", {dim}" for dim in statistic.dims[len(rows.ROW) :])

    def function(a: Array, visible: Array | None = None) -> Array:
        x, _, n = _rows(a, visible)
        return _like(rows.of(statistic.name, x, n), a)

    function.__name__ = function.__qualname__ = statistic.name
    function.__doc__ = f"""{description[0].upper()}{description[1:]}: {statistic.formula}.

    With p = |x| / sum|x| the shares of a row x and n the number of keys that it sees. Source: {statistic.source}.

    Parameters
    ----------
    a : array (..., query, key)
        Rows of probabilities, or of signed weights such as A1 - lambda·A2.
    visible : bool array, broadcastable to (..., query, key), optional
        Which keys each row sees; by default all.

    Returns
    -------
    array (..., query{more})
        {_values(statistic)} NaN: {statistic.undefined}.
    """
    return function


def span_mass(a: Array, keys: Array, visible: Array | None = None) -> Array:
    """Compute how much of each row falls on some keys, in the four normalisations of :func:`diffscope.stats.spans.mass`.

    Parameters
    ----------
    a : array (..., query, key)
    keys : int array (chosen,)
        Key positions, negative ones counted from the end.
    visible : bool array, broadcastable to (..., query, key), optional
        Which keys each row sees; by default all.

    Returns
    -------
    array (..., query, normalisation)
        In the order of ``spans.NORMALISATIONS``; NaN in rows that see none of the keys, or only them.
    """
    x, seen, n = _rows(a, visible)
    chosen = token_positions(keys, {}, x.shape[-1]).to(x.device)
    if len(chosen.unique()) < len(chosen):
        raise DiffscopeError("span_mass takes positions of keys, each once; of a mask they are numpy.flatnonzero(mask)")
    below = spans.denominators(x.abs().sum(-1), x.clamp_min(0).sum(-1), x.sum(-1))
    mass = spans.mass(x, [Columns(chosen, seen[..., chosen].sum(-1))], below, n)
    return _like(mass[..., 0, :], a)


_BRANCHES = {each.function: each for each in DECLARED.values() if each.kind == "branch"}
_FUNCTIONS: dict[str, Callable[..., Any]] = {each.name: _of_row(each) for each in DECLARED.values() if each.kind == "row"}
_OF_TENSORS: set[Callable[..., Any]] = {
    *_BRANCHES,
    *(branches.rho, heads.cmrr, heads.head_cka),
    *(exact.singular_values, exact.ranks, exact.rank_residual, exact.uniform_map),
}
_FUNCTIONS |= {function.__name__: _of_arrays(function) for function in _OF_TENSORS} | {"span_mass": span_mass}
__all__ = sorted(_FUNCTIONS)


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the function of a statistic."""
    try:
        return _FUNCTIONS[name]
    except KeyError:
        raise AttributeError(f"module 'diffscope.stats.formulas' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return __all__
