"""Run a vision transformer of timm on images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from diffscope.errors import PromptError, UnsupportedModel
from diffscope.families import AttentionPass
from diffscope.prompts.encoded import Encoded, numbered
from diffscope.scope.runners import Inputs, TokenModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ImageModel(TokenModel):
    """A vision transformer of timm: a prompt is an image (channel, height, width), its tokens are patches."""

    vocabulary = None

    def __init__(self, model: nn.Module, name: str):
        super().__init__(model, name)
        self.patches = patches_of(model)

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

    def inputs(self, inputs: Inputs) -> dict:
        images = [self.image(prompt) for prompt in inputs.originals]
        if len({tuple(image.shape) for image in images}) > 1:
            raise PromptError("the images of a batch differ in size; capture them one by one")
        return {"pixels": torch.stack(images).to(self.device, self.dtype)}

    def logits(self, ids: Tensor | None = None, *_: Any, columns: Any = None, pixels: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Return logits of the classes, (batch, 1, class)."""
        if ids is not None:
            raise UnsupportedModel(f"{self.name} takes images and no tokens; capture an image, or run it with scope.run")
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


def patches_of(model: nn.Module) -> nn.Module | None:
    """Return the part of a vision transformer that makes patches; None in other models."""
    parts = (getattr(model, name, None) for name in ("patch_embed", "embeds"))
    return next((part for part in parts if hasattr(part, "patch_size")), None)
