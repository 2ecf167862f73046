"""What A2 is made of: a pedestal, a comb of positions, sinks, a copy of A1, or content of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import without_autocast
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError, PromptError
from diffscope.instruments.labelled import labelled_dataset
from diffscope.instruments.map_parts_formulas import PARTS, PLAYERS, parts, uniform_share
from diffscope.instruments.profiles import LEAST, Distances, blocks, fit_keys, maps_of, several

MAPS = ("A1", "A2")


def anatomy(
    cap: Capture,
    others: Capture | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
) -> xr.Dataset:
    """Measure how much of A2, and of A1, is uniform, a matter of distance, of the key, a copy of the other map, or the rest.

    A row a over its n visible keys (n ≥ 2), divided by its Euclidean norm so that all rows count alike, is split into

    - ``uniform``: a row of equal weights. Its part of Σa² is (Σa)²/(n·Σa²), the participation over n.
    - ``distance``: p(t, j) ∝ w(t − j), the softmax of one score a distance, fitted to the same map of other prompts. The first
      key is left out of the fit, since it stands for itself more often than for its distance.
    - ``key``: k(t, j) ∝ c(j), the softmax of one score a key: what all queries give to a key beyond what its distance has it
      get. For even queries it is fitted to the odd ones and the other way round, so that no row explains itself.
    - ``other``: A1 for A2, and A2 for A1.
    - ``rest``: what the best combination of all leaves.

    All but the first are centred on each row's visible keys, and combined by least squares with one coefficient each for all rows
    of a head (a coefficient a row would fit short rows whatever they are). Where distance and key are combined, the row of both,
    ∝ w(t − j)·c(j), is a predictor as well. The parts of ``added`` and of ``shapley`` sum to 1.

    Parameters
    ----------
    cap : Capture
    others : Capture, optional
        Of the same model on other prompts, as long as those of `cap` at least; by default `cap` itself. A prompt of the same
        tokens is no other prompt and is left out.
    progress : callable, optional
        Called with (done, total), counted in layers of a prompt.

    Returns
    -------
    xarray.Dataset (prompt of a batch, layer, head, map, part)
        ``alone``: what a part explains by itself; ``added``: in the order above, beyond those before it; ``shapley``: the mean
        over all orders of what it adds. NaN in prompts of one token, for a map that an edit makes zero everywhere, and for what
        standard attention lacks: all of A2, and the other map of A1.

    Raises
    ------
    PromptError
        There is no other prompt, or none that is as long.
    DiffscopeError
        The others are of another model.

    Notes
    -----
    A large ``uniform`` is a pedestal, ``distance`` a comb of positions, ``key`` sinks and keys that everybody looks at, ``other``
    a copy, and a large ``rest`` content of its own, or noise of its own: this cannot tell which. Distance and key cannot be told
    apart where scores fall or rise evenly with distance, for they then do so with position as well; what the distance profile of
    other prompts explains is taken as distance. A sink whose weight is the same in short and long rows is not the softmax of one
    score a key, and a few per cent of it go to the rest. The same of an untrained model says what architecture alone gives.
    """
    cap.check_one_side("what maps are made of")
    others = cap if others is None else others
    _check_model(cap, others)
    usable = [_usable(cap, index, others) for index in range(len(cap.prompts))]
    tables: list[list[dict[str, Tensor]]] = [[] for _ in cap.prompts]
    for number, (layer, of_others) in enumerate(zip(cap.layers, others.layers)):
        distances = Distances.of(layer, of_others)
        received = distances.received_by([of_others.prompt(other) for other in range(len(others.prompts))])
        for index, chosen in enumerate(usable):
            by_distance = distances.fit([received[other] for other in chosen])
            tables[index].append(_of_layer(layer.prompt(index), distances, by_distance))
            if progress:
                progress(number * len(cap.prompts) + index + 1, len(cap.prompts) * cap.n_layers)
    dataset = labelled_dataset("anatomy", cap, tables, ("head", "map", "part"), {"map": list(MAPS), "part": list(PARTS)})
    standard = [layer.layer for layer in cap.layers if not layer.differential]
    if standard:
        why = f"layers {', '.join(map(str, standard))}: standard attention has no second map"
        for values in dataset.data_vars.values():
            values.attrs["why"] = why
    return dataset


def _check_model(cap: Capture, others: Capture) -> None:
    if [(layer.layer, layer.n_heads, layer.differential) for layer in cap.layers] != [
        (layer.layer, layer.n_heads, layer.differential) for layer in others.layers
    ]:
        raise DiffscopeError("the others have other layers or heads; capture them with the same model")


def _usable(cap: Capture, index: int, others: Capture) -> list[int]:
    """Return the numbers of the prompts that profiles may be fitted to."""
    n = len(cap.prompts[index].ids)
    usable = [number for number in range(len(others.prompts)) if not _same(cap, index, others, number)]
    if not usable:
        raise PromptError("anatomy fits what distance explains to other prompts; give some: others=scope.capture([…])")
    longest = max(len(others.prompts[number].ids) for number in usable)
    if longest < n:
        raise PromptError(f"the other prompts are of {longest} tokens at most and cannot serve one of {n}")
    return usable


def _same(cap: Capture, index: int, others: Capture, number: int) -> bool:
    """Return whether two prompts are one: the same tokens and the same first layer (all images have the same token ids)."""
    if cap.prompts[index].ids != others.prompts[number].ids:
        return False
    return torch.allclose(cap.layers[0].prompt(index).q, others.layers[0].prompt(number).q, rtol=1e-2, atol=1e-2)


@torch.no_grad()
@without_autocast()
def _of_layer(layer: LayerAttention, distances: Distances, by_distance: Tensor) -> dict[str, Tensor]:
    """Return the shares of variance of one layer and prompt, each (head, map, part)."""
    shape = (layer.n_heads, len(MAPS), len(PARTS))
    table = {name: torch.full(shape, torch.nan, dtype=torch.float64) for name in ("alone", "added", "shapley")}
    queries = several(layer)
    if not len(queries):
        return table
    by_key = fit_keys(layer, queries, distances, by_distance)
    gram, uniform = _moments(layer, queries, distances, by_distance, by_key)
    maps = len(MAPS) if layer.differential else 1
    for name, values in parts(gram, uniform).items():
        known = values.where(uniform.isfinite()[..., None], torch.nan)  # a map of zeros, as an edit may leave, has no parts
        table[name][:, :maps] = known.transpose(0, 1).cpu()
        if not layer.differential:
            table[name][..., PARTS.index("other")] = torch.nan
    return table


def _moments(
    layer: LayerAttention, queries: Tensor, distances: Distances, by_distance: Tensor, by_key: Tensor
) -> tuple[Tensor, Tensor]:
    """Average over rows: products of centred predictors and maps (map, head, 5, 5), and the uniform share (map, head)."""
    size = len(PLAYERS) + 2  # with the row of both, and the map itself
    gram = torch.zeros(*by_distance.shape[:2], size, size, dtype=torch.float64, device=layer.q.device)
    uniform = torch.zeros_like(gram[..., 0, 0])
    rows = torch.zeros_like(uniform)
    for block, visible in blocks(layer, queries):
        keys = visible.shape[1]
        a = maps_of(layer, block, keys)
        n = visible.sum(-1)
        base = distances.rows(layer, block, visible, by_distance)
        of_key = by_key[:, :, 1 - block % 2, :keys].to(layer.dtype)  # of the queries of the other parity
        other = a.flip(0) if layer.differential else torch.zeros_like(a)
        predictors = [_with_sum_of(a, base), _with_sum_of(a, of_key * visible), _with_sum_of(a, base * of_key), other]
        square = a.square().sum(-1)
        counts = square > 0  # an edit may leave rows of zeros
        scale = torch.where(counts, square.rsqrt(), 0.0)
        centred = torch.stack([(x - x.sum(-1, keepdim=True) / n[:, None]) * visible for x in (*predictors, a)], 2)
        centred = (centred * scale[:, :, None, :, None]).flatten(3)  # (map, head, predictor, query and key)
        gram += (centred @ centred.transpose(2, 3)).double()
        uniform += uniform_share(a, n).nan_to_num().sum(-1).double()
        rows += counts.sum(-1)
    rows = torch.where(rows > 0, rows, torch.nan)
    return (gram / rows[..., None, None]).nan_to_num(), uniform / rows


def _with_sum_of(a: Tensor, rows: Tensor) -> Tensor:
    """Scale rows to the sums of a map's rows; rows of zeros stay."""
    return rows / rows.sum(-1, keepdim=True).clamp_min(LEAST) * a.sum(-1, keepdim=True)
