"""Hold, run and hook one model: all that looks into a model, and all edits of it, is built from this."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffscope import families
from diffscope.edits import Edit
from diffscope.errors import PromptError, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.compilation import as_written
from diffscope.families.foreign import encoder_of
from diffscope.families.hooks import OnPass, ReplaceOutput, Replay, attention_passes
from diffscope.families.interface import attention_configs
from diffscope.families.packs import refuse_other_mixing
from diffscope.prompts.arguments import Arguments
from diffscope.prompts.embeddings import Embedded
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.inputs import Spans, broadcast
from diffscope.prompts.tokenizer_output import Pack
from diffscope.proof.readings import OFFLOADED
from diffscope.scope.images import ImageModel, patches_of
from diffscope.scope.model_state import state_of
from diffscope.scope.runners import Inputs, LanguageModel, TokenModel
from diffscope.scope.two_sides import Denoiser, EncoderDecoder, denoises
from diffscope.scope.unwrap import part_to_pass, unwrapped
from diffscope.tasks.prompt import unpacked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class HookedModel:
    """A model with the family that reads its attention.

    Whatever looks into models in a way that diffscope has no method for is written with :meth:`prepare`, :meth:`run` or
    :meth:`logits`, :meth:`hooked` and :meth:`exclusively`. One thread at a time runs a model through its scopes, others wait.

    Attributes
    ----------
    model : torch.nn.Module
    tokenizer : PreTrainedTokenizerBase or None
    name : str
        The name, path or class that the model was loaded by.
    family : Family
        Reads the model's attention.
    runner : TokenModel
        Calls the model; has its ``device``, ``dtype``, ``vocabulary``, and whether it ``predicts`` tokens.
    """

    def __init__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase | None, name: str, family: Family | str | None = None
    ) -> None:
        self.model = unwrapped(model)
        self.tokenizer = tokenizer
        self.name = name
        self.family = families.find(self.model) if family is None else families.chosen(family, self.model)
        self.runner = runner_of(self.model, self.family, name)
        self._state = state_of(self.model)

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest prompt that the model has positions for; None if nothing limits it."""
        return self.runner.max_length

    @property
    def crosses(self) -> bool:
        """Whether some layers are cross-attention, to tokens of another side."""
        of_its_own = not self.family.interface and any(map(self.family.crosses, self.family.modules(self.model)))
        return self.runner.two_sided or of_its_own

    @property
    def has_encoder(self) -> bool:
        """Whether a prompt is a text for an encoder, which the decoder's tokens look at."""
        return isinstance(self.runner, EncoderDecoder)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Edits that the model is under, through whichever scope they were opened."""
        return self._state.edits()

    @property
    def lock(self) -> threading.RLock:
        """Lock of the model, which whoever runs it holds; all scopes of one model share it."""
        return self._state.lock

    def prepare(self, prompt: Any, spans: Spans = None, *, embedded: bool = False, key_spans: Spans = None) -> Inputs:
        """Encode a prompt or batch, in any form that ``Scope.capture`` takes, as inputs of :meth:`run`.

        Parameters
        ----------
        prompt : as for ``Scope.capture``
        spans : as for ``Scope.capture``
        embedded : bool
            Whether a prompt may be embeddings or the arguments of a forward, from which no token ids can be continued.
        key_spans : as for ``Scope.capture``

        Raises
        ------
        PromptError, SpanError
            As of ``Scope.capture``; a prompt is longer than the model has positions, or is embeddings, which have to be allowed.
        """
        if not self.runner.two_sided:
            prompt, spans = unpacked(prompt, spans)
        originals, batch = self.runner.split(prompt, self.tokenizer)
        longest = self.runner.max_length
        encoded = []
        for each, named in zip(originals, broadcast(spans or {}, len(originals), "sets of spans")):
            if isinstance(each, Embedded) and not embedded:
                raise PromptError("a prompt of embeddings is taken by capture, measure, loss and compare alone; give token ids")
            if isinstance(each, Arguments) and not embedded:
                loss = ", loss" if self.runner.predicts else ""
                raise PromptError(
                    f"{self.name} is run by capture, measure{loss} and compare alone: its prompts are arguments of its forward"
                )
            one = self.runner.encode(self.tokenizer, each, named or {})
            if longest is not None and len(one.ids) > longest:
                raise PromptError(
                    f"the prompt has {len(one.ids)} tokens, but {self.name} has positions for {longest}; shorten it"
                )
            encoded.append(one)
        of_keys = [named or {} for named in broadcast(key_spans or {}, len(originals), "sets of key spans")]
        found = [self.runner.encode_keys(self.tokenizer, each, named) for each, named in zip(originals, of_keys)]
        keys = [each for each in found if each is not None]
        if key_spans and not keys and not self.crosses:
            raise PromptError(f"{self.name} has no cross-attention, so it has no key_spans; name spans of the prompt by spans=")
        lengths = tuple(len(one.ids) for one in encoded)
        return Inputs(encoded, originals, batch, lengths, isinstance(originals, Pack), keys or None, of_keys)

    def encode(self, prompt: Any, spans: Mapping | None = None, *, embedded: bool = False) -> Encoded:
        """Encode one prompt, in any form that :meth:`prepare` takes, as tokens with its spans; errors are the same."""
        inputs = self.prepare(prompt, spans, embedded=embedded)
        if inputs.batch:
            count = len(inputs.prompts)
            raise PromptError(f"one prompt is needed here, and this is a batch of {count}; give its prompts one by one")
        return inputs.prompts[0]

    @contextmanager
    def exclusively(
        self, lengths: tuple[int, ...] | None = None, packed: bool = False, key_lengths: tuple[int, ...] | None = None
    ) -> Iterator[None]:
        """Hold the model, uncompiled and in evaluation mode: other threads that run it through a scope wait.

        Parameters
        ----------
        lengths : tuple of int, optional
            Tokens of each prompt about to be run, so that edits know what is padding; by default this is not known.
        packed : bool
            Whether the prompts are run in one row, as a pack.
        key_lengths : tuple of int, optional
            Tokens of each prompt that cross-attention looks at; by default every position is one.

        Raises
        ------
        UnsupportedModel
            The model's weights are not in memory, or a pack's sequences would see each other outside the attention.
        """
        state = self._state
        self.refuse_without_weights()
        if packed:
            refuse_other_mixing(self.model, self.family.layers(self.model), self.name)
        state.close_dropped()
        with state.lock, evaluating(self.model), as_written():
            before = state.lengths, state.pack, state.edited, state.key_lengths
            state.key_lengths = key_lengths
            state.lengths, state.pack = ((sum(lengths),), lengths) if packed and lengths else (lengths, None)
            try:
                yield
            finally:
                state.lengths, state.pack, state.edited, state.key_lengths = before

    def run(self, inputs: Inputs, columns: Sequence[int] | None = None) -> Tensor:
        """Run the model on prepared prompts, under the edits that are on, and return its logits.

        Parameters
        ----------
        inputs : Inputs
            As :meth:`prepare` returns them.
        columns : sequence of int, optional
            Positions of tokens whose logits to return; by default all.

        Returns
        -------
        Tensor (prompt, token, vocabulary)
            Prompts are padded on the right. A pack is one row. A model of images has one token, with its classes, whatever the
            `columns`.

        Raises
        ------
        PromptError
            A column is no position of the longest prompt, or of the pack.
        """
        longest = sum(inputs.lengths) if inputs.packed else max(inputs.lengths)
        for column in () if columns is None else columns:
            if not 0 <= column < longest:
                raise PromptError(f"logits at {column} were asked for, and positions are 0 to {longest - 1}; choose from them")
        with self.exclusively(inputs.lengths, inputs.packed, inputs.key_lengths), torch.no_grad():
            return self.runner.logits(**self.runner.inputs(inputs), columns=columns)

    def logits(self, ids: Tensor, width: int | None = None, *, gradients: bool = False) -> Tensor:
        """Run the model on token ids of one length, under the edits that are on, and return its logits.

        Parameters
        ----------
        ids : Tensor of int (prompt, token)
            Taken as they are, on any device.
        width : int, optional
            Return the logits of the last `width` tokens; by default of all.
        gradients : bool
            Whether gradients can be taken of the logits.

        Returns
        -------
        Tensor (prompt, width, vocabulary)

        Raises
        ------
        PromptError
            These are no token ids, the model has not as many positions, or a token is outside its vocabulary.
        UnsupportedModel
            The model takes no tokens, or has an encoder beside its decoder.
        """
        whole = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.dtype != torch.bool
        if not whole or ids.dim() != 2 or not ids.numel() or int(ids.min()) < 0:
            raise PromptError("token ids are a tensor of whole numbers from 0, (prompt, token), with a token at least")
        count, length = ids.shape
        if width is not None and not 1 <= width <= length:
            raise PromptError(f"there are {length} tokens, and logits of the last {width} were asked for; give 1 to {length}")
        longest = self.runner.max_length
        if longest is not None and length > longest:
            raise PromptError(f"{length} tokens cannot be run together: {self.name} has positions for {longest}; give fewer")
        largest, vocabulary = int(ids.max()), self.runner.vocabulary
        if vocabulary is not None and largest >= vocabulary:
            raise PromptError(f"token id {largest} is outside the vocabulary of {self.name}, {vocabulary}; use its tokenizer")
        ids = ids.to(self.runner.device, torch.int64)
        columns = None if width is None else range(length - width, length)
        with self.exclusively((length,) * count), torch.set_grad_enabled(gradients):
            return self.runner.logits(ids, torch.ones_like(ids), columns=columns)

    def hooked(
        self,
        on_pass: OnPass | None = None,
        replace_output: ReplaceOutput | None = None,
        *,
        lengths: tuple[int, ...] | None = None,
    ) -> AbstractContextManager[None]:
        """Call functions at every pass through an attention module in this thread, while the context is open.

        Parameters
        ----------
        on_pass : callable, optional
            Called with each :class:`~diffscope.families.AttentionPass` before the output projection. What it returns, if
            anything, is called when the module is done.
        replace_output : callable, optional
            Called with each pass likewise; returns what enters the output projection instead, or None to leave it.
        lengths : tuple of int, optional
            Tokens of each prompt about to be run, padded on the right; by default every position is a token.
        """

        def before_forward(passage: AttentionPass, replay: Replay) -> None:
            self._state.layers_run.setdefault(self.family.name, set()).add(passage.number)
            passage.pack = self._state.pack
            if not self._state.edits(self.family):  # otherwise their hooks, which run first, have called it
                self._state.float32.begin(passage)
            if on_pass or replace_output:
                self._state.float32.prove(self.family, passage, replay, shown=True)

        key_lengths = self._state.key_lengths
        return attention_passes(self.model, self.family, lengths, on_pass, replace_output, before_forward, key_lengths)

    def refuse_without_weights(self) -> None:
        """Raise UnsupportedModel if the model's weights are not in memory."""
        if self.runner.device.type == "meta":
            raise UnsupportedModel(OFFLOADED)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, for all threads; on exit every part is back in the mode it was in.

    The flags alone are set: what a part of somebody's own does in ``eval()``, such as merging an adapter, would remain.
    """
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def runner_of(model: nn.Module, family: Family, name: str) -> TokenModel:
    """Return the runner of a model.

    Raises
    ------
    UnsupportedModel
        Its family needs the attention interface of Hugging Face, and it is no Hugging Face model.
    """
    if isinstance(model, PreTrainedModel):
        return LanguageModel(model, name) if encoder_of(model) is None else EncoderDecoder(model, name)
    if denoises(model):
        return Denoiser(model, name)
    if family.interface:
        if part := part_to_pass(model):
            raise UnsupportedModel(f"{type(model).__name__} is not a Hugging Face model itself; {part}")
        attention_configs(model)  # raises
    return TokenModel(model, name) if patches_of(model) is None else ImageModel(model, name)
