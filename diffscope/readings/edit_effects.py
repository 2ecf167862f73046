"""What edits do to every head: what they change there themselves, and what changes because the head's input did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.blocks import blocks_of
from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.edits import Edit, apply
from diffscope.errors import DiffscopeError
from diffscope.numbers import between, capital, counted, head_name, listed, two_figures
from diffscope.readings.reading import Reading, described

ROWS = 256
MOST = 6  # heads that a sentence names
QUANTITIES = ("D", "output")
CAUSES = ("all", "edit", "input")
HEADS = ("layer", "head")


def effects(before: Capture, after: Capture, edits: Edit | Sequence[Edit], *, rows: int = ROWS) -> Reading:
    """Measure how much every head changed under edits, and why.

    A head of an edited layer changes because of the edit. Every head of a later layer also changes because its input did. The
    two are told apart by making the edits on what the head attended with before: what that changes is the edit's own part, and
    what is then still missing to the head as it was run is the part of its input.

    Parameters
    ----------
    before, after : Capture
        Of one prompt by one model, without and with the edits.
    edits : Edit or sequence of Edit
        Those that `after` was captured under.
    rows : int
        How many queries of a layer are looked at, evenly spread with the last among them; all if there are fewer.

    Returns
    -------
    Reading
        ``estimates``: ``change`` (quantity, cause, layer, head): ``D`` is the difference map, ``output`` what the head gives to
        the output projection; ``all`` is ‖x′ − x‖ / ‖x‖ of the whole change, ``edit`` and ``input`` are those of its two parts.
        ``other_head`` (quantity, layer, head) is the control: how far the next head of the same layer is from this one, in the
        same unit. ``directly`` and ``downstream`` (layer, head) say whether a part is more than rounding explains, ``rounding``
        (layer,) what it does. NaN where a layer has fewer heads, or x is 0.

    Raises
    ------
    DiffscopeError
        The two are not captures of one prompt by models of the same layers and heads, `before` was captured under edits, `after`
        under others than these, or an edit names what there is not.
    """
    edits = (edits,) if isinstance(edits, Edit) else edits
    before, after = before.only(), after.only()
    alike = [_sides_and_heads(cap) for cap in (before, after)]
    if alike[0] != alike[1]:
        raise DiffscopeError("effects are of one prompt and one model, captured without edits and with them")
    _check_edits(before, after, edits)
    looked_at = 0
    sizes = np.full((len(QUANTITIES), len(CAUSES) + 2, before.n_layers, before.n_heads), np.nan)
    for row, (first, last) in enumerate(zip(before.layers, after.layers)):
        layer = first.prompt(0)
        queries = torch.from_numpy(np.unique(np.linspace(0, layer.n_queries - 1, rows).round().astype(int)))
        looked_at = max(looked_at, len(queries))
        sizes[:, :, row, : layer.n_heads] = _of_layer(layer, apply(edits, layer), last.prompt(0), queries)
    coords = {"quantity": list(QUANTITIES), "layer": before.layer_numbers, "head": range(before.n_heads)}
    size = xr.DataArray(sizes[:, -1], coords, ("quantity", *HEADS))
    size = size.where(size > 0)
    parts = xr.DataArray(sizes[:, :3], coords | {"cause": list(CAUSES)}, ("quantity", "cause", *HEADS))
    rounding = xr.concat([before.fidelity["tolerance"], after.fidelity["tolerance"]], "capture").max("capture")
    change = parts / size
    beyond = (change > rounding).any("quantity")
    variables = {
        "change": described(
            change, "relative change", "|x' - x| / |x|, Frobenius norms; x: D or output", undefined="where x is 0"
        ),
        "other_head": described(
            xr.DataArray(sizes[:, 3], coords, ("quantity", *HEADS)) / size,
            "distance of the next head of the layer",
            "|y - x| / |x|, y: the same of the next head",
            undefined="where the layer has one head",
        ),
        "directly": described(beyond.sel(cause="edit", drop=True), "changed by an edit itself", "part of the edit > rounding"),
        "downstream": described(beyond.sel(cause="input", drop=True), "changed by its input", "part of the input > rounding"),
        "rounding": described(rounding, "what rounding explains", "tolerance of the captures' fidelity"),
    }
    facts = {"model": before.model_name, "edits": "; ".join(map(str, edits)), "queries": looked_at}
    estimates = xr.Dataset(variables, attrs=facts)
    return Reading(_sentence(estimates), estimates)


def _sides_and_heads(cap: Capture) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the ids of what a capture is of, on both sides, and how many heads each layer has."""
    return [tuple(each.ids) for each in cap.all_prompts], [layer.n_heads for layer in cap.layers]


def _check_edits(before: Capture, after: Capture, edits: Sequence[Edit]) -> None:
    """Raise DiffscopeError unless one capture is without edits and the other under these, in this order."""
    if known := before.facts.get("edits"):
        raise DiffscopeError(f"`before` was captured under edits ({known}); capture it outside of scope.edit")
    known, given = after.facts.get("edits", ""), "; ".join(map(str, edits))
    if known != given:
        under = f"under {known}" if known else "without edits"
        raise DiffscopeError(
            f"`after` was captured {under}, and the edits given are {given or 'none'}; give those of the capture"
        )


def conclusion(estimates: xr.Dataset, quantity: str = "D") -> str:
    """Say of estimates of :func:`effects` how many heads change in D or output, which most, and how far apart heads are."""
    what = "D" if quantity == "D" else "the output"
    change = estimates["change"].sel(quantity=quantity, cause="all", drop=True)
    changed, heads = int((change > estimates["rounding"]).sum()), counted(int(change.notnull().sum()), "head")
    if not changed:
        return f"{capital(what)} of none of {heads} changes beyond what rounding explains."
    most = change.isel(change.fillna(-1.0).argmax(...))
    name = head_name(int(most["layer"]), int(most["head"]))
    words = f"{capital(what)} of {changed} of {heads} changes, most in {name}: by {two_figures(float(most))} of its size."
    other = estimates["other_head"].sel(quantity=quantity)
    if not bool(other.notnull().any()):
        return words
    return f"{words} Neighbouring heads of a layer differ by {two_figures(float(other.median()))} (median)."


def _of_layer(first: LayerAttention, edited: LayerAttention, last: LayerAttention, queries: Tensor) -> np.ndarray:
    """Compute norms of D and of the output, (quantity, norm, head): the change, its two parts, the next head's distance, own."""
    squares = np.zeros((len(QUANTITIES), len(CAUSES) + 2, first.n_heads))
    for block in blocks_of(first, queries, all_heads=True):
        for number, quantity in enumerate((_differences, _outputs)):
            x = quantity(first, block.queries)  # (head, query, key or width)
            on_same_input = x if edited is first else quantity(edited, block.queries)
            changed = quantity(last, block.queries)
            differences = (changed - x, on_same_input - x, changed - on_same_input, x.roll(-1, 0) - x, x)
            norms = [torch.linalg.vector_norm(part, dim=(1, 2), dtype=torch.float64) for part in differences]
            squares[number] += torch.stack(norms).square().cpu().numpy()
    if first.n_heads == 1:
        squares[:, 3] = np.nan
    return np.sqrt(squares)


def _differences(layer: LayerAttention, queries: Tensor) -> Tensor:
    """Return D, (head, query, key)."""
    return layer.rows(queries).d


def _outputs(layer: LayerAttention, queries: Tensor) -> Tensor:
    """Return what heads give to the output projection, (head, query, width)."""
    return layer.output(queries)


def _sentence(estimates: xr.Dataset) -> str:
    """Say which heads changed and why, by how much, and the control."""
    directly, downstream = (estimates[name] for name in ("directly", "downstream"))
    defined = estimates["change"].sel(quantity="output", cause="all", drop=True).notnull()
    count = int(defined.sum())
    if not bool((directly | downstream).any()):
        return f"None of {counted(count, 'head')} changes beyond what rounding explains."
    sentences = []
    for heads, cause, words, where in (
        (directly, "edit", "directly", ", on the input that they had"),
        (downstream & ~directly, "input", "only because their input did", ""),
    ):
        if bool(heads.any()):
            which = f"{int(heads.sum())} of {counted(count, 'head')} changed {words} ({_named(heads, defined)})"
            sentences.append(
                f"{which}: {_sizes(estimates['change'].sel(cause=cause).where(heads), estimates['rounding'])}{where}."
            )
    if again := int((directly & downstream).sum()):
        whole = _sizes(estimates["change"].sel(cause="all").where(directly | downstream), estimates["rounding"])
        sentences.append(f"With the changed input that {again} of them got, it is in all {whole}.")
    other = estimates["other_head"].sel(quantity="D")
    if bool(other.notnull().any()):
        distance = two_figures(float(other.median()))
        sentences.append(f"For comparison, neighbouring heads of a layer differ by {distance} of the size of D (median).")
    return " ".join(sentences)


def _named(heads: xr.DataArray, defined: xr.DataArray) -> str:
    """Name heads, bool (layer, head): whole layers first, then single heads; of many only the first."""
    all_of_it = (heads | ~defined).all("head") & heads.any("head")
    whole = heads["layer"].values[all_of_it.values].tolist()
    single = [
        f"L{layer}H{head}"
        for layer in heads["layer"].values
        for head in heads["head"].values
        if layer not in whole and heads.sel(layer=layer, head=head)
    ]
    more = len(single) - MOST
    names = [*single[:MOST], f"{counted(more, 'other')}"] if more > 1 else single
    if bool((heads | ~defined).all()):
        return "all"
    layers = f"layer{'' if len(whole) == 1 else 's'} {listed([str(layer) for layer in whole])}"
    return ", ".join([*([layers] if whole else []), *([listed(names)] if names else [])])


def _sizes(change: xr.DataArray, rounding: xr.DataArray) -> str:
    """Say by how much D of some heads changes, or their output if D does not; (quantity, layer, head), other heads NaN."""
    of_d = change.sel(quantity="D")
    changed = of_d > rounding
    count = int(changed.sum())
    sizes = of_d.where(changed) if count else change.sel(quantity="output")
    values = sizes.values[np.isfinite(sizes.values)]
    words = f"by {between(values, two_figures)} of its size"
    if len(values) > 1:
        most = sizes.isel(sizes.fillna(-1.0).argmax(...))
        words += f", most L{int(most['layer'])}H{int(most['head'])}"
    if not count:
        return f"what they give on {words}; D does not change"
    return f"D {words}" if count == int(of_d.notnull().sum()) else f"D of {counted(count, 'head')} {words}"
