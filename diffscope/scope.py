"""A model opened for looking: run it, collect what every layer attended with, prove it, change it for a while."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from diffscope import families
from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Mask
from diffscope.capture import Capture
from diffscope.edits import Edit, apply
from diffscope.errors import DiffscopeError, DiffscopeWarning, PromptError, Stopped, UnsupportedModel
from diffscope.families import Family, Passage
from diffscope.families.hooks import passages
from diffscope.models.loading import load_model, move, named_dtype
from diffscope.prompts import Encoded
from diffscope.proof.fidelity import Fidelity
from diffscope.proof.prove import OFFLOADED, Unproved, prove, prove_all, read_passage
from diffscope.runners import as_losses, evaluating, layer_outputs, refuse_beyond_memory, runner_of
from diffscope.stats.measuring import Measuring
from diffscope.stats.threads import Workers

NEXT_TOKENS = 10
WAIT_FOR = 2**21  # bytes of attention output: small layers wait for each other, since together they are proved faster


@dataclass
class _Passed:
    """What is known of a run, besides the layers themselves; while it runs, of the layers so far."""

    numbers: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)  # of their modules
    proofs: list[Fidelity] = field(default_factory=list)
    warned: dict[str, None] = field(default_factory=dict)
    ahead: list[list[tuple[str, float]]] = field(default_factory=list)
    outliers: np.ndarray | None = None  # (layer, prompt, outlier)


@dataclass
class _State:
    """What holds for one model, however many scopes look into it."""

    lock: threading.RLock = field(default_factory=threading.RLock)  # whoever runs the model holds it
    edits: tuple[Edit, ...] = ()
    lengths: tuple[int, ...] | None = None  # of the batch that is being run, where it is known
    unedited: dict[int, Fidelity] | None = None  # by layer, what a capture under edits proves before they are made


_STATES: WeakKeyDictionary[nn.Module, _State] = WeakKeyDictionary()


def load(
    model: str | os.PathLike | nn.Module,
    tokenizer=None,
    *,
    device=None,
    dtype: torch.dtype | str | None = None,
    device_map=None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    family: Family | None = None,
) -> Scope:
    """Open a model to look into.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A bundled name (``mini-diff``, or ``mini-diff@308`` for a step of its training), a local folder or a hub id (of
        transformers, or of timm for vision models), or a model that you hold already.
    tokenizer : PreTrainedTokenizerBase, optional
        For a model that you hold; otherwise the saved one is used.
    device, dtype, device_map, attn_implementation
        As in transformers; ``dtype`` also as a string such as ``"bfloat16"``. For a model that you hold, `device` and `dtype`
        convert that model itself, as ``model.to`` does.
    trust_remote_code : bool
        Run code that comes with a hub model. Only you can ask for it.
    family : Family, optional
        How to read its attention; by default the first of ``diffscope.families.FAMILIES`` that recognises it.

    Raises
    ------
    ModelNotFound, CorruptFile, UnsupportedModel, MissingExtra
    """
    if isinstance(model, nn.Module):
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
    """A model opened for looking. One thread at a time runs it; others wait."""

    def __init__(self, model: nn.Module, tokenizer, name: str, family: Family | None = None):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.family = family or families.find(model)
        self.runner = runner_of(model, self.family, name)
        self._state = _STATES.setdefault(model, _State())

    def __repr__(self) -> str:
        return f"<Scope {self.name}: family {self.family.name}, {self.n_layers} layers>"

    @property
    def lock(self) -> threading.RLock:
        """Several scopes may look into one model: whoever runs it holds its lock."""
        return self._state.lock

    @property
    def n_layers(self) -> int:
        return len(self.family.modules(self.model))

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers that have attention."""
        return self.family.numbers(self.model)

    @property
    def positions(self) -> int | None:
        """Longest prompt, in tokens, that the model has positions for."""
        return self.runner.positions

    def encode(self, prompt, spans: Mapping | None = None) -> Encoded:
        """One prompt as tokens, with its spans; see :func:`diffscope.prompts.encode`."""
        return self.runner.encode(self.tokenizer, prompt, spans)

    def tokenize(self, text: str) -> list[int]:
        return list(self.encode(text).ids)

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = 8) -> str:
        """The model's greedy continuation as text."""
        encoded = self.runner.encode(self.tokenizer, prompt, None)
        ids = torch.tensor([encoded.ids], device=self.runner.device)
        with self.running(None):
            # A cached step sees one row of a map, and the cache of a window forgets where its keys stood.
            cache = not any(edit.whole or edit.placed for edit in self._state.edits)
            out = self.runner.generate(ids, max_new_tokens, cache)
        new = out[0, len(encoded.ids) :].tolist()
        return " ".join(map(str, new)) if self.tokenizer is None else self.tokenizer.decode(new)

    def loss(self, prompt) -> float:
        """Next-token cross-entropy in nats, mean over all predicted tokens of a text, or of a list of texts.

        Parameters
        ----------
        prompt : str, sequence of int, or a list of either
        """
        prompts, given, _ = self._prompts(prompt, None)
        lengths = tuple(len(text.ids) for text in prompts)
        with self.running(lengths):
            logits = self.runner.logits(**self.runner.inputs(prompts, given))
        if logits.shape[1] != max(lengths):
            raise UnsupportedModel(f"{self.name} predicts no next tokens, so there is no loss over a text")
        each = [as_losses(row[:n], torch.tensor(text.ids, device=row.device)) for row, n, text in zip(logits, lengths, prompts)]
        return float(torch.cat(each).mean())

    @contextmanager
    def edit(self, *edits: Edit) -> Iterator[Scope]:
        """Change what the model computes for as long as it is open: captures, generation, losses and bare calls of the model.

        Edits act in the order of the computation (see ``diffscope.edits``), and where two act at one place in the order given;
        inside another ``edit`` they come after its edits. On leaving nothing is left of them. Another thread waits until it is
        closed. No gradient flows through what was edited.

        Parameters
        ----------
        edits : Edit
            Of ``diffscope.edits``.

        Raises
        ------
        DiffscopeError
            What is given is no edit, or names a layer that has no attention.
        """
        for edit in edits:
            if not isinstance(edit, Edit):
                raise DiffscopeError(f"{edit!r} is not an edit; make one with diffscope.edits, such as set_lambda(1.0)")
            edit.check(self.layers)
        state = self._state
        with state.lock:
            before, state.edits = state.edits, (*state.edits, *edits)
            try:
                # The outermost edits' hooks make all of them.
                hooked = edits and not before
                with passages(self.model, self.family, None, change=self._edited) if hooked else nullcontext():
                    yield self
            finally:
                state.edits = before

    def _edited(self, passage: Passage) -> Tensor | None:
        """What is to enter an output projection under the edits; None where nothing changes."""
        if not any(edit.concerns(passage.number) for edit in self._state.edits):
            return None
        padded = any(call.may_be_padded for call in passage.calls)
        if self._state.lengths is not None:
            passage.lengths = self._state.lengths
        elif padded:
            raise UnsupportedModel("an edit cannot tell padding from text here; use scope.capture or scope.loss, or SDPA")
        with torch.no_grad():
            capturing = self._state.unedited is not None
            layer, proof = prove(self.family, passage, decide=capturing)
            if capturing:
                self._state.unedited[layer.layer] = proof
            window = next((call.window for call in passage.calls if call.window), None)
            if window and layer.mask.kind == "causal":  # within its window a cached step looks causal, and is not
                layer = replace(layer, mask=Mask("window", window))
            edited = apply(self._state.edits, layer)
            if edited is layer:
                return None
            out = passage.observed.clone()
            for index, n in enumerate(edited.lengths):
                rebuilt = edited.prompt(index).output()  # (head, query, width)
                out[index, :n] = rebuilt.transpose(0, 1).reshape(n, *out.shape[2:]).to(out.dtype)
        return out

    def capture(self, prompt, spans: Mapping | Sequence[Mapping] | None = None) -> Capture:
        """Run one prompt, or a batch, and keep what every layer attended with.

        Parameters
        ----------
        prompt : str, sequence of int, or a list of either
            A list of texts or of token lists is a batch; it is padded on the right. For a model of images: a tensor
            (channel, height, width), or a list of them.
        spans : mapping of str to span, or one mapping a prompt
            See :func:`diffscope.prompts.encode`.

        Returns
        -------
        Capture

        Raises
        ------
        PromptError, SpanError
            The prompt cannot be run, a span cannot be found.
        FidelityError
            What was captured does not rebuild what the model computed.
        OutOfMemoryAhead
            The capture will not fit the memory that is free.
        """
        prompts, given, batch = self._prompts(prompt, spans)
        layers: list[LayerAttention] = []
        with self.running(tuple(len(encoded.ids) for encoded in prompts)):
            passed = self._run(prompts, given, layers.append, held=self.n_layers)
        return Capture(prompts, layers, passed.proofs, passed.ahead, passed.outliers, self._facts(passed), batch)

    def measure(
        self, prompt, statistics=None, *, spans=None, queries=None, progress=None, announce=None, backend=None
    ) -> xr.Dataset:
        """The statistics that ``capture(prompt, spans).measure(statistics, queries)`` gives, in the memory of one layer.

        Every layer is measured as soon as the model has run it, small ones with a few that follow, and nothing of it is kept.

        Parameters
        ----------
        prompt, spans
            As for :meth:`capture`.
        statistics, queries, progress, backend
            As for :meth:`diffscope.capture.Capture.measure`.
        announce : callable, optional
            Called with one line, before anything is measured, if it will take long: how long, and in what memory.

        Returns
        -------
        xarray.Dataset

        Raises
        ------
        PromptError, SpanError, FidelityError, OutOfMemoryAhead
            As :meth:`capture`; and where the results themselves would fill the memory.
        Stopped
            At an interrupt (Ctrl-C) after the first layer; it holds what was finished.
        """
        prompts, given, batch = self._prompts(prompt, spans)
        measuring, passed = Measuring(prompts, statistics, queries, self.n_layers, progress, announce, backend), _Passed()

        def result(**facts) -> xr.Dataset:
            worst = max(proof.error for proof in passed.proofs[: len(measuring.layers)])
            return measuring.dataset(passed.outliers, {**self._facts(passed), "fidelity_worst": worst, **facts}, batch)

        try:
            with self.running(tuple(len(encoded.ids) for encoded in prompts)), Workers() as workers:
                self._run(prompts, given, lambda layer: measuring.add(layer, workers), 1, passed, measuring.outliers)
                measuring.finish(workers)
        except KeyboardInterrupt as interrupt:
            if not measuring.layers:
                raise
            raise Stopped(result(stopped=f"after {len(measuring.layers)} of {self.n_layers} layers")) from interrupt
        return result()

    def _prompts(self, prompt, spans) -> tuple[list[Encoded], list, bool]:
        """Prompts as tokens and as they were given, and whether it is a batch."""
        given, batch = self.runner.split(prompt)
        spans = [spans or {}] * len(given) if not isinstance(spans, (list, tuple)) else list(spans)
        if len(spans) != len(given):
            raise PromptError(f"{len(given)} prompts but {len(spans)} sets of spans; give one for all or one each")
        return [self.runner.encode(self.tokenizer, one, its) for one, its in zip(given, spans)], given, batch

    @contextmanager
    def running(self, lengths: tuple[int, ...] | None) -> Iterator[tuple[int, ...] | None]:
        """Hold the model, in evaluation mode and without gradients.

        Parameters
        ----------
        lengths : tuple of int or None
            Tokens of each prompt of the batch about to be run, so that edits know what is padding.
        """
        with self.lock, torch.no_grad(), evaluating(self.model):
            self._state.lengths, before = lengths, self._state.lengths
            try:
                yield lengths
            finally:
                self._state.lengths, self._state.unedited = before, None

    def _run(
        self, prompts: list[Encoded], given: list, each: Callable, held: int, passed: _Passed | None = None, outliers=True
    ) -> _Passed:
        """Run the model once and hand every layer over when it is proved, small ones with a few that follow; `held` of them are
        kept in memory."""
        passed, lengths = passed or _Passed(), tuple(len(prompt.ids) for prompt in prompts)
        if self.runner.device.type == "meta":
            raise UnsupportedModel(OFFLOADED)
        edits = self._state.edits
        waiting: list[Unproved] = []
        at_once = edits or type(self.family).readings is not Family.readings  # a second reading would come too late

        def take(passage: Passage) -> None:
            self.runner.check_tokens(passage)
            waiting.append(read_passage(self.family, passage))
            if at_once or sum(one.passage.observed.nbytes for one in waiting) >= WAIT_FOR:
                hand_over()

        def hand_over() -> None:
            for one, (layer, proof) in zip(waiting, prove_all(self.family, waiting, edits)):
                self._note(passed, one.passage, layer, proof, held)
                each(layer)
            waiting.clear()

        columns, self._state.unedited = sorted({n - 1 for n in lengths}), {}
        watched = self.family.modules(self.model) if outliers else []
        with passages(self.model, self.family, lengths, take), layer_outputs(self.model, watched, lengths) as tails:
            logits = self.runner.logits(**self.runner.inputs(prompts, given), columns=columns)
            hand_over()
        last = [logits[row, min(columns.index(n - 1), logits.shape[1] - 1)] for row, n in enumerate(lengths)]
        passed.ahead = [self._next(one) if self.runner.predicts else [] for one in last]
        passed.outliers = tails[passed.indices] if outliers else None
        for line in passed.warned:
            warnings.warn(f"{self.name}: {line}", DiffscopeWarning, stacklevel=3)
        return passed

    def _note(self, passed: _Passed, passage: Passage, layer: LayerAttention, proof: Fidelity, held: int) -> None:
        """Take down what is known of one more layer, or refuse it."""
        if layer.layer in passed.numbers:
            raise UnsupportedModel(
                f"{self.name} attends more than once in layer {layer.layer} (shared weights, an encoder beside a decoder, or "
                "cross-attention), where diffscope reads one attention a layer"
            )
        if not passed.numbers:
            self.runner.check_batch(layer)
            refuse_beyond_memory(layer, held)
        # Under an edit the output is of our own making: what counts is how well the model's own was rebuilt.
        before = self._state.unedited.get(layer.layer, proof)
        passed.numbers.append(layer.layer)
        passed.indices.append(passage.index)
        passed.proofs.append(replace(before, error=max(before.error, proof.error)))
        passed.warned.update(dict.fromkeys(self.family.warnings(layer)))

    def _facts(self, passed: _Passed) -> dict:
        """What a result says about where it comes from."""
        facts = {
            "model": self.name,
            "family": self.family.name,
            "attention": self.runner.implementation(self.family),
            "dtype": str(self.runner.dtype).removeprefix("torch."),
        }
        said = {"edits": [str(edit) for edit in self._state.edits], "warnings": list(passed.warned)}
        return facts | {name: "; ".join(lines) for name, lines in said.items() if lines}

    def _next(self, logits: Tensor) -> list[tuple[str, float]]:
        top = logits.float().softmax(-1).topk(min(NEXT_TOKENS, len(logits)))
        name = str if self.tokenizer is None else lambda token: self.tokenizer.decode([token])
        return [(name(token), p) for p, token in zip(top.values.tolist(), top.indices.tolist())]
