"""A model opened for looking: run it, collect what every layer attended with, prove it, change it for a while."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, overload

import torch
import xarray as xr
from torch import Tensor, nn

from diffscope import families
from diffscope import render as display
from diffscope.attention.blocks import Workers
from diffscope.attention.components import Mask
from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture, CaptureBatch
from diffscope.edits import Edit, apply
from diffscope.errors import DiffscopeError, DiffscopeWarning, ModelNotFound, PromptError, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.compilation import as_written
from diffscope.families.coverage import unread_layers
from diffscope.families.hooks import Replay, Take, WarnsOtherThreads, passages
from diffscope.families.packs import apart, hides_others, sequences_in, together
from diffscope.models.loading import load_model, move, named_dtype, steps_of, without_step
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.inputs import Embedded, OnePrompt, Pack, PromptBatch, Spans, one_each
from diffscope.proof.prove import OFFLOADED, Unproved, prove_all, read_passage
from diffscope.scope import answers as answering
from diffscope.scope.editing import EditBlock
from diffscope.scope.layer_outputs import layer_outputs
from diffscope.scope.record import Record
from diffscope.scope.runners import (
    as_losses,
    evaluating,
    most_probable,
    refuse_beyond_memory,
    runner_of,
)
from diffscope.scope.state import state_of
from diffscope.scope.unwrap import unwrapped
from diffscope.stats.backends import Backend
from diffscope.stats.measuring import Measuring
from diffscope.stats.sampling import QuerySample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WAIT_FOR = 2**21  # bytes of attention output: small layers wait for each other, since together they are proved faster


def load(
    model: str | os.PathLike | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: str | dict[str, Any] | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    family: Family | None = None,
) -> Scope:
    """Open a model to look into.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A bundled name (``mini-diff``, or ``mini-diff@308`` for step 308 of its training), a local folder, a hub id (of
        transformers, or of timm for vision models), or a model that you hold; one that ``torch.compile``, PEFT, DataParallel
        or DDP wraps is looked into inside that.
    tokenizer : PreTrainedTokenizerBase, optional
        By default the one saved with the model. A model that you hold has none unless you give it.
    device, dtype, device_map, attn_implementation
        As in transformers; ``dtype`` may be a string such as ``"bfloat16"``. On a model that you hold, `device` and `dtype` act
        like ``model.to``: that model itself is converted. The other two are only for models that are loaded.
    trust_remote_code : bool
        Whether to run Python code that comes with a model from the hub.
    family : Family, optional
        How to read its attention; by default the first of ``diffscope.families.FAMILIES`` that recognises it.

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
        No family recognises its attention.
    MissingExtra
        It needs a package that is not installed.
    """
    if isinstance(model, nn.Module):
        model = unwrapped(model)
        name = getattr(model, "name_or_path", "") or type(model).__name__
        model = model if device is None else move(model, device)
        model = model if dtype is None else model.to(named_dtype(dtype))
        return Scope(model, tokenizer, name, family)
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


class Scope:
    """A model opened for looking; :func:`load` makes one. One thread at a time runs the model through its scopes, others wait.

    Attributes
    ----------
    model : torch.nn.Module
    tokenizer : PreTrainedTokenizerBase or None
    name : str
        What the model was loaded by.
    family : Family
        How its attention is read.
    """

    def __init__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase | None, name: str, family: Family | None = None
    ) -> None:
        self.model = unwrapped(model)
        self.tokenizer = tokenizer
        self.name = name
        self.family = family or families.find(self.model)
        if not self.family.modules(self.model):
            raise UnsupportedModel(f"family {self.family.name!r} recognises no attention in this {type(self.model).__name__}")
        self.runner = runner_of(self.model, self.family, name)
        self._state = state_of(self.model)

    def __reduce__(self) -> tuple:
        """Copy and pickle as a scope of the model, which a copy has without edits."""
        return Scope, (self.model, self.tokenizer, self.name, self.family)

    def __repr__(self) -> str:
        edits = f", under {'; '.join(map(str, self._state.edits))}" if self._state.edits else ""
        return f"<Scope {self.name}: family {self.family.name}, {self.n_layers} layers{edits}>"

    def _repr_html_(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        words = {
            "model": f"{type(self.model).__name__}, {parameters:,} parameters, {self.runner.dtype}, on {self.runner.device}",
            "family": self.family.name,
            "layers": f"{self.n_layers} with attention",
            "positions": "any number" if self.max_length is None else f"{self.max_length:,} tokens",
            "tokenizer": "none: prompts are token ids" if self.tokenizer is None else f"{len(self.tokenizer):,} tokens",
            "edits": "; ".join(map(str, self._state.edits)),
        }
        return display.card(f"Scope of {self.name}", display.facts(words))

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever runs the model; all scopes of one model share it."""
        return self._state.lock

    @property
    def n_layers(self) -> int:
        """The number of layers with attention, as :attr:`layers` counts them."""
        return len(self.layers)

    @property
    def layers(self) -> list[int]:
        """The layers with attention, as the model numbers them.

        A module that the model runs several times is a layer each time. How often it does is known once it was run.
        """
        numbers = self.family.numbers(self.model)
        return [*numbers, *sorted(self._state.layers_run.get(self.family.name, set()).difference(numbers))]

    @property
    def max_length(self) -> int | None:
        """The longest prompt, in tokens, that the model has positions for; None where nothing limits it."""
        return self.runner.max_length

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """The steps at which the training of this model was kept, by the folder that it was loaded from; empty where none were.

        Each is opened by :meth:`at`, or as ``diffscope.load(f"mini-diff@{step}")``.
        """
        return steps_of(self.name)

    def at(self, step: int) -> Scope:
        """The same model as it was after `step` steps of its training, one of :attr:`checkpoints`, on the same device.

        Raises
        ------
        ModelNotFound
            It was not kept at this step.
        """
        model = without_step(self.name)
        if step not in self.checkpoints:
            kept = ", ".join(map(str, self.checkpoints)) or "none"
            raise ModelNotFound(f"{model} has no checkpoint {step!r}; kept are the steps {kept}")
        placed = {"device": self.runner.device, "dtype": self.runner.dtype}
        return load(f"{model}@{step}", self.tokenizer, **placed, family=self.family)

    def encode(self, prompt: Any, spans: Mapping | None = None) -> Encoded:
        """One prompt, in any form that :meth:`capture` takes, as tokens with its spans; errors are the same."""
        prompts, _, batch = self._prompts(prompt, spans)
        if batch:
            raise PromptError(f"one prompt is needed here, and this is a batch of {len(prompts)}; give its prompts one by one")
        return prompts[0]

    def tokenize(self, prompt: Any) -> list[int]:
        """The token ids of one prompt."""
        return list(self.encode(prompt).ids)

    @overload
    def generate(self, prompt: OnePrompt, max_new_tokens: int = 8) -> str: ...

    @overload
    def generate(self, prompt: PromptBatch, max_new_tokens: int = 8) -> list[str]: ...

    @overload
    def generate(self, prompt: Any, max_new_tokens: int = 8) -> Any: ...

    def generate(self, prompt: Any, max_new_tokens: int = 8) -> str | list[str]:
        """The model's greedy continuation of a prompt, or of each prompt of a batch.

        Parameters
        ----------
        prompt : as for :meth:`capture`
        max_new_tokens : int

        Returns
        -------
        str, or of a batch list of str
            The new tokens as text; without a tokenizer their ids, separated by spaces.
        """
        prompts, _, batch = self._prompts(prompt, None)
        with self.running(None):
            # A cached step sees one row of a map, and the cache of a window forgets where its keys stood.
            cache = not any(edit.whole or edit.placed for edit in self._state.edits)
            texts = [self.runner.continuation(self.tokenizer, encoded, max_new_tokens, cache) for encoded in prompts]
        return texts if batch else texts[0]

    def loss(self, prompt: Any) -> float:
        """Mean next-token cross-entropy over all predicted tokens, in nats.

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
        prompts, inputs, _ = self._prompts(prompt, None, embedded=True)
        if any(isinstance(each, Embedded) and each.ids is None for each in inputs):
            raise PromptError("a loss is of the tokens that come next, which embeddings do not say; give input_ids beside them")
        lengths = tuple(len(text.ids) for text in prompts)
        packed = isinstance(inputs, Pack)
        with self.running(lengths, packed):
            logits = self.runner.logits(**self.runner.inputs(prompts, inputs))
        if logits.shape[1] != (sum if packed else max)(lengths):
            raise UnsupportedModel(f"{self.name} predicts no next tokens, so there is no loss over a text")
        if packed:
            logits = apart(logits, lengths, 1)
        losses = [as_losses(row[:n], torch.tensor(text.ids, device=row.device)) for row, n, text in zip(logits, lengths, prompts)]
        return float(torch.cat(losses).mean())

    def answer(
        self,
        prompt: Any,
        answer: str | Sequence[str],
        distractors: Sequence[str] | Sequence[Sequence[str]] = (),
        *,
        spans: Spans = None,
    ) -> xr.Dataset:
        """How likely the model is to continue a prompt, or each prompt of a batch, with an answer; under the edits that are on.

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
        prompts, _, batch = self._prompts(prompt, spans)
        questions = answering.encode_questions(self, prompts, answer, distractors, batch)
        said = answering.score_answers(self, questions).assign_attrs(
            model=self.name, edits="; ".join(map(str, self._state.edits))
        )
        return said if batch else said.isel(prompt=0)

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
            edit.check(self.layers)
        return EditBlock(self, edits)

    @contextmanager
    def editing(self, edits: tuple[Edit, ...]) -> Iterator[None]:
        """Add edits to those that the model is under, for whoever holds :attr:`lock`; :meth:`edit` is what to call."""
        if edits:
            self._refuse_without_weights()
            self._state.check_family(self.model, self.family)
        key = self._state.open_block(self.family, edits, partial(self.passages, None, change=self._edited))
        warning = self.model.register_forward_pre_hook(WarnsOtherThreads()) if edits else None
        try:
            yield
        finally:
            if warning:
                warning.remove()
            self._state.close_block(key)

    def _edited(self, passage: AttentionPass) -> Tensor | None:
        """What enters an output projection under the edits; None where they change nothing."""
        edits = self._state.edits_by(self.family)
        if not any(edit.concerns(passage.number) for edit in edits):
            return None
        padded = any(call.may_be_padded for call in passage.calls)
        if self._state.lengths is not None:
            passage.lengths = self._state.lengths
        elif padded:
            raise UnsupportedModel("an edit cannot tell padding from text here; use scope.capture or scope.loss, or SDPA")
        with torch.no_grad():
            if self._state.lengths is None:
                self._check_positions(passage)
                passage.pack = self._pack_of(passage)
            proofs = self._state.proofs_before_edits  # while a capture is made
            layer, proof = next(prove_all(self.family, [self._read(passage)], decide=proofs is not None))
            if proofs is not None:
                proofs[self.family.name, layer.layer] = proof
            window = next((call.window for call in passage.calls if call.window), None)
            if window and layer.mask.kind == "causal":  # within its window a cached step looks causal, and is not
                layer = replace(layer, mask=Mask("window", window))
            edited = apply(edits, layer)
            if edited is layer:
                return None
            assert passage.observed is not None
            out = passage.observed.clone()
            for index, n in enumerate(edited.lengths):
                queries = edited.mask.seeing(torch.arange(n, device=out.device), index)
                rebuilt = edited.prompt(index).output(queries)  # (head, query, width)
                out[index, queries] = rebuilt.transpose(0, 1).reshape(len(queries), *out.shape[2:]).to(out.dtype)
        return out if passage.pack is None else together(out, passage.pack)

    def _check_positions(self, passage: AttentionPass) -> None:
        """Raise UnsupportedModel where an edit that goes by positions would count others than those of the tokens."""
        tokens = None if passage.call is None else passage.call.tokens
        placed = any(edit.placed and edit.concerns(passage.number) for edit in self._state.edits_by(self.family))
        if placed and tokens not in (None, passage.observed.shape[1]):
            raise UnsupportedModel(
                f"layer {passage.number} of {self.name} attends from {passage.observed.shape[1]} positions where it was given "
                f"{tokens} tokens, so an edit that goes by positions does not know them; use one that does not"
            )

    def _pack_of(self, passage: AttentionPass) -> tuple[int, ...] | None:
        """Tokens of each sequence, where somebody called the model with a pack and it keeps the sequences apart."""
        positions = None if passage.call is None else passage.call.positions
        if positions is None or len(positions) > 1 or passage.call.cached:
            return None
        lengths = sequences_in(positions[0].tolist())
        apart = lengths and all(hides_others(layer.mask, lengths) for layer in self.family.readings(passage))
        return lengths if apart else None

    @overload
    def capture(self, prompt: OnePrompt, spans: Spans = None) -> Capture: ...

    @overload
    def capture(self, prompt: PromptBatch, spans: Spans = None) -> CaptureBatch: ...

    @overload
    def capture(self, prompt: Any, spans: Spans = None) -> Capture | CaptureBatch: ...

    def capture(self, prompt: Any, spans: Spans = None) -> Capture | CaptureBatch:
        """Run one prompt, or a batch, and keep what every layer attended with.

        Parameters
        ----------
        prompt
            A text, token ids (N,), a tokenizer's output (N,), embeddings (N, hidden) or a chat; or a batch: a list of these, or
            (B, N), also where B is 1; or a pack, which is a batch of its sequences (see docs/prompts.md). For a model of images:
            a tensor (channel, height, width), or a list or batch of them.
        spans : mapping of str to span, or one mapping a prompt
            See :func:`diffscope.prompts.encoded.encode`.

        Returns
        -------
        Capture or CaptureBatch
            Of a batch, also of a batch of one, a CaptureBatch.

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
        prompts, inputs, batch = self._prompts(prompt, spans, embedded=True)
        layers: list[LayerAttention] = []
        with self.running(tuple(len(encoded.ids) for encoded in prompts), isinstance(inputs, Pack)):
            record = self._run(prompts, inputs, layers.append, held=self.n_layers)
        assert record.outliers is not None
        kind = CaptureBatch if batch else Capture
        return kind(prompts, layers, record.proofs, record.next, record.outliers, self._facts(record))

    def measure(
        self,
        prompt: Any,
        statistics: Sequence[str] | str | None = None,
        *,
        spans: Spans = None,
        queries: str | slice | Sequence[int] | QuerySample | None = None,
        progress: Callable[[float, int], object] | None = None,
        announce: Callable[[str], object] | None = None,
        backend: Backend | None = None,
    ) -> xr.Dataset:
        """What ``capture(prompt, spans).measure(statistics, queries)`` gives, in the memory of one layer.

        Each layer is measured as soon as the model has run it (small layers wait for a few that follow), and is not kept.

        Parameters
        ----------
        prompt, spans
            As for :meth:`capture`.
        statistics, queries, progress, backend
            As for ``Capture.measure``.
        announce : callable, optional
            Called before anything is measured, if it will take long, with one line that says how long and in what memory.

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
        prompts, inputs, batch = self._prompts(prompt, spans, embedded=True)
        measuring = Measuring(prompts, statistics, queries, self.n_layers, progress, announce, backend)
        record = Record(self.name)

        def result(**facts: str) -> xr.Dataset:
            worst = max(proof.error for proof in record.proofs[: len(measuring.layers)])
            return measuring.dataset(record.outliers, {**self._facts(record), "fidelity_worst": worst, **facts}, batch)

        try:
            lengths = tuple(len(encoded.ids) for encoded in prompts)
            with self.running(lengths, isinstance(inputs, Pack)), Workers() as workers:
                self._run(prompts, inputs, lambda layer: measuring.add(layer, workers), 1, record, measuring.outliers)
                measuring.finish(workers)
            return result()
        except KeyboardInterrupt as interrupt:
            raise measuring.stopped(interrupt, result) from None

    def _prompts(self, prompt: Any, spans: Spans, embedded: bool = False) -> tuple[list[Encoded], list, bool]:
        """Prompts as tokens, the same as texts, token ids or images, and whether they are a batch.

        Prompts of embeddings, which are no token ids to go on from, are refused unless they may be `embedded`.
        """
        inputs, batch = self.runner.split(prompt, self.tokenizer)
        encoded = []
        for text, named in zip(inputs, one_each(spans, len(inputs))):
            encode = self.runner.encode_embedded if embedded and isinstance(text, Embedded) else self.runner.encode
            encoded.append(encode(self.tokenizer, text, named))
        return encoded, inputs, batch

    @contextmanager
    def running(self, lengths: tuple[int, ...] | None, packed: bool = False) -> Iterator[tuple[int, ...] | None]:
        """Hold the model, in evaluation mode and without gradients.

        Parameters
        ----------
        lengths : tuple of int or None
            Tokens of each prompt of the batch about to be run, so that edits know what is padding; None if unknown.
        packed : bool
            Whether the prompts are run in one row, as a pack.

        Raises
        ------
        UnsupportedModel
            The model's weights are not in memory.
        """
        state = self._state
        self._refuse_without_weights()
        state.close_dropped()
        with self.lock, torch.no_grad(), evaluating(self.model), as_written():
            before = state.lengths, state.pack, state.proofs_before_edits
            state.lengths, state.pack = ((sum(lengths),), lengths) if packed and lengths else (lengths, None)
            try:
                yield lengths
            finally:
                state.lengths, state.pack, state.proofs_before_edits = before

    def _refuse_without_weights(self) -> None:
        if self.runner.device.type == "meta":
            raise UnsupportedModel(OFFLOADED)

    def passages(
        self,
        lengths: tuple[int, ...] | None,
        take: Take | None = None,
        change: Callable[[AttentionPass], Tensor | None] | None = None,
    ) -> AbstractContextManager[None]:
        """:func:`diffscope.families.hooks.passages` of this model, whose layers are proved in float32 if it is in half."""
        seen = self._state.layers_run.setdefault(self.family.name, set())
        proofs = self._state.float32
        edits = change == self._edited

        def begin(passage: AttentionPass, replay: Replay) -> None:
            seen.add(passage.number)
            passage.pack = self._state.pack
            made = self._state.edits_by(self.family)
            if edits or not made:  # The hooks of edits run first and have called begin already.
                proofs.begin(passage)
            concerned = any(edit.concerns(passage.number) for edit in made) if edits else take or change
            if concerned:
                proofs.prove(self.family, passage, replay, shown=not edits)

        return passages(self.model, self.family, lengths, take, change, begin)

    def _run(
        self,
        prompts: list[Encoded],
        inputs: list,
        receive: Callable[[LayerAttention], object],
        held: int,
        record: Record | None = None,
        outliers: bool = True,
    ) -> Record:
        """Run the model once and hand every layer to `receive` when it is proved, small ones with a few that follow.

        Of the layers handed over, `held` stay in memory at once.
        """
        record = record or Record(self.name)
        lengths = tuple(len(prompt.ids) for prompt in prompts)
        self._state.check_family(self.model, self.family)
        edits = self._state.edits_by(self.family)
        record.edits = tuple(map(str, self._state.edits))
        record.attention = self.runner.implementation(self.family)
        waiting: list[Unproved] = []
        at_once = edits or type(self.family).readings is not Family.readings  # a second reading would come too late

        def take(passage: AttentionPass) -> Callable[[], None] | None:
            waiting.append(self._read(passage))
            full = sum(step.passage.observed.nbytes for step in waiting) >= WAIT_FOR
            return hand_over if at_once or full else None

        def hand_over() -> None:
            for step, (layer, proof) in zip(waiting, prove_all(self.family, waiting, edits)):
                if not record.numbers:
                    refuse_beyond_memory(layer, held)
                warned = [*step.passage.warnings, *self.family.warnings(layer)]
                before = (self._state.proofs_before_edits or {}).get((self.family.name, layer.layer))
                record.note(step.passage, layer, proof, before, warned)
                receive(layer)
            waiting.clear()

        packed = self._state.pack is not None
        ends = list(accumulate(lengths)) if packed else lengths  # where each prompt ends in its row
        columns = sorted({end - 1 for end in ends})
        self._state.proofs_before_edits = {}
        if unread := unread_layers(self.model, self.family):
            record.warned[unread] = None
        watched = self.family.modules(self.model) if outliers else []
        with self.passages(self._state.lengths, take), layer_outputs(self.model, watched, lengths, packed) as tails:
            logits = self.runner.logits(**self.runner.inputs(prompts, inputs), columns=columns)
            hand_over()
        record.finish(tails, len(lengths))
        rows = [0] * len(ends) if packed else range(len(ends))
        last = [logits[row, min(columns.index(end - 1), logits.shape[1] - 1)] for row, end in zip(rows, ends)]
        record.next = [most_probable(row, self.tokenizer) if self.runner.predicts else [] for row in last]
        for line in record.warned:
            warnings.warn(f"{self.name}: {line}", DiffscopeWarning, stacklevel=3)
        return record

    def _read(self, passage: AttentionPass) -> Unproved:
        """A passage as its family reads it, of the tokens of the prompts."""
        if self._state.lengths is not None:  # else nobody said how many tokens there are
            self.runner.check_tokens(passage)
        unproved = read_passage(self.family, passage)
        if unproved.first is not None:
            self.runner.check_batch(unproved.first)
        return unproved

    def _facts(self, record: Record) -> dict[str, Any]:
        """What a result says about where it comes from."""
        facts = {
            "model": self.name,
            "family": self.family.name,
            "attention": record.attention,
            "dtype": record.computed_in(self.runner.dtype),
        }
        remarks = {"edits": list(record.edits), "warnings": list(record.warned)}
        return facts | {name: "; ".join(lines) for name, lines in remarks.items() if lines}
