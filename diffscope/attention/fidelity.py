"""Record how well one layer of a capture was rebuilt, and what a float32 run of its module says of its reading."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from diffscope.errors import DiffscopeError
from diffscope.fields import FLAG, NUMBER_OR_NAN, TEXT, WIDTH, check_fields, finite, whole

UNDECIDED = "another pairing of the maps would fit as well: λ is 0, or the maps differ by less than the dtype rounds"
NOT_COMPARED = "no query sees a key, so that there is nothing to compare"

FIELDS = {
    "error": finite(0),
    "tolerance": finite(0),
    "rows": whole(),
    "decided": FLAG,
    "reason": TEXT,
    "error_float32": NUMBER_OR_NAN,
    "lam_within": WIDTH,
}


@dataclass(frozen=True)
class Fidelity:
    """State how well the attention output of one layer was rebuilt.

    Attributes
    ----------
    error : float
        max over prompts, heads, rows and width of |rebuilt − observed|, in units of what rounding does to that row:
        |gain|·:func:`diffscope.proof.tolerance.rounding` of A1·V + |λ|·that of A2·V, times the factor by which the norm scales
        the row. A model rounds both terms before it subtracts them, so the unit stays meaningful however much of them cancels.
    tolerance : float
        What rounding in the model's dtype explains; where scores are large, and only if it is needed, more.
    rows : int
        Query rows compared, over all prompts.
    decided : bool
        Whether the same comparison refuses every other pairing of the maps. It cannot where λ is 0 or where a prompt is one token
        long. Of a model in half precision it is what a run of the layer's own module in float32 decides.
    reason : str
        Why it is not decided; empty where it is.
    error_float32 : float
        Of a model in half precision, the error of the reading in a run of the layer's own module in float32, where float32's
        tolerance holds; NaN where that could not be run, and of models that are in float32 or wider themselves.
    lam_within : float
        The half-width within which λ is pinned: a λ that is off by more, by as much in all rows, is refused. Of λ that heads have
        of their own, the widest. Infinite where λ cannot be seen, and large in a prompt of one token, where λ acts through the
        norm's eps alone; NaN without a second map, and where an edit changes rows. Of a model in half precision that of the
        float32 run, where there is one.
    """

    error: float
    tolerance: float
    rows: int
    decided: bool
    reason: str = ""
    error_float32: float = np.nan
    lam_within: float = np.nan

    @classmethod
    def from_record(cls, record: dict, what: str) -> Fidelity:
        """Read the fidelity of a layer from a saved capture.

        Parameters
        ----------
        record : dict
        what : str
            Name of the record in messages, such as "the proof of layer 2".

        Raises
        ------
        ValueError
            The record lacks a field, holds a wrong value, or its error is above its tolerance.
        """
        check_fields(what, record, FIELDS)
        proof = cls(**record)
        if proof.error > proof.tolerance:
            raise ValueError(f"{what} has an error of {proof.error:.3g}, above its tolerance {proof.tolerance:.3g}")
        return proof


@dataclass(frozen=True)
class Float32Proof:
    """Hold what a float32 run of a layer's module says of its reading.

    Attributes
    ----------
    reading : int or None
        The index of the family's reading that rebuilds what the module computes in float32; None if none does or none was tried.
    signature : tuple or None
        The signature of that reading (:func:`diffscope.proof.float32.reading_signature`).
    fidelity : Fidelity or None
        How well that reading rebuilds.
    reason : str
        Why the formula is not decided, if there is no fidelity.
    error : DiffscopeError or None
        The error to raise when the layer's turn comes, if no reading rebuilds.
    """

    reading: int | None = None
    signature: tuple | None = None
    fidelity: Fidelity | None = None
    reason: str = ""
    error: DiffscopeError | None = None

    def with_proof(self, rounded: Fidelity, matches: bool) -> Fidelity:
        """Return the fidelity of a layer in half precision, decided by its float32 run.

        Parameters
        ----------
        rounded : Fidelity
            Of the layer in half precision.
        matches : bool
            Whether the layer's reading matches the one proved in float32.
        """
        if self.fidelity is None:
            return replace(rounded, decided=False, reason=self.reason)
        if not matches:
            return replace(rounded, decided=False, reason="in float32 another of its readings was proved than fits this prompt")
        names = ("decided", "reason", "error_float32", "lam_within")
        return replace(rounded, **{name: getattr(self.fidelity, name) for name in names})
