"""Open a model: run it, capture and prove the attention of every layer, measure it, and edit it for a while."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import xarray as xr
from torch import nn

from diffscope import render as display
from diffscope.attention.blocks import Workers
from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.edits import Edit
from diffscope.errors import DiffscopeError, ModelNotFound, PromptError, UnsupportedModel
from diffscope.families import Family
from diffscope.families.packs import apart
from diffscope.models.folders import steps_of, without_step
from diffscope.models.loading import load_model, move, named_dtype
from diffscope.prompts.embeddings import Embedded
from diffscope.prompts.inputs import Spans
from diffscope.prompts.selection import whole_number
from diffscope.scope import answers
from diffscope.scope.editing import EditBlock
from diffscope.scope.hooked import HookedModel
from diffscope.scope.run import Run
from diffscope.scope.unwrap import unwrapped
from diffscope.stats.backends import Backend
from diffscope.stats.measure import MeasurementRun
from diffscope.stats.sample import QuerySample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load(
    model: str | os.PathLike | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: str | dict[str, Any] | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    family: Family | str | None = None,
) -> Scope:
    """Open a model to look into.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A bundled name (``mini-diff``, or ``mini-diff@400`` for step 400 of its training), a local folder, a hub id (of
        transformers, or of timm for vision models), or a model that you hold; one that ``torch.compile``, PEFT, DataParallel
        or DDP wraps is looked into inside that.
    tokenizer : PreTrainedTokenizerBase, optional
        By default the one saved with the model. A model that you hold has none unless you give it.
    device, dtype, device_map, attn_implementation
        As in transformers; ``dtype`` may be a string such as ``"bfloat16"``. On a model that you hold, `device` and `dtype` act
        like ``model.to``: that model itself is converted. The other two are only for models that are loaded.
    trust_remote_code : bool
        Whether to run Python code that comes with a model from the hub.
    family : Family or str, optional
        How to read its attention, or a name of ``diffscope.families.FAMILIES``; by default the first of these that recognises it.

    Returns
    -------
    Scope

    Raises
    ------
    ModelNotFound
        There is no model of this name, or it cannot be fetched.
    CorruptFile
        Its files are damaged.
    UnsupportedModel
        No family recognises its attention, or not the one that is asked for.
    DiffscopeError
        There is no family of this name, or a model cannot have this dtype; or a model that you hold is to be loaded otherwise.
    MissingExtra
        It needs a package that is not installed.
    """
    if isinstance(model, nn.Module):
        if attn_implementation is not None or device_map is not None:
            raise DiffscopeError(
                "attn_implementation and device_map are for models that are loaded; of this one call "
                "model.set_attn_implementation(...), or place it before it is opened"
            )
        model = unwrapped(model)
        name = getattr(model, "name_or_path", "") or type(model).__name__
        model = model if device is None else move(model, device)
        model = model if dtype is None else model.to(named_dtype(dtype))
        return Scope(model, tokenizer, name, family)
    if not isinstance(model, (str, os.PathLike)):
        raise DiffscopeError(f"a model is not opened from {model!r}; give its name, its folder or a torch module")
    name = os.fspath(model)
    loaded, saved_tokenizer = load_model(
        name,
        dtype=named_dtype(dtype),
        device=device,
        device_map=device_map,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    return Scope(loaded, tokenizer or saved_tokenizer, name, family)


class Scope(HookedModel):
    """A model opened for looking: capture, measure, edit and run it on prompts; :func:`load` makes one.

    What diffscope has no method for is written with those of :class:`~diffscope.scope.hooked.HookedModel`.
    """

    def __reduce__(self) -> tuple:
        """Copy and pickle as a scope of the model, which a copy has without edits."""
        return Scope, (self.model, self.tokenizer, self.name, self.family)

    def __repr__(self) -> str:
        edits = f", under {'; '.join(map(str, self.edits))}" if self.edits else ""
        return f"<Scope {self.name}: family {self.family.name}, {self.n_layers} layers{edits}>"

    def _repr_html_(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        words = {
            "model": f"{type(self.model).__name__}, {parameters:,} parameters, {self.runner.dtype}, on {self.runner.device}",
            "family": self.family.name,
            "layers": f"{self.n_layers} with attention",
            "positions": "any number" if self.max_length is None else f"{self.max_length:,} tokens",
            "tokenizer": "none: prompts are token ids" if self.tokenizer is None else f"{len(self.tokenizer):,} tokens",
            "edits": "; ".join(map(str, self.edits)),
        }
        return display.card(f"Scope of {self.name}", display.facts(words))

    @property
    def n_layers(self) -> int:
        """Number of layers with attention, as :attr:`layer_numbers` counts them."""
        return len(self.layer_numbers)

    @property
    def layer_numbers(self) -> list[int]:
        """The layers with attention, as the model numbers them.

        A module that the model runs several times is a layer each time. How often it does is known once it was run.
        """
        numbers = list(self.family.layers(self.model).values())
        return [*numbers, *sorted(self._state.layers_run.get(self.family.name, set()).difference(numbers))]

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """The steps at which the training of this model was kept, by the folder that it was loaded from; empty where none were.

        The trained model itself is not among them. Each is opened by :meth:`at`, or as ``diffscope.load(f"mini-diff@{step}")``.
        """
        return steps_of(self.name)

    def at(self, step: int) -> Scope:
        """Open the same model as it was after `step` steps of its training, one of :attr:`checkpoints`, on the same device.

        Raises
        ------
        ModelNotFound
            It was not kept at this step.
        """
        model = without_step(self.name)
        if step not in self.checkpoints:
            kept = ", ".join(map(str, self.checkpoints)) or "none"
            raise ModelNotFound(f"{model} has no checkpoint {step!r}; saved steps: {kept}")
        placed = {"device": self.runner.device, "dtype": self.runner.dtype}
        return load(f"{model}@{step}", self.tokenizer, **placed, family=self.family)

    def tokenize(self, prompt: Any) -> list[int]:
        """Return the token ids of one prompt."""
        return list(self.encode(prompt).ids)

    def generate(self, prompt: Any, max_new_tokens: int = 8) -> str | list[str]:
        """Continue a prompt greedily, or each prompt of a batch.

        Parameters
        ----------
        prompt : as for :meth:`capture`
        max_new_tokens : int
            From 1.

        Returns
        -------
        str, or of a batch list of str
            The new tokens as text; without a tokenizer their ids, separated by spaces.

        Raises
        ------
        DiffscopeError
            `max_new_tokens` is not a whole number from 1.
        PromptError
            The prompt cannot be run, or the model has no positions for so many tokens.
        UnsupportedModel
            The model predicts no next tokens.
        """
        inputs = self.prepare(prompt)
        count = whole_number(max_new_tokens, 1, math.inf, "max_new_tokens is a whole number from 1")
        longest = self.max_length
        if longest is not None and max(inputs.lengths) + count - 1 > longest:  # the last token is not run
            raise PromptError(
                f"{max(inputs.lengths)} tokens and {count} new ones were asked for, but {self.name} has positions for {longest}; "
                "shorten the prompt, or ask for fewer"
            )
        with self.exclusively(), torch.no_grad():
            # A cached step sees one row of a map, and the cache of a window forgets where its keys stood.
            cache = not any(edit.needs_full_map or edit.needs_positions for edit in self.edits)
            texts = [self.runner.continuation(self.tokenizer, encoded, count, cache) for encoded in inputs.prompts]
        return texts if inputs.batch else texts[0]

    def loss(self, prompt: Any) -> float:
        """Return the mean next-token cross-entropy over all predicted tokens, in nats.

        Parameters
        ----------
        prompt : as for :meth:`capture`

        Raises
        ------
        PromptError
            The prompt cannot be run.
        UnsupportedModel
            The model predicts no next tokens.
        """
        if not self.runner.predicts:
            raise UnsupportedModel(f"{self.name} predicts no next tokens, so there is no loss over a text")
        inputs = self.prepare(prompt, embedded=True)
        if any(isinstance(each, Embedded) and each.ids is None for each in inputs.originals):
            raise PromptError("a loss is of the tokens that come next, which embeddings do not say; give input_ids beside them")
        logits = self.run(inputs)
        lengths = inputs.lengths
        if logits.shape[1] != (sum if inputs.packed else max)(lengths):
            raise UnsupportedModel(f"{self.name} predicts no next tokens, so there is no loss over a text")
        if min(lengths) < 2:
            raise DiffscopeError("a loss needs a text of at least two tokens")
        if inputs.packed:
            logits = apart(logits, lengths, 1)
        losses = [
            nn.functional.cross_entropy(row[: n - 1].float(), torch.tensor(text.ids[1:], device=row.device), reduction="none")
            for row, n, text in zip(logits, lengths, inputs.prompts)
        ]
        return float(torch.cat(losses).mean())

    def answer(
        self,
        prompt: Any,
        answer: str | Sequence[str],
        distractors: Sequence[str] | Sequence[Sequence[str]] = (),
        *,
        spans: Spans = None,
    ) -> xr.Dataset:
        """Score how likely the model continues a prompt, or each prompt of a batch, with an answer, under the edits that are on.

        Parameters
        ----------
        prompt : as for :meth:`capture`
        answer : str, or one a prompt
            Judged token by token, each after the right ones before it. White space before it may be left out where the prompt
            ends with some, or states the answer as its span ``answer``.
        distractors : sequence of str, or one such sequence a prompt
            Other answers that one might give.
        spans : as for :meth:`capture`
            Only ``answer`` counts.

        Returns
        -------
        xarray.Dataset
            Of a batch by ``prompt``: ``log_odds`` of the answer against all distractors together (without any, against all else),
            in nats; ``loss``, in nats a token; ``log_p``, in nats; ``rank`` of its first token, from 1; ``exact``, whether greedy
            decoding gives it; ``tokens``, how many it has. Each with units and definition.

        Raises
        ------
        PromptError
            The prompt cannot be run, an answer is empty or cannot be told from the prompt's end, or is a distractor too.
        UnsupportedModel
            The model predicts no next tokens.
        """
        inputs = self.prepare(prompt, spans)
        scores = answers.score_answers(self, answers.encode_questions(self, inputs, answer, distractors))
        scores = scores.assign_attrs(model=self.name, edits="; ".join(map(str, self.edits)))
        return scores if inputs.batch else scores.isel(prompt=0)

    def edit(self, *edits: Edit) -> AbstractContextManager[Scope]:
        """Change what the model computes within a ``with`` block: captures, generation, losses and bare calls of the model.

        Edits act in the order of the computation (see ``diffscope.edits``); two at one place act in the order given, and those of
        a block after those of the blocks that were opened before it. The block's end undoes its edits, in whatever order blocks
        are closed. They act in the thread that opened the block: others that run the model through a scope wait until the last
        block is closed, and bare calls by others run the model as it is, of which a warning tells once. What an edit makes is a
        constant for gradients (docs/edits.md).

        Parameters
        ----------
        edits : Edit
            Of ``diffscope.edits``.

        Raises
        ------
        DiffscopeError
            An argument is not an edit, or names a layer that has no attention.
        """
        for edit in edits:
            if not isinstance(edit, Edit):
                raise DiffscopeError(f"{edit!r} is not an edit; make one with diffscope.edits, such as set_lambda(1.0)")
            edit.check(self.layer_numbers)
        return EditBlock(self, edits)

    def capture(self, prompt: Any, spans: Spans = None, *, key_spans: Spans = None) -> Capture:
        """Run one prompt, or a batch, and keep the inputs of every layer's attention.

        Parameters
        ----------
        prompt
            A text, token ids (N,), a tokenizer's output (N,), embeddings (N, hidden) or a chat; or a batch: a list of these, or
            (B, N), also where B is 1; or a pack, which is a batch of its sequences (see docs/prompts.md). One of
            ``diffscope.tasks``, such as an example, brings its spans along. For a model of images:
            a tensor (channel, height, width), or a list or batch of them. For an encoder with a decoder: a text for the
            encoder, or a dict of what its forward takes; for a model that denoises, that dict (see docs/cross_attention.md).
        spans : mapping of str to span, or one mapping a prompt
            See :func:`diffscope.prompts.encoded.encode`. They add to those that a prompt brings along.
        key_spans : mapping of str to span, or one mapping a prompt
            Spans of the tokens that cross-attention looks at.

        Returns
        -------
        Capture
            Of a batch, also of a batch of one, results have a dimension ``prompt``.

        Raises
        ------
        PromptError
            The prompt cannot be run.
        SpanError
            A span cannot be found, or can be read in more than one way.
        FidelityError
            What was captured does not rebuild what the model computed.
        InsufficientMemory
            The capture will not fit the memory that is free.
        """
        inputs = self.prepare(prompt, spans, embedded=True, key_spans=key_spans)
        layers: list[LayerAttention] = []
        run = Run(self, layers.append)
        with self.exclusively(inputs.lengths, inputs.packed, inputs.key_lengths):
            run.make(inputs)
        assert run.outliers is not None
        keys = run.keys(inputs)
        return Capture(inputs.prompts, layers, run.proofs, run.next, run.outliers, run.facts(), inputs.batch, keys)

    def measure(
        self,
        prompt: Any,
        statistics: Sequence[str] | str | None = None,
        *,
        spans: Spans = None,
        key_spans: Spans = None,
        queries: str | slice | Sequence[int] | QuerySample | None = None,
        progress: Callable[[float, int], object] | None = None,
        backend: Backend | None = None,
    ) -> xr.Dataset:
        """Measure as ``capture(prompt, spans).measure(statistics, queries)`` does, in the memory of one layer.

        Each layer is measured as soon as the model has run it (small layers wait for a few that follow), and is not kept. A model
        with cross-attention is captured first.

        Parameters
        ----------
        prompt, spans, key_spans
            As for :meth:`capture`.
        statistics, queries, progress, backend
            As for ``Capture.measure``.

        Returns
        -------
        xarray.Dataset

        Raises
        ------
        PromptError, SpanError, FidelityError, InsufficientMemory
            As :meth:`capture`; InsufficientMemory also where the results themselves would fill the memory.
        MeasurementInterrupted
            Interrupted (Ctrl-C) at any moment after the first layer; ``error.measured`` is the Dataset of the layers that were
            finished.
        """
        if self.crosses:
            captured = self.capture(prompt, spans, key_spans=key_spans)
            return captured.measure(statistics, queries=queries, progress=progress, backend=backend)
        inputs = self.prepare(prompt, spans, embedded=True, key_spans=key_spans)
        measuring = MeasurementRun(inputs.prompts, statistics, queries, self.n_layers, progress, backend)
        workers = Workers()
        run = Run(self, partial(measuring.add, workers=workers), held=1)

        def result(**facts: str) -> xr.Dataset:
            worst = max(proof.error for proof in run.proofs[: len(measuring.layers)])
            return measuring.dataset(run.outliers, {**run.facts(), "fidelity_worst": worst, **facts}, inputs.batch)

        try:
            with self.exclusively(inputs.lengths, inputs.packed), torch.no_grad(), workers:
                run.make(inputs, measuring.outliers)
                measuring.finish(workers)
            return result()
        except KeyboardInterrupt as interrupt:
            raise measuring.interrupted(interrupt, result) from None
