"""What one head does at one query: where its weights are, and what its two maps have in common on irrelevant tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import without_autocast
from diffscope.capture.capture import Capture
from diffscope.errors import check_index
from diffscope.numbers import between, counted, decimal, percent, shortened
from diffscope.readings import signs
from diffscope.readings.captures import any_capture, only_layer, place_of, query_position, relabelled, visible_keys
from diffscope.readings.head_sentence import BEFORE, ITSELF, MOST, PREFERRED, sentence
from diffscope.readings.pairing_control import beside_controls
from diffscope.readings.reading import Reading, attributes_of, described, plain
from diffscope.stats import branches
from diffscope.stats.dataset import attributes
from diffscope.stats.negative_mass import NEEDED, negative_mass
from diffscope.stats.registry import STATISTICS
from diffscope.stats.uniform import keys_seen, uniform_share

ROW = ("span_mass", "negative_share", "entropy_normalised", "top_k_mass", "argmax", "row_sum", "lambda", "signal_gain")
PAIR = ("overlap", "cosine", "noise_gain")
NEGATIVE = {
    "long_name": "part of |D| that is negative",
    "units": "1",
    "definition": "sum_X max(-D, 0) / sum_X |D|",
    "undefined": "standard attention; rows with one visible key; where D is zero on X",
}
TAKEN = {
    "long_name": "share of A1's mass that lambda·A2 takes away",
    "units": "1",
    "definition": "sum_X min(g A1, max(lambda A2, 0)) / sum_X g A1",
    "undefined": "standard attention; rows with one visible key; where A1 has no mass on X",
}


def of_head(cap: Capture, layer: int, head: int, query: int | str = -1) -> Reading:
    """Measure where a head looks from one query, and what its two maps share on irrelevant tokens, beside the pairing control.

    Where it looks is read off W = |D| / Σ|D| (the normalisation "share"; of standard attention off the row itself), beside what
    uniform attention over the same visible keys would give. What its maps share is their overlap, 1 − Σ|A1 − A2| / Σ(A1 + A2),
    beside that of A1 and each other second map of the layer (:mod:`diffscope.readings.pairing_control`). They are said to overlap
    more or less only if the overlap is outside the range of all controls, by 0.02 at least.

    Parameters
    ----------
    cap : Capture
        Of one prompt. The span ``answer`` is where the answer stands; without one the sentence says where the weights are.
    layer, head : int
        As the model numbers them.
    query : int or "last"
        A token position; negative ones count from the end. By default the last token.

    Returns
    -------
    Reading
        ``estimates`` holds ``mass`` (map, place, normalisation), the part of the row's Σ|x| that is ``negative`` (map, place),
        ``keys`` and ``uniform`` (place); ``entropy_normalised``, ``negative_share``, ``top_key``, ``top_share`` and ``row_sum``
        (map), D at its own top key, ``top_weight``, and the share of A1 at the top key of A2, ``first_at_second``; ``lambda``;
        of the answer, where one is marked, ``signal_gain`` and what D is on each of its tokens, ``weight`` (token); on
        irrelevant tokens ``overlap``, ``cosine``, ``noise_gain``, ``taken`` and the part of |D| that is negative,
        ``negative_noise`` (control); and ``controls``, their number. A place is a span, the query itself or the token before it.
        NaN where a row sees none of the keys that a value is about, or only them, and for what standard attention lacks.
        ``parts`` is the sentence with what each of its numbers is.

    Raises
    ------
    DiffscopeError
        There is no such layer, head or token, or the capture is of several prompts.
    """
    (reading,) = of_heads(cap, layer, [head], query)
    return reading


def of_heads(cap: Capture, layer: int, heads: Sequence[int], query: int | str = -1) -> list[Reading]:
    """Read several heads of a layer as :func:`of_head` does each; what is measured of the whole layer is measured once."""
    cap = any_capture(cap).only()
    at = query_position(cap, query)
    of_layer = only_layer(cap, layer)
    attention = of_layer.layers[0].prompt(0)
    for head in heads:
        check_index("head", head, range(attention.n_heads), f"layer {layer}")
    place = place_of(at, cap.n_tokens)
    of_all = _estimates(of_layer, attention, heads, at)
    read = []
    for number in range(len(heads)):
        estimates = of_all.isel(head=number)
        parts = sentence(estimates, attention, cap.spans, cap.tokens, place)
        read.append(Reading(plain(parts), estimates, parts))
    return read


def _estimates(cap: Capture, layer: LayerAttention, heads: Sequence[int], query: int) -> xr.Dataset:
    """Compute all estimates of some heads, along ``head``, from a capture of their layer alone."""
    sets = cap.spans | {ITSELF: [query]}
    if query:
        sets[BEFORE] = [query - 1]
    placed = relabelled(cap, sets)
    rows = placed.measure(ROW, queries=[query]).isel(layer=0, query=0).rename(span="place")
    keys = torch.tensor(cap.key_sets["irrelevant"], dtype=torch.int64, device=layer.q.device)
    one = heads[0] if len(heads) == 1 else None
    pairs = beside_controls(cap, lambda capture: _of_maps(capture, query, keys), one).isel(layer=0)
    of_rows = {
        "mass": rows["span_mass"],
        "negative": negative_mass(rows),
        "entropy_normalised": rows["entropy_normalised"],
        "negative_share": rows["negative_share"],
        "top_key": rows["argmax"],
        "top_share": rows["top_k_mass"].sel(k=1),
        "row_sum": rows["row_sum"],
        "lambda": rows["lambda"].sel(lambda_value="used"),
        **{str(name): values for name, values in pairs.items()},
    }
    if "answer" in sets:
        of_rows["signal_gain"] = rows["signal_gain"].sel(place="answer")
    # Variables, which are not aligned: a page reads every head of a layer at each click, and to align takes most of the time.
    variables = {name: values.variable.isel(head=list(heads)) for name, values in of_rows.items()}
    first, d = _weights(layer, heads, query)
    top, second = (variables["top_key"].isel(map=rows.get_index("map").get_loc(name)).values for name in ("D", "A2"))
    what_d_is = attributes_of("what D is on each token", "D")
    variables["top_weight"] = xr.Variable("head", _on_key(d, top), what_d_is)
    with np.errstate(invalid="ignore"):  # NaN where A1 has no mass
        at_second = _on_key(first, second) / first.sum(-1)
    about = attributes_of("what A1 has on the token with the largest A2", "A1 there / sum A1")
    variables["first_at_second"] = xr.Variable("head", at_second, about)
    coords: dict[str, Any] = {name: rows[name].variable for name in ("map", "place", "normalisation")}
    coords |= {"control": pairs["control"].variable, "head": list(heads), "layer": layer.layer, "query": query}
    if "answer" in sets:
        coords["token"] = list(sets["answer"])
        variables["weight"] = xr.Variable(("head", "token"), d[:, coords["token"]], what_d_is)
    return xr.Dataset(variables | _keys(layer, query, placed.key_sets), coords, rows.attrs)


def _of_maps(cap: Capture, query: int, keys: Tensor) -> xr.Dataset:
    """Compute what the two maps of each head of the one layer share on irrelevant tokens `keys`, (layer, head).

    From the row itself, since whoever clicks from head to head waits for every control.
    """
    layer = cap.layers[0].prompt(0)
    values = _on_keys(layer, query, keys)
    coords = {"layer": cap.layer_numbers, "head": range(layer.n_heads)}
    about = {name: attributes(STATISTICS[name], layer) for name in values if name in STATISTICS}
    about |= {"taken": TAKEN, "negative_noise": NEGATIVE}
    return xr.Dataset(
        {name: (("layer", "head"), value[None].cpu().numpy(), about[name]) for name, value in values.items()}, coords
    )


@torch.no_grad()
@without_autocast()
def _on_keys(layer: LayerAttention, query: int, keys: Tensor) -> dict[str, Tensor]:
    """Compute statistics of two maps on some keys, each (head,)."""
    rows = layer.rows([query])
    nothing = torch.full((layer.n_heads,), torch.nan)
    if rows.a2 is None or int(rows.n) < 2:
        return dict.fromkeys((*PAIR, "taken", "negative_noise"), nothing)
    a1, a2, d = (a[:, 0, keys] for a in (rows.a1, rows.a2, rows.d))  # (head, X)
    seen = layer.visible([query])[0, keys].sum()
    first = rows.gain * a1
    taken = torch.minimum(first, (rows.lam * a2).clamp_min(0)).sum(-1) / first.sum(-1)  # NaN where A1 has no mass
    return {
        "overlap": branches.overlap(a1, a2),
        "cosine": branches.cosine(a1, a2, seen),
        "noise_gain": branches.noise_gain(a1, d),
        "taken": taken,
        "negative_noise": d.clamp_max(0).abs().sum(-1) / d.abs().sum(-1),  # NaN where D is zero
    }


@torch.no_grad()
@without_autocast()
def _weights(layer: LayerAttention, heads: Sequence[int], query: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A1 and D on every token at one query, (head, token) each."""
    rows = layer.rows([query])
    first, d = (row[list(heads), 0].double().cpu().numpy() for row in (rows.a1, rows.d))
    return first, d


def _on_key(rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the value of each head's row (head, token) at that head's key (head,), NaN where there is no key."""
    missing = np.isnan(keys)
    places = np.where(missing, 0, keys).astype(int)
    return np.where(missing, np.nan, rows[np.arange(len(rows)), places])


def _keys(layer: LayerAttention, query: int, sets: dict[str, list[int]]) -> dict[str, xr.Variable]:
    """Return how many keys of each place a query sees and what uniform attention gives it, (place,).

    The attribute ``visible`` is how many keys it sees in all.
    """
    visible = layer.visible([query])[0].cpu().numpy()
    counted_keys = attributes_of("visible keys", "#{visible keys of the place}", "keys", visible=int(visible.sum()))
    given = attributes_of("what uniform attention gives", "visible keys of the place / all visible keys")
    return {
        "keys": xr.Variable("place", keys_seen(visible, sets), counted_keys),
        "uniform": xr.Variable("place", uniform_share(visible, sets, whole=True), given),
    }


def answer_heads(cap: Capture, query: int | str = -1) -> Reading:
    """Find the heads that give the answer at least half of their weights at one query, and those that take weight from it.

    A head takes weight where D sums to less than 0 on the answer and half of its weights are there, or twice what uniform
    attention would give.

    Parameters
    ----------
    cap : Capture
        Of one prompt, with a span ``answer`` for an answer.
    query : int or "last"
        Whose row is read; by default the last.

    Returns
    -------
    Reading
        ``estimates``: ``share`` (layer, head), what D gives to the answer of all that it gives, Σ|D| there over Σ|D|, NaN of a
        head that sees nothing else, or none of it; ``negative`` (layer, head), the part of Σ|D| that negative weights there have;
        ``net`` (layer, head), what D sums to there; ``uniform`` (layer), what uniform attention would give. Empty where no answer
        is marked, which the sentence says.

    Raises
    ------
    DiffscopeError
        There is no such token, or the capture is of several prompts.
    """
    cap = any_capture(cap).only()
    at = query_position(cap, query)
    if "answer" not in cap.spans:
        return Reading("No answer is marked in this prompt.", xr.Dataset())
    measured = cap.measure(NEEDED, queries=[at]).isel(query=0, drop=True)
    mass = measured["span_mass"]
    share, net = (mass.sel(map="D", span="answer", normalisation=kind, drop=True) for kind in ("share", "raw"))
    shares = uniform_share(visible_keys(cap.layers, [at]), {"answer": cap.spans["answer"]}, whole=True)  # (layer, query, set)
    uniform = xr.DataArray(shares[:, 0, 0], {"layer": cap.layer_numbers}, ("layer",))
    variables = {
        "share": described(share, "attention on the answer", "sum_answer |D| / sum |D|"),
        "negative": negative_mass(measured).sel(map="D", span="answer", drop=True),
        "net": described(net, "what D sums to on the answer", "sum_answer D"),
        "uniform": described(uniform, "what uniform attention gives", "visible keys of the answer / all visible keys"),
    }
    estimates = xr.Dataset(variables)
    return Reading(_sentence(estimates, cap, place_of(at, cap.n_tokens)), estimates)


def _sentence(estimates: xr.Dataset, cap: Capture, place: str) -> str:
    heads = estimates.stack(which=("layer", "head")).dropna("which", subset=["share"])
    weights = "A" if all(layer.d_is_a1 for layer in cap.layers) else "|D|"
    if not heads.sizes["which"]:
        return f"No head sees the answer and other tokens {place}."
    control = f"uniform attention would give {between(heads['uniform'].values, percent)}"
    heads = heads.sortby("share", ascending=False)
    gives = heads["net"] >= 0
    half = heads["share"] >= MOST
    clear = half | (heads["share"] >= PREFERRED * heads["uniform"])
    takers = _takers(heads.isel(which=(~gives & clear).values), weights)
    giving = heads.isel(which=gives.values)
    givers = [f"{name} {percent(float(share))}" for name, share in zip(_names(giving), giving["share"])]
    if weights != "A":
        givers = [f"{words} ({sign})" for words, sign in zip(givers, _signs(giving))]
    count = int((half & gives).sum())
    if not count:
        most = f"; {givers[0]} gives most" if givers else ""
        return f"No head gives the answer half of its {weights} {place}{most} ({control}).{takers}"
    many = counted(heads.sizes["which"], "head")
    start = f"{count} of {many} {'gives' if count == 1 else 'give'} the answer half of {weights} or more"
    return f"{start} {place} ({control}): {shortened(givers[:count])}.{takers}"


def _takers(heads: xr.Dataset, weights: str) -> str:
    """Name the heads that take weight from the answer; nothing if there is none."""
    count = heads.sizes["which"]
    if not count:
        return ""
    named = [
        f"{name} ({percent(float(share))} of {weights}, {sign}, D sums to {decimal(float(net))} there)"
        for name, share, sign, net in zip(_names(heads), heads["share"], _signs(heads), heads["net"])
    ]
    verb = "takes" if count == 1 else "take"
    return f" {counted(count, 'head')} {verb} weight from the answer: {shortened(named)}."


def _signs(heads: xr.Dataset) -> list[str]:
    return [signs.of_it(float(share), float(negative)) for share, negative in zip(heads["share"], heads["negative"])]


def _names(heads: xr.Dataset) -> list[str]:
    return [f"L{layer}H{head}" for layer, head in heads["which"].values]
