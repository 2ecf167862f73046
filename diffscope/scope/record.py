"""What is known of a run of a model besides its layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families import AttentionPass
from diffscope.families.base import REGISTER
from diffscope.scope.layer_outputs import Tails, outliers_at


@dataclass
class Record:
    """What is known of a run besides the layers themselves; while it runs, of the layers so far.

    Attributes
    ----------
    model : str
    dtype : torch.dtype, optional
        Of what attended, which under autocast is not that of the weights.
    numbers : list of int
    places : list of (int, int)
        Of each layer the index of its module, and how often that had been run before.
    proofs : list of Fidelity
    warned : dict of str to None
    next : list of list of (str, float)
        By prompt.
    outliers : ndarray, (layer, prompt, outlier)
    edits : tuple of str
        Under which it was run.
    attention : str
        The implementation.
    """

    model: str
    dtype: torch.dtype | None = None
    numbers: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    proofs: list[Fidelity] = field(default_factory=list)
    warned: dict[str, None] = field(default_factory=dict)
    next: list[list[tuple[str, float]]] = field(default_factory=list)
    outliers: np.ndarray | None = None
    edits: tuple[str, ...] = ()
    attention: str = ""

    def note(
        self, passage: AttentionPass, layer: LayerAttention, proof: Fidelity, before: Fidelity | None, warned: Iterable[str]
    ) -> None:
        """One more layer.

        Parameters
        ----------
        before : Fidelity, optional
            How well the model's own output was rebuilt before edits changed it: under an edit that is what counts.
        warned : iterable of str

        Raises
        ------
        UnsupportedModel
            There is a layer of this number.
        """
        if layer.layer in self.numbers:
            raise UnsupportedModel(
                f"{self.model} attends more than once in layer {layer.layer} (an encoder beside a decoder, or cross-attention), "
                f"where diffscope reads one self-attention a layer; open the part to look at by itself, or {REGISTER}"
            )
        own = before or proof
        self.dtype = self.dtype or layer.q.dtype
        self.numbers.append(layer.layer)
        self.places.append((passage.index, passage.turn))
        worse = max(own, proof, key=lambda each: each.error)
        self.proofs.append(replace(own, error=worse.error, tolerance=worse.tolerance))
        self.warned.update(dict.fromkeys(warned))

    def finish(self, tails: Tails, prompts: int) -> None:
        """Keep what the decoder layers around the attention gave; raise UnsupportedModel where no attention was run."""
        if not self.numbers:
            raise UnsupportedModel(f"{self.model} ran without calling any of its attention modules")
        if tails:
            self.outliers = np.stack([outliers_at(tails, index, turn, prompts) for index, turn in self.places])

    def computed_in(self, dtype: torch.dtype) -> str:
        """The dtype in which a model with weights of `dtype` attended."""
        dtypes = [dtype] if self.dtype is None else [dtype, self.dtype]
        return str(min(dtypes, key=lambda each: each.itemsize)).removeprefix("torch.")
