"""Run a Hugging Face language model, any other module that takes token ids, or one that takes images."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffscope.attention.layer import LayerAttention
from diffscope.errors import PromptError, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.interface import attention_configs, own_implementation
from diffscope.families.packs import together
from diffscope.prompts.embeddings import EMBEDDINGS, Embedded
from diffscope.prompts.encoded import Encoded, encode, numbered
from diffscope.prompts.inputs import split_prompts
from diffscope.prompts.tokenizer_output import POSITIONS, Pack
from diffscope.scope.unwrap import part_to_pass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
    """

    prompts: list[Encoded]
    originals: Sequence
    batch: bool

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each prompt."""
        return tuple(len(prompt.ids) for prompt in self.prompts)

    @property
    def packed(self) -> bool:
        """True if the prompts are run in one row."""
        return isinstance(self.originals, Pack)


class TokenModel:
    """Any module whose forward takes token ids (batch, token) first and gives logits (batch, token, vocabulary)."""

    def __init__(self, model: nn.Module, name: str):
        self.model = model
        self.name = name
        self.parameters = inspect.signature(model.forward).parameters
        needed = [each.name for each in self.parameters.values() if each.default is each.empty and each.kind in POSITIONAL]
        if len(needed) > 1:
            raise UnsupportedModel(
                f"{name} takes {' and '.join(needed)} at once, where diffscope gives one prompt; open the part to look at by "
                "itself, such as diffscope.load(model.visual)"
            )

    max_length: int | None = None  # the longest prompt, in tokens; None for any
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

        Of several, such as one of positions, it is the one that a linear layer leads back to, or else the largest.
        """
        sizes = {part.num_embeddings for part in self.model.modules() if isinstance(part, nn.Embedding)}
        heads = {part.out_features for part in self.model.modules() if isinstance(part, nn.Linear)}
        return max(sizes & heads or sizes, default=None)

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

    def inputs(self, prompts: Sequence[Encoded], originals: Sequence) -> dict:
        """Return keywords for :meth:`logits`: ids (batch, token) padded on the right, and a mask that is 1 at each token.

        `originals` are the prompts before they were encoded.

        Raises
        ------
        UnsupportedModel
            It takes neither embeddings nor packs, and some are given.
        """
        if isinstance(originals, Pack) or any(isinstance(each, Embedded) for each in originals):
            raise UnsupportedModel(f"{self.name} is run on token ids alone; give prompts as token ids, packs as a batch")
        return self._padded(prompts)

    def _padded(self, prompts: Sequence[Encoded]) -> dict:
        lengths = torch.tensor([len(prompt.ids) for prompt in prompts])
        ids = torch.full((len(prompts), int(lengths.max())), self.padding, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt.ids)] = torch.tensor(prompt.ids)
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        return {"ids": ids.to(self.device), "mask": mask.long().to(self.device)}

    @property
    def padding(self) -> int:
        """The token id of padding, which nothing attends to."""
        pad = getattr(getattr(self.model, "config", None), "pad_token_id", None)
        return pad if isinstance(pad, int) and pad >= 0 else 0

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
        attention_configs(model)
        if model.get_output_embeddings() is None:
            raise UnsupportedModel(f"{type(model).__name__} has no language-model head; open the model with its head")

    @property
    def max_length(self) -> int | None:
        return getattr(self.model.config, "max_position_embeddings", None)

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

    def inputs(self, prompts: Sequence[Encoded], originals: Sequence) -> dict:
        given = self._padded(prompts)
        vectors = [each.embeddings for each in originals if isinstance(each, Embedded)]
        packed = isinstance(originals, Pack)
        for name, needed in ((EMBEDDINGS, vectors), (POSITIONS, packed)):
            if needed and name not in self.parameters:
                raise UnsupportedModel(f"{self.name} takes no {name}; give prompts as token ids, packs as a batch")
        if vectors:
            given["embeddings"] = self._padded_vectors(vectors)
        if not packed:
            return given
        device = self.device
        lengths = [len(prompt.ids) for prompt in prompts]
        row = {name: together(given[name], lengths) for name in ("ids", "embeddings") if name in given}
        positions = torch.cat([torch.arange(n, device=device) for n in lengths])[None]
        mask = originals.mask
        if mask is not None:  # what is added to scores has their dtype
            mask = mask.to(device, self.dtype if mask.is_floating_point() else mask.dtype)
        return {**row, "mask": mask, "positions": positions}

    def _padded_vectors(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return embeddings of prompts as one batch, (batch, token, hidden)."""
        inside = (part.embedding_dim for part in self.model.get_input_embeddings().modules() if isinstance(part, nn.Embedding))
        width = next(inside, None)
        wrong = next((each.shape[1] for each in vectors if each.shape[1] != (width or each.shape[1])), None)
        if wrong is not None:
            raise PromptError(f"{EMBEDDINGS} are {wrong} wide, and those of {self.name} {width}; give the model's own")
        rows = [each.detach().to(self.device, self.dtype) for each in vectors]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

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
        narrow = columns is not None and "logits_to_keep" in self.parameters
        options = {"logits_to_keep": torch.tensor(list(columns))} if narrow else {}  # on the CPU: it indexes on any device
        if positions is not None:
            options["position_ids"] = positions
        if embeddings is not None:
            options[EMBEDDINGS] = embeddings
        given = (ids,) if embeddings is None else ()
        out = self.model(*given, attention_mask=mask, use_cache=False, **options).logits
        return out if columns is None or narrow else out[:, list(columns)]

    def generate(self, ids: Tensor, count: int, cache: bool) -> Tensor:
        return self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            use_cache=cache,
            pad_token_id=self.padding,
        )


class ImageModel(TokenModel):
    """A vision transformer of timm: a prompt is an image (channel, height, width), its tokens are patches."""

    vocabulary = None
    max_length = None

    def __init__(self, model: nn.Module, name: str):
        super().__init__(model, name)
        self.patches = _patches_of(model)

    @property
    def channels(self) -> int | None:
        """Channels of an image; None where they are not known."""
        convolutions = (part.in_channels for part in self.patches.modules() if isinstance(part, nn.Conv2d))
        return next(convolutions, getattr(self.patches, "in_chans", None))

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of an image; None where the model takes any."""
        size = getattr(self.patches, "img_size", None)
        return None if size is None or getattr(self.model, "dynamic_img_size", False) else _height_and_width(size)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return _height_and_width(self.patches.patch_size)

    @property
    def predicts(self) -> bool:
        """False of a model without a head or without pooling, which gives features."""
        return bool(getattr(self.model, "num_classes", 1)) and getattr(self.model, "global_pool", "avg") != ""

    @staticmethod
    def split(prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[list, bool]:
        images = isinstance(prompt, (list, tuple)) and len(prompt) > 0 and getattr(prompt[0], "ndim", 0) == 3
        batch = images or (getattr(prompt, "ndim", 0) == 4 and len(prompt) > 0)
        return (list(prompt) if batch else [prompt]), batch

    def image(self, prompt) -> Tensor:
        """Return a prompt as a tensor (channel, height, width).

        Raises
        ------
        PromptError
            It is no image, or not one that the model takes.
        """
        if isinstance(prompt, str):
            raise PromptError(f"{self.name} looks at images, not at text; in Python: diffscope.load(...).capture(image)")
        try:
            image = torch.as_tensor(prompt)
        except (TypeError, ValueError, RuntimeError):
            image = torch.empty(0)
        if image.dim() != 3:
            what = f"shape {tuple(image.shape)}" if image.numel() else type(prompt).__name__
            raise PromptError(f"an image is a tensor (channel, height, width), or a list or batch of them, not {what}")
        if not image.is_floating_point():
            raise PromptError("the image holds whole numbers; give it as floats, normalised as the model was trained")
        if self.channels not in (None, len(image)):
            raise PromptError(f"the image has {len(image)} channels, but {self.name} takes {self.channels}")
        return image

    def encode(self, tokenizer: PreTrainedTokenizerBase | None, prompt: Any, spans: Mapping) -> Encoded:
        return numbered(self.tokens(*self.image(prompt).shape[1:]), spans)

    def tokens(self, height: int, width: int) -> tuple[str, ...]:
        """Name the tokens of an image: those that the model adds in front, then patches as "row,column".

        Raises
        ------
        PromptError
            The model does not take images of this size.
        """
        if self.size not in (None, (height, width)):
            raise PromptError(f"the image is {height} × {width}, but {self.name} takes {self.size[0]} × {self.size[1]}")
        high, wide = self.patch_size
        if (height % high or width % wide) and not getattr(self.patches, "dynamic_img_pad", False):
            raise PromptError(f"the image is {height} × {width}, which patches of {high} × {wide} do not fill")
        rows = math.ceil(height / high)
        columns = math.ceil(width / wide)
        return (*self.prefix, *(f"{row},{column}" for row in range(rows) for column in range(columns)))

    @property
    def prefix(self) -> list[str]:
        """Names of the tokens before the patches."""
        count = getattr(self.model, "num_prefix_tokens", 0)
        first = ["class"] if self._has("cls_token") and count else []
        kind = "register" if self._has("reg_token") else "prefix"
        return [*first, *(f"{kind} {i}" for i in range(count - len(first)))]

    def _has(self, token: str) -> bool:
        return any(getattr(holder, token, None) is not None for holder in (self.model, self.patches))

    def check_tokens(self, passage: AttentionPass) -> None:
        count = passage.hidden.shape[1]
        expected = max(passage.lengths)
        if count != expected:
            raise UnsupportedModel(
                f"{self.name} makes {count} tokens of an image where its patches and prefix tokens are {expected}, so it is "
                "not known what they stand for"
            )

    def inputs(self, prompts: Sequence[Encoded], originals: Sequence) -> dict:
        images = [self.image(prompt) for prompt in originals]
        if len({tuple(image.shape) for image in images}) > 1:
            raise PromptError("the images of a batch differ in size; capture them one by one")
        return {"pixels": torch.stack(images).to(self.device, self.dtype)}

    def logits(self, pixels: Tensor, columns=None) -> Tensor:
        """Return logits of the classes, (batch, 1, class)."""
        out = self.model(pixels)
        return out[:, None] if out.dim() == 2 else out

    def random_image(self, generator: torch.Generator) -> Tensor:
        """Draw a random image that the model takes, (channel, height, width)."""
        size = self.size or [8 * patch for patch in self.patch_size]
        return torch.randn(self.channels or 3, *size, generator=generator)

    def generate(self, ids, count, cache):
        raise UnsupportedModel(f"{self.name} takes images and generates no text")


def _height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width of a size that may be one number for both."""
    high, wide = (size, size) if isinstance(size, int) else size
    return high, wide


def _patches_of(model: nn.Module) -> nn.Module | None:
    """Return the part of a vision transformer that makes patches; None in other models."""
    parts = (getattr(model, name, None) for name in ("patch_embed", "embeds"))
    return next((part for part in parts if hasattr(part, "patch_size")), None)


def runner_of(model: nn.Module, family: Family, name: str) -> TokenModel:
    """Return the runner of a model.

    Raises
    ------
    UnsupportedModel
        Its family needs the attention interface of Hugging Face, and it is no Hugging Face model.
    """
    if isinstance(model, PreTrainedModel):
        return LanguageModel(model, name)
    if family.interface:
        if part := part_to_pass(model):
            raise UnsupportedModel(f"{type(model).__name__} is not a Hugging Face model itself; {part}")
        attention_configs(model)  # raises
    return TokenModel(model, name) if _patches_of(model) is None else ImageModel(model, name)
