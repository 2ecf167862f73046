"""Attention through stock kernels that give back the log-sum-exp of their rows, and its transpose through the same kernels.

No kernel here is our own. They differ in where a causal mask is anchored, in dtypes, and in whether values may be wider
than keys, so each is asked only for what all of them agree on: attention over all keys, and causal attention of as many
queries as keys. The rest is put together from those two.

========== ======================================================================================================
sdpa       the operators behind torch's scaled_dot_product_attention: flash on a CPU; on CUDA memory-efficient, and
           flash for the log-sum-exp of half-precision inputs, whose products it adds up in float32
flex       torch's flex_attention: windows and scattered queries too; fused on CUDA, on a CPU it holds whole maps
flash_attn the package of that name: half precision, CUDA
rows       blocks of rows in plain torch: everything, anywhere
========== ======================================================================================================
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffscope.attention.layer import BLOCK_ELEMENTS
from diffscope.errors import DiffscopeError, MissingExtra

KERNELS = ("sdpa", "flex", "flash_attn", "rows")
WIDEST = 256  # head width up to which flash kernels go; wider values are attended in parts
ALIGNMENT = 16  # of head widths: memory-efficient attention asks for 16 bytes, fused flex_attention for 16 numbers
HALF = (torch.float16, torch.bfloat16)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    offset: int | Tensor = 0,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scale·Q·Kᵀ)·V and the log-sum-exp of each row of scores.

    Parameters
    ----------
    q : Tensor, (map, query, d)
    k : Tensor, (map, key, d)
    v : Tensor, (map, key, width)
        Of any width. Width 0 asks for the log-sum-exp alone.
    scale : float
    causal : bool
        Query t sees the keys up to position t + offset.
    window : int, optional
        Of those it sees only the last `window`; implies `causal`.
    offset : int or int64 Tensor (query,)
        Key position of query 0, where the queries are consecutive; else the key position of each query.
    kernel : str, optional
        One of ``KERNELS``. By default sdpa where it can, else rows.

    Returns
    -------
    out : Tensor, (map, query, width)
        Zeros in rows that see no key.
    lse : Tensor, (map, query)
        Natural logarithm; −∞ in rows that see no key. Both in float32, or float64 if the inputs are. The outputs of
        flash_attn are rounded to the half precision of its inputs on the way.

    Raises
    ------
    DiffscopeError
        The kernel asked for cannot do this, or no kernel has this name; :func:`refusal` says why.
    MissingExtra
        flash_attn is asked for and not installed.
    """
    kernel = _chosen(kernel, q, window, offset)
    causal = causal or window is not None
    if kernel == "rows":
        return _rows(q, k, v, scale, causal, window, offset)
    if kernel == "flex":
        seen = (_positions(q.shape[1], offset, q.device), window) if causal else None
        return _padded(kernel, q, k, v, scale, seen)
    return _anchored(kernel, q, k, v, scale, offset) if causal else _padded(kernel, q, k, v, scale, False)


def logsumexp(q: Tensor, k: Tensor, **how) -> Tensor:
    """The log-sum-exp of each row of scores, (map, query): :func:`attend` without values."""
    return attend(q, k, k[..., :0], **how)[1]


def attend_transposed(
    q: Tensor,
    k: Tensor,
    y: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    offset: int | Tensor = 0,
    kernel: str | None = None,
) -> Tensor:
    """Aᵀ·Y for the map A = exp(scale·Q·Kᵀ − lse) of normalised rows: what its keys receive from its queries.

    It is attention of the keys over the queries with the scores scale·k·q − lse, which one more coordinate makes ordinary
    products: [k, 1]·[q, −lse/scale]. Undoing that attention's own normalisation gives Aᵀ·Y = exp(lse′) ⊙ out′. Read
    backwards, keys see queries as queries see keys: key j, the queries from j on.

    Parameters
    ----------
    q, k, scale, causal, window, offset, kernel
        As :func:`attend` has them.
    y : Tensor, (map, query, width)
    lse : Tensor, (map, query)
        What :func:`attend` gave for the same q, k and mask.

    Returns
    -------
    Tensor, (map, key, width)
        Float32, or float64 if the inputs are. Exact zeros for keys that no query sees.

    Raises
    ------
    DiffscopeError
        As for :func:`attend`. flash_attn is always refused: half precision has too few digits for −lse/scale.
    """
    kernel = _chosen(kernel, q, window, offset, transposed=True)
    causal = causal or window is not None
    if kernel == "rows":
        return _rows_transposed(q, k, y, lse, scale, causal, window, offset)
    dtype = _precise(q)
    q, k, y, lse = (x.to(dtype) for x in (q, k, y, lse))
    q = torch.cat([q, -_finite(lse)[..., None] / scale], dim=-1)  # (map, query, d + 1)
    k = torch.cat([k, torch.ones_like(k[..., :1])], dim=-1)  # (map, key, d + 1)
    if not causal:
        out, sums = attend(k, q, y, scale=scale, kernel=kernel)
        return out * sums.exp()[..., None]
    seen = max(0, min(k.shape[1], q.shape[1] + offset))  # no query sees the keys after those
    back = {"causal": True, "window": window, "offset": q.shape[1] + offset - seen}
    out, sums = attend(k[:, :seen].flip(1), q.flip(1), y.flip(1), scale=scale, kernel=kernel, **back)
    received = (out * sums.exp()[..., None]).flip(1)
    return pad(received, (0, 0, 0, k.shape[1] - seen))


def refusal(
    kernel: str, q: Tensor, *, window: int | None = None, offset: int | Tensor = 0, transposed: bool = False
) -> str | None:
    """Why a kernel cannot do this, in one line; None if it can.

    Parameters are those of :func:`attend`; `transposed` asks about :func:`attend_transposed`.
    """
    if kernel not in KERNELS:
        return f"no kernel is called {kernel!r}; choose from {', '.join(KERNELS)}"
    if kernel == "rows":
        return None
    device, scattered = q.device.type, torch.is_tensor(offset)
    if device not in ("cpu", "cuda"):
        return f"the {kernel} kernel is not used on {device!r}; take 'rows'"
    if device == "cuda" and q.dtype == torch.float64:
        return f"the {kernel} kernel has no float64 on CUDA; take 'rows'"
    if scattered and (transposed or kernel != "flex"):
        return f"the {kernel} kernel needs consecutive queries{' to transpose a map' if transposed else ''}; take 'rows'"
    if kernel == "flex":
        return None
    if window is not None:
        return f"the {kernel} kernel has no sliding window; take 'rows' or 'flex'"
    if kernel == "sdpa":
        return None
    if transposed:
        return "the flash_attn kernel works in half precision, which has too few digits to transpose a map; take 'rows'"
    if device != "cuda" or q.dtype not in HALF or q.shape[-1] > WIDEST:
        return f"the flash_attn kernel needs float16 or bfloat16 on CUDA and a head width up to {WIDEST}; take 'rows'"
    return None


def _chosen(kernel: str | None, q: Tensor, window: int | None, offset: int | Tensor, transposed: bool = False) -> str:
    asked = {"window": window, "offset": offset, "transposed": transposed}
    if kernel is None:
        return "rows" if refusal("sdpa", q, **asked) else "sdpa"
    if why := refusal(kernel, q, **asked):
        raise DiffscopeError(why)
    if kernel == "flash_attn" and importlib.util.find_spec("flash_attn") is None:
        raise MissingExtra("the flash_attn kernel needs the package flash-attn; install it (on Linux), or take 'sdpa'")
    return kernel


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _positions(queries: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """Key position of each query, (query,)."""
    return offset.to(device) if torch.is_tensor(offset) else torch.arange(queries, device=device) + offset


def _anchored(kernel: str, q: Tensor, k: Tensor, v: Tensor, scale: float, offset: int) -> tuple[Tensor, Tensor]:
    """Causal attention whose first query stands at key `offset`, wherever the kernel itself would anchor the mask.

    Keys before the first query are seen by all queries, and queries after the last key see all keys; between them there is
    a square. Where a row has keys in two parts, each part counts with its share of the row's exponentials.
    """
    out = q.new_zeros(*q.shape[:2], v.shape[-1], dtype=_precise(q))
    lse = out.new_full(q.shape[:2], -torch.inf)
    blind, offset = max(0, -offset), max(0, offset)
    square = max(0, min(q.shape[1] - blind, k.shape[1] - offset))
    inside, after = slice(blind, blind + square), slice(blind + square, None)
    here = slice(offset, offset + square)
    out[:, after], lse[:, after] = _padded(kernel, q[:, after], k, v, scale, False)
    out[:, inside], lse[:, inside] = _padded(kernel, q[:, inside], k[:, here], v[:, here], scale, True)
    if square and offset:
        before, lse_before = _padded(kernel, q[:, inside], k[:, :offset], v[:, :offset], scale, False)
        parts = torch.stack([lse[:, inside], lse_before])  # (part, map, query)
        share = parts.softmax(0)[..., None]  # adds up to 1 however the parts were rounded
        out[:, inside] = share[0] * out[:, inside] + share[1] * before
        lse[:, inside] = parts.logsumexp(0)
    return out, lse


def _padded(kernel: str, q: Tensor, k: Tensor, v: Tensor, scale: float, causal) -> tuple[Tensor, Tensor]:
    """Attention with values of any width, from kernels that want one width for q, k and v.

    The narrower ones are padded with zeros, which change no product: one call with wide q and k costs no more products than
    two with halves of the values, and half the exponentials.
    """
    if not (q.numel() and k.numel()):
        out = q.new_zeros(*q.shape[:2], v.shape[-1], dtype=_precise(q))
        return out, out.new_full(q.shape[:2], -torch.inf)
    lse_only = not v.shape[-1]
    dtype = q.dtype if kernel == "flash_attn" or (kernel == "sdpa" and lse_only and _half_is_exact(q)) else _precise(q)
    outs = []
    for part in (k,) if lse_only else v.split(max(q.shape[-1], WIDEST), dim=-1):
        width = -(-max(q.shape[-1], part.shape[-1]) // ALIGNMENT) * ALIGNMENT
        wide = (pad(x.to(dtype), (0, width - x.shape[-1]))[None] for x in (q, k, part))  # (1, map, query or key, width)
        out, lse = CALLS[kernel](*wide, scale, causal)
        outs.append(out[0, ..., : part.shape[-1]])
    out = torch.cat(outs, dim=-1)[..., : v.shape[-1]]
    return out.to(_precise(q)), lse[0].to(_precise(q))


def _half_is_exact(q: Tensor) -> bool:
    """Whether the log-sum-exp can be had in half precision without loss: from tensor cores that add up in float32."""
    fits = q.is_cuda and q.dtype in HALF and q.shape[-1] <= WIDEST
    return fits and torch.cuda.get_device_capability(q.device) >= (8, 0)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    aten = torch.ops.aten
    if not q.is_cuda:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    if q.dtype in HALF:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2]
    out, lse = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
    return out, lse[..., : q.shape[2]]  # it comes padded to a multiple of 32 queries


def _flash_attn(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    from flash_attn import flash_attn_func

    by_token = (x.transpose(1, 2) for x in (q, k, v))  # (1, query or key, map, width)
    out, lse, _ = flash_attn_func(*by_token, softmax_scale=scale, causal=causal, return_attn_probs=True)
    return out.transpose(1, 2), lse


def _flex(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: tuple[Tensor, int | None] | None) -> tuple[Tensor, Tensor]:
    """`seen`: key position of each query, and the window; None where every query sees all keys."""
    from torch.nn.attention.flex_attention import AuxRequest

    flex_attention, create_block_mask = _flex_functions(q.is_cuda)
    block_mask = None
    if seen is not None:
        position, window = seen
        reach = position.max() + 1 if window is None else torch.tensor(window, device=q.device)

        def visible(batch, head, query, key):
            behind = position[query] - key
            return (behind >= 0) & (behind < reach)

        block_mask = create_block_mask(visible, None, None, q.shape[2], k.shape[2], device=q.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile", category=UserWarning)
        out, aux = flex_attention(q, k, v, block_mask=block_mask, scale=scale, return_aux=AuxRequest(lse=True))
    return out, aux.lse


@cache
def _flex_functions(fused: bool):
    """flex_attention and create_block_mask, compiled where that makes one kernel of them."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return (torch.compile(flex_attention), torch.compile(create_block_mask)) if fused else (flex_attention, create_block_mask)


CALLS = {"sdpa": _sdpa, "flex": _flex, "flash_attn": _flash_attn}


def _blocks(q, k, scale, causal, window, offset) -> Iterator[tuple[int, slice, slice, Tensor]]:
    """Map, queries, keys and scores (query, key) of blocks of rows, −∞ where a key is not visible.

    A block has only those keys that one of its queries sees; blocks in which no query sees a key are left out.
    """
    maps, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    elements = BLOCK_ELEMENTS.get(q.device.type, BLOCK_ELEMENTS["cpu"])
    position = _positions(queries, offset, q.device)
    dtype = _precise(q)
    size = max(1, elements // max(1, keys))
    if window is not None and not torch.is_tensor(offset):
        size = min(max(window, 64), max(1, elements // (window + 64)))  # such a block sees at most its size and a window
    for start in range(0, queries, size):
        here = slice(start, min(start + size, queries))
        first, last = 0, keys
        if causal:
            at = position[here]
            last = min(keys, int(at.max()) + 1)
            first = 0 if window is None else max(0, int(at.min()) - window + 1)
        if first >= last:
            continue
        there = slice(first, last)
        hidden = None
        if causal:
            behind = at[:, None] - torch.arange(first, last, device=q.device)  # (query, key)
            hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        for index in range(maps):
            scores = q[index, here].to(dtype) @ k[index, there].to(dtype).T * scale
            yield index, here, there, scores if hidden is None else scores.masked_fill_(hidden, -torch.inf)


def _rows(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window, offset) -> tuple[Tensor, Tensor]:
    out = q.new_zeros(*q.shape[:2], v.shape[-1], dtype=_precise(q))
    lse = out.new_full(q.shape[:2], -torch.inf)
    for index, here, there, scores in _blocks(q, k, scale, causal, window, offset):
        peak = _finite(scores.amax(-1))  # (query,)
        weights = scores.sub_(peak[:, None]).exp_()  # (query, key)
        total = weights.sum(-1)
        lse[index, here] = peak + total.log()
        if v.shape[-1]:  # not through the log-sum-exp, whose rounding would keep the weights from adding up to 1
            out[index, here] = weights @ v[index, there].to(out.dtype) / torch.where(total == 0, 1, total)[:, None]
    return out, lse


def _rows_transposed(q: Tensor, k: Tensor, y: Tensor, lse: Tensor, scale: float, causal: bool, window, offset) -> Tensor:
    received = q.new_zeros(*k.shape[:2], y.shape[-1], dtype=_precise(q))
    for index, here, there, scores in _blocks(q, k, scale, causal, window, offset):
        weights = scores.sub_(_finite(lse[index, here].to(scores.dtype))[:, None]).exp_()
        received[index, there] += weights.T @ y[index, here].to(received.dtype)
    return received


def _finite(reference: Tensor) -> Tensor:
    """What to take from the scores of a row: in one that sees nothing −∞ less −∞ would be NaN, less 0 is a weight of zero."""
    return torch.where(reference == -torch.inf, 0, reference)
