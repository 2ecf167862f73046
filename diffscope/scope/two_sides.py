"""Run models whose queries look at tokens of another side: encoder-decoders, and transformers that denoise."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from diffscope.errors import PromptError, UnsupportedModel
from diffscope.families.foreign import ForeignModule
from diffscope.prompts.arguments import FORM, Arguments, arguments_of, is_ids
from diffscope.prompts.encoded import Encoded, encode, numbered, with_spans
from diffscope.prompts.tokenizer_output import refuse_padding
from diffscope.scope.runners import Inputs, LanguageModel, TokenModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IDS, MASK = "input_ids", "attention_mask"
DECODER_IDS, DECODER_MASK = "decoder_input_ids", "decoder_attention_mask"
TIMESTEP, CONTEXT, LATENTS = "timestep", "encoder_hidden_states", "hidden_states"


class EncoderDecoder(LanguageModel):
    """A Hugging Face model with an encoder and a decoder: a prompt is a text for the encoder, or what its forward takes."""

    two_sided = True

    @property
    def max_length(self) -> int | None:
        return getattr(self.model.config, "max_target_positions", super().max_length)

    def split(self, prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[list[Arguments], bool]:  # type: ignore[override]
        ids = not isinstance(prompt, (str, Mapping, Arguments)) and is_ids(prompt)
        batch = isinstance(prompt, (list, tuple)) and not ids
        prompts = list(prompt) if batch else [prompt]
        if IDS not in self.parameters and any(isinstance(each, str) or is_ids(each) for each in prompts):
            source = getattr(self.model, "main_input_name", next(iter(self.parameters)))
            raise PromptError(
                f"the encoder of {self.name} reads {source} and no text; in Python give {{{source!r}: ..., "
                f"{DECODER_IDS!r}: 'a text'}}, and cap.save keeps the capture for the shell and the dashboard"
            )
        given = [{IDS: each} if isinstance(each, str) or ids or (batch and is_ids(each)) else each for each in prompts]
        written = [self._tokenised(each, tokenizer) if isinstance(each, Mapping) else each for each in given]
        arguments = arguments_of(written, list(self.parameters), self.name)
        for name, mask, first in ((IDS, MASK, 0), (DECODER_IDS, DECODER_MASK, 1)):  # a decoder may start with the padding token
            rows = [
                part.values[name][0, first:].tolist() for part in arguments if name in part.values and mask not in part.values
            ]
            if len(rows) > 1:
                refuse_padding(rows, tokenizer, name, mask)
        parts = [self._whole(part) for part in arguments]
        return parts, batch or len(parts) > 1

    def _tokenised(self, given: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """Return arguments with ids in place of texts."""
        values = dict(given)
        for name in (IDS, DECODER_IDS):
            if isinstance(values.get(name), str):
                ids = list(encode(tokenizer, values[name]).ids)  # refused without a tokenizer
                values[name] = ids if tokenizer is None or name == IDS else self._begun(values[name], tokenizer)
        return values

    def _begun(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Return the ids of a text that a decoder goes on with: after its start token, without tokens that end a text."""
        target = tokenizer(text_target=text, return_special_tokens_mask=True)  # some split a target otherwise
        ends = takewhile(bool, reversed(target["special_tokens_mask"]))
        ids = target["input_ids"][: len(target["input_ids"]) - len(list(ends))]
        return ids if ids[:1] == [self._start] else [self._start, *ids]

    @property
    def _start(self) -> int:
        """The token that a decoder starts with."""
        configs = (getattr(self.model, "generation_config", None), self.model.config)
        start = next((each for c in configs if (each := getattr(c, "decoder_start_token_id", None)) is not None), None)
        if start is None:
            raise PromptError(f"{self.name} does not say which token its decoder starts with; give {DECODER_IDS}")
        return start

    def _whole(self, part: Arguments) -> Arguments:
        """Return one prompt without the padding that its masks tell, with ids for the decoder."""
        values = dict(part.values)
        for name, mask in ((IDS, MASK), (DECODER_IDS, DECODER_MASK)):
            if name in values and mask in values:
                shown = values.pop(mask)
                if shown.shape != values[name].shape or not ((shown == 0) | (shown == 1)).all():
                    raise PromptError(f"{mask} is not a 1 or 0 for each of {name}; give one value a token")
                shown = shown[0].bool()
                count = int(shown.sum())
                if not shown[:count].all():
                    raise PromptError(f"{mask} hides tokens before others; pad {name} on the right")
                values[name] = values[name][:, :count]
        if DECODER_IDS not in values:
            values[DECODER_IDS] = torch.tensor([[self._start]])
        return Arguments(values, part.tokens, part.key_tokens)

    def encode(self, tokenizer: PreTrainedTokenizerBase | None, prompt: Any, spans: Mapping) -> Encoded:
        return encode(tokenizer, prompt.values[DECODER_IDS][0], spans, self._outputs)

    @property
    def _outputs(self) -> int | None:
        """Tokens that the decoder knows; None if that is not known."""
        return getattr(self.model.get_output_embeddings(), "out_features", None)

    def encode_keys(self, tokenizer: PreTrainedTokenizerBase | None, prompt: Any, spans: Mapping) -> Encoded | None:
        if IDS not in prompt.values:
            return super().encode_keys(tokenizer, prompt, spans)
        keys = encode(tokenizer, prompt.values[IDS][0], spans, self.vocabulary)
        longest = getattr(self.model.config, "max_position_embeddings", None)
        if longest is not None and len(keys.ids) > longest:
            raise PromptError(
                f"the encoder's text has {len(keys.ids)} tokens, but {self.name} has positions for {longest}; shorten it"
            )
        return keys

    def inputs(self, inputs: Inputs) -> dict:
        given = {}
        for name, values in _by_name(inputs.originals).items():
            if name in (IDS, DECODER_IDS):
                mask = MASK if name == IDS else DECODER_MASK
                given |= self._padded([value[0] for value in values], name, mask)
            else:
                given[name] = _joined(values, name, self.device, self.dtype)
        return given

    def _padded(self, rows: list[Tensor], name: str, mask: str) -> dict[str, Tensor]:
        """Return rows of ids as one tensor, padded on the right, with their mask."""
        ones = [torch.ones_like(row) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([row.long() for row in rows], batch_first=True, padding_value=self.padding).to(self.device)
        masked = {mask: pad(ones, batch_first=True).to(self.device)} if mask in self.parameters else {}
        return {name: ids, **masked}

    def logits(self, ids: Tensor | None = None, *_: Any, columns: Sequence[int] | None = None, **arguments: Any) -> Tensor:  # type: ignore[override]
        if ids is not None:
            raise UnsupportedModel(
                f"{self.name} has an encoder and a decoder, and this runs models of one side; capture, measure and "
                "figures of maps take it"
            )
        out = self.model(**arguments | {"use_cache": False}).logits
        return out if columns is None else out[:, list(columns)]


class Denoiser(TokenModel):
    """A transformer that denoises latents: a prompt is what its forward takes, and its tokens are the places of the latents."""

    two_sided = True
    vocabulary = None
    predicts = False
    max_length = None

    def __init__(self, model: nn.Module, name: str):
        super().__init__(model, name)
        self.config: ForeignModule = getattr(model, "config", None)

    def split(self, prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[list[Arguments], bool]:  # type: ignore[override]
        if isinstance(prompt, str):
            raise PromptError(
                f"{self.name} denoises latents and takes no text; {FORM}, such as diffscope.denoising_steps records in Python, "
                "and cap.save keeps the capture for the shell and the dashboard"
            )
        parts = arguments_of(prompt, list(self.parameters), self.name)
        for part in parts:
            if missing := next((name for name in (LATENTS, TIMESTEP, CONTEXT) if name not in part.values), None):
                raise PromptError(f"the prompt has no {missing}, which the forward of {self.name} takes; {FORM}")
        return parts, len(parts) > 1 or isinstance(prompt, (list, tuple))

    def encode(self, tokenizer: PreTrainedTokenizerBase | None, prompt: Any, spans: Mapping) -> Encoded:
        memory = int(getattr(self.config, "num_memory_tokens", 0))
        places = prompt.values[LATENTS].shape[-1] // int(getattr(self.config, "patch_size", 1))
        names = [str(place) for place in range(places)] if prompt.tokens is None else list(prompt.tokens)
        if len(names) != places:
            raise PromptError(f"there are {len(names)} names for {places} places of the latents; give one each")
        return numbered([*(f"memory {number}" for number in range(memory)), *names], spans)

    def encode_keys(self, tokenizer: PreTrainedTokenizerBase | None, prompt: Any, spans: Mapping) -> Encoded | None:
        count = prompt.values[CONTEXT].shape[1]
        known = prompt.key_tokens
        names = [str(number) for number in range(count)] if known is None else getattr(known, "tokens", known)
        if len(names) != count:
            raise PromptError(f"there are {len(names)} names for {count} tokens of {CONTEXT}; give one each")
        return with_spans(known, spans) if isinstance(known, Encoded) else numbered(names, spans)

    def inputs(self, inputs: Inputs) -> dict:
        device, dtype = self.device, self.dtype
        return {name: _joined(values, name, device, dtype) for name, values in _by_name(inputs.originals).items()}

    def logits(self, ids: Tensor | None = None, *_: Any, columns: Sequence[int] | None = None, **arguments: Any) -> Tensor:  # type: ignore[override]
        if ids is not None:
            raise UnsupportedModel(f"{self.name} denoises latents and takes no tokens; {FORM}")
        out = self.model(**arguments | {"return_dict": False})[0]  # (batch, channel, place)
        return out.transpose(1, 2)

    def random_prompt(self, places: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw latents of so many places, a timestep and a context, as Stable Audio 3 takes them.

        Raises
        ------
        PromptError
            The model's configuration does not say how wide they are.
        """
        widths = [getattr(self.config, name, None) for name in ("io_channels", "cond_token_dim", "global_cond_dim")]
        if None in widths:
            raise PromptError(
                f"{self.name} does not say how wide its latents and context are, so no prompt for it can be made up"
            )
        places -= places % int(getattr(self.config, "patch_size", 1))
        channels, width, of_whole = (int(each) for each in widths if each is not None)
        return {
            LATENTS: torch.randn(1, channels, places, generator=generator),
            TIMESTEP: torch.rand(1, generator=generator),
            CONTEXT: torch.randn(1, max(2, places // 2), width, generator=generator),
            "global_hidden_states": torch.randn(1, of_whole, generator=generator),
        }

    def generate(self, ids: Tensor, count: int, cache: bool) -> Tensor:
        raise UnsupportedModel(f"{self.name} denoises latents and generates no text")


def _by_name(prompts: Sequence[Arguments]) -> dict[str, list[Any]]:
    """Return the values of each argument, one a prompt.

    Raises
    ------
    PromptError
        A prompt lacks an argument that others have.
    """
    values = [prompt.values for prompt in prompts]
    names = dict.fromkeys(name for each in values for name in each)
    for name in names:
        missing = next((number for number, each in enumerate(values) if name not in each), None)
        if missing is not None:
            raise PromptError(f"prompt {missing} of the batch has no {name}, which others have; give all of one kind")
    return {name: [each[name] for each in values] for name in names}


def _joined(values: list[Any], name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return one argument of several prompts as one tensor, on the model's device and in its dtype; other values as they are."""
    first = values[0]
    if not isinstance(first, Tensor):
        if any(value != first for value in values):
            raise PromptError(f"{name} of the prompts differ; capture them one by one")
        return first
    if len({value.shape[1:] for value in values}) > 1:
        raise PromptError(f"{name} of the prompts differ in shape; capture them one by one")
    joined = torch.cat(values).to(device)
    return joined.to(dtype) if joined.is_floating_point() and name != TIMESTEP else joined


def denoises(model: nn.Module) -> bool:
    """Return whether a model's forward takes latents, a timestep and a context, as the transformers of diffusers do."""
    return {LATENTS, TIMESTEP, CONTEXT} <= inspect.signature(model.forward).parameters.keys()
