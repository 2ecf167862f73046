"""Check the parts of a LayerAttention that come from a file against a table of its plain fields and one of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffscope.fields import TABLE, TEXT, check_fields, each_of, finite, listed, maybe, one_of, shown, whole

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
AT_TOKENS = 2  # the dimension of queries or keys
MOST = 2**31  # layers, and keys of a window
FIELDS = {
    "layer": whole(most=MOST),
    "family": TEXT,
    "scale": finite(),
    "soft_cap": maybe(finite(1e-6)),
    "lam_init": maybe(finite()),
    "post_scale": finite(),
    "lengths": listed(whole(1)),
    "score_dtype": maybe(one_of(*(str(dtype).removeprefix("torch.") for dtype in FLOATS))),
    "mask": each_of(one_of("causal", "window", "full", "given"), maybe(whole(1, MOST))),
    "norm": maybe(each_of(one_of("rms", "scalar"), finite(0))),
    "changes": listed(TABLE),
}


class Held(NamedTuple):
    """Shape and dtype that a tensor has to have.

    Attributes
    ----------
    shape : str
        The names of its dimensions, each of one size in a layer; one with a question mark may be of size 1 as well. Where there
        are several possible shapes, they are divided by a bar.
    dtypes : tuple of torch.dtype
    below : str
        If its values are positions, the dimension that they are positions of.
    """

    shape: str
    dtypes: tuple[torch.dtype, ...] = FLOATS
    below: str = ""


INDEX = (torch.int64,)
TENSORS = {
    "q": Held("batch map query d"),
    "k": Held("batch key_map key d"),
    "v": Held("batch value_head key width"),
    "pairing.a1": Held("head", INDEX, below="map"),
    "pairing.a2": Held("head", INDEX, below="map"),
    "pairing.key_of_map": Held("map", INDEX, below="key_map"),
    "pairing.value_of_head": Held("head", INDEX, below="value_head"),
    "lam": Held("batch? head? query?"),
    "gain": Held("batch? head? query?"),
    "lam_fp32": Held("batch? head? query?"),
    "sink_logit": Held("batch? map? query? | map"),
    "correction": Held("head width width"),
    "gate": Held("batch? head? query? width?"),
    "mask.visible": Held("batch? query key", (torch.bool,)),
    "norm.weight": Held("head? width? | width?"),
}
NEEDED = ("q", "k", "v", "pairing.a1", "pairing.key_of_map", "pairing.value_of_head", "lam", "gain", "lam_fp32")


def check_kept(tensors: Mapping[str, Tensor], record: Any) -> None:
    """Refuse tensors and fields that are no layer, or not of one another's sizes.

    Raises
    ------
    ValueError
        One line that names the layer, what is wrong in it, and what it has to be.
    """
    number_of_layer = record.get("layer") if isinstance(record, dict) else None
    what = f"layer {number_of_layer}" if isinstance(number_of_layer, int) else "a layer"
    check_fields(what, record, FIELDS)
    plain = {name: tensor for name, tensor in tensors.items() if not name.startswith("changes.")}
    if unknown := next((name for name in plain if name not in TENSORS), None):
        raise ValueError(f"{what} has the tensor {shown(unknown)}, which it cannot have")
    if lacking := next((name for name in NEEDED if name not in plain), None):
        raise ValueError(f"{what} lacks the tensor {lacking}")
    sizes: dict[str, int] = {}
    for name in (name for name in TENSORS if name in plain):  # in the order of the table: q, k, v and a1 have all sizes
        _check_tensor(f"{name} of {what}", plain[name], TENSORS[name], sizes)
    if sizes["key"] < sizes["query"] or sizes["head"] > sizes["map"]:
        raise ValueError(f"{what} has {_sizes(sizes)}, and has to have no more queries than keys and no more heads than maps")
    if len(record["lengths"]) != sizes["batch"] or max(record["lengths"]) > sizes["query"]:
        raise ValueError(f"lengths of {what} are {shown(record['lengths'])}, which do not fit its {_sizes(sizes)}")
    _check_finite(what, plain, record)


def _check_tensor(what: str, tensor: Tensor, held: Held, sizes: dict[str, int]) -> None:
    """Refuse a tensor of another dtype or shape, or with positions beyond the others; note the sizes that are new."""
    beginning = f"{what} is {_described(tensor)}, and has to be"
    if tensor.dtype not in held.dtypes:
        raise ValueError(f"{beginning} of {' or '.join(map(_name, held.dtypes))}")
    shapes = [shape.split() for shape in held.shape.split(" | ")]
    fitting = next((dims for dims in shapes if _fits(tensor.shape, dims, sizes)), None)
    if fitting is None:
        raise ValueError(f"{beginning} ({held.shape}) with {_sizes(sizes) or 'at least one of each'}")
    sizes |= {dim: size for dim, size in zip(fitting, tensor.shape) if not dim.endswith("?")}
    if held.below and not (int(tensor.min()) >= 0 and int(tensor.max()) < sizes[held.below]):
        least, most = int(tensor.min()), int(tensor.max())
        raise ValueError(f"{what} holds {least} to {most}, and has to hold positions from 0 to {sizes[held.below] - 1}")


def _fits(shape: torch.Size, dims: list[str], sizes: Mapping[str, int]) -> bool:
    """Return whether a tensor has these dimensions, of the sizes that are known, and none is empty."""
    return len(shape) == len(dims) and all(
        size > 0 and (size == sizes.get(dim.rstrip("?"), size) or (dim.endswith("?") and size == 1))
        for size, dim in zip(shape, dims)
    )


def _check_finite(what: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Refuse numbers that are not finite; behind a prompt's end, and where a mask of its own may hide them, there may be any."""
    padded = record["mask"][0] == "given"
    for name, tensor in tensors.items():
        dims = TENSORS[name].shape.split()
        if not tensor.is_floating_point() or (padded and name in ("q", "k", "v")):
            continue
        per_token = len(dims) > AT_TOKENS and tensor.dim() > AT_TOKENS and dims[AT_TOKENS] in ("query", "query?", "key")
        before = tensors["k"].shape[2] - tensors["q"].shape[2] if "key" in dims else 0
        parts = (
            [tensor[index % len(tensor)][:, : n + before] for index, n in enumerate(record["lengths"])] if per_token else [tensor]
        )
        if not all(part.isfinite().all() for part in parts):
            raise ValueError(f"{name} of {what} holds NaN or infinity, and has to hold finite numbers")


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{dim} {size:,}" for dim, size in sizes.items())


def _described(tensor: Tensor) -> str:
    return f"{_name(tensor.dtype)} ({', '.join(map(str, tensor.shape))})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
