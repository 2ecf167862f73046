"""Five bars: what a query gives to the first token, to what is before the answer, the answer, what is after it, the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.errors import SpanError
from diffscope.numbers import counted, listed, percent
from diffscope.prompts.selection import is_last
from diffscope.readings import signs
from diffscope.readings.captures import Queries, any_capture, query_positions, relabelled, shared_or_each, visible_keys
from diffscope.readings.reading import Reading, described
from diffscope.stats.averaging import averaged
from diffscope.stats.labels import UNIFORM
from diffscope.stats.negative_mass import NEEDED, negative_mass
from diffscope.stats.uniform import keys_seen, uniform_share

PARTS = ("first token", "before", "answer", "after", "question")
ROUNDING = 0.005
IN_WORDS = {  # the answer leads
    "answer": "the answer",
    "first token": "the first token",
    "before": "what is before the answer",
    "after": "what is after it",
    "question": "the question",
}


def allocation(cap: Capture, queries: Queries = -1) -> Reading:
    """Measure how attention is divided among five parts of the prompt, by layer, head and map, in all four normalisations.

    The parts are disjoint and hold every token, so that shares sum to 1. A token that could be in several is in the first that
    has it: the answer (the span ``answer``), the question (the span ``query``, else ``question``, else the last token of the
    prompt), the first token (the span ``sink``). All others are before or after the answer's first token.

    Parameters
    ----------
    cap : Capture
        Of prompts with a span ``answer``.
    queries : int, str, slice or sequence of int
        One position, or "last" (the default), the last token of each prompt; or several positions or a span's name, along a
        dimension ``query``.

    Returns
    -------
    Reading
        ``estimates``: ``allocation`` (prompt of a batch, layer, head, map, query if several, part, normalisation); its mean over
        heads, ``over_heads``, and over heads and then layers, ``over_layers``; ``spread``, the standard deviation over all heads;
        ``negative``, without ``normalisation``, the part of the row's Σ|x| that negative weights on a part have; ``keys`` (layer,
        part), how many keys of a part a query sees, and ``uniform``, their share of all that it sees. NaN where a query sees none
        of a part, or nothing else, so that a bar is missing rather than 0; averages are over what is defined.

    Raises
    ------
    SpanError
        A prompt has no span ``answer``.
    DiffscopeError
        There is no such query.
    """
    cap = any_capture(cap)
    queries = -1 if is_last(queries, *(prompt.spans for prompt in cap.prompts)) else queries
    tables = [_of_prompt(prompt, queries) for prompt in cap]
    batch = cap.batch
    shares = xr.concat(tables, "prompt", join="outer", combine_attrs="override") if batch else tables[0]
    values = shares["allocation"]
    heads = averaged(values, ["head"]).values
    layers = averaged(heads, ["layer"]).values
    spread = values.std(("layer", "head"), ddof=1) if cap.n_layers * cap.n_heads > 1 else layers.where(False)
    estimates = shares.assign(
        over_heads=heads.assign_attrs(long_name="attention on each part, mean over heads"),
        over_layers=layers.assign_attrs(long_name="attention on each part, mean over heads, then layers"),
        spread=described(spread, "spread of attention over heads", "standard deviation over the heads of all layers"),
    )
    return Reading(_sentence(cap, estimates, queries), estimates)


def parts(spans: Mapping[str, Sequence[int]], n: int) -> dict[str, list[int]]:
    """Divide a prompt of n tokens into five parts, in the order of ``PARTS``, as token positions; SpanError without an answer."""
    answer = set(spans.get("answer", ()))
    if not answer:
        raise SpanError("the five parts are around an answer, and none is marked; give one: spans={'answer': '7421'}")
    question = set(spans.get("query") or spans.get("question") or [n - 1]) - answer
    first = set(spans["sink"]) - answer - question
    others = [at for at in range(n) if at not in answer | question | first]
    before = [at for at in others if at < min(answer)]
    after = [at for at in others if at > min(answer)]
    return dict(zip(PARTS, map(sorted, (first, before, answer, after, question)), strict=True))


def _of_prompt(cap: Capture, queries: Queries) -> xr.Dataset:
    """Measure what each head of a prompt gives to each part."""
    sets = parts(cap.spans, cap.n_tokens)
    rows = query_positions(cap, queries)
    measured = relabelled(cap, sets).measure(NEEDED, queries=rows)
    mass, negative = (
        values.sel(span=list(PARTS)).rename(span="part") for values in (measured["span_mass"], negative_mass(measured))
    )
    visible = visible_keys(cap.layers, rows)
    coords = {"layer": cap.layer_numbers, "query": rows, "part": list(PARTS)}
    keys = xr.DataArray(keys_seen(visible, sets), coords, tuple(coords))
    uniform = xr.DataArray(uniform_share(visible, sets), coords, tuple(coords))
    variables = {
        "allocation": mass.assign_attrs(long_name="attention on each part of the prompt"),
        "negative": negative.assign_attrs(long_name="negative weights on each part of the prompt"),
        "keys": described(keys, "visible keys of each part", "#{visible keys of the part}", "keys"),
        "uniform": described(uniform, "what uniform attention gives", "visible keys of the part / all visible keys"),
    }
    dataset = xr.Dataset(variables, attrs=measured.attrs)
    return dataset.isel(query=0, drop=True) if isinstance(queries, int) else dataset


def _sentence(cap: Capture, estimates: xr.Dataset, queries: Queries) -> str:
    """Say what D gives to each part, mean over heads and layers, beside A1 and uniform attention."""
    share = estimates[["allocation", "over_layers", "negative"]].sel(normalisation="share")
    share["negative"] = averaged(estimates["negative"].sel(map="D"), ["head", "layer"]).values
    share["uniform"] = estimates["uniform"].mean("layer")
    share = share.mean([dim for dim in ("prompt", "query") if dim in share.dims])
    weights = "A" if all(layer.d_is_a1 for layer in cap.layers) else "|D|"
    bars = []
    for part, words in IN_WORDS.items():
        bar = share.sel(part=part)
        d, a1 = (float(bar["over_layers"].sel(map=name)) for name in ("D", "A1"))
        if np.isnan(d):
            continue
        numbers_beside = [f"A1 {percent(a1)}"] if cap.differential else []
        if weights != "A":
            numbers_beside.insert(0, signs.of_it(d, float(bar["negative"])))
        numbers_beside.append(f"uniform {percent(float(bar['uniform']))}")
        if part == "answer":
            heads = bar["allocation"].sel(map="D")
            numbers_beside.insert(0, f"{percent(float(heads.min()))} to {percent(float(heads.max()))} by head")
        bars.append(f"{percent(d)} to {words} ({', '.join(numbers_beside)})")
    if not bars:
        return f"{_where(cap, queries)} only one part of the prompt is seen: there is nothing to divide."
    count = int(share["allocation"].sel(map="D").notnull().any("part").sum())
    sentence = f"{_where(cap, queries)}, mean over {counted(count, 'head')}: of {weights} go {listed(bars)}."
    if abs(float(share["over_layers"].sel(map="D").sum()) - 1) < ROUNDING:
        return sentence
    return f"{sentence} A part is averaged over the rows that see it, so that these do not sum to 100 %."


def _where(cap: Capture, queries: Queries) -> str:
    """Say which queries these are."""
    prompts = f" of {len(cap)} prompts" if len(cap) > 1 else ""
    if not isinstance(queries, int):
        return f"Mean over queries{prompts}"
    last = all(queries in (-1, len(prompt.ids) - 1) for prompt in cap.prompts)
    at = queries if len(cap) > 1 else queries % len(cap.prompts[0].ids)
    return f"At {'the last token' if last else f'token {at}'}{prompts}"


Head = tuple[int, int]  # layer and head


def bars(
    estimates: Mapping[str, xr.Dataset],
    *,
    map: str = "D",
    normalisation: str = "share",
    heads: Mapping[str, Head] | None = None,
) -> xr.Dataset:
    """Compare what captures, by name, and uniform attention give to the five parts of their prompts.

    Parameters
    ----------
    estimates : mapping of str to xarray.Dataset
        The ``estimates`` of :func:`diffscope.readings.prompt_parts.allocation`, each of one query; of several prompts the mean is
        taken.
    map, normalisation : str
    heads : mapping of str to (int, int), optional
        Layer and head of each, by the same names; by default the mean over heads, then layers.

    Returns
    -------
    xarray.Dataset, (side, part)
        ``value``; of means also the least and the largest head of all layers, ``low`` and ``high``. The last sides are uniform
        attention: one where it is the same for all, else one each.
    """
    sides = {
        name: _of_side(table.sel(map=map, normalisation=normalisation), heads[name] if heads else None)
        for name, table in estimates.items()
    }
    # means over other numbers of layers are rounded otherwise
    controls = shared_or_each({name: side["uniform"] for name, side in sides.items()})
    labels = [*sides, *(f"{UNIFORM}, {name}" if name else UNIFORM for name in controls)]
    together = [
        *(side.drop_vars("uniform") for side in sides.values()),
        *(control.rename("value").to_dataset() for control in controls.values()),
    ]
    dataset = xr.concat(together, xr.DataArray(labels, dims="side", name="side"), data_vars="all", combine_attrs="override")
    over = "one head" if heads else "mean over heads, then layers"
    if any("prompt" in table.dims for table in estimates.values()):
        over = f"{over}, mean over prompts" if heads else f"{over}, then prompts"
    words = {"value": over, "low": "least head of all layers", "high": "largest head of all layers"}
    name = f"attention, {signs.amount(map, normalisation)}"
    return xr.Dataset({key: described(values, name, words[str(key)]) for key, values in dataset.data_vars.items()})


def _of_side(estimates: xr.Dataset, head: Head | None) -> xr.Dataset:
    """Return the bars of one side and of uniform attention, (part,), mean over prompts."""
    estimates = estimates.mean("prompt") if "prompt" in estimates.dims else estimates
    allocation = estimates["allocation"]
    if head is None:
        ends = {"low": allocation.min(("layer", "head")), "high": allocation.max(("layer", "head"))}
        dataset = xr.Dataset({"value": estimates["over_layers"], "uniform": estimates["uniform"].mean("layer"), **ends})
    else:
        layer, number = head
        value = allocation.sel(layer=layer, head=number)
        dataset = xr.Dataset({"value": value, "uniform": estimates["uniform"].sel(layer=layer)})
    return dataset.reset_coords(drop=True)
