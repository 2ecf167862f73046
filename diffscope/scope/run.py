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
from diffscope.prompts.encoded import Encoded, numbered
from diffscope.proof.prove import Reading, prove, read_passage
from diffscope.scope.hooked import HookedModel
from diffscope.scope.output_outliers import OutputOutliers
from diffscope.scope.runners import Inputs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WAIT_FOR = 2**21  # bytes of attention output: small layers wait for each other, since together they are proved faster
NEXT_TOKENS = 10


@dataclass
class Run:
    """Run a model once, hand over every layer when it is proved, and hold what else is known of the run.

    While it runs, the facts are those of the layers so far.

    Attributes
    ----------
    scope : HookedModel
    receive : callable
        Gets each layer; small ones wait for a few that follow.
    held : int, optional
        How many of the layers handed over stay in memory at once; by default all.
    dtype : torch.dtype, optional
        In which the model attended; under autocast this is not the dtype of the weights.
    numbers : list of int
        The layers' numbers.
    passes : list of (int, int)
        Of each layer the index of its module, and how often that had been run before.
    proofs : list of Fidelity
        How well the model's own output was rebuilt, before edits changed it.
    warned : dict of str to None
        Warnings, in order.
    next : list of list of (str, float)
        By prompt, the most probable next tokens.
    outliers : ndarray (layer, prompt, outlier), optional
    edits : tuple of str
        Edits under which the model was run.
    attention : str
        The attention implementation.
    waiting : list of Reading
        Layers that are read, and not yet proved.
    expected : set of int
        Numbers of the layers that one run of every module gives.
    key_lengths : tuple of int, optional
        Tokens of each prompt that cross-attention looked at.
    """

    scope: HookedModel
    receive: Callable[[LayerAttention], object]
    held: int | None = None
    dtype: torch.dtype | None = None
    numbers: list[int] = field(default_factory=list)
    passes: list[tuple[int, int]] = field(default_factory=list)
    proofs: list[Fidelity] = field(default_factory=list)
    warned: dict[str, None] = field(default_factory=dict)
    next: list[list[tuple[str, float]]] = field(default_factory=list)
    outliers: np.ndarray | None = None
    edits: tuple[str, ...] = ()
    attention: str = ""
    waiting: list[Reading] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)
    key_lengths: tuple[int, ...] | None = None

    @torch.no_grad()
    def make(self, inputs: Inputs, outliers: bool = True) -> None:
        """Run the model; the caller holds it by :meth:`HookedModel.exclusively` for these inputs.

        Parameters
        ----------
        inputs : Inputs
        outliers : bool
            Whether to collect the outliers of the layers' outputs.
        """
        scope, family, state = self.scope, self.scope.family, self.scope._state
        layers = family.layers(scope.model)
        state.check_family(scope.model, family)
        state.edited = {}
        self.expected = {*layers.values()}
        self.edits = tuple(map(str, state.edits()))
        self.attention = scope.runner.implementation(family)
        if unread := unread_layers(scope.model, layers):
            self.warned[unread] = None
        outputs = OutputOutliers(inputs.lengths, inputs.packed, inputs.key_lengths, family.tokens_first)
        with (
            scope.hooked(self._take, lengths=state.lengths),
            outputs.watching(scope.model, list(layers) if outliers else []),
        ):
            logits = _last_logits(scope, inputs)
            self._hand_over([reading.passage for reading in self.waiting], prove(self.waiting))
        if not self.numbers:
            raise UnsupportedModel(f"{scope.name} ran without calling any of its attention modules")
        self.outliers = outputs.at(self.passes)
        self.next = [_most_probable(row, scope.tokenizer) if scope.runner.predicts else [] for row in logits]
        for line in self.warned:
            warnings.warn(f"{scope.name}: {line}", DiffscopeWarning, stacklevel=4)

    def _take(self, passage: AttentionPass) -> Callable[[], None] | None:
        """Read a pass, or take its edited layer; return the function that hands over layers when the module is done, if any."""
        state, family = self.scope._state, self.scope.family
        assert state.edited is not None
        if changed := state.edited.pop((family.name, passage.number), None):
            changed.check(passage)
            return partial(self._hand_over, [passage], [(changed.layer, changed.fidelity)])
        self.waiting.append(read_of_prompts(self.scope, passage))
        at_once = state.edits(family) or type(family).readings is not Family.readings  # a second reading would come too late
        if not at_once and sum(reading.passage.observed.nbytes for reading in self.waiting) < WAIT_FOR:
            return None
        readings, self.waiting = self.waiting, []
        return partial(self._hand_over, [reading.passage for reading in readings], prove(readings))

    def _hand_over(self, passages: Iterable[AttentionPass], proved: Iterable[tuple[LayerAttention, Fidelity]]) -> None:
        """Hand over layers with their proofs; refuse a number that came before, and a capture that memory does not hold."""
        scope = self.scope
        for passage, (layer, fidelity) in zip(passages, proved):
            if not self.numbers:
                known = scope._state.layers_run[scope.family.name]
                refuse_beyond_memory(layer, self.held or len(known | self.expected))
            if layer.layer in self.numbers:
                raise UnsupportedModel(
                    f"{scope.name} attends more than once in layer {layer.layer}, where diffscope reads one attention a layer; "
                    f"open the part to look at by itself, or {REGISTER}"
                )
            if layer.key_lengths is not None and layer.key_lengths != (self.key_lengths or layer.key_lengths):
                raise UnsupportedModel(
                    f"cross-attention of {scope.name} looks at {layer.key_lengths} keys in layer {layer.layer} and at "
                    f"{self.key_lengths} before, where diffscope reads one other side; open the part to look at by itself"
                )
            self.key_lengths = self.key_lengths or layer.key_lengths
            self.dtype = self.dtype or layer.q.dtype
            self.numbers.append(layer.layer)
            self.passes.append((passage.index, passage.repeat))
            self.proofs.append(fidelity)
            self.warned.update(dict.fromkeys([*passage.warnings, *scope.family.warnings(layer)]))
            self.receive(layer)

    def keys(self, inputs: Inputs) -> list[Encoded] | None:
        """Return what cross-attention looked at, one a prompt; None without cross-attention."""
        if inputs.keys is not None or self.key_lengths is None:
            return inputs.keys
        named = inputs.key_spans or [{}] * len(inputs.prompts)
        return [numbered([str(at) for at in range(n)], spans) for n, spans in zip(self.key_lengths, named)]

    def facts(self) -> dict[str, Any]:
        """Return where a result comes from, as its attributes."""
        scope = self.scope
        dtypes = [scope.runner.dtype] if self.dtype is None else [scope.runner.dtype, self.dtype]
        facts = {
            "model": scope.name,
            "family": scope.family.name,
            "attention": self.attention,
            "dtype": str(min(dtypes, key=attrgetter("itemsize"))).removeprefix("torch."),
        }
        remarks = {"edits": list(self.edits), "warnings": list(self.warned)}
        return facts | {name: "; ".join(lines) for name, lines in remarks.items() if lines}


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
    logits = scope.runner.logits(**scope.runner.inputs(inputs), columns=columns)
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
