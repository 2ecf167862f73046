"""The declaration of a statistic: what it is in words, and how its numbers are computed.

Each statistic is declared once, on its function, in ``rows``, ``branches``, ``spans``, ``heads`` or ``ranks``. The table
(:mod:`diffscope.stats.registry`), the attributes of a Dataset, the functions on arrays (:mod:`diffscope.stats.formulas`), the
pages of the docs and the list of ``diffscope measure --list`` are generated from the declarations.

In the formulas, x is a row of A1, A2 or D, p = |x| / sum|x| its shares and n the number of keys that it can see; X is a key
set, on which <,>_X and |.|_X are taken; g is the gain of A1 (1 in most models) and lambda the coefficient of A2.

A sink logit has no key: rows of a map that has one sum to less than 1, and all sums are over keys. So what acts on the shares p
says how a row spreads what it puts on keys, raw masses are of the row as it is, and 1 - row_sum of A1 or A2 is what the sink
logit takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from diffscope.stats.collect import Quantity, Request

Averaged = Literal["mean", "median", "not"]
Kind = Literal["row", "branch", "span", "layer", "rank"]
KINDS: tuple[Kind, ...] = ("row", "branch", "span", "layer", "rank")

DIFF = "Differential Transformer (Ye et al., 2024)"
NO_SECOND = "standard attention"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A measured variable in words.

    Attributes
    ----------
    dims : tuple of str
        Of one layer and prompt.
    units : str
        "1" if dimensionless.
    description : str
        One line.
    formula : str
    range : tuple of str
        The least and the largest value, of n visible keys; "inf" if there is no bound.
    undefined : str
        When it is NaN.
    source : str
        By title; "defined here" if it has no other.
    averaged : {"mean", "median", "not"}
        Over queries, heads and layers: ratios without a bound by their median, positions and decibels not at all.
    averaged_over : str
        What the definition itself averages over.
    """

    dims: tuple[str, ...]
    units: str
    description: str
    formula: str
    range: tuple[str, str]
    undefined: str
    source: str = "defined here"
    averaged: Averaged = "mean"
    averaged_over: str = ""

    @cached_property
    def attributes(self) -> dict[str, str]:
        """Return the attributes of a variable of a Dataset."""
        attrs = {
            "units": self.units,
            "long_name": self.description,
            "definition": self.formula,
            "undefined": self.undefined,
            "source": self.source,
            "averaged": self.averaged,
        }
        return attrs | ({"averaged_over": self.averaged_over} if self.averaged_over else {})


def in_signs(formula: str) -> str:
    """Return a formula with the signs of print: Σ, √ and λ for sum, sqrt and lambda."""
    for pattern, sign in ((r"\bsum(?=_|\b)", "Σ"), (r"\bsqrt *", "√"), (r"\blambda\b", "λ"), (r"\bx\+", "max(x, 0)")):
        formula = re.sub(pattern, sign, formula)
    return formula


@dataclass(frozen=True, kw_only=True)
class Statistic(Definition):
    """A statistic that ``measure`` knows.

    Attributes
    ----------
    name : str
        The variable's name in a Dataset.
    kind : {"row", "branch", "span", "layer", "rank"}
    function : callable
        Of a row, the formula of its moments and of n; of two branches, the formula of what `needs` names; else of the quantity
        and the request, or of the request alone.
    needs : tuple of str
        Of a row, the moments (:mod:`diffscope.stats.moments`); of two branches, the arguments.
    quantity : Quantity, optional
        What blocks of rows give, from which the function computes. Without one it computes from the layer itself.
    notes : callable, optional
        Return further attributes of a request.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    quantity: Quantity | None = None
    notes: Callable[[Request], dict[str, str]] | None = None

    @property
    def by_head(self) -> bool:
        """Whether a head's values come from its rows alone, so that layers can be measured side by side as one."""
        return self.quantity is not None and self.dims[0] == "head" and "other_head" not in self.dims


#: by name, in the order of the files that declare them
DECLARED: dict[str, Statistic] = {}
Function = TypeVar("Function", bound=Callable[..., Tensor])


def declare(*, name: str = "", **words: Any) -> Callable[[Function], Function]:
    """Declare the statistic that the decorated function computes, by default under its name; `words` are other fields of it."""

    def declared(function: Function) -> Function:
        statistic = Statistic(name=name or function.__name__, function=function, **words)
        if statistic.name in DECLARED:
            raise ValueError(f"two statistics are called {statistic.name!r}; give each a name of its own")
        DECLARED[statistic.name] = statistic
        return function

    return declared
