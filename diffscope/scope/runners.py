"""Run a Hugging Face language model, or any other module that takes token ids."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from diffscope.attention.layer import LayerAttention
from diffscope.errors import PromptError, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.foreign import ForeignModule
from diffscope.families.interface import attention_configs, own_implementation
from diffscope.families.packs import together
from diffscope.prompts.embeddings import EMBEDDINGS, Embedded
from diffscope.prompts.encoded import Encoded, encode, numbered
from diffscope.prompts.inputs import split_prompts
from diffscope.prompts.tokenizer_output import POSITIONS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CAUSAL = ("CausalLM", "LMHead")  # in names of classes that predict tokens, also without the generation of transformers
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Inputs(NamedTuple):
    """Prompts that are ready to be run.

    Attributes
    ----------
    prompts : list of Encoded
    originals : list
        The same as texts, token ids, embeddings or images; a :class:`~diffscope.prompts.inputs.Pack` if they are run in one row.
    batch : bool
        Whether they were given as a batch.
    lengths : tuple of int
        Tokens of each prompt.
    packed : bool
        Whether the prompts are run in one row.
    keys : list of Encoded, optional
        What cross-attention looks at, one a prompt; None if it is not known before the model runs, or there is none.
    key_spans : sequence of mapping
        The spans that were given for it, one mapping a prompt.
    """

    prompts: list[Encoded]
    originals: Sequence
    batch: bool
    lengths: tuple[int, ...]
    packed: bool
    keys: list[Encoded] | None = None
    key_spans: Sequence[Mapping] = ()

    @property
    def key_lengths(self) -> tuple[int, ...] | None:
        """Tokens of each prompt that cross-attention looks at; None if they are not known."""
        return None if self.keys is None else tuple(len(each.ids) for each in self.keys)


class TokenModel:
    """Any module whose forward takes token ids (batch, token) first and gives logits (batch, token, vocabulary)."""

    def __init__(self, model: nn.Module, name: str):
        self.model: ForeignModule = model
        self.name = name
        self.parameters = inspect.signature(model.forward).parameters
        needed = [each.name for each in self.parameters.values() if each.default is each.empty and each.kind in POSITIONAL]
        if len(needed) > 1 and not self.two_sided:
            raise UnsupportedModel(
                f"{name} takes {' and '.join(needed)} at once, where diffscope gives one prompt; open the part to look at by "
                "itself, such as diffscope.load(model.visual)"
            )

    max_length: int | None = None  # the longest prompt, in tokens; None for any
    takes: Collection[str] = ()  # of embeddings and positions, by their names in transformers
    two_sided = False  # whether its queries look at tokens of another side, so that a prompt is what its forward takes
    predicts = True  # whether `logits` are those of tokens or classes, which have names

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens, by the embedding; None without one.

        Of several, such as one of positions, it is the one whose shape the last linear layer has that is unlike all others (those
        of blocks repeat), or else the largest.
        """
        parts = [part for part in self.model.modules() if isinstance(part, (nn.Embedding, nn.Linear))]
        sizes = {(part.num_embeddings, part.embedding_dim) for part in parts if isinstance(part, nn.Embedding)}
        linear = Counter((part.out_features, part.in_features) for part in parts if isinstance(part, nn.Linear))
        heads = [size for size, count in linear.items() if count == 1 and size in sizes]
        return heads[-1][0] if heads else max((count for count, _ in sizes), default=None)

    @property
    def padding(self) -> int:
        """A token id to pad with, to which nothing attends."""
        pad, known = getattr(getattr(self.model, "config", None), "pad_token_id", None), self.vocabulary
        return pad if isinstance(pad, int) and pad >= 0 and (known is None or pad < known) else 0

    def implementation(self, family: Family) -> str:
        """Return the name of the model's attention implementation."""
        return "its own"

    split = staticmethod(split_prompts)  # a prompt or batch, in any form

    def encode(self, tokenizer: PreTrainedTokenizerBase | None, prompt: Any, spans: Mapping) -> Encoded:
        """Encode a prompt of :meth:`split`; embeddings have the tokens of their ids, or else numbers."""
        if isinstance(prompt, Embedded):
            if prompt.ids is None:
                return numbered([str(number) for number in range(len(prompt.embeddings))], spans)
            prompt = prompt.ids
        return encode(tokenizer, prompt, spans, self.vocabulary)

    def encode_keys(self, tokenizer: PreTrainedTokenizerBase | None, prompt: Any, spans: Mapping) -> Encoded | None:
        """Encode what cross-attention looks at in a prompt of :meth:`split`; None if its tokens are known only after a run."""
        return None

    def check_tokens(self, passage: AttentionPass) -> None:
        """Raise UnsupportedModel if the model's attention sees other tokens than those of the prompt."""
        count = passage.observed.shape[1]
        expected = max(passage.lengths)
        if count != expected:
            raise UnsupportedModel(
                f"layer {passage.number} of {self.name} attends from {count} positions where the prompt has {expected} tokens, "
                "so it is not known what its rows stand for"
            )

    def check_batch(self, layer: LayerAttention) -> None:
        """Raise PromptError if the model would attend to padding, whether or not the layer is read correctly."""
        if layer.mask.kind == "full" and len(set(layer.lengths)) > 1 and "attention_mask" not in self.parameters:
            raise PromptError(
                "this model sees all keys and takes no mask, so it would attend to padding; give prompts of one length"
            )

    def inputs(self, inputs: Inputs) -> dict:
        """Return keywords for :meth:`logits`: ids (batch, token) padded on the right, and a mask that is 1 at each token.

        Raises
        ------
        UnsupportedModel
            It takes no embeddings or no packs, and some are given.
        """
        vectors = [each.embeddings for each in inputs.originals if isinstance(each, Embedded)]
        for name, needed in ((EMBEDDINGS, vectors), (POSITIONS, inputs.packed)):
            if needed and name not in self.takes:
                raise UnsupportedModel(f"{self.name} takes no {name}; give prompts as token ids, packs as a batch")
        ids = torch.full((len(inputs.prompts), max(inputs.lengths)), self.padding, dtype=torch.int64)
        for row, prompt in zip(ids, inputs.prompts):
            row[: len(prompt.ids)] = torch.tensor(prompt.ids)
        mask = torch.arange(ids.shape[1]) < torch.tensor(inputs.lengths)[:, None]
        device = self.device
        given = {"ids": ids.to(device), "mask": mask.long().to(device)}
        if vectors:
            given["embeddings"] = self._padded_vectors(vectors)
        return self._in_one_row(given, inputs) if inputs.packed else given

    def _padded_vectors(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return embeddings of prompts as one batch, (batch, token, hidden)."""
        inside = (part.embedding_dim for part in self.model.get_input_embeddings().modules() if isinstance(part, nn.Embedding))
        width = next(inside, None)
        wrong = next((each.shape[1] for each in vectors if each.shape[1] != (width or each.shape[1])), None)
        if wrong is not None:
            raise PromptError(f"{EMBEDDINGS} are {wrong} wide, and those of {self.name} {width}; give the model's own")
        rows = [each.detach().to(self.device, self.dtype) for each in vectors]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def _in_one_row(self, given: Mapping[str, Tensor], inputs: Inputs) -> dict:
        """Return a batch as a pack, (1, token, ...), with its positions, and the mask that it was given, if any."""
        row = {name: together(given[name], inputs.lengths) for name in ("ids", "embeddings") if name in given}
        positions = torch.cat([torch.arange(n, device=given["ids"].device) for n in inputs.lengths])[None]
        mask = inputs.originals.mask  # type: ignore[attr-defined]  # of a Pack
        if mask is not None:  # what is added to scores has their dtype
            mask = mask.to(positions.device, self.dtype if mask.is_floating_point() else mask.dtype)
        return {**row, "mask": mask, "positions": positions}

    def logits(self, ids: Tensor, mask: Tensor, columns: Sequence[int] | None = None) -> Tensor:
        """Return logits (batch, token, vocabulary); with `columns`, of those tokens only."""
        masked = {"attention_mask": mask} if "attention_mask" in self.parameters else {}
        out = self.model(ids, **masked)
        out = out if isinstance(out, Tensor) else getattr(out, "logits", None)
        if out is None or out.dim() != 3 or out.shape[:2] != ids.shape:
            raise UnsupportedModel(f"{type(self.model).__name__} does not give logits (batch, token, vocabulary) for token ids")
        return out if columns is None else out[:, list(columns)]

    def generate(self, ids: Tensor, count: int, cache: bool) -> Tensor:
        """Continue one prompt greedily; returns ids (1, token + count)."""
        for _ in range(count):
            following = self.logits(ids, torch.ones_like(ids))[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, following], dim=1)
        return ids

    def continuation(self, tokenizer, prompt: Encoded, count: int, cache: bool) -> str:
        """Continue one prompt greedily and return the new text; without a tokenizer the token ids, separated by spaces."""
        ids = torch.tensor([prompt.ids], device=self.device)
        new = self.generate(ids, count, cache)[0, len(prompt.ids) :].tolist()
        return " ".join(map(str, new)) if tokenizer is None else str(tokenizer.decode(new))


class LanguageModel(TokenModel):
    """A Hugging Face language model with its head."""

    def __init__(self, model: PreTrainedModel, name: str):
        super().__init__(model, name)
        self.takes = self.parameters
        named = (word in each.__name__ for each in type(model).__mro__ for word in CAUSAL)
        self.predicts = hasattr(model, "generate") or any(named)  # which models of masked tokens do not
        attention_configs(model)
        if model.get_output_embeddings() is None:
            raise UnsupportedModel(f"{type(model).__name__} has no language-model head; open the model with its head")

    @property
    def max_length(self) -> int | None:
        return getattr(self.model.config, "max_position_embeddings", None)

    @cached_property
    def keeps_positions(self) -> bool:
        """Whether the model computes the logits of chosen tokens alone, as those of transformers do.

        Other code may take ``logits_to_keep`` for a count of last tokens, and would give other tokens without an error.
        """
        if "logits_to_keep" not in self.parameters:
            return False
        forward = inspect.unwrap(type(self.model).forward)
        if forward.__module__.partition(".")[0] in ("transformers", "diffscope"):
            return True
        try:
            return "isinstance(logits_to_keep, int)" in inspect.getsource(forward)
        except (OSError, TypeError):  # code without a file
            return False

    @property
    def device(self) -> torch.device:
        embeddings = self.model.get_input_embeddings()
        device = embeddings.weight.device
        hook = getattr(embeddings, "_hf_hook", None)  # accelerate's, which fetches offloaded weights
        return torch.device(hook.execution_device) if device.type == "meta" and hook is not None else device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def vocabulary(self) -> int | None:
        embeddings = self.model.get_input_embeddings()
        inside = (part.num_embeddings for part in embeddings.modules() if isinstance(part, nn.Embedding))
        return next(inside, None)  # an adapter may be around it

    def implementation(self, family: Family) -> str:
        return own_implementation(self.model.config._attn_implementation) if family.interface else "its own"

    def logits(
        self,
        ids: Tensor,
        mask: Tensor | None,
        columns: Sequence[int] | None = None,
        embeddings: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return logits (batch, token, vocabulary); with `columns`, of those tokens only.

        `embeddings` (batch, token, hidden) stand in for the ids, and `positions` (1, token) are those of a pack.
        """
        narrow = columns is not None and self.keeps_positions
        options = {"logits_to_keep": torch.tensor(list(columns))} if narrow else {}  # on the CPU: it indexes on any device
        if positions is not None:
            options["position_ids"] = positions
        if embeddings is not None:
            options[EMBEDDINGS] = embeddings
        given = (ids,) if embeddings is None else ()
        out = self.model(*given, attention_mask=mask, use_cache=False, **options).logits
        return out if columns is None or narrow else out[:, list(columns)]

    def generate(self, ids: Tensor, count: int, cache: bool) -> Tensor:
        if not self.predicts:
            raise UnsupportedModel(f"{self.name} predicts no next tokens, so it continues no text")
        if not hasattr(self.model, "generate"):
            return super().generate(ids, count, cache)
        settings = self.model.generation_config  # such as beams and penalties, which are not greedy
        self.model.generation_config = GenerationConfig(eos_token_id=settings.eos_token_id, pad_token_id=self.padding)
        try:
            mask = torch.ones_like(ids)
            return self.model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, use_cache=cache)
        finally:
            self.model.generation_config = settings
