"""Hold the inputs of attention that a model had on a prompt; answer with maps and statistics; save and open them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

import diffscope.edits  # noqa: F401  a file may hold changes of classes that edits define
from diffscope.attention.blocks import Workers
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.stored import from_tensors, to_tensors
from diffscope.capture import maps as _maps
from diffscope.capture import repr as _repr
from diffscope.errors import DiffscopeError, check_index
from diffscope.fields import FLAG, TABLE, TEXT, check_fields, each_of, finite, listed, maybe, or_nan, shown
from diffscope.prompts.encoded import Encoded
from diffscope.stats.backends import Backend
from diffscope.stats.dataset import along_layers
from diffscope.stats.measure import MeasurementRun
from diffscope.stats.outliers import LABELS
from diffscope.stats.sample import QuerySample
from diffscope.storage.tensors import check_capture_suffix, open_tensors, save_tensors

OUTLIERS = "layer_outliers"  # the tensor that is of no single layer
# The record in a file; layers, prompts, proofs and facts have tables of their own.
FIELDS = {
    "prompts": listed(TABLE),
    "layers": listed(TABLE),
    "proofs": listed(TABLE),
    "ahead": listed(listed(each_of(TEXT, or_nan(finite(0, 1.001))))),  # a probability may be rounded above 1
    "facts": TABLE,
    "batch": FLAG,
    "key_prompts": maybe(listed(TABLE)),
}
FACTS = {name: TEXT for name in ("model", "family", "attention", "dtype", "edits", "warnings")}


def open_capture(path: str | os.PathLike) -> Capture:
    """Read a capture that ``save`` wrote; it answers the same questions without the model.

    Raises
    ------
    CorruptFile
        The file is damaged or holds something else.
    DiffscopeError
        There is no such file.
    """
    return open_tensors(path, _assembled)


def _assembled(tensors: dict[str, Tensor], record: dict[str, Any]) -> Capture:
    """Build a capture from tensors and a record of a file; ValueError, in one line, if they are none."""
    check_fields("the capture", {name: record[name] for name in FIELDS if name in record}, FIELDS, optional=("key_prompts",))
    check_fields("the capture's facts", record["facts"], FACTS, optional=("edits", "warnings"))
    parts: dict[str, dict[str, Tensor]] = {str(number): {} for number in range(len(record["layers"]))}
    for name, tensor in tensors.items():
        of_layer, _, part = name.partition(".")
        if name != OUTLIERS and of_layer not in parts:
            raise ValueError(f"the tensor {shown(name)} is of no layer, of which there are {len(parts)}")
        parts.setdefault(of_layer, {})[part] = tensor
    layers = [from_tensors(LayerAttention, parts[str(number)], fields) for number, fields in enumerate(record["layers"])]
    prompts = [Encoded.from_record(fields, f"prompt {number}") for number, fields in enumerate(record["prompts"])]
    proofs = [Fidelity.from_record(fields, f"the proof of layer {n}") for n, fields in enumerate(record["proofs"])]
    following = [[(token, probability) for token, probability in pairs] for pairs in record["ahead"]]
    outliers = tensors.get(OUTLIERS)
    if outliers is None:
        raise ValueError(f"the capture lacks the tensor {OUTLIERS}")
    of_keys = record.get("key_prompts")
    read = [Encoded.from_record(fields, f"prompt {number} of keys") for number, fields in enumerate(of_keys or ())]
    key_prompts = None if of_keys is None else read
    capture = Capture(prompts, layers, proofs, following, outliers.numpy(), record["facts"], record["batch"], key_prompts)
    _check_whole(capture)
    return capture


def _check_whole(capture: Capture) -> None:
    """Raise ValueError if the parts of a capture from a file do not belong together."""
    lengths = tuple(len(prompt.ids) for prompt in capture.prompts)
    numbers = [layer.layer for layer in capture.layers]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"the layers are numbered {shown(numbers)}, and have to be one or more, each with a number of its own")
    if not lengths or (len(lengths) > 1 and not capture.batch):
        raise ValueError(f"batch is {capture.batch}, and there are {len(lengths)} prompts")
    key_lengths = tuple(len(prompt.ids) for prompt in capture.key_prompts or ())
    alone = not key_lengths and {*capture.kinds} == {"encoder"}  # its prompts are then those of the capture
    if not alone and ({*capture.kinds} != {"self"}) != bool(key_lengths):
        raise ValueError(f"the layers are {shown(capture.kinds)} attention, and there are {len(key_lengths)} prompts of keys")
    for layer in capture.layers:
        own = key_lengths if layer.kind == "encoder" and not alone else lengths
        alike = next(other for other in capture.layers if (other.kind == "encoder") == (layer.kind == "encoder"))
        if layer.lengths != own or layer.n_queries != alike.n_queries:
            of_layer = f"{layer.n_queries} queries, and prompts of {shown(layer.lengths)} tokens"
            raise ValueError(f"layer {layer.layer} has {of_layer}, and the prompts have {shown(own)}")
        if layer.key_lengths not in (None, key_lengths):
            raise ValueError(
                f"layer {layer.layer} has {shown(layer.key_lengths)} keys, and the prompts of keys {shown(key_lengths)}"
            )
    counts = {"proofs": (len(capture._proofs), len(numbers)), "lists of next tokens": (len(capture._next), len(lengths))}
    for what, (held, needed) in counts.items():
        if held != needed:
            raise ValueError(f"there are {held} {what}, and there have to be {needed}")
    outliers = capture.layer_output_outliers
    if outliers.shape != (len(numbers), len(lengths), len(LABELS)) or outliers.dtype.kind != "f":
        needed_shape = (len(numbers), len(lengths), len(LABELS))
        raise ValueError(f"{OUTLIERS} is {outliers.dtype} {outliers.shape}, and has to be of floats {needed_shape}")


@dataclass(repr=False)
class Capture:
    """Hold the inputs of attention of every layer, on one prompt or on a batch: O(N) memory a layer, any map on request.

    ``len(capture)`` is the number of prompts and ``capture[i]`` one of them as a capture of its own; a loop goes over them.
    Properties of a prompt (``tokens``, ``ids``, ``spans``, …) are lists with one entry a prompt in a batch, also in a batch of
    one, and results have a dimension ``prompt``.

    Attributes
    ----------
    prompts : list of Encoded
    layers : list of LayerAttention
    layer_output_outliers : ndarray, (layer, prompt, outlier)
        Largest magnitudes and median of each decoder layer's output.
    facts : dict
        ``model``, ``family``, ``attention`` (the implementation) and ``dtype``; where there are any, ``edits`` and ``warnings``.
    batch : bool
        Whether the prompts were run as a batch.
    key_prompts : list of Encoded, optional
        What cross-attention looks at, one a prompt; None without cross-attention.
    """

    prompts: list[Encoded]
    layers: list[LayerAttention]
    _proofs: list[Fidelity]  # one a layer
    _next: list[list[tuple[str, float]]]  # one list a prompt
    layer_output_outliers: np.ndarray
    facts: dict[str, Any]

    batch: bool = False
    key_prompts: list[Encoded] | None = None

    map = _maps.map
    maps = _maps.maps
    pooled_map = _maps.pooled_map
    pooled_maps = _maps.pooled_maps
    strongest = _maps.strongest
    thumbnails = _maps.thumbnails
    __repr__ = _repr.line
    _repr_html_ = _repr.as_html

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self.prompts)

    def __iter__(self) -> Iterator[Capture]:
        """Iterate over the prompts, each as a capture of its own."""
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Capture:
        """Return one prompt as a capture of its own.

        It shares memory with this one. Its fidelity stays that of the whole run, whose worst prompt decides.

        Raises
        ------
        IndexError
            There is no such prompt.
        """
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"there is no prompt {number}; the capture has prompts 0 to {len(self) - 1}")
        number %= len(self)
        layers = [layer.prompt(number) for layer in self.layers]
        outliers = self.layer_output_outliers[:, number : number + 1]
        keys = self.key_prompts and [self.key_prompts[number]]
        return Capture([self.prompts[number]], layers, self._proofs, [self._next[number]], outliers, self.facts, key_prompts=keys)

    def only(self) -> Capture:
        """Return a capture of one prompt, taking a batch of one out of its batch.

        Raises
        ------
        DiffscopeError
            It is a batch of several prompts.
        """
        if len(self) > 1:
            raise DiffscopeError(f"this is of one prompt, and the capture holds {len(self)}; choose one, such as batch[0]")
        return self[0]

    @property
    def kinds(self) -> list[str]:
        """The kind of each layer, a list of str: in ``self`` the prompt's tokens look at one another.

        In ``cross`` they look at :attr:`key_tokens`; in ``encoder``, beside a decoder, :attr:`key_tokens` look at one another.
        """
        return [layer.kind for layer in self.layers]

    def of_kind(self, kind: str) -> Capture:
        """Return the layers of one kind as a capture; of an encoder its prompt is the text that the encoder reads.

        Raises
        ------
        DiffscopeError
            There is no layer of this kind.
        """
        at = [number for number, layer in enumerate(self.layers) if layer.kind == kind]
        if not at:
            raise DiffscopeError(f"there is no layer of the kind {kind!r}; there are {', '.join(dict.fromkeys(self.kinds))}")
        return replace(
            self,
            prompts=self.key_prompts if kind == "encoder" and self.key_prompts else self.prompts,
            key_prompts=self.key_prompts if kind == "cross" else None,
            layers=[self.layers[number] for number in at],
            _proofs=[self._proofs[number] for number in at],
            _next=[[] for _ in self.prompts] if kind == "encoder" else self._next,
            layer_output_outliers=self.layer_output_outliers[at],
        )

    def check_one_side(self, what: str) -> None:
        """Raise DiffscopeError if queries and keys of some layer are not the tokens of one prompt; `what` begins the message."""
        if self.key_prompts is not None:
            known = ", ".join(dict.fromkeys(self.kinds))
            raise DiffscopeError(
                f"{what} is of tokens that look at one another, and this capture has layers of the kinds {known}; give the "
                'layers of capture.of_kind("self") (in a shell --of-kind self), or take capture.measure, views, '
                "figures.maps, row and heads, which take all"
            )

    def sides(self, layer: LayerAttention) -> tuple[list[Encoded], list[Encoded]]:
        """Return whose tokens are the queries of a layer and whose its keys, one a prompt each."""
        keys = self.key_prompts or self.prompts
        return (
            keys if layer.kind == "encoder" and self.key_prompts else self.prompts,
            keys if layer.kind != "self" else self.prompts,
        )

    def _each(self, of: Callable[[Encoded], Any], prompts: list[Encoded] | None = None) -> Any:
        """Return a property of the prompt, or a list of it with one entry a prompt of a batch."""
        values = [of(prompt) for prompt in prompts or self.prompts]
        return values if self.batch else values[0]

    @property
    def n_tokens(self) -> Any:
        """The length of the prompt in tokens, an int; of a batch a list of them."""
        return self._each(lambda prompt: len(prompt.ids))

    @property
    def text(self) -> Any:
        """The prompt as text, a str; None for token ids without a tokenizer, and for images; of a batch a list of them."""
        return self._each(lambda prompt: prompt.text)

    @property
    def ids(self) -> Any:
        """The token ids, a list of int; of a batch a list of such lists."""
        return self._each(lambda prompt: list(prompt.ids))

    @property
    def tokens(self) -> Any:
        """The text of each token, a list of str; of a batch a list of such lists."""
        return self._each(lambda prompt: list(prompt.tokens))

    @property
    def key_tokens(self) -> Any:
        """The text of each token that cross-attention looks at, as :attr:`tokens`; those themselves without cross-attention."""
        return self._each(lambda prompt: list(prompt.tokens), self.key_prompts)

    @property
    def key_spans(self) -> Any:
        """Positions of the spans of :attr:`key_tokens`, as :attr:`spans`."""
        return self._each(lambda prompt: {name: list(at) for name, at in prompt.spans.items()}, self.key_prompts)

    @property
    def all_prompts(self) -> list[Encoded]:
        """The prompts of the queries and, if there is cross-attention, those of the keys behind them; of a batch several each."""
        return [*self.prompts, *(self.key_prompts or ())]

    @property
    def offsets(self) -> Any:
        """The characters that each token covers, a list of (first, one past the last); of a batch a list of such lists."""
        return self._each(lambda prompt: list(prompt.offsets))

    @property
    def spans(self) -> Any:
        """Token positions of the spans given, by name, and of ``sink``, the first token unless it was given; a dict.

        Of a batch a list of such dicts.
        """
        return self._each(lambda prompt: {name: list(at) for name, at in prompt.spans.items()})

    @property
    def key_sets(self) -> Any:
        """Token positions of every set that statistics know: the spans, and ``context`` and ``irrelevant``, made of them; a dict.

        Of a batch a list of such dicts.
        """
        return self._each(Encoded.span_positions)

    @property
    def next(self) -> Any:
        """The most probable next tokens with their probabilities, a list of (str, float); of a batch a list of such lists."""
        return self._next if self.batch else self._next[0]

    @property
    def model_name(self) -> str:
        """The name that the model was loaded by."""
        return self.facts["model"]

    @property
    def layer_numbers(self) -> list[int]:
        """The numbers of the layers in the model, from 0; some models have attention in a few of their layers only."""
        return [layer.layer for layer in self.layers]

    def layer(self, number: int) -> LayerAttention:
        """Return the attention of a layer by its number in the model.

        Raises
        ------
        DiffscopeError
            There is no such layer.
        """
        numbers = self.layer_numbers
        check_index("layer", number, numbers)
        return self.layers[numbers.index(number)]

    @property
    def family(self) -> str:
        """The implementation of attention, by its name in ``diffscope.families``."""
        return self.facts["family"]

    @property
    def differential(self) -> bool:
        """Whether any layer has a second map."""
        return any(layer.differential for layer in self.layers)

    @property
    def n_layers(self) -> int:
        """The number of layers with attention."""
        return len(self.layers)

    @property
    def n_heads(self) -> int:
        """The number of heads, of the layer that has most."""
        return max(layer.n_heads for layer in self.layers)

    @property
    def fidelity(self) -> xr.Dataset:
        """How well each layer's attention output was rebuilt from what was captured, by ``layer``.

        ``error`` and ``tolerance`` are in units of what rounding does (:class:`diffscope.attention.fidelity.Fidelity`), ``rows``
        counts the query rows compared, ``decided`` is whether the comparison rules out every other pairing of the maps, and
        ``reason`` says why where it does not. ``lam_within`` is the half-width within which the comparison pins λ. Of a model in
        half precision, ``error_float32`` is the error in a run of each layer's own module in float32, which decides; NaN where
        there was none.
        """
        fields = ("error", "tolerance", "rows", "decided", "reason", "error_float32", "lam_within")
        data = {name: ("layer", np.array([getattr(proof, name) for proof in self._proofs])) for name in fields}
        return xr.Dataset(data, {"layer": self.layer_numbers}, attrs=dict(self.facts))

    @property
    def undecided(self) -> dict[str, list[int]]:
        """The layers in which the proof does not decide how maps are paired, by the reason; empty where all are decided."""
        layers: dict[str, list[int]] = {}
        for number, proof in zip(self.layer_numbers, self._proofs):
            if not proof.decided:
                layers.setdefault(proof.reason, []).append(number)
        return layers

    @property
    def lam(self) -> xr.DataArray:
        """λ as the model used it, after any cast to the dtype of its activations.

        Dimensions: (layer, head) of one prompt, (layer, prompt, head) of a batch; also query where the model computes λ for every
        token, unless each prompt is of one. NaN in a layer without a second map, and where a layer has fewer heads or a prompt
        fewer tokens than others.
        """
        return self._lambda("lam", "λ the model used")

    @property
    def lam_fp32(self) -> xr.DataArray:
        """λ before the cast to the activations' dtype; dimensions as of ``lam``."""
        return self._lambda("lam_fp32", "λ before the cast")

    def _lambda(self, field: str, long_name: str) -> xr.DataArray:
        values = [getattr(layer, field).float().cpu() for layer in self.layers]  # (batch or 1, head or 1, query or 1)
        per_token = any(value.shape[2] > 1 for value in values)
        width = max(layer.n_queries for layer in self.layers)
        size = (len(self.layers), len(self.prompts), self.n_heads, width if per_token else 1)
        stacked = np.full(size, np.nan, np.float32)  # (layer, prompt, head, query); where a layer has fewer heads, NaN
        for row, layer, value in zip(stacked, self.layers, values):
            if not layer.differential:
                continue
            queries = layer.n_queries if per_token else 1
            row[:, : layer.n_heads, :queries] = value.numpy()
            if per_token:  # padding has no λ
                for number, n in enumerate(layer.lengths):
                    row[number, :, n:] = np.nan
        array = xr.DataArray(
            stacked,
            dims=("layer", "prompt", "head", "query"),
            coords={"layer": self.layer_numbers, "head": range(self.n_heads)},
            name="lambda",
            attrs={"long_name": long_name, "units": "1"},
        )
        array = array if per_token else array.isel(query=0, drop=True)
        return array if self.batch else array.isel(prompt=0, drop=True)

    @property
    def lam_init(self) -> xr.DataArray:
        """λ_init by ``layer``; NaN where the mechanism has none."""
        values = [np.nan if layer.lam_init is None else layer.lam_init for layer in self.layers]
        return xr.DataArray(values, dims="layer", coords={"layer": self.layer_numbers}, name="lambda_init")

    def measure(
        self,
        statistics: Sequence[str] | str | None = None,
        *,
        queries: str | slice | Sequence[int] | QuerySample | None = None,
        progress: Callable[[float, int], object] | None = None,
        backend: Backend | None = None,
    ) -> xr.Dataset:
        """Measure statistics of every layer and head.

        Parameters
        ----------
        statistics : str or sequence of str, optional
            Names or groups from ``diffscope.stats.STATISTICS``; by default the row statistics.
        queries : str, slice, sequence of int or QuerySample, optional
            Which query rows to measure: a span's name, "last", token positions (negative ones count from a prompt's end), or
            a :class:`diffscope.QuerySample` of them; by default all. In a batch the query axis holds the positions of all
            prompts, with NaN where a prompt has no such row. ``diffscope.average`` turns a sample into means and errors. Spans
            and positions are the prompt's: layers of an encoder beside a decoder are left out, unless they are all there are.
        progress : callable, optional
            Called with (done, total), counted in layers of a prompt; within long ones `done` is a fraction.
        backend : {"blocks", "triton"}, optional
            What computes row statistics: exact blocks of rows, or Triton's kernels on CUDA (``attrs["error_bound"]`` bounds the
            error of what depends on a row's order). By default triton on CUDA if it serves the layer, else blocks.

        Returns
        -------
        xarray.Dataset
            Variables are named as in docs/statistics.md and carry units and definition; their dimensions are among prompt (of a
            batch), layer, head, map, query, span and normalisation. Attributes name model, family and fidelity. Nothing is
            averaged, unless a statistic's definition contains a mean.

        Raises
        ------
        DiffscopeError
            There is no such statistic, span or position.
        InsufficientMemory
            The results would fill the memory that is free.
        MeasurementInterrupted
            As of :meth:`diffscope.Scope.measure`.
        """
        kinds = list(dict.fromkeys(self.kinds))
        if kinds == ["encoder"] and self.key_prompts:
            return self.of_kind("encoder").measure(statistics, queries=queries, progress=progress, backend=backend)
        if len(kinds) > 1:
            # A position, a span or a sample of the prompt is no query of the encoder's.
            kinds = [kind for kind in kinds if kind != "encoder" or queries is None]
            parts = [self.of_kind(kind) for kind in kinds]
            measured = [part.measure(statistics, queries=queries, progress=progress, backend=backend) for part in parts]
            return along_layers(measured, [part.kinds for part in parts])
        of_keys = self.key_prompts if kinds == ["cross"] else None
        measuring = MeasurementRun(self.prompts, statistics, queries, self.n_layers, progress, backend, of_keys)
        facts = {**self.facts, "fidelity_worst": max(proof.error for proof in self._proofs)}

        def result(**more: str) -> xr.Dataset:
            return measuring.dataset(self.layer_output_outliers, {**facts, **more}, self.batch)

        try:
            with Workers() as workers:
                for layer in self.layers:
                    measuring.add(layer, workers)
                measuring.finish(workers)
            return result()
        except KeyboardInterrupt as interrupt:
            raise measuring.interrupted(interrupt, result) from None

    def save(self, path: str | os.PathLike) -> None:
        """Write the capture as one safetensors file, which appears only when it is complete; ``diffscope.open`` reads it.

        Parameters
        ----------
        path : path-like
            Ends in .dscope.

        Raises
        ------
        DiffscopeError
            The name ends in something else, there is no such folder, or the path is itself a folder.
        """
        check_capture_suffix(path)
        tensors, records = to_tensors(self.layers)
        tensors[OUTLIERS] = torch.from_numpy(np.ascontiguousarray(self.layer_output_outliers))
        record = {
            "prompts": [vars(prompt) for prompt in self.prompts],
            "layers": records,
            "proofs": [vars(proof) for proof in self._proofs],
            "ahead": self._next,
            "facts": self.facts,
            "batch": self.batch,
        }
        if self.key_prompts is not None:
            record["key_prompts"] = [vars(prompt) for prompt in self.key_prompts]
        save_tensors(path, tensors, record)
