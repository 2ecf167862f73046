"""Statistics of one model or several, side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from diffscope import numbers
from diffscope.attention.maps import MAPS
from diffscope.capture.captions import count_of_prompts, edits_of
from diffscope.capture.capture import Capture
from diffscope.capture.comparison import Comparison, along_models
from diffscope.errors import DiffscopeError, check_choice
from diffscope.numbers import between, runs
from diffscope.readings import signs
from diffscope.stats.averaging import OF_ONE_PROMPT, PLURALS, averaged, rule
from diffscope.stats.intervals import t_half_width
from diffscope.stats.negative_mass import WHATEVER
from diffscope.stats.registry import select
from diffscope.stats.sample import QuerySample
from diffscope.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd

Subject = Comparison | Capture | xr.Dataset | Mapping[str, Any]
USUAL = {"normalisation": ["share"], "lambda_value": ["used"], "definition": ["erank"], "control": ["map", "uniform", "permuted"]}
FEW = 8  # numbers that are listed one by one where they do not follow each other


def statistics(
    subject: Subject,
    names: Sequence[str] | str | None = None,
    *,
    queries: str | slice | Sequence[int] | QuerySample | None = None,
    by_layer: bool = False,
    **labels: str | int | Sequence[str | int],
) -> Table:
    """Tabulate statistics of a comparison, of a capture, or of several: a row a statistic, a column a model.

    A value is the average over queries, then heads, then layers, as :func:`diffscope.average` takes it. Of several prompts it is
    the mean over prompts, with its 95 % interval (Student's t), or of ratios without a bound the median, with the quartiles of
    prompts; of one prompt it stands beside the standard deviation over heads, a median beside the quartiles of heads. What it
    is, the caption says, and of which layers, heads and queries where these may be a part.

    Parameters
    ----------
    subject : Comparison, Capture, Dataset, or mapping of str to captures or Datasets
        Datasets as ``measure`` returns them.
    names : str or sequence of str, optional
        As of ``measure``; of a Dataset by default all that was measured.
    queries
        As of ``measure``: "last", a span's name, positions.
    by_layer : bool
        A row a layer, in place of the average over layers.
    **labels : str or number, or sequence of these
        Which labels along other dimensions: ``map="D"``, ``span=["answer", "irrelevant"]``, ``normalisation="raw"``, ``layer=2``.
        By default all; but of normalisations the share, of λ the one that was used, of ranks ``erank`` and its controls.

    Returns
    -------
    Table

    Raises
    ------
    DiffscopeError
        There is no such statistic, dimension or label, or nothing that is averaged.
    """
    asked, needed = _with_signs(subject, names)
    measured = _measured(subject, needed, queries)
    part = [dim for dim in OF_ONE_PROMPT if dim in labels and dim in measured.dims]
    measured = measured.sel({dim: _labels_among(measured[dim], labels[dim]) for dim in part})
    dims = [dim for dim in OF_ONE_PROMPT if not (by_layer and dim == "layer")]
    entries: list[_Entry] = []
    left_out = []
    used: set[str] = set()
    for name, values in measured.data_vars.items():
        has_average = rule(values) != "not" and "other_head" not in values.dims and not str(name).endswith("_se")
        if has_average and (asked is None or name in asked):
            entries += _entries(_chosen(values, labels, used), dims)
        elif not has_average and not str(name).endswith("_se"):
            left_out.append(str(name))
    if unknown := set(labels) - used:
        raise DiffscopeError(f"nothing that was measured has a {min(unknown)}; leave it out")
    if not entries:
        raise DiffscopeError("nothing is left to show: positions, decibels and pairs of heads have no average; choose others")
    chosen = [dim for dim in reversed(OF_ONE_PROMPT) if dim in part or (dim == "query" and queries is not None)]
    return _table(subject, measured, entries, left_out, by_layer, chosen)


def _with_signs(subject: Subject, names: Sequence[str] | str | None) -> tuple[set[str] | None, Any]:
    """Return which statistics are shown (None: all) and which are measured, with the negative part of masses."""
    if names is None or (isinstance(subject, xr.Dataset) and "negative_share" not in subject):
        return None, names
    wanted = [names] if isinstance(names, str) else list(names)
    asked = set(wanted) if isinstance(subject, xr.Dataset) else {statistic.name for statistic in select(wanted)}
    return asked, [*wanted, "negative_share"] if "span_mass" in asked - {"negative_share"} else wanted


class _Entry(NamedTuple):
    """One value: of which statistic and labels, of which model, with what interval."""

    statistic: str
    units: str
    of: dict[str, Any]
    model: str
    value: float
    low: float
    high: float
    interval: str
    n: int


def _measured(subject: Subject, names: Any, queries: Any) -> xr.Dataset:
    """Measure each model, along ``model``."""
    if isinstance(subject, Comparison):
        return subject.measure(names, queries=queries)
    if isinstance(subject, Mapping) and not isinstance(subject, xr.Dataset):
        return along_models(list(subject), [_of_one(one, names, queries) for one in subject.values()])
    one = _of_one(subject, names, queries)
    return one if "model" in one.dims else one.expand_dims(model=[str(one.attrs.get("model", "value"))])


def _of_one(subject: Any, names: Any, queries: Any) -> xr.Dataset:
    if isinstance(subject, Capture):
        return subject.measure(names, queries=queries)
    if not isinstance(subject, xr.Dataset):
        kind = type(subject).__name__
        raise DiffscopeError(f"a table of statistics is of captures, a comparison or what was measured, not of a {kind}")
    if queries is not None:
        raise DiffscopeError("queries are chosen where it is measured; give captures, or leave queries out")
    wanted = [names] if isinstance(names, str) else list(subject.data_vars if names is None else names)
    for name in wanted:
        check_choice("measured statistic", name, subject.data_vars)
    return subject[wanted]


def _chosen(values: xr.DataArray, labels: Mapping[str, str | int | Sequence[str | int]], used: set[str]) -> xr.DataArray:
    """Select the labels that were chosen, or else the usual ones."""
    for dim in [dim for dim in values.dims if dim in labels or dim in USUAL]:
        used.add(str(dim))
        wanted = labels.get(str(dim), USUAL.get(str(dim), ()))
        values = values.sel({dim: _labels_among(values[dim], wanted)})
    return values


def _labels_among(known: xr.DataArray, wanted: str | int | Sequence[str | int]) -> list[str | int]:
    """Return labels along a dimension as a list, or raise DiffscopeError if one is not there."""
    labels = [wanted] if isinstance(wanted, str) or np.ndim(wanted) == 0 else list(wanted)  # type: ignore[arg-type, list-item]
    offered = known.values.tolist()
    if not labels or any(isinstance(label, bool) for label in labels):
        raise DiffscopeError(f"{known.name}={wanted!r} chooses nothing; choose of {', '.join(map(str, offered))}")
    for label in labels:
        check_choice(str(known.name), label, offered)
    return labels  # type: ignore[return-value]


def _entries(values: xr.DataArray, dims: Sequence[str]) -> list[_Entry]:
    """Return a statistic of every model and label, with its interval, without those that no model has."""
    prompts = values.sizes.get("prompt", 1)
    by_prompt = values if "prompt" in values.dims else values.expand_dims("prompt")
    means = averaged(by_prompt, dims).values  # (prompt, model, labels)
    units = averaged(by_prompt, ["query"]).values  # and by head and layer
    over = [PLURALS[dim] for dim in ("head", "layer") if dim in dims and dim in units.dims]
    unit = "prompts" if prompts > 1 else next(iter(over), "")
    rest = [str(dim) for dim in means.dims if dim not in ("prompt", "model")]
    entries = []
    for place in itertools.product(*(range(means.sizes[dim]) for dim in rest)):
        at = dict(zip(rest, place))
        labels = {dim: means[dim].values[index].item() for dim, index in at.items()}
        models = [str(model) for model in values["model"].values]
        row = []
        for number, model in enumerate(models):
            of_prompts = means.isel({**at, "model": number}).values
            of_heads = units.isel({**at, "model": number}).values.ravel()
            value = _middle(of_prompts, rule(values))
            spread = _spread(value, of_prompts if prompts > 1 else of_heads, unit, rule(values))
            row.append(_Entry(str(values.name), str(values.attrs.get("units", "1")), labels, model, value, *spread))
        if any(math.isfinite(entry.value) for entry in row):
            entries += row
    return entries


def _middle(values: np.ndarray, by: str) -> float:
    """Return the mean or median of finite values; NaN without any."""
    finite = values[np.isfinite(values)]
    middle = np.median if by == "median" else np.mean
    return float(middle(finite)) if finite.size else math.nan


def _spread(value: float, values: np.ndarray, unit: str, by: str) -> tuple[float, float, str, int]:
    """Return the ends of what stands beside an average, what it is, and the number of finite values.

    Beside a mean over "prompts" it is the 95 % interval, over "heads" or "layers" the standard deviation, else nothing; beside a
    median it is the quartiles.
    """
    finite = values[np.isfinite(values)]
    n = len(finite)
    if n < 2 or not unit:
        return math.nan, math.nan, "none", n
    if by == "median":
        low, high = np.quantile(finite, [0.25, 0.75])
        return float(low), float(high), f"quartiles of {unit}", n
    deviation = finite.std(ddof=1)
    if unit == "prompts":
        half = t_half_width(deviation / math.sqrt(n), n - 1)
        return value - half, value + half, "95 % over prompts", n
    return value - float(deviation), value + float(deviation), f"SD over {unit}", n


def _cell(entry: _Entry) -> str:
    if entry.interval.startswith("SD"):
        return numbers.with_spread(entry.value, (entry.high - entry.low) / 2)
    if entry.interval == "none":
        return numbers.significant(entry.value) + (f" ± {numbers.ABSENT}" if math.isfinite(entry.value) else "")
    return numbers.with_interval(entry.value, entry.low, entry.high)


def _table(
    subject: Subject, measured: xr.Dataset, entries: list[_Entry], left_out: list[str], by_layer: bool, chosen: list[str]
) -> Table:
    models = list(dict.fromkeys(entry.model for entry in entries))
    labelled = any(entry.of for entry in entries)
    cells = []
    for entry in entries:
        units = "" if entry.units == "1" else f" [{entry.units}]"
        of = ", ".join(_label(dim, label) for dim, label in entry.of.items())
        row = (f"{entry.statistic.replace('_', ' ')}{units}", *([of] if labelled else []))
        cells.append((row, entry.model, _cell(entry)))
    titles = ("statistic", *(["of"] if labelled else []))
    names = dict.fromkeys(entry.statistic for entry in entries)
    definitions = [f"{name.replace('_', ' ')}: {measured[name].attrs.get('definition', '–')}" for name in names]
    about = [_of_what(subject, measured, models, chosen), _behind(measured, entries, by_layer), _signs(measured, entries)]
    caption = " ".join(filter(None, [*about, *_absent(left_out)]))
    notes = (f"Definitions. {'; '.join(definitions)}.",)
    return Table.of_cells("statistics", titles, dict(zip(models, models)), cells, caption, _frame(entries), notes)


def _label(dim: str, label: Any) -> str:
    return f"layer {label}" if dim == "layer" else (MAPS[label].text if label in MAPS else str(label).replace("_", " "))


def _frame(entries: list[_Entry]) -> pd.DataFrame:
    import pandas as pd

    last = ("units", "model", "value", "low", "high", "interval", "n")
    rows = [{"statistic": entry.statistic, **entry.of, **{name: getattr(entry, name) for name in last}} for entry in entries]
    frame = pd.DataFrame(rows)
    return frame[[column for column in frame.columns if column not in last] + list(last)]


def _of_what(subject: Subject, measured: xr.Dataset, models: Sequence[str], chosen: list[str]) -> str:
    """Say what was measured: models, prompts, edits, and layers, heads and queries if they may be a part of all.

    Of captures these are the dimensions along which labels were `chosen`.
    """
    captures = [part for part in _parts(subject).values() if isinstance(part, Capture)]
    where = f" on {measured.sizes['prompt']} prompts" if measured.sizes.get("prompt", 1) > 1 else " on one prompt"
    if captures:
        lengths = sorted({len(prompt.ids) for capture in captures for prompt in capture.prompts})
        span = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        where += f" of {span} tokens"
    edits = edits_of({name: measured if part is subject else part for name, part in _parts(subject).items()})
    under = f", under {edits}" if edits else ""
    dims = chosen if captures else ["layer", "head", "query"]
    parts = [_numbered(dim, measured) for dim in dims if dim in measured.coords]
    return f"Statistics of attention of {' and '.join(models)}{where}{under}{''.join(f', {part}' for part in parts)}."


def _numbered(dim: str, measured: xr.DataArray | xr.Dataset) -> str:
    """Name layers, heads or queries; of many scattered ones only the first and the last."""
    numbers = sorted(np.atleast_1d(measured[dim].values).tolist())
    if len(numbers) > FEW and numbers[-1] - numbers[0] >= len(numbers):
        return f"{len(numbers)} {PLURALS[dim]} from {numbers[0]} to {numbers[-1]}"
    return f"{PLURALS[dim] if len(numbers) > 1 else dim} {runs(numbers)}"


def _parts(subject: Subject) -> dict[str, Any]:
    """Return what a table of statistics is of, by the name of the model; of one without a name."""
    if isinstance(subject, Comparison):
        return dict(zip(subject.names, subject.captures))
    return dict(subject) if isinstance(subject, Mapping) and not isinstance(subject, xr.Dataset) else {"": subject}


def _behind(measured: xr.Dataset, entries: list[_Entry], by_layer: bool) -> str:
    """Say what a value is averaged over, and what its interval is."""
    sampled = f" ({measured.attrs['sampled']})" if measured.attrs.get("sampled") else ""
    rows = _queries(measured)
    queries = "heads of one query" if rows == "1" else f"{rows} queries that have a value{sampled}, then heads"
    steps = queries if by_layer else f"{queries}, then layers"
    kinds = {entry.interval for entry in entries if math.isfinite(entry.value)}
    count = count_of_prompts(entry.n for entry in entries if entry.interval == "95 % over prompts")
    of_medians = count_of_prompts(entry.n for entry in entries if entry.interval == "quartiles of prompts")
    words = {
        "95 % over prompts": f"brackets: 95 % interval over {count} (Student's t)",
        "quartiles of prompts": f"brackets: quartiles of {of_medians}, beside a median",
        "SD over heads": "±: standard deviation over heads; of one prompt there is no interval",
        "SD over layers": "±: standard deviation over layers",
        "quartiles of heads": "brackets: quartiles of heads, beside a median",
        "quartiles of layers": "brackets: quartiles of layers, beside a median",
        "none": "– after ±: there is one value alone, and so no spread",
    }
    intervals = "; ".join(text for kind, text in words.items() if kind in kinds)
    lacking = " –: what a model does not have." if any(not math.isfinite(entry.value) for entry in entries) else ""
    return f"Means over {steps} (ratios without a bound: medians); {intervals}.{lacking}"


def _queries(measured: xr.Dataset) -> str:
    """Count the queries of a prompt that have a value; of several prompts and models the axis holds those of all, with NaN."""
    there = [values.notnull() for values in measured.data_vars.values() if "query" in values.dims]
    if not there:
        return str(measured.sizes.get("query", 1))
    seen = [each.any([dim for dim in each.dims if dim not in ("prompt", "query", "model")]) for each in there]
    counts = np.atleast_1d(sum(seen[1:], seen[0]).astype(bool).sum("query").values).ravel()  # (prompt·model,)
    return between(counts[counts > 0] if counts.any() else counts, "{:.0f}".format)


def _signs(measured: xr.Dataset, entries: list[_Entry]) -> str:
    """Say that shares of D are of sizes, and how much of each is negative, by model if there are several."""
    unsigned = [entry for entry in entries if (entry.of.get("map"), entry.of.get("normalisation")) == ("D", "share")]
    spans = list(dict.fromkeys(str(entry.of["span"]) for entry in unsigned if "span" in entry.of))
    if not spans:
        return ""
    sentences = {str(model): signs.of_spans(measured.sel(model=model), spans) for model in measured["model"].values}
    sentences = {model: words.removeprefix(WHATEVER).lstrip(":; ") for model, words in sentences.items() if words}
    each = [f"{model}: {words}" if len(sentences) > 1 else words for model, words in sentences.items()]
    return f"{WHATEVER}: {' '.join(each)}" if each else ""


def _absent(left_out: list[str]) -> list[str]:
    return [f"Left out, since an average would say nothing: {', '.join(left_out)}."] if left_out else []
