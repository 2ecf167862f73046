"""Compute the moments of rows on a GPU from q and k alone: no map is ever in memory.

Two passes over the keys, each a Triton program per block of queries. The first (``branch``) finds every softmax map's
normaliser and, carried along, the sums of A1 and A2. The second (``signed``) forms D from them and sums it; it fills the
histograms that tell the order of a row, and those of A1 and A2 in a pass of their own. What is near zero is counted exactly: of
A1 and A2 in that same pass, of D in one more, for which its total has to be known.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.stats.kernels import histogram
from diffscope.stats.moments import NEAR_ZERO, QUANTILES, TOP_K

#: the moments of each map, as diffscope.stats.moments has them
MOMENTS = ("total", "net", "squares", "logs", "roots", "negative", "negatives", "peak", "small", "top", "gini", "quantiles")
SCRATCH_ROWS = 3 * 2**13  # whose histograms are in memory at a time: 192 MiB

_BRACKETED = {"top", "gini", "quantiles"}
_WIDTHS = {f"{name}_width" for name in _BRACKETED}
_DOUBLE = {"peak"} | _BRACKETED | _WIDTHS
_BRANCH = ("product", "over_z", "total", "height", "squares", "logs", "roots", "peak")  # as the programs store them
_SIGNED = ("total", "net", "squares", "negative", "negatives", "logs", "roots", "height", "peak", "small")
_SWITCHES = ("SUMS", "LOGS", "ROOTS", "PEAK", "SMALL", "HISTOGRAM")
_KINDS = {"full": 0, "causal": 1, "window": 2}
_HALF = (torch.float16, torch.bfloat16)


def reason_unsupported(layer: LayerAttention) -> str | None:  # noqa: C901 (a list of reasons)
    """Return why the kernels cannot serve a layer, in a few words; None if they can."""
    d = layer.q.shape[-1]
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not layer.q.is_cuda and not _interpreted():
        return "its tensors are not on a CUDA device"
    if len(layer.lengths) != 1:
        return f"it holds {len(layer.lengths)} prompts"
    if layer.changes:
        return "its maps were changed mid-forward"
    if layer.score_dtype is not None:
        return f"its scores were rounded to {layer.score_dtype}"
    if layer.mask.kind not in _KINDS:
        return f"its mask follows no rule ({layer.mask.kind!r})"
    if layer.q.dtype not in (torch.float32, *_HALF):
        return f"its queries are {layer.q.dtype}"
    if layer.k.dtype != layer.q.dtype:
        return f"its queries are {layer.q.dtype} and its keys {layer.k.dtype}"
    if not 16 <= d <= 256:
        return f"its heads have {d} dimensions, not 16 to 256"
    if not layer.scale > 0:
        return f"its scale is {layer.scale}"
    if layer.position_bias is not None:
        return "a bias of positions is added to its scores"
    if layer.kind == "cross":
        return "its keys are of another side than its queries"
    if layer.n_keys < layer.n_queries:
        return "some of its queries see no key"
    if layer.n_keys > histogram.MOST_KEYS:
        return f"it has more than {histogram.MOST_KEYS:,} keys"
    return None


def _interpreted() -> bool:
    """Return whether Triton runs its programs on the CPU, for tests."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


@torch.no_grad()
def moments(layer: LayerAttention, queries: Tensor, wanted: set[str]) -> dict[str, dict[str, Tensor]]:
    """Compute the moments that row statistics are made of, of all heads; sizes and levels as :mod:`diffscope.stats.moments`.

    The layer is one for which :func:`reason_unsupported` gives None, queries (query,) are in any order, each at least 0, and what
    is wanted is among ``MOMENTS``. Moments are by map ("A1", "A2" of differential attention, "D") and by name, (head, query) or
    (head, query, k | quantile), all in float32, but "peak" and the following in float64.

    "gini", "quantiles" and "top" are the middle of a bracket whose width is "gini_width", "quantiles_width" and "top_width": what
    the row holds in float32 is within. The largest |x| by itself (k = 1) is exact.
    """
    queries = queries.to(device=layer.q.device, dtype=torch.int64)
    size = SCRATCH_ROWS // layer.q.shape[1] if wanted & _BRACKETED else len(queries)
    with torch.cuda.device_of(layer.q):
        parts = [_moments(_Block(layer, block), wanted) for block in queries.split(max(1, size))]

    def whole(map: str, name: str) -> Tensor:
        out = torch.cat([part[map][name] for part in parts], 1)
        return out if name in _DOUBLE else out.float()

    return {map: {name: whole(map, name) for name in held} for map, held in parts[0].items()}


class _Block:
    """Run the programs on some queries of a layer; maps are numbered in the order of `used`."""

    def __init__(self, layer: LayerAttention, queries: Tensor):
        pairing = layer.pairing
        self.layer = layer
        self.queries = queries
        offset = layer.offset
        both = pairing.a1 if pairing.a2 is None else torch.cat([pairing.a1, pairing.a2])
        self.used, place = both.unique(return_inverse=True)
        self.first = place[: layer.n_heads]
        self.second = place[layer.n_heads :]
        self.n = layer.mask.counts(queries, layer.n_keys, offset)  # (query,)
        q = layer.q[0]
        k = layer.k[0]
        strides = ("q_map", "q_query", "q_d", "k_map", "k_key", "k_d")
        self.arguments = {
            "q": q,
            "k": k,
            "queries": queries,
            "map_of": self.used,
            "key_of": pairing.key_of_map[self.used],
            "n_rows": len(queries),
            "n_keys": layer.n_keys,
            "offset": offset,
            "window": layer.mask.window or 0,
            "factor": layer.scale / math.log(2),
            "cap": (layer.soft_cap or 1.0) / layer.scale,
            "d": q.shape[-1],
            **dict(zip(strides, (*q.stride(), *k.stride()))),
            "KIND": _KINDS[layer.mask.kind],
            "CAPPED": layer.soft_cap is not None,
        }

    def run(self, program: str, units: int, slots: int, **arguments: Any) -> Tensor:
        """Run a program for every block of rows of every unit, a map or a head; float64 (slot, unit, query)."""
        from diffscope.stats.kernels import programs

        q = self.layer.q
        size = len(self.queries)
        out = torch.empty(slots, units, size, dtype=torch.float64, device=q.device)
        wide = q.dtype not in _HALF or not q.is_cuda  # the interpreter knows no bfloat16
        block_d = max(16, 1 << (q.shape[-1] - 1).bit_length())
        shared = 0
        if q.is_cuda:
            shared = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin  # type: ignore[attr-defined]
        tiles = _tiles(shared, block_d, wide)
        grid = (-(-size // tiles["BLOCK_M"]), units)
        tiles["enable_fp_fusion"] = True  # products and sums in one rounding; Triton 3.10 no longer takes that for granted
        getattr(programs, program)[grid](**self.arguments, **arguments, out=out, WIDEN=wide, BLOCK_D=block_d, **tiles)
        return out

    def sinks(self) -> dict[str, Any]:
        """Return sink logits of every map and query, (map, query), in the unit of the products, and whether there are any."""
        layer = self.layer
        if layer.sink_logit is None:
            return {"sink": self.used, "SINK": False}  # not looked at
        sink = layer.sink_logit[0].float().expand(layer.q.shape[1], layer.n_queries)[self.used[:, None], self.queries]
        return {"sink": (sink / layer.scale).contiguous(), "SINK": True}

    def per_row(self, x: Tensor) -> Tensor:
        """Return λ or gain of every head and query, float32 (head, query)."""
        return x[0].expand(self.layer.n_heads, self.layer.n_queries)[:, self.queries].float().contiguous()


def _tiles(shared: int, block_d: int, wide: bool) -> dict[str, int]:
    """Return how many rows and keys a program holds at a time.

    It is what fits into the registers and so many bytes of shared memory, as compiled for compute capability 9.0 and 8.9.
    Float32 takes no tensor cores, and more of both.
    """
    if wide:
        size, warps = (32, 8) if block_d <= 128 else (16, 4)
        return {"BLOCK_M": size, "BLOCK_N": size, "num_warps": warps, "num_stages": 2}
    if shared >= 192 * 1024:
        rows, warps = (128, 8) if block_d <= 128 else (64, 8)
        return {"BLOCK_M": rows, "BLOCK_N": 32, "num_warps": warps, "num_stages": 3}
    return {"BLOCK_M": 64 if block_d <= 128 else 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}


@dataclass(frozen=True)
class _Maps:
    """Describe maps x = gain·first − lam·second, or gain·first alone: every softmax map by itself, or the D of every head."""

    first: Tensor  # (unit,)
    second: Tensor | None
    gain: Tensor  # (unit, query)
    lam: Tensor
    normalised: dict[str, Tensor]  # largest product and 1/Z of every softmax map, (map, query)

    def arguments(self) -> dict:
        second = self.first if self.second is None else self.second
        maps = {"first_of": self.first, "second_of": second, "BOTH": self.second is not None}
        return {**maps, **self.normalised, "gain": self.gain, "lam": self.lam}


def _moments(block: _Block, wanted: set[str]) -> dict[str, dict[str, Tensor]]:
    """Compute all that is wanted of a block of queries, in float64."""
    softmax, normalised = _branches(block, wanted)
    gain = block.per_row(block.layer.gain)
    lam = block.per_row(block.layer.lam)
    if wanted & (_BRACKETED | {"small"}):
        ones = torch.ones(len(block.used), len(block.queries), device=gain.device)
        every = torch.arange(len(block.used), device=gain.device)
        alone = _Maps(every, None, ones, torch.zeros_like(ones), normalised)
        order = _signed(block, alone, wanted, {"HISTOGRAM"} if wanted & _BRACKETED else set(), softmax["total"])
        softmax |= {name: order[name] for name in {*_BRACKETED, *_WIDTHS, "small"} if name in order}
    softmax = _finished(softmax, wanted)
    held = {"A1": {name: x[block.first] for name, x in softmax.items()}}
    second = None
    if block.layer.differential:
        held["A2"] = {name: x[block.second] for name, x in softmax.items()}
        second = block.second
    heads = _Maps(block.first, second, gain, lam, normalised)
    if second is None and bool((gain == 1).all()):
        held["D"] = dict(held["A1"])
    else:
        held["D"] = _finished(_signed(block, heads, wanted, _switches(wanted)), wanted)
    return held


def _branches(block: _Block, wanted: set[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Sum over every softmax map, (map, query); return the sums and the normalisers of its weights."""
    sums = bool(wanted & {"squares", "logs", "roots", "peak"})
    out = dict(zip(_BRANCH, block.run("branch", len(block.used), len(_BRANCH), SUMS=sums, **block.sinks())))
    none = torch.zeros_like(out["total"])
    out |= {"net": out["total"], "negative": none, "negatives": none}
    return out, {"largest": out["product"].float(), "over_z": out["over_z"].float()}


def _switches(wanted: set[str]) -> set[str]:
    """Return the switches of the program that sums over D."""
    switches = {"SUMS"}
    switches |= {"LOGS"} if "logs" in wanted else set()
    switches |= {"ROOTS"} if "roots" in wanted else set()
    switches |= {"PEAK"} if wanted & {"peak", "top"} else set()
    return switches | ({"HISTOGRAM"} if wanted & _BRACKETED else set())


def _signed(block: _Block, maps: _Maps, wanted: set[str], switches: set[str], total: Tensor | None = None) -> dict[str, Tensor]:
    """Sum over some maps, (unit, query), and read their histograms.

    For "small" a total that is not known before costs a pass of its own.
    """

    def run(switches: set[str], threshold: Tensor = maps.gain, lowest: Tensor = maps.gain, bins: Tensor = maps.gain) -> dict:
        # Without its switch, an argument is not looked at.
        on = {name: name in switches for name in _SWITCHES}
        inputs = {"threshold": threshold, "lowest": lowest, "bins": bins}
        return dict(zip(_SIGNED, block.run("signed", len(maps.first), len(_SIGNED), **maps.arguments(), **inputs, **on)))

    inputs = {}
    if "HISTOGRAM" in switches:
        inputs["bins"], inputs["lowest"] = histogram.empty(maps.gain.abs() + maps.lam.abs())
    if "small" in wanted and total is not None:
        inputs["threshold"] = (NEAR_ZERO * total / block.n).float()
        switches = switches | {"SMALL"}
    sums = run(switches, **inputs)
    if "small" in wanted and total is None:
        sums["small"] = run({"SMALL"}, (NEAR_ZERO * sums["total"] / block.n).float())["small"]
    if "HISTOGRAM" in switches:
        from diffscope.stats.kernels import histogram_programs as brackets

        sums |= brackets.read(inputs["bins"], inputs["lowest"], block.n.expand(maps.gain.shape), QUANTILES, TOP_K)
    return sums


def _finished(sums: dict[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    """Return the moments of one kind of map that are wanted; those of order are NaN in a row of zeros or NaNs."""
    if "top" in wanted:
        largest = sums["height"][..., None]
        by_itself = torch.tensor(TOP_K, device=largest.device) == 1
        sums["top"] = torch.where(by_itself, largest, sums["top"])
        sums["top_width"] = torch.where(by_itself, 0.0, sums["top_width"])
    held = {name: sums[name] for name in MOMENTS if name in wanted}
    held |= {f"{name}_width": sums[f"{name}_width"] for name in _BRACKETED if name in wanted}
    full = sums["total"] > 0
    for name in held.keys() & {"small", *_BRACKETED, *_WIDTHS}:
        x = held[name]
        held[name] = torch.where(full if x.dim() == 2 else full[..., None], x, math.nan)
    return held
