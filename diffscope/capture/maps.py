"""The maps of a capture as labelled data: windows, whole maps in bins, and small ones of every head."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from diffscope.attention.blocks import Workers
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import MAPS, check_map, present
from diffscope.errors import DiffscopeError, check_index
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.selection import token_positions
from diffscope.stats.pooling import Pooled, Reduce, Superseded, pooled
from diffscope.stats.strongest import strongest
from diffscope.stats.windows import windows

NAMES = ("A1", "A2", "lambda_A2", "D")
SIZE = 512
COARSE = 2**24  # values of one map above which a coarse picture is given before the exact one

Positions = str | slice | Sequence[int] | None


class Latest:
    """Requests of which only the newest is worked on.

    >>> latest = Latest()
    >>> first, second = latest.request(), latest.request()
    >>> first(), second()
    (True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = 0

    def request(self) -> Callable[[], bool]:
        """What says whether a newer request than this one has been made; it is `stopped` of :meth:`Pictures.pooled_maps`."""
        with self._lock:
            self._newest += 1
            mine = self._newest
        return lambda: self._newest != mine


class Pictures:
    """What a capture gives of its maps."""

    prompts: list[Encoded]
    layers: list[LayerAttention]
    facts: dict[str, Any]
    _proofs: list[Fidelity]  # one a layer

    @property
    def model_name(self) -> str:
        """The name that the model was loaded by."""
        return self.facts["model"]

    @property
    def layer_numbers(self) -> list[int]:
        """The layers as the model numbers them, from 0; some models have attention in a few of their layers only."""
        return [layer.layer for layer in self.layers]

    def map(
        self, name: str, layer: int, head: int, prompt: int = 0, queries: Positions = None, keys: Positions = None
    ) -> xr.DataArray:
        """A window of one head's map.

        Parameters
        ----------
        name : {"A1", "A2", "D", "lambda_A2", "share"}
            ``D`` is A1 − λ·A2, ``lambda_A2`` is λ·A2, ``share`` is |D|/Σ|D|.
        layer : int
            As the model numbers it, from 0.
        head : int
        prompt : int
            Which prompt of a batch.
        queries, keys : str, slice or sequence of int, optional
            A span's name, "last", or token positions; by default all. Over the whole of a long prompt use :meth:`pooled_map`.

        Returns
        -------
        xarray.DataArray, (query, key)
            With the tokens' texts as coordinates ``query_token`` and ``key_token``.

        Raises
        ------
        DiffscopeError
            There is no such map, layer, head or prompt.
        """
        return _one(self.maps(layer, [_given(head)], prompt, queries, keys, [name]), name)

    def maps(
        self,
        layer: int,
        heads: Sequence[int] | None = None,
        prompt: int = 0,
        queries: Positions = None,
        keys: Positions = None,
        names: Sequence[str] | None = None,
    ) -> xr.Dataset:
        """A window of several maps of several heads, all of which are computed at once.

        Parameters
        ----------
        layer, prompt, queries, keys
            As for :meth:`map`.
        heads : sequence of int, optional
            By default all.
        names : sequence of str, optional
            As of :meth:`map`; by default A1, A2, λ·A2 and D, as far as the layer has them.

        Returns
        -------
        xarray.Dataset, (head, query, key)

        Raises
        ------
        DiffscopeError
            There is no such map, layer, head or prompt.
        """
        attention, heads, names = self._chosen(layer, heads, prompt, names)
        device = attention.q.device
        spans = self.prompts[prompt].span_positions()
        rows = token_positions(queries, spans, attention.n_queries)
        columns = token_positions(keys, spans, attention.n_keys, "keys")
        with Workers() as workers:
            values = windows(attention, names, heads, rows.to(device), columns.to(device), workers)
        return self._labelled(values, attention, heads, prompt, rows, columns)

    def pooled_map(self, name: str, layer: int, head: int, prompt: int = 0, size: int = SIZE) -> xr.DataArray:
        """One head's whole map, pooled to at most size × size bins.

        Parameters
        ----------
        name, layer, head, prompt
            As for :meth:`map`.
        size : int
            The largest number of bins a side.

        Returns
        -------
        xarray.DataArray, (query, key)
            Of every bin the value of largest magnitude, with its sign. Coordinates are the bins' first positions,
            ``attrs["bin"]`` is their width in tokens.

        Raises
        ------
        DiffscopeError
            There is no such map, layer, head or prompt.
        """
        return _one(self.pooled_maps(layer, [_given(head)], prompt, size, [name]), name)

    def pooled_maps(
        self,
        layer: int,
        heads: Sequence[int] | None = None,
        prompt: int = 0,
        size: int = SIZE,
        names: Sequence[str] | None = None,
        reduce: Reduce = "largest",
        *,
        rows: int | None = None,
        marginals: bool = False,
        shares: bool = False,
        stopped: Callable[[], bool] | None = None,
    ) -> xr.Dataset:
        """Several whole maps of several heads, pooled to at most size × size bins in one pass.

        Parameters
        ----------
        layer, heads, prompt, names
            As for :meth:`maps`.
        size : int
            The largest number of bins a side.
        reduce : {"largest", "mean"}
            Of every bin the value of largest magnitude, with its sign; or the mean over the cells whose query sees the key.
        rows : int, optional
            How many rows of every bin are looked at, its last among them: a coarse picture, of which ``attrs["exact"]`` is 0. By
            default all.
        marginals : bool
            Whether what each key receives from all queries, ``received_NAME`` (head, token), and the entropy of each query's row
            in nats, ``entropy_NAME`` (head, token), come with them. Needs all rows.
        shares : bool
            Whether the bins of each row's shares, x/Σ|x| with the sign of x, ``share_NAME`` (head, query, key), and the sums Σ|x|
            of the rows, ``mass_NAME`` (head, token), come with them. Needs all rows.
        stopped : callable, optional
            Asked after every block of rows whether to stop; :class:`Latest` gives one that says so when there is a newer request.

        Returns
        -------
        xarray.Dataset, (head, query, key)
            Coordinates are the bins' first positions; ``visible`` (query, key) says whether any query of a bin sees any of its
            keys. ``attrs["bin"]`` is the bins' width in tokens.

        Raises
        ------
        DiffscopeError
            There is no such map, layer, head or prompt; marginals or shares of some rows; or sizes below 1.
        Superseded
            When `stopped` says so.
        """
        if size < 1 or (rows is not None and rows < 1):
            raise DiffscopeError("a picture has at least one bin a side, and at least one row of each")
        if reduce not in ("largest", "mean"):
            raise DiffscopeError(f"a bin shows its 'largest' value or their 'mean', not {reduce!r}")
        attention, heads, names = self._chosen(layer, heads, prompt, names)
        with Workers() as workers:
            bins = pooled(
                attention,
                names,
                heads,
                size,
                reduce,
                rows=rows,
                marginals=marginals,
                shares=shares,
                workers=workers,
                stopped=stopped,
            )
        queries = range(0, attention.n_queries, bins.width)
        keys = range(0, attention.n_keys, bins.width)
        dataset = self._labelled(bins.maps, attention, heads, prompt, queries, keys)
        for array in dataset.data_vars.values():
            array.attrs["bin"] = bins.width
        dataset = dataset.assign_coords(visible=(("query", "key"), bins.visible.cpu().numpy()))
        return dataset.assign(_beside(bins)).assign_attrs(bin=bins.width, exact=int(bins.exact), reduce=reduce)

    def pictures(self, layer: int, heads: Sequence[int] | None = None, prompt: int = 0, **options) -> Iterator[xr.Dataset]:
        """:meth:`pooled_maps` of a long prompt as they come: at once from one row of every bin, and then exactly.

        Ends early, without an error, when `stopped` says so. Parameters are as of :meth:`pooled_maps`.
        """
        attention, chosen, _ = self._chosen(layer, heads, prompt, options.get("names"))
        options = {name: option for name, option in options.items() if name != "rows"}
        in_bins = max(attention.n_queries, attention.n_keys) > options.get("size", SIZE)
        try:
            if in_bins and len(chosen) * attention.n_queries * attention.n_keys > COARSE:
                yield self.pooled_maps(layer, heads, prompt, **options | {"rows": 1, "marginals": False, "shares": False})
            yield self.pooled_maps(layer, heads, prompt, **options)
        except Superseded:
            return

    def strongest(
        self,
        layer: int,
        heads: Sequence[int] | None = None,
        prompt: int = 0,
        queries: Positions = None,
        count: int = 8,
        name: str = "D",
    ) -> xr.Dataset:
        """The keys that some queries weigh most, by head.

        Parameters
        ----------
        layer, heads, prompt, queries
            As for :meth:`maps`.
        count : int
            How many keys of each query.
        name : str
            Of which map, as of :meth:`map`.

        Returns
        -------
        xarray.Dataset, (head, query, rank)
            ``key``, positions by decreasing size of their weight, and ``weight``; −1 and 0 where the query has fewer keys of a
            weight other than 0. ``mass`` (head, query) is Σ|x| of the whole row.

        Raises
        ------
        DiffscopeError
            There is no such map, layer, head or prompt; or `count` is below 1.
        """
        if count < 1:
            raise DiffscopeError(f"of a query at least one key is asked for, not {count}")
        attention, heads, (name,) = self._chosen(layer, heads, prompt, [name])
        rows = token_positions(queries, self.prompts[prompt].span_positions(), attention.n_queries)
        with Workers() as workers:
            keys, weights, mass = strongest(attention, name, heads, rows.to(attention.q.device), count, workers)
        dims = ("head", "query", "rank")
        values = {
            "key": (dims, keys.cpu().numpy()),
            "weight": (dims, weights.cpu().numpy()),
            "mass": (dims[:2], mass.cpu().numpy()),
        }
        attrs = {"model": self.model_name, "layer": attention.layer, "prompt": prompt, "map": name}
        return xr.Dataset(values, {"head": list(heads), "query": np.asarray(rows)}, attrs)

    def thumbnails(
        self, size: int = 64, name: str = "D", prompt: int = 0, stopped: Callable[[], bool] | None = None
    ) -> xr.DataArray:
        """One small picture of every head of every layer: D, pooled to at most size × size bins.

        Parameters
        ----------
        size, name, prompt, stopped
            As for :meth:`pooled_maps`.

        Returns
        -------
        xarray.DataArray, (layer, head, query, key)
            NaN where a layer has fewer heads than others.

        Raises
        ------
        DiffscopeError
            There is no such prompt, or a layer has no such map.
        Superseded
            When `stopped` says so.
        """
        parts = [self.pooled_maps(number, None, prompt, size, [name], stopped=stopped)[name] for number in self.layer_numbers]
        together = xr.concat(parts, xr.DataArray(self.layer_numbers, dims="layer", name="layer"), join="outer")
        kept = ("long_name", "model", "prompt", "bin")
        together.attrs = {key: parts[0].attrs[key] for key in kept}
        return together

    def _chosen(
        self, layer: int, heads: Sequence[int] | None, prompt: int, names: Sequence[str] | None
    ) -> tuple[LayerAttention, list[int], tuple[str, ...]]:
        """The attention inputs of one prompt that maps are computed from, and which heads and maps."""
        if layer is None:
            raise DiffscopeError("a map is of one layer and one head; give both")
        check_index("layer", layer, self.layer_numbers)
        check_index("prompt", prompt, range(len(self.prompts)))
        attention = self.layers[self.layer_numbers.index(layer)].prompt(prompt)
        chosen = list(range(attention.n_heads)) if heads is None else list(heads)
        for head in chosen:
            check_index("head", head, range(attention.n_heads))
        if names is None:
            return attention, chosen, present(attention, NAMES) or ("A1",)
        for name in names:
            check_map(name, attention)
        return attention, chosen, tuple(names)

    def _labelled(
        self,
        maps: Mapping[str, Tensor],
        attention: LayerAttention,
        heads: Sequence[int],
        prompt: int,
        queries: Sequence[int] | Tensor,
        keys: Sequence[int] | Tensor,
    ) -> xr.Dataset:
        """Values (head, query, key) by map, as a Dataset that says where they come from."""
        tokens = np.array(self.prompts[prompt].tokens, dtype=object)
        rows, columns = np.asarray(queries), np.asarray(keys)
        fidelity = self._proofs[self.layer_numbers.index(attention.layer)].error
        lam = "per token" if attention.lam.shape[2] > 1 else attention.rows([0], heads).lam[:, 0].tolist()
        attrs = {"model": self.model_name, "layer": attention.layer, "prompt": prompt, "lam": lam, "fidelity": fidelity}
        return xr.Dataset(
            {
                name: (("head", "query", "key"), values.cpu().numpy(), {"long_name": MAPS[name].long_name, **attrs})
                for name, values in maps.items()
            },
            {
                "head": list(heads),
                "query": rows,
                "key": columns,
                "query_token": ("query", tokens[rows].astype(str)),
                "key_token": ("key", tokens[columns].astype(str)),
            },
            attrs,
        )


def _beside(bins: Pooled) -> dict[str, tuple]:
    """What comes with the maps: shares of rows in bins, and sums and entropies over positions of tokens."""
    parts = (
        ("received", "token", "mass received from all queries", "1", bins.received),
        ("entropy", "token", "entropy of the row", "nats", bins.entropy),
        ("mass", "token", "absolute mass of the row", "1", bins.mass),
        ("share", "query key", "share of the row's absolute mass", "1", bins.shares),
    )
    return {
        f"{kind}_{name}": (("head", *dims.split()), values.cpu().numpy(), {"long_name": words, "units": units})
        for kind, dims, words, units, of_maps in parts
        for name, values in of_maps.items()
    }


def _given(head: int | None) -> int:
    if head is None:
        raise DiffscopeError("a map is of one layer and one head; give both")
    return head


def _one(maps: xr.Dataset, name: str) -> xr.DataArray:
    """One map of one head."""
    array = maps[name].isel(head=0, drop=True).drop_vars("visible", errors="ignore")
    lam = array.attrs["lam"]
    head = {"head": int(maps["head"][0]), "lam": lam if isinstance(lam, str) else lam[0]}
    return array.assign_attrs(head)
