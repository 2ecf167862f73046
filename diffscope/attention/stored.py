"""Take layers and their changes apart into tensors and a record for JSON, and build them again from a file, after checking it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from diffscope.attention.changes import Change
from diffscope.attention.components import Mask, Norm
from diffscope.attention.layer import LayerAttention
from diffscope.errors import first_line
from diffscope.fields import ANY, FLAG, TABLE, TEXT, Kind, check_fields, each_of, finite, listed, maybe, one_of, shown, whole

T = TypeVar("T")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("self", "cross", "encoder")
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
    "kind": one_of(*KINDS),
    "key_lengths": maybe(listed(whole(1))),
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
    "position_bias": Held("one map distance"),
    "correction": Held("head width width"),
    "gate": Held("batch? head? query? width?"),
    "mask.visible": Held("batch? query key", (torch.bool,)),
    "norm.weight": Held("head? width? | width?"),
}
TENSOR = Kind(
    "a tensor of finite numbers", lambda x: isinstance(x, Tensor) and x.is_floating_point() and bool(x.float().isfinite().all())
)
FIELDS_OF_CHANGES = {  # by the type that a field of a change is declared with
    "Tensor": TENSOR,
    "Tensor | None": maybe(TENSOR),
    "float": finite(),
    "int": whole(),
    "bool": FLAG,
    "str": TEXT,
    "tuple[int, ...]": listed(whole()),
    "tuple[int, ...] | None": maybe(listed(whole())),
}
OMITTED = {"kind": "self", "key_lengths": None}  # fields of a layer that a file has only if they are something else
RECORDED: dict[type, tuple[str, ...]] = {  # fields in the record; of other classes all that hold no tensor
    LayerAttention: tuple(FIELDS),
    Mask: ("kind", "window"),
    Norm: ("kind", "eps"),
}
NEEDED = ("q", "k", "v", "pairing.a1", "pairing.key_of_map", "pairing.value_of_head", "lam", "gain", "lam_fp32")


def to_tensors(value: Any) -> tuple[dict[str, Tensor], Any]:
    """Take a value apart into tensors and a record; :func:`from_tensors` is the inverse.

    Parameters
    ----------
    value : LayerAttention or Change, or a list of them

    Returns
    -------
    tensors : dict of str to Tensor
        By the names of the fields, or the numbers in the list, that lead to them: "pairing.a1".
    record
        Everything else, ready for JSON: a table of fields, or a list.
    """
    if isinstance(value, torch.dtype):
        return {}, _name(value)
    if isinstance(value, (list, tuple)):
        parts = {str(number): part for number, part in enumerate(value)}
    elif is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        return {}, value
    tensors: dict[str, Tensor] = {}
    record: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, Tensor):
            tensors[name] = part
            continue
        inner, record[name] = to_tensors(part)
        tensors |= {f"{name}.{rest}": tensor for rest, tensor in inner.items()}
    omitted = OMITTED if isinstance(value, LayerAttention) else {}
    kept = (name for name in RECORDED.get(type(value), record) if name not in omitted or record[name] != omitted[name])
    record = {name: record[name] for name in kept}
    if isinstance(value, (list, tuple, Mask, Norm)):
        return tensors, list(record.values())
    return tensors, {"class": type(value).__name__, **record} if isinstance(value, Change) else record


def from_tensors(kind: type[T], tensors: Mapping[str, Tensor], record: Any) -> T:
    """Build a value of some class from what :func:`to_tensors` made of it.

    Parameters
    ----------
    kind : type
        LayerAttention, Change, or the class of a part of theirs.
    tensors : mapping of str to Tensor
    record
        As JSON gives it back.

    Raises
    ------
    ValueError
        They are no such value: a field or a tensor is missing or is not what it has to be.
    """
    if kind is LayerAttention:
        record = OMITTED | record if isinstance(record, dict) else record
        check_layer(tensors, record)
    if kind is Change:
        kind = cast(type[T], _class_of_change(tensors, record))
    if isinstance(record, (list, tuple)):
        record = dict(zip(RECORDED[kind], record))
    hints = _hints_of(cast(type, kind))
    parts = {field.name: _part(hints[field.name], field.name, tensors, record or {}) for field in fields(cast(Any, kind))}
    value = kind(**parts)
    if isinstance(value, LayerAttention) and value.changes:
        for index, n in enumerate(value.lengths):
            _try_changes(value.prompt(index), sorted({0, n - 1}))
    return value


_hints_of = cache(get_type_hints)  # which Python evaluates anew at each call


def _part(hint: Any, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Any:
    """Return the value of one field, of which `hint` is the type."""
    plain: Any = record.get(name)
    if name in tensors or (plain is None and isinstance(hint, UnionType)):
        return tensors.get(name)
    if isinstance(hint, UnionType):
        hint = next(option for option in get_args(hint) if option is not NoneType)
    if hint is torch.dtype:
        return getattr(torch, plain)
    if is_dataclass(hint):
        return from_tensors(cast(type, hint), within(tensors, f"{name}."), plain)
    if get_origin(hint) is not tuple:
        return plain
    of_item = get_args(hint)[0]
    if not is_dataclass(of_item):
        return tuple(plain)
    return tuple(from_tensors(cast(type, of_item), within(tensors, f"{name}.{n}."), each) for n, each in enumerate(plain))


def within(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _class_of_change(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> type[Change]:
    """Return the class of a change from a file; ValueError if there is none or its fields are of other types."""
    name = record.get("class")
    if name not in Change.kinds:
        raise ValueError(f"a change is of the class {shown(name)}, which is not known")
    kind = Change.kinds[name]
    known = {field.name: kind.takes.get(field.name) or FIELDS_OF_CHANGES.get(str(field.type), ANY) for field in fields(kind)}
    check_fields(f"a change {name}", {field: x for field, x in record.items() if field != "class"} | dict(tensors), known)
    return kind


def _try_changes(layer: LayerAttention, queries: list[int]) -> None:
    """Raise ValueError if the changes of a layer from a file cannot be made to some rows of it."""
    try:
        layer.head_numbers([head for change in layer.changes for head in getattr(change, "heads", ())])  # IndexError if none
        rows = layer.rows(queries)
        out = layer.q.new_zeros(layer.n_heads, len(queries), layer.v.shape[-1], dtype=layer.dtype)
        shapes = {tuple(x.shape) for x in (rows.a1, rows.d, rows.a2) if x is not None}
        if shapes != {(layer.n_heads, len(queries), layer.n_keys)} or layer.head_postprocess(out, queries).shape != out.shape:
            raise ValueError("they give maps or outputs of another shape")
    except Exception as error:  # a change may raise anything where it holds something else
        names = ", ".join(type(change).__name__ for change in layer.changes)
        raise ValueError(f"the changes of layer {layer.layer} ({names}) cannot be made to it: {first_line(error)}") from None


def check_layer(tensors: Mapping[str, Tensor], record: Any) -> None:
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
    cross = record["kind"] == "cross"
    if (sizes["key"] < sizes["query"] and not cross) or sizes["head"] > sizes["map"]:
        raise ValueError(f"{what} has {_sizes(sizes)}, and has to have no more queries than keys and no more heads than maps")
    if cross != (record["key_lengths"] is not None) or (cross and record["mask"][0] not in ("full", "given")):
        raise ValueError(f"{what} is of the kind {record['kind']!r} with a mask {record['mask'][0]!r}, which is none")
    if cross and (len(record["key_lengths"]) != sizes["batch"] or max(record["key_lengths"]) > sizes["key"]):
        raise ValueError(f"key lengths of {what} are {shown(record['key_lengths'])}, which do not fit its {_sizes(sizes)}")
    if len(record["lengths"]) != sizes["batch"] or max(record["lengths"]) > sizes["query"]:
        raise ValueError(f"lengths of {what} are {shown(record['lengths'])}, which do not fit its {_sizes(sizes)}")
    if "position_bias" in plain and (sizes["one"] != 1 or sizes["distance"] % 2 == 0 or sizes["distance"] < 2 * sizes["key"] - 1):
        raise ValueError(
            f"position_bias of {what} has {sizes['distance']} distances, and has to have those of {sizes['key']} keys"
        )
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
        lengths = record["lengths"]
        if "key" in dims:
            before = tensors["k"].shape[2] - tensors["q"].shape[2]
            lengths = record["key_lengths"] or [n + before for n in lengths]
        parts = [tensor[index % len(tensor)][:, :n] for index, n in enumerate(lengths)] if per_token else [tensor]
        if not all(part.isfinite().all() for part in parts):
            raise ValueError(f"{name} of {what} holds NaN or infinity, and has to hold finite numbers")


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{dim} {size:,}" for dim, size in sizes.items())


def _described(tensor: Tensor) -> str:
    return f"{_name(tensor.dtype)} ({', '.join(map(str, tensor.shape))})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
