"""Run a model once, prove every layer, and record what else is known of the run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.errors import DiffscopeWarning, InsufficientMemory, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.coverage import unread_layers
from diffscope.families.foreign import REGISTER
from diffscope.proof.prove import Reading, prove, read_passage
from diffscope.scope.hooked import HookedModel
from diffscope.scope.output_outliers import OutputOutliers
from diffscope.scope.runners import Inputs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WAIT_FOR = 2**21  # bytes of attention output: small layers wait for each other, since together they are proved faster
NEXT_TOKENS = 10


@dataclass
class RunRecord:
    """Facts of a run besides the layers themselves; while it runs, of the layers so far.

    Attributes
    ----------
    model : str
    dtype : torch.dtype, optional
        In which the model attended; under autocast this is not the dtype of the weights.
    numbers : list of int
        The layers' numbers.
    passes : list of (int, int)
        Of each layer the index of its module, and how often that had been run before.
    proofs : list of Fidelity
    warned : dict of str to None
        Warnings, in order.
    next : list of list of (str, float)
        By prompt, the most probable next tokens.
    outliers : ndarray (layer, prompt, outlier), optional
    edits : tuple of str
        Edits under which the model was run.
    attention : str
        The attention implementation.
    """

    model: str
    dtype: torch.dtype | None = None
    numbers: list[int] = field(default_factory=list)
    passes: list[tuple[int, int]] = field(default_factory=list)
    proofs: list[Fidelity] = field(default_factory=list)
    warned: dict[str, None] = field(default_factory=dict)
    next: list[list[tuple[str, float]]] = field(default_factory=list)
    outliers: np.ndarray | None = None
    edits: tuple[str, ...] = ()
    attention: str = ""

    def add(self, passage: AttentionPass, layer: LayerAttention, proof: Fidelity, warned: Iterable[str]) -> None:
        """Add one more layer.

        Parameters
        ----------
        passage : AttentionPass
        layer : LayerAttention
        proof : Fidelity
            How well the model's own output was rebuilt, before edits changed it.
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
        self.dtype = self.dtype or layer.q.dtype
        self.numbers.append(layer.layer)
        self.passes.append((passage.index, passage.repeat))
        self.proofs.append(proof)
        self.warned.update(dict.fromkeys(warned))

    def facts(self, scope: HookedModel) -> dict[str, Any]:
        """Return where a result comes from, as its attributes."""
        dtypes = [scope.runner.dtype] if self.dtype is None else [scope.runner.dtype, self.dtype]
        facts = {
            "model": self.model,
            "family": scope.family.name,
            "attention": self.attention,
            "dtype": str(min(dtypes, key=attrgetter("itemsize"))).removeprefix("torch."),
        }
        remarks = {"edits": list(self.edits), "warnings": list(self.warned)}
        return facts | {name: "; ".join(lines) for name, lines in remarks.items() if lines}


@torch.no_grad()
def run_recorded(
    scope: HookedModel,
    inputs: Inputs,
    receive: Callable[[LayerAttention], object],
    held: int | None = None,
    record: RunRecord | None = None,
    outliers: bool = True,
) -> RunRecord:
    """Run the model once and hand over every layer when it is proved, small ones with a few that follow.

    Parameters
    ----------
    scope : HookedModel
        Held by :meth:`HookedModel.exclusively` for these inputs.
    inputs : Inputs
    receive : callable
        Gets each layer.
    held : int, optional
        How many of the layers handed over stay in memory at once; by default all.
    record : RunRecord, optional
        Filled in as the model runs; by default a new one.
    outliers : bool
        Whether to collect the outliers of the layers' outputs.
    """
    family, state = scope.family, scope._state
    layers = family.layers(scope.model)
    record = record or RunRecord(scope.name)
    state.check_family(scope.model, family)
    record.edits = tuple(map(str, state.edits))
    record.attention = scope.runner.implementation(family)
    waiting: list[Reading] = []
    at_once = state.edits_of(family) or type(family).readings is not Family.readings  # a second reading would come too late

    edited = state.edited = {}

    def take(passage: AttentionPass) -> Callable[[], None] | None:
        if changed := edited.pop((family.name, passage.number), None):
            changed.check(passage)
            return partial(hand_over, passage, changed.layer, changed.fidelity)
        waiting.append(read_of_prompts(scope, passage))
        full = sum(reading.passage.observed.nbytes for reading in waiting) >= WAIT_FOR
        return prove_waiting if at_once or full else None

    def prove_waiting() -> None:
        for reading, (layer, fidelity) in zip(waiting, prove(waiting)):
            hand_over(reading.passage, layer, fidelity)
        waiting.clear()

    def hand_over(passage: AttentionPass, layer: LayerAttention, fidelity: Fidelity) -> None:
        if not record.numbers:
            refuse_beyond_memory(layer, held or len(state.layers_run[family.name].union(layers.values())))
        record.add(passage, layer, fidelity, [*passage.warnings, *family.warnings(layer)])
        receive(layer)

    if unread := unread_layers(scope.model, layers):
        record.warned[unread] = None
    outputs = OutputOutliers(inputs.lengths, inputs.packed)
    with (
        scope.hooked(take, lengths=state.lengths),
        outputs.watching(scope.model, list(layers) if outliers else []),
    ):
        logits = _last_logits(scope, inputs)
        prove_waiting()
    if not record.numbers:
        raise UnsupportedModel(f"{scope.name} ran without calling any of its attention modules")
    record.outliers = outputs.at(record.passes)
    record.next = [_most_probable(row, scope.tokenizer) if scope.runner.predicts else [] for row in logits]
    for line in record.warned:
        warnings.warn(f"{scope.name}: {line}", DiffscopeWarning, stacklevel=4)
    return record


def read_of_prompts(scope: HookedModel, passage: AttentionPass) -> Reading:
    """Read a pass, whose tokens have to be those of the prompts."""
    if scope._state.lengths is not None:  # otherwise it is not known how many tokens there are
        scope.runner.check_tokens(passage)
    reading = read_passage(scope.family, passage)
    scope.runner.check_batch(reading.first)
    return reading


def _last_logits(scope: HookedModel, inputs: Inputs) -> list[Tensor]:
    """Run the model and return the logits (vocabulary,) of each prompt's last token."""
    ends = list(accumulate(inputs.lengths)) if inputs.packed else inputs.lengths  # where each prompt ends in its row
    columns = sorted({end - 1 for end in ends})
    logits = scope.runner.logits(**scope.runner.inputs(*inputs[:2]), columns=columns)
    rows = [0] * len(ends) if inputs.packed else range(len(ends))
    return [logits[row, min(columns.index(end - 1), logits.shape[1] - 1)] for row, end in zip(rows, ends)]


def refuse_beyond_memory(layer: LayerAttention, n_layers: int) -> None:
    """Raise InsufficientMemory if a capture would need more memory than is free, judged by its first layer."""
    need = n_layers * sum(x.numel() * x.element_size() for x in (layer.q, layer.k, layer.v))
    free = free_memory(layer.q.device)
    if need > free:
        raise InsufficientMemory(
            f"this capture needs {need / 2**30:.1f} GiB for {n_layers} layers and {free / 2**30:.1f} GiB are free; "
            "use a shorter prompt, a smaller batch or bfloat16"
        )


def _most_probable(logits: Tensor, tokenizer: PreTrainedTokenizerBase | None) -> list[tuple[str, float]]:
    """Return the most probable next tokens with their probabilities, from logits (vocabulary,)."""
    top = logits.float().softmax(-1).topk(min(NEXT_TOKENS, len(logits)))
    tokens = top.indices.tolist()
    names = [str(token) if tokenizer is None else str(tokenizer.decode([token])) for token in tokens]
    return list(zip(names, top.values.tolist()))
