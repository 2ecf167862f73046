"""A model opened for looking: run it, collect what every layer attended with, prove it."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from diffscope import families
from diffscope.attention import LayerAttention
from diffscope.capture import Capture
from diffscope.errors import DiffscopeError, OutOfMemoryAhead, PromptError, UnsupportedModel
from diffscope.families.recording import implementation_of, passages
from diffscope.fidelity import Fidelity, require
from diffscope.models.loading import load_model, move
from diffscope.prompts import Encoded, encode
from diffscope.stats.outliers import outliers

NEXT_TOKENS = 10
OFFLOADED = "the model's weights are offloaded; use a device_map of GPUs alone, or one device"
_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()


def load(
    model: str | os.PathLike | nn.Module,
    tokenizer=None,
    *,
    device=None,
    dtype: torch.dtype | str | None = None,
    device_map=None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
) -> Scope:
    """Open a model to look into.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A bundled name (``mini-diff``, or ``mini-diff@400`` for a step of its training), a local folder, a hub id, or a
        Hugging Face model that you hold already.
    tokenizer : PreTrainedTokenizerBase, optional
        For a model that you hold; otherwise the saved one is used.
    device, dtype, device_map, attn_implementation
        As in transformers; ``dtype`` also as a string such as ``"bfloat16"``. For a model that you hold, `device` and `dtype`
        convert that model itself, as ``model.to`` does.
    trust_remote_code : bool
        Run code that comes with a hub model. Only you can ask for it.

    Raises
    ------
    ModelNotFound, CorruptFile, UnsupportedModel
    """
    if isinstance(model, nn.Module):
        name = getattr(model, "name_or_path", "") or type(model).__name__
        model = model if device is None else move(model, device)
        model = model if dtype is None else model.to(_dtype(dtype))
        return Scope(model, tokenizer, name)
    name = os.fspath(model)
    loaded, saved_tokenizer = load_model(
        name,
        dtype=_dtype(dtype),
        device=device,
        device_map=device_map,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    return Scope(loaded, tokenizer or saved_tokenizer, name)


def _dtype(dtype) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}.get(dtype, dtype), None)
    if not isinstance(found, torch.dtype):
        raise DiffscopeError(f"dtype {dtype!r} is unknown; use float32, bfloat16, float16 or float64")
    return found


class Scope:
    """A model opened for looking. One thread at a time runs it; others wait."""

    def __init__(self, model: nn.Module, tokenizer, name: str):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.family = families.find(model)
        implementation_of(model)
        if model.get_output_embeddings() is None:
            raise UnsupportedModel(f"{type(model).__name__} has no language-model head; open the model with its head")
        # Several scopes may look into one model: whoever runs it holds its lock.
        self.lock = _LOCKS.setdefault(model, threading.RLock())

    def __repr__(self) -> str:
        return f"<Scope {self.name}: family {self.family.name}, {self.n_layers} layers>"

    @property
    def n_layers(self) -> int:
        return len(self.family.modules(self.model))

    @property
    def positions(self) -> int | None:
        """Longest prompt, in tokens, that the model has positions for."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def tokenize(self, text: str) -> list[int]:
        return list(encode(self.tokenizer, text).ids)

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = 8) -> str:
        """The model's greedy continuation as text."""
        encoded = self._encode(prompt, None)
        ids = torch.tensor([encoded.ids], device=self.model.device)
        with self.lock, torch.no_grad(), _evaluating(self.model):
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=_pad(self.model),
            )
        new = out[0, len(encoded.ids) :].tolist()
        return " ".join(map(str, new)) if self.tokenizer is None else self.tokenizer.decode(new)

    def capture(self, prompt, spans: Mapping | Sequence[Mapping] | None = None) -> Capture:
        """Run one prompt, or a batch, and keep what every layer attended with.

        Parameters
        ----------
        prompt : str, sequence of int, or a list of either
            A list of texts or of token lists is a batch; it is padded on the right.
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
        batch = isinstance(prompt, (list, tuple)) and len(prompt) > 0 and isinstance(prompt[0], (str, list, tuple))
        texts = list(prompt) if batch else [prompt]
        spans = [spans or {}] * len(texts) if not isinstance(spans, (list, tuple)) else list(spans)
        if len(spans) != len(texts):
            raise PromptError(f"{len(texts)} prompts but {len(spans)} sets of spans; give one for all or one each")
        prompts = [self._encode(text, given) for text, given in zip(texts, spans)]
        with self.lock, torch.no_grad(), _evaluating(self.model):
            return self._run(prompts, batch)

    def _encode(self, prompt, spans) -> Encoded:
        encoded = encode(self.tokenizer, prompt, spans)
        n, most = len(encoded.ids), self.positions
        if most is not None and n > most:
            raise PromptError(f"the prompt has {n} tokens, but {self.name} has positions for {most}; shorten it")
        size = self.model.get_input_embeddings().num_embeddings
        if not 0 <= min(encoded.ids) <= max(encoded.ids) < size:
            raise PromptError(f"the prompt has token ids outside the model's vocabulary of {size}; use the model's own tokenizer")
        return encoded

    def _run(self, prompts: list[Encoded], batch: bool) -> Capture:
        lengths = tuple(len(prompt.ids) for prompt in prompts)
        device = self.model.get_input_embeddings().weight.device
        if device.type == "meta":
            raise UnsupportedModel(OFFLOADED)
        ids = torch.full((len(prompts), max(lengths)), _pad(self.model), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : lengths[row]] = torch.tensor(prompt.ids)
        mask = torch.arange(ids.shape[1])[None] < torch.tensor(lengths)[:, None]
        layers: list[LayerAttention] = []
        proofs: list[Fidelity] = []

        def take(passage):
            layer = self.family.read(passage)
            if any(tensor.is_meta for tensor in layer.dismantle()[0].values()):
                raise UnsupportedModel(OFFLOADED)
            if not layers:
                _refuse_beyond_memory(layer, self.n_layers)
            proofs.append(require(layer, passage.observed))
            layers.append(layer)

        options = {}
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            options["logits_to_keep"] = torch.tensor(sorted({n - 1 for n in lengths}))  # on the CPU: it indexes on any device
        with passages(self.model, self.family, lengths, take), _layer_outputs(self.model, self.family, lengths) as tails:
            out = self.model(ids.to(device), attention_mask=mask.long().to(device), use_cache=False, **options)
        columns = sorted({n - 1 for n in lengths}) if options else list(range(ids.shape[1]))
        ahead = [self._next(out.logits[row, columns.index(n - 1)]) for row, n in enumerate(lengths)]
        facts = {
            "model": self.name,
            "family": self.family.name,
            "attention": self.model.config._attn_implementation,
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }
        return Capture(prompts, layers, proofs, ahead, np.stack(tails), facts, batch)

    def _next(self, logits: Tensor) -> list[tuple[str, float]]:
        top = logits.float().softmax(-1).topk(min(NEXT_TOKENS, len(logits)))
        name = str if self.tokenizer is None else lambda token: self.tokenizer.decode([token])
        return [(name(token), p) for p, token in zip(top.values.tolist(), top.indices.tolist())]


def _pad(model) -> int:
    pad = model.config.pad_token_id
    return pad if isinstance(pad, int) and pad >= 0 else 0  # what stands in padding is never looked at


def _free_memory(device: torch.device) -> float:
    """Bytes that can still be had; infinite where the system does not say."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), float("inf"))


@contextmanager
def _evaluating(model: nn.Module):
    """Evaluation mode while it is open; afterwards every part is in the mode it was in."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _refuse_beyond_memory(layer: LayerAttention, n_layers: int) -> None:
    """Raise before a capture would fill the memory, judged by its first layer."""
    need = n_layers * sum(x.numel() * x.element_size() for x in (layer.q, layer.k, layer.v))
    free = _free_memory(layer.q.device)
    if need > free:
        raise OutOfMemoryAhead(
            f"this capture needs {need / 2**30:.1f} GiB for {n_layers} layers and {free / 2**30:.1f} GiB are free; "
            "use a shorter prompt, a smaller batch or bfloat16"
        )


@contextmanager
def _layer_outputs(model: nn.Module, family, lengths):
    """Outliers of every decoder layer's output, (prompt, outlier) a layer, taken as the model runs."""
    names = {module: name for name, module in model.named_modules()}
    tails: list[np.ndarray] = []

    def hook(module, args, output):
        hidden = output[0] if isinstance(output, tuple) else output  # (batch, token, hidden)
        tails.append(np.stack([outliers(hidden[i, :n].float()).numpy() for i, n in enumerate(lengths)]))

    parents = [model.get_submodule(names[module].rpartition(".")[0]) for module in family.modules(model)]
    handles = [parent.register_forward_hook(hook) for parent in parents]
    try:
        yield tails
    finally:
        for handle in handles:
            handle.remove()
