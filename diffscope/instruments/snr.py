"""Signal-to-noise gain: whether the subtraction makes the answer stand out of what the text around it changes.

The filler is exchanged with the answer kept, which is noise; the answer is exchanged with the filler kept, which is signal. That
asks what noise cancellation claims without injecting noise, and without comparing maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.blocks import Block, gather
from diffscope.attention.changes import UniformA2
from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import without_autocast
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError
from diffscope.instruments.injection import layer_with_a2_moved
from diffscope.instruments.labelled import labelled_dataset, with_attributes
from diffscope.instruments.snr_formulas import decibels, jackknife_error, left_out, variances
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.selection import query_positions, whole_number
from diffscope.tasks.exchanging import filler_of, other_answers, other_fillers

if TYPE_CHECKING:
    from diffscope.scope import Scope

DRAWS = 8
OUTPUTS = ("A1", "lambda_A2", "D", "D_uniform", "D_next")
STAGES = ("before", "after")
SECONDS = {"own": "D", "uniform": "D_uniform", "next head": "D_next"}  # what each A2 makes of the difference
HEARD = 0.0  # dB: above it an output changes more with the answer than with the filler
MOST = 2**28  # numbers that are held at a time: 2 GiB
TEMPORARIES = 16  # of a block of rows: the maps of three layers, and their products
ROUNDING = 4  # units of rounding of an output's size, below which it does not change
DIMS = ("head", "output", "stage")
GAIN_DIMS = ("head", "a2", "stage")
VARIANCES = ("signal", "noise", "interaction")
BY_OUTPUT = (*VARIANCES, "snr", "snr_error")


class Design(NamedTuple):
    """A prompt and what stands in its place: every answer in every filler.

    Attributes
    ----------
    prompt : Encoded
    queries : list of int
    ids : int64 ndarray (answer, filler, token)
    filler : list of int
        Positions that are exchanged as filler.
    """

    prompt: Encoded
    queries: list[int]
    ids: np.ndarray
    filler: list[int]


def signal_to_noise(
    scope: Scope,
    prompt: Any,
    *,
    spans: Any = None,
    signal: str = "answer",
    answers: Sequence[Any] | None = None,
    fillers: Sequence[Any] | None = None,
    needles: bool = False,
    keep: Sequence[str] = (),
    queries: str | slice | Sequence[int] | None = (-1,),
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> xr.Dataset:
    """Measure the signal-to-noise ratio of A1·V, λA2·V and D·V of every head, and what the subtraction gains, in decibels.

    Every one of `draws` answers is put into every one of `draws` fillers, and the model is run on each; lengths and positions
    stay. O[a, f] is a head's output at a query. A variance of vectors is the trace of their covariance:

        signal = mean over f of the variance over a,   noise = mean over a of the variance over f
        SNR = 10·log10(signal / noise),   SNR gain = SNR(D·V) − SNR(A1·V)

    Both are unbiased, and all outputs are of the same runs. ``interaction`` is a part of both: what an answer changes in one
    filler and not in another. Of several queries variances are summed. The norm acts on D·V; after it, the other outputs are
    given the same norm.

    A gain alone does not say why. An amplifier keeps the signal and takes noise away: ``signal_change`` is about 0 and
    ``noise_change`` far below. In signed heads the signal rises, and λA2·V has a signal-to-noise ratio of its own. If a flat
    pedestal is subtracted, the gain with a uniform A2 is the same.

    Parameters
    ----------
    scope : Scope
    prompt
        One prompt, as ``scope.capture`` takes it.
    spans : mapping, optional
        As for ``scope.capture``; there has to be the signal among them.
    signal : str
        The span that is exchanged for other tokens.
    answers : sequence of str, or of token ids, optional
        Others for its place, of as many tokens. By default numbers of as many digits.
    fillers : sequence of str, or of rows of token ids, optional
        Texts that filler is cut from; or prompts of exactly as many tokens, one a draw, whose tokens at the same positions are
        taken. By default documentation strings of the Python standard library.
    needles : bool
        Whether the span ``needles`` is filler too. In the places of distractors then stands what `fillers` has there.
    keep : sequence of str
        Spans that are no filler. Neither are the signal, ``query``, ``sink``, the queries, special tokens, and the words that
        lead to the answer: those that the end of the prompt repeats, or else those of its sentence.
    queries : str, slice or sequence of int, optional
        A span's name or token positions; by default the last. All of them, None, leave no filler.
    draws : int
        Answers and fillers, at least 2 of each; of answers fewer where there are no more.
    seed : int
    progress : callable, optional
        Called with (answers done, answers).

    Returns
    -------
    xarray.Dataset
        ``signal``, ``noise``, ``interaction`` and ``snr`` with its error (layer, head, output, stage). ``snr_gain`` with its
        error, ``signal_change`` and ``noise_change`` (layer, head, a2, stage); the controls are a uniform A2 and that of the next
        head. The error is of the jackknife over answers and over fillers. NaN, with ``why``, where an output does not change; in
        standard attention, which subtracts nothing; and after the norm, where there is none.

    Raises
    ------
    SpanError, PromptError, DiffscopeError
        There is no such span, other answer, filler or query; draws or seed are no whole numbers; there are too many queries.
    """
    draws = whole_number(draws, 2, 2**12, "draws are a whole number from 2")
    design = crossed(scope, prompt, spans, signal, answers, fillers, needles, keep, queries, draws, seed)
    named = {name: list(at) for name, at in design.prompt.spans.items()}
    at = torch.tensor(design.queries)
    of_layers: list[list[Tensor]] = []
    batch: Capture | None = None
    for done, rows in enumerate(design.ids):
        batch = scope.capture([row.tolist() for row in rows], spans=named)
        of_layers.append([_outputs(layer, at) for layer in batch.layers])
        if len(design.ids) * sum(outputs.numel() for outputs in of_layers[0]) > MOST:
            raise DiffscopeError(f"the outputs at {len(at)} queries do not fit into memory; give fewer queries or draws")
        if progress:
            progress(done + 1, len(design.ids))
    assert batch is not None
    tables = [_table(torch.stack(outputs, -3), layer) for outputs, layer in zip(zip(*of_layers), batch.layers)]
    return _labelled(tables, batch[0]).assign_attrs(
        answers=design.ids.shape[0],
        fillers=design.ids.shape[1],
        exchanged=len(design.filler),
        signal=signal,
        seed=seed,
    )


def crossed(
    scope: Scope,
    prompt: Any,
    spans: Any,
    signal: str,
    answers: Sequence[Any] | None,
    fillers: Sequence[Any] | None,
    needles: bool,
    keep: Sequence[str],
    queries: str | slice | Sequence[int] | None,
    draws: int,
    seed: int,
) -> Design:
    """Put every answer into every filler; parameters as of :func:`signal_to_noise`."""
    rng = np.random.default_rng(whole_number(seed, 0, 2**32, "the seed is a whole number from 0"))
    encoded = scope.encode(prompt, spans)
    at = query_positions(queries, encoded.span_positions(), len(encoded.ids)).tolist()
    special = [] if scope.tokenizer is None else scope.tokenizer.all_special_ids
    filler = filler_of(encoded, signal, at, needles, keep, special)
    others = other_answers(encoded, signal, draws, rng, scope.tokenizer, answers)
    texts = other_fillers(encoded, filler, draws, rng, scope.tokenizer, fillers)
    ids = np.tile(np.array(encoded.ids, dtype=np.int64), (len(others), len(texts), 1))
    ids[:, :, filler] = np.array(texts)
    ids[:, :, list(encoded.spans[signal])] = np.array(others)[:, None]
    return Design(encoded, at, ids, filler)


@torch.no_grad()
@without_autocast()
def _outputs(batch: LayerAttention, queries: Tensor) -> Tensor:
    """Return the output of every head by each of ``OUTPUTS``, float64 (output, stage, head, query, prompt, width)."""
    prompts = []
    for index in range(len(batch.lengths)):
        layer = batch.prompt(index)
        by_query = gather(layer, queries, partial(_of_block, layer), all_heads=True, temporaries=TEMPORARIES)
        before = by_query.movedim(2, 0)  # (output, head, query, width)
        after = torch.full_like(before, torch.nan) if layer.norm is None else layer.norm(before)
        prompts.append(torch.stack([before, after], 1).double().cpu())
    return torch.stack(prompts, -2)


def _of_block(layer: LayerAttention, block: Block, rows: Rows) -> Tensor:
    """Return the output of every head before the norm at some queries, (head, query, output, width)."""
    values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)  # (head, key, width)
    seen = values[:, rows.start : rows.start + rows.d.shape[-1]]
    first = (rows.gain[..., None] * rows.a1) @ seen
    if rows.a2 is None:
        nothing = torch.full_like(first, torch.nan)
        return torch.stack([first, nothing, rows.d @ seen, nothing, nothing], 2)
    uniform = replace(layer, changes=(*layer.changes, UniformA2(tuple(range(layer.n_heads)))))
    own = layer.pairing.of_branch(2)
    following = layer_with_a2_moved(layer, 1).rows(block.queries).d @ values
    following[own == own.roll(-1)] = torch.nan
    subtracted = (rows.lam[..., None] * rows.a2) @ seen
    return torch.stack([first, subtracted, rows.d @ seen, uniform.rows(block.queries).d @ values, following], 2)


def _table(outputs: Tensor, layer: LayerAttention) -> dict[str, Tensor]:
    """Compute the variances and ratios of one layer; `outputs` (output, stage, head, query, answer, filler, width)."""
    floor = (ROUNDING * torch.finfo(layer.q.dtype).eps) ** 2 * outputs.square().sum(-1).mean((-2, -1)).sum(-1)

    def powers(some: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return variances summed over queries, each (output, stage, head); one that is no more than rounding is 0."""
        signal, noise, both = (values.sum(-1) for values in variances(some))
        return tuple(torch.where(values <= floor, 0.0, values) for values in (signal, noise, both))  # type: ignore[return-value]

    signal, noise, interaction = powers(outputs)
    by_draw = [[ratios(*powers(some)[:2]) for some in left_out(outputs, dim)] for dim in (-3, -2) if outputs.shape[dim] > 2]
    table = {"signal": signal, "noise": noise, "interaction": interaction} | ratios(signal, noise)
    for name in ("snr", "snr_gain"):
        parts = [jackknife_error(torch.stack([each[name] for each in draws])).square() for draws in by_draw]
        table[f"{name}_error"] = torch.stack(parts).sum(0).sqrt() if len(parts) == 2 else torch.full_like(table[name], torch.nan)
    return {name: values.permute(2, 0, 1) for name, values in table.items()}  # (head, output or a2, stage)


def ratios(signal: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """Compute the SNR and the gains over A1·V, in dB, from variances (output, ...); NaN if a variance is 0.

    Returns
    -------
    dict of str to Tensor
        ``snr`` (output, ...); ``snr_gain``, ``signal_change`` and ``noise_change`` (a2, ...).
    """
    standard = signal[OUTPUTS.index("D_uniform")].isnan()
    defined = (signal > 0) & (noise > 0)
    signal, noise = (torch.where(defined, values, torch.nan) for values in (signal, noise))
    seconds = [OUTPUTS.index(name) for name in SECONDS.values()]
    gains = {
        f"{name}_change": torch.where(standard, torch.nan, decibels(values[seconds] / values[OUTPUTS.index("A1")]))
        for name, values in (("signal", signal), ("noise", noise))
    }
    return {"snr": decibels(signal / noise), "snr_gain": gains["signal_change"] - gains["noise_change"], **gains}


def _labelled(tables: Sequence[dict[str, Tensor]], cap: Capture) -> xr.Dataset:
    """Join the tables of layers in a Dataset whose attributes say where and why something is undefined."""
    by_output = [{name: table[name] for name in BY_OUTPUT} for table in tables]
    by_second = [{name: values for name, values in table.items() if name not in BY_OUTPUT} for table in tables]
    labels = {"output": list(OUTPUTS), "stage": list(STAGES)}
    dataset = labelled_dataset("signal_to_noise", cap, [by_output], DIMS, labels)
    gains = labelled_dataset("signal_to_noise", cap, [by_second], GAIN_DIMS, {"a2": list(SECONDS), "stage": list(STAGES)})
    return _with_why(dataset.merge(gains, combine_attrs="override"), cap)


def _with_why(dataset: xr.Dataset, cap: Capture) -> xr.Dataset:
    """Add the attribute ``why`` to variables with undefined values."""
    standard = [layer.layer for layer in cap.layers if not layer.differential]
    plain = [layer.layer for layer in cap.layers if layer.norm is None]
    zero = (dataset["signal"] == 0) | (dataset["noise"] == 0)
    idle = [f"L{at}H{head}" for at in dataset["layer"].values for head in dataset["head"].values if _any(zero, at, head)]
    reasons = [
        f"layers {', '.join(map(str, standard))}: standard attention subtracts nothing and has no gain" if standard else "",
        f"layers {', '.join(map(str, plain))}: there is no norm" if plain else "",
        f"{', '.join(idle)}: an output does not change with the answer, or not with the filler" if idle else "",
    ]
    why = "; ".join(filter(None, reasons))
    for name in ("snr", "snr_gain"):
        dataset[name].attrs |= {"why": why} if why else {}
    return dataset


def _any(zero: xr.DataArray, layer: int, head: int) -> bool:
    return bool(zero.sel(layer=layer, head=head, output=["A1", "D"], stage="before").any())


def over_prompts(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """Combine :func:`signal_to_noise` of several prompts: ratios of mean variances, with jackknife errors over prompts.

    Parameters
    ----------
    datasets : sequence of xarray.Dataset
        Of one model, each of one prompt.

    Raises
    ------
    DiffscopeError
        There are none, or they have other layers or heads.
    """
    if not datasets:
        raise DiffscopeError("there is nothing to put together; give what signal_to_noise gives of at least one prompt")
    first = datasets[0]
    if any(not each["signal"].coords.to_dataset().equals(first["signal"].coords.to_dataset()) for each in datasets):
        raise DiffscopeError("these are of models with other layers or heads; put together prompts of one model")
    order = ("output", "layer", "head", "stage")
    by_prompt = [torch.from_numpy(np.stack([each[name].transpose(*order) for each in datasets])) for name in VARIANCES]
    means = [values.mean(0) for values in by_prompt]  # each (output, layer, head, stage)
    values = dict(zip(VARIANCES, means)) | ratios(*means[:2])
    without = [ratios(*(rest.mean(0) for rest in pair)) for pair in zip(*(left_out(each, 0) for each in by_prompt[:2]))]
    for name in ("snr", "snr_gain"):
        values[f"{name}_error"] = jackknife_error(torch.stack([each[name] for each in without]))
    dims = {name: ("output" if name in BY_OUTPUT else "a2", *order[1:]) for name in values}
    variables = {name: (dims[name], array.numpy()) for name, array in values.items()}
    dataset = xr.Dataset(variables, first.coords, {**first.attrs, "prompts": len(datasets)}).transpose("layer", "head", ...)
    with_attributes("signal_to_noise", dataset)
    whys = dict.fromkeys(why for each in datasets if (why := each["snr_gain"].attrs.get("why")))
    for name in ("snr", "snr_gain"):
        dataset[name].attrs |= {"why": "; ".join(whys)} if whys else {}
    return dataset


def mean_gain(dataset: xr.Dataset, weights: xr.DataArray | None = None, least: float = HEARD) -> xr.Dataset:
    """Average the gain of the subtraction, in decibels, over heads that tell the answer, each head with its weight.

    A head in which neither A1·V nor D·V tells the answer may have any gain, since a ratio of nothing to nothing is taken.

    Parameters
    ----------
    dataset : xarray.Dataset
        Of :func:`signal_to_noise` or :func:`over_prompts`.
    weights : xarray.DataArray (layer, head), optional
        Such as what the answer loses without each head's A2; what is below 0 counts as 0. By default all heads alike.
    least : float
        A head counts if the signal-to-noise ratio of A1·V or that of D·V is above it, in dB; −infinity counts all.

    Returns
    -------
    xarray.Dataset
        ``snr_gain``, ``signal_change`` and ``noise_change`` (a2, stage), in dB, NaN if no head counts; and ``counted`` (a2,
        stage), the share of all weight that heads which count have: of little weight a mean says little.

    Raises
    ------
    DiffscopeError
        All weights are 0.
    """
    weights = xr.ones_like(dataset["snr_gain"].isel(a2=0, stage=0, drop=True)) if weights is None else weights.clip(min=0)
    if not float(weights.sum()) > 0:
        raise DiffscopeError("no head has a weight above 0, so there is nothing to average")
    heads = ["layer", "head"]
    gains = dataset[["snr_gain", "signal_change", "noise_change"]].where(tells(dataset, least))
    means = gains.weighted(weights.fillna(0)).mean(heads, keep_attrs=True)
    counted = weights.fillna(0).where(gains["snr_gain"].notnull(), 0).sum(heads) / float(weights.sum())
    about = {"units": "1", "long_name": "share of the weight that heads which count have"}
    return means.assign(counted=counted.assign_attrs(about))


def tells(dataset: xr.Dataset, least: float = HEARD) -> xr.DataArray:
    """Return whether A1·V or D·V of a head changes with the answer, by its SNR in dB, bool (layer, head, stage)."""
    return dataset["snr"].sel(output=["A1", "D"]).max("output") > least
