"""What a model attended with on a prompt: every map on request, every statistic, on disk and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope import store
from diffscope.attention import windows
from diffscope.attention.indexing import check_index
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import MAPS, check_map
from diffscope.prompts import Encoded
from diffscope.proof.fidelity import Fidelity
from diffscope.stats.measuring import Measuring, positions
from diffscope.stats.threads import Workers


def open(path: str | os.PathLike) -> Capture:
    """A capture that :meth:`Capture.save` wrote; it answers the same questions without the model.

    Raises
    ------
    CorruptFile
    """
    tensors, record = store.open_tensors(path)
    return Capture.from_record(tensors, record)


@dataclass(repr=False)
class Capture:
    """What a model attended with on one prompt or a batch: O(N) memory a layer, every map on request.

    Attributes
    ----------
    prompts : list of Encoded
    layers : list of LayerAttention
    proofs : list of Fidelity, one a layer
    ahead : list of list of (str, float)
        For each prompt the likeliest next tokens.
    layer_outliers : ndarray, (layer, prompt, outlier)
        Largest magnitudes and median of each decoder layer's output.
    facts : dict
        model, family, attention implementation, dtype.
    batch : bool
        Whether the capture is of a list of prompts; then results have a leading ``prompt`` dimension.
    """

    prompts: list[Encoded]
    layers: list[LayerAttention]
    proofs: list[Fidelity]
    ahead: list
    layer_outliers: np.ndarray
    facts: dict
    batch: bool = False

    def __repr__(self) -> str:
        error = max(proof.error for proof in self.proofs)
        sizes = " + ".join(str(len(prompt.ids)) for prompt in self.prompts)
        return f"<Capture of {self.model_name}: {sizes} tokens, {self.n_layers} × {self.n_heads} heads, fidelity {error:.1e}>"

    def _one_or_all(self, values: list):
        return values if self.batch else values[0]

    @property
    def model_name(self) -> str:
        return self.facts["model"]

    @property
    def family(self) -> str:
        return self.facts["family"]

    @property
    def differential(self) -> bool:
        """Whether any layer has a second map."""
        return any(layer.differential for layer in self.layers)

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_heads(self) -> int:
        """Heads of the layer that has most."""
        return max(layer.n_heads for layer in self.layers)

    @property
    def n_tokens(self):
        return self._one_or_all([len(prompt.ids) for prompt in self.prompts])

    @property
    def text(self):
        return self._one_or_all([prompt.text for prompt in self.prompts])

    @property
    def ids(self):
        return self._one_or_all([list(prompt.ids) for prompt in self.prompts])

    @property
    def tokens(self):
        """What each token says; a list a prompt for a batch."""
        return self._one_or_all([list(prompt.tokens) for prompt in self.prompts])

    @property
    def offsets(self):
        """Characters of the text that each token covers."""
        return self._one_or_all([list(prompt.offsets) for prompt in self.prompts])

    @property
    def spans(self):
        """Token positions by name: those given, ``sink``, and the derived ``context`` and ``irrelevant``."""
        sets = [{name: at.tolist() for name, at in prompt.key_sets().items()} for prompt in self.prompts]
        return self._one_or_all(sets)

    @property
    def next(self):
        """The likeliest next tokens with their probabilities."""
        return self._one_or_all(self.ahead)

    @property
    def fidelity(self) -> xr.Dataset:
        """By layer (:class:`diffscope.proof.fidelity.Fidelity`): ``error``, ``tolerance``, ``rows`` compared, ``decided``."""
        fields = ("error", "tolerance", "rows", "decided")
        data = {name: ("layer", np.array([getattr(proof, name) for proof in self.proofs])) for name in fields}
        return xr.Dataset(data, {"layer": self._layer_index()}, attrs=dict(self.facts))

    def _layer_index(self) -> list[int]:
        return [layer.layer for layer in self.layers]

    @property
    def lam(self) -> xr.DataArray:
        """λ as the model used it, after any cast: (layer, head), and query (and prompt) where it has one per token."""
        return self._lam("lam", "λ the model used")

    @property
    def lam_fp32(self) -> xr.DataArray:
        """λ before the cast to the activations' dtype."""
        return self._lam("lam_fp32", "λ before the cast")

    def _lam(self, field: str, name: str) -> xr.DataArray:
        values = [getattr(layer, field).float().cpu() for layer in self.layers]  # (batch or 1, head or 1, query or 1)
        per_token = any(value.shape[2] > 1 for value in values)
        size = (len(self.layers), len(self.prompts), self.n_heads, self.layers[0].n_queries if per_token else 1)
        stacked = np.full(size, np.nan, np.float32)  # (layer, prompt, head, query); where a layer has fewer heads, NaN
        for row, layer, value in zip(stacked, self.layers, values):
            row[:, : layer.n_heads] = value.numpy()
        if per_token:  # padding has no λ
            for row, prompt in enumerate(self.prompts):
                stacked[:, row, :, len(prompt.ids) :] = np.nan
        array = xr.DataArray(
            stacked,
            dims=("layer", "prompt", "head", "query"),
            coords={"layer": self._layer_index(), "head": range(self.n_heads)},
            name="lambda",
            attrs={"long_name": name, "units": "1"},
        )
        array = array if per_token else array.isel(query=0, drop=True)
        by_prompt = self.batch and any(value.shape[0] > 1 or value.shape[2] > 1 for value in values)
        return array if by_prompt else array.isel(prompt=0, drop=True)

    @property
    def lam_init(self) -> xr.DataArray:
        """λ_init per layer; NaN where the mechanism has none."""
        values = [np.nan if layer.lam_init is None else layer.lam_init for layer in self.layers]
        return xr.DataArray(values, dims="layer", coords={"layer": self._layer_index()}, name="lambda_init")

    def _position(self, layer: int) -> int:
        """Where a layer, by its number in the model, stands in ``layers``."""
        numbers = self._layer_index()
        check_index("layer", layer, numbers)
        return numbers.index(layer)

    def _prompt_layer(self, layer: int, prompt: int) -> LayerAttention:
        check_index("prompt", prompt, range(len(self.prompts)))
        return self.layers[self._position(layer)].prompt(prompt)

    def _label(self, values: Tensor, name: str, layer: int, head: int, prompt: int, queries, keys) -> xr.DataArray:
        tokens = np.array(self.prompts[prompt].tokens, dtype=object)
        queries, keys = np.asarray(queries), np.asarray(keys)
        found = self._prompt_layer(layer, prompt)
        return xr.DataArray(
            values.cpu().numpy(),
            dims=("query", "key"),
            coords={
                "query": queries,
                "key": keys,
                "query_token": ("query", tokens[queries].astype(str)),
                "key_token": ("key", tokens[keys].astype(str)),
            },
            name=name,
            attrs={
                "long_name": MAPS[name].long_name,
                "model": self.model_name,
                "layer": layer,
                "head": head,
                "prompt": prompt,
                "lam": "per token" if found.lam.shape[2] > 1 else float(found.rows([0], [head]).lam),
                "fidelity": self.proofs[self._position(layer)].error,
            },
        )

    def _checked(self, name: str, layer: int, head: int, prompt: int) -> LayerAttention:
        found = self._prompt_layer(layer, prompt)
        check_index("head", head, range(found.n_heads))
        check_map(name, found)
        return found

    def map(self, name: str, layer: int, head: int, prompt: int = 0, queries=None, keys=None) -> xr.DataArray:
        """A window of one head's map.

        Parameters
        ----------
        name : {"A1", "A2", "D", "lambda_A2", "share"}
            ``lambda_A2`` is λ·A2, ``share`` is |D|/Σ|D|.
        layer, head, prompt : int
        queries, keys : slice or sequence of int, optional
            Token positions, by default all. Over the whole of a long prompt use :meth:`overview`.

        Returns
        -------
        xarray.DataArray, (query, key)
            With token texts as further coordinates.
        """
        found = self._checked(name, layer, head, prompt)
        queries, keys = (positions(given, n) for given, n in ((queries, found.n_queries), (keys, found.n_keys)))
        values = windows.window(found, name, head, queries.to(found.q.device), keys.to(found.q.device))
        return self._label(values, name, layer, head, prompt, queries, keys)

    def overview(self, name: str, layer: int, head: int, prompt: int = 0, size: int = 512) -> xr.DataArray:
        """A whole map pooled to at most size × size; of every bin the value of largest magnitude, with its sign.

        The coordinates are the bins' first positions; ``attrs["bin"]`` is their width.
        """
        found = self._checked(name, layer, head, prompt)
        values, bin = windows.pooled(found, name, head, size)
        array = self._label(values, name, layer, head, prompt, range(0, found.n_queries, bin), range(0, found.n_keys, bin))
        return array.assign_attrs(bin=bin)

    def measure(
        self, statistics: Sequence[str] | str | None = None, *, queries=None, progress=None, backend: str | None = None
    ) -> xr.Dataset:
        """Statistics of every layer and head.

        Parameters
        ----------
        statistics : sequence of str, optional
            Names or groups from ``diffscope.stats.STATISTICS``; by default the row statistics.
        queries : str, slice, sequence of int or Sample, optional
            Query rows to measure: a span's name, token positions (negative ones count from a prompt's end), or a
            :class:`diffscope.Sample` of them; by default all. In a batch the query axis holds the positions of all prompts, NaN
            where a prompt has no such row. Of a sample, ``diffscope.average`` gives means with standard errors.
        progress : callable, optional
            Called with (done, total) in layers of a prompt; within long ones `done` is a fraction.
        backend : {"blocks", "triton"}, optional
            Where row statistics come from: exact blocks of rows, or Triton's kernels (CUDA; what depends on a row's order has its
            error bound in ``attrs["error_bound"]``). By default triton where it serves the layer, else blocks.

        Returns
        -------
        xarray.Dataset
            Variables named as in ``diffscope.stats.STATISTICS``, with units and definition; dimensions among prompt, layer, head,
            map, query, span, normalisation. Attributes say which model, family and fidelity they come from. Averages are not
            taken, except where a definition contains one.
        """
        measuring = Measuring(self.prompts, statistics, queries, self.n_layers, progress, backend=backend)
        with Workers() as workers:
            for layer in self.layers:
                measuring.add(layer, workers)
            measuring.finish(workers)
        facts = {**self.facts, "fidelity_worst": max(proof.error for proof in self.proofs)}
        return measuring.dataset(self.layer_outliers, facts, self.batch)

    def save(self, path: str | os.PathLike) -> None:
        """Write the capture to one safetensors file, which appears only when it is complete."""
        tensors, records = {}, []
        for number, layer in enumerate(self.layers):
            held, record = layer.dismantle()
            tensors.update({f"{number}.{name}": tensor for name, tensor in held.items()})
            records.append(record)
        tensors["layer_outliers"] = torch.from_numpy(self.layer_outliers)
        record = {
            "prompts": [vars(prompt) for prompt in self.prompts],
            "layers": records,
            "proofs": [vars(proof) for proof in self.proofs],
            "ahead": self.ahead,
            "facts": self.facts,
            "batch": self.batch,
        }
        store.save_tensors(path, tensors, record)

    @classmethod
    def from_record(cls, tensors: dict[str, Tensor], record: dict) -> Capture:
        """The inverse of what :meth:`save` writes."""
        layers = []
        for number, fields in enumerate(record["layers"]):
            prefix = f"{number}."
            held = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            layers.append(LayerAttention.assemble(held, fields))
        prompts = [
            Encoded(
                fields["text"],
                tuple(fields["ids"]),
                tuple(fields["tokens"]),
                tuple(map(tuple, fields["offsets"])),
                {name: tuple(at) for name, at in fields["spans"].items()},
            )
            for fields in record["prompts"]
        ]
        proofs = [Fidelity(**fields) for fields in record["proofs"]]
        ahead = [[tuple(pair) for pair in pairs] for pairs in record["ahead"]]
        return cls(prompts, layers, proofs, ahead, tensors["layer_outliers"].numpy(), record["facts"], record["batch"])
