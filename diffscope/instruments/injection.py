"""CMRR by injection: noise on the scores of both maps, the same or opposite, and what of it comes out.

Engineers measure an amplifier's common-mode rejection by putting a known signal on both inputs; here that is the subtraction. It
needs no opinion of what noise is, and works on any trained model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.blocks import block_size, blocks_of
from diffscope.attention.changes import AddNoise, Change, ShapeOfA1, key_noise
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import without_autocast
from diffscope.capture.capture import Capture
from diffscope.edits import inject_noise
from diffscope.errors import DiffscopeError, PromptError, SpanError, check_several
from diffscope.instruments.injection_formulas import cmrr_injected, cmrr_injected_error
from diffscope.instruments.labelled import labelled_dataset, with_attributes
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.selection import Indices, query_positions, whole_number
from diffscope.tasks.log_odds import token_odds

if TYPE_CHECKING:
    from diffscope.scope import Scope

MODES = ("common", "differential")
SIGMAS = (0.1, 0.5, 1.0, 2.0)
DRAWS = 16


def cmrr_by_injection(
    cap: Capture,
    queries: str | slice | Sequence[int] | None = (-1,),
    *,
    spans: Sequence[str] | None = None,
    sigmas: Sequence[float] = SIGMAS,
    draws: int = DRAWS,
    seed: int = 0,
    ceiling: bool = True,
) -> xr.Dataset:
    """Measure how much less of common noise than of opposite noise comes out of a head, in decibels.

    n ~ N(0, σ²), one value a key of X, is added to the scores of both maps (common mode), or to those of A1 and subtracted from
    those of A2 (differential mode), the same draws in both; O = D·V is a head's output before its norm:

        CMRR_inj(X) = 20·log10( rms‖O_differential − O‖ / rms‖O_common − O‖ ) dB

    with root mean squares over draws and queries. λ = 0 gives 0 dB exactly, for A2 takes no part; equal maps with λ = g give
    infinity; maps on different keys about 0 dB, and unrelated maps that are both spread over the same keys a little more, which
    is why the pairing control matters. Small noise on equal maps gives (g + λ)/|g − λ|, which is 6.02 dB more than the ``cmrr``
    that :func:`diffscope.stats.measure_layer` takes from the gains alone, since +n and −n differ by 2n. Noise is added
    where the edit :func:`diffscope.edits.inject_noise` adds it: draw i is that of the edit with seed `seed` + i.

    Each head is an amplifier of its own, so heads may share maps in any way. The ceiling says what two maps of one shape
    would reach: it is the same measurement with the learned λ and A2's mass on X, but with that mass spread over X as A1 spreads
    its own. It is no upper bound.

    Parameters
    ----------
    cap : Capture
        For the pairing control give ``with_a2_moved(cap)``.
    queries : str, slice or sequence of int, optional
        A span's name or token positions (negative ones count from a prompt's end); by default the last; None for all.
    spans : sequence of str, optional
        Key sets X, by name; by default all of the capture.
    sigmas : sequence of float
        Standard deviations of the noise, in nats.
    draws : int
        How often noise is drawn.
    seed : int
    ceiling : bool
        Whether to measure the ceiling, which takes as long again.

    Returns
    -------
    xarray.Dataset (prompt of a batch, layer, head, sigma, span)
        ``cmrr_injected`` and its standard error over draws ``cmrr_injected_error``, in dB; ``change_common`` and
        ``change_differential``, the root mean squares themselves, in units of O; ``cmrr_ceiling`` in dB, and its own
        ``change_common_ceiling`` and ``change_differential_ceiling``. Of several prompts or heads, take ratios of mean squares
        rather than means of decibels. NaN where no noise comes out (a row that sees one key, or none of X), in prompts without
        the span, and in standard attention, which has one input and so no common mode; the ceiling also where an edit puts
        another map in the place of A1 or A2.

    Raises
    ------
    DiffscopeError
        There is no such query; a σ is not above 0, or draws or seed are no whole numbers.
    SpanError
        No prompt has the span.
    """
    draws = whole_number(draws, 1, 2**16, "draws are a whole number from 1")
    seed = whole_number(seed, 0, 2**32, "the seed is a whole number from 0")
    _check_sigmas(sigmas)
    cap.check_one_side("noise on spans")
    names = list(dict.fromkeys(name for prompt in cap.prompts for name in prompt.key_sets()) if spans is None else spans)
    if not names:
        raise SpanError("noise needs a span that it is put on; give at least one")
    if absent := [name for name in names if not any(name in prompt.key_sets() for prompt in cap.prompts)]:
        known = ", ".join(dict.fromkeys(name for prompt in cap.prompts for name in prompt.key_sets()))
        raise SpanError(f"there is no span {absent[0]!r}; spans are {known}")
    tables = []
    for index, prompt in enumerate(cap.prompts):
        sets = prompt.key_sets()
        rows = query_positions(queries, sets, len(prompt.ids))
        chosen = [sets.get(name, torch.zeros(0, dtype=torch.int64)) for name in names]
        tables.append([_of_layer(layer.prompt(index), rows, chosen, sigmas, draws, seed, ceiling) for layer in cap.layers])
    dataset = labelled_dataset(
        "cmrr_by_injection", cap, tables, ("head", "sigma", "span"), {"sigma": list(sigmas), "span": names}
    )
    standard = [layer.layer for layer in cap.layers if not layer.differential]
    if standard:
        dataset["cmrr_injected"].attrs["why"] = (
            f"layers {', '.join(map(str, standard))}: standard attention has one map, and no noise is common to both"
        )
    return dataset.assign_attrs(draws=draws, seed=seed)


def with_a2_moved(cap: Capture, by: int = 1) -> Capture:
    """Return a capture in which head h has the second map of head h + `by` of its layer, counted round: the pairing control.

    What two maps of one model share anyhow, such as position and sinks, they share then too. Heads that share a second map may be
    given their own again: ``cap.layers[i].pairing.a2`` says.

    Parameters
    ----------
    cap : Capture
    by : int

    Raises
    ------
    DiffscopeError
        No layer has two second maps, or every head would have its own again.
    """
    if not any(layer.differential and len(set(layer.pairing.of_branch(2).tolist())) > 1 for layer in cap.layers):
        raise DiffscopeError("no layer of this capture has two second maps to exchange")
    seconds = [layer.pairing.of_branch(2) for layer in cap.layers if layer.differential]
    if all(torch.equal(a2, a2.roll(-by)) for a2 in seconds):
        raise DiffscopeError(
            f"moved by {by} heads every head has its own second map again; give another number of heads, such as 1"
        )
    return replace(cap, layers=[layer_with_a2_moved(layer, by) for layer in cap.layers])


def layer_with_a2_moved(layer: LayerAttention, by: int) -> LayerAttention:
    """Return a layer in which head h has the second map of head h + `by`; standard attention as it is."""
    if not layer.differential:
        return layer
    return replace(layer, pairing=replace(layer.pairing, a2=torch.roll(layer.pairing.of_branch(2), -by)))


def _check_sigmas(sigmas: Sequence[float]) -> None:
    check_several("standard deviations of noise", sigmas, [0.5, 1.0])
    if not len(sigmas) or not all(isinstance(sigma, Real) and 0 < sigma < float("inf") for sigma in sigmas):
        raise DiffscopeError(f"standard deviations of noise are numbers above 0, and not {list(sigmas)}")


@torch.no_grad()
@without_autocast()
def _of_layer(
    layer: LayerAttention,
    queries: Tensor,
    key_sets: Sequence[Tensor],
    sigmas: Sequence[float],
    draws: int,
    seed: int,
    ceiling: bool,
) -> dict[str, Tensor]:
    """Return the rejection of one layer and prompt, each (head, sigma, span)."""
    changes = output_changes(layer, queries, key_sets, sigmas, draws, seed).cpu()  # (mode, head, sigma, span, draw)
    common, differential = changes
    table = {
        "cmrr_injected": cmrr_injected(differential, common),
        "cmrr_injected_error": cmrr_injected_error(differential, common),
        "change_common": common.mean(-1).sqrt(),
        "change_differential": differential.mean(-1).sqrt(),
    }
    if ceiling:
        common, differential = ceiling_changes(layer, queries, key_sets, sigmas, draws, seed)
        table["cmrr_ceiling"] = cmrr_injected(differential, common)
        table["change_common_ceiling"] = common.mean(-1).sqrt()
        table["change_differential_ceiling"] = differential.mean(-1).sqrt()
    if not layer.differential:
        table |= {name: torch.full_like(values, torch.nan) for name, values in table.items() if name.startswith("cmrr")}
    return table


def ceiling_changes(
    layer: LayerAttention, queries: Tensor, key_sets: Sequence[Tensor], sigmas: Sequence[float], draws: int, seed: int
) -> Tensor:
    """Return the ceiling of rejection: :func:`output_changes` if A2 spread its mass on each key set as A1 does.

    NaN in standard attention, and where an edit makes other maps of A1 and A2.
    """
    if not layer.differential or any(type(change).maps is not Change.maps for change in layer.changes):
        return torch.full((len(MODES), layer.n_heads, len(sigmas), len(key_sets), draws), torch.nan, dtype=torch.float64)
    heads = tuple(range(layer.n_heads))
    tables = []
    for keys in key_sets:
        shaped = replace(layer, changes=(*layer.changes, ShapeOfA1(heads, tuple(keys.tolist()))))
        tables.append(output_changes(shaped, queries, [keys], sigmas, draws, seed).cpu())
    return torch.cat(tables, -2)


def output_changes(
    layer: LayerAttention, queries: Tensor, key_sets: Sequence[Tensor], sigmas: Sequence[float], draws: int, seed: int
) -> Tensor:
    """Return ‖O' − O‖² under injected noise, mean over queries: float64 (mode, head, sigma, span, draw), modes as in ``MODES``.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    queries : int64 Tensor (query,)
    key_sets : sequence of int64 Tensor
    sigmas, draws, seed
        As of :func:`cmrr_by_injection`.
    """
    device = layer.q.device
    values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)  # (head, key, width)
    drawn = torch.stack([key_noise(seed + draw, layer.layer, layer.n_keys) for draw in range(draws)]).to(layer.dtype).to(device)
    cases = torch.cartesian_prod(*map(torch.arange, (len(sigmas), len(key_sets), draws))).reshape(-1, 3)  # (case, 3)
    squares = torch.zeros(len(MODES), layer.n_heads, len(cases), dtype=torch.float64)
    _, most = block_size(layer, all_heads=True)
    for rows in (block.queries for block in blocks_of(layer, queries, all_heads=True)):
        acts = torch.stack([_acts(layer, rows, keys) for keys in key_sets])  # (span, query)
        plain = layer.rows(rows).d[:, None]  # (head, 1, query, key)
        at_once = max(1, most // len(rows))
        for some in torch.arange(len(cases)).split(at_once):
            noise = torch.stack([_on_keys(drawn[draw], key_sets[on], sigmas[at]) for at, on, draw in cases[some].tolist()])
            for mode, opposite in enumerate((False, True)):
                d = _with_noise(layer, noise.repeat_interleave(len(rows), 0), opposite).rows(rows.repeat(len(some))).d
                change = d.unflatten(1, (len(some), len(rows))) - plain
                out = change.flatten(1, 2) @ values  # (head, row, width)
                of_rows = out.double().square().sum(-1).unflatten(1, (len(some), len(rows)))  # (head, case, query)
                squares[mode, :, some] += (of_rows * acts[cases[some, 1]]).sum(-1).cpu()
    return squares.unflatten(2, (len(sigmas), len(key_sets), draws)) / len(queries)


def _acts(layer: LayerAttention, queries: Tensor, keys: Tensor) -> Tensor:
    """Return which queries' rows noise on some keys can change at all, bool (query,): what others show is rounding."""
    visible = layer.visible(queries)
    alone = visible.sum(-1) < 2 if layer.sink_logit is None else torch.zeros_like(queries, dtype=torch.bool)
    return visible[:, keys.to(queries.device)].any(-1) & ~alone


def _on_keys(noise: Tensor, keys: Tensor, sigma: float) -> Tensor:
    """Return noise that is zero but on some keys, (key,)."""
    on_keys = torch.zeros_like(noise)
    on_keys[keys] = sigma * noise[keys]
    return on_keys


def _with_noise(layer: LayerAttention, noise: Tensor, opposite: bool) -> LayerAttention:
    """Add noise (row, key) to the scores of a layer, in the order in which its rows are computed."""
    change = AddNoise(tuple(range(layer.n_heads)), noise[None], opposite)
    return replace(layer, changes=(*layer.changes, change))


def log_odds_under_noise(
    scope: Scope,
    prompt: Any,
    answer: int,
    distractors: Sequence[int],
    *,
    span: str = "irrelevant",
    spans: Any = None,
    sigmas: Sequence[float] = SIGMAS,
    draws: int = DRAWS,
    seed: int = 0,
    layers: Indices = None,
    heads: Indices = None,
) -> xr.Dataset:
    """Measure what injected noise costs a model: log-odds of its answer against distractors, lost to common and opposite noise.

    The log-odds are the logit of the answer's token minus the log-sum-exp of the distractors' tokens, after the prompt. Noise is
    that of :func:`diffscope.edits.inject_noise`, in all layers and heads at once unless some are chosen. A standard model loses
    the same to either, since it has one map.

    Parameters
    ----------
    scope : Scope
    prompt
        One prompt of a language model, as ``scope.capture`` takes it.
    answer : int
        Token id.
    distractors : sequence of int
        Token ids that compete with it; one that is given twice counts once.
    span : str
        Key set that noise is added to.
    spans : mapping, optional
        Spans of the prompt, as for ``scope.capture``.
    sigmas : sequence of float
    draws : int
        They run as one batch.
    seed : int
    layers, heads : optional
        As for the edits.

    Returns
    -------
    xarray.Dataset
        ``log_odds``, without noise; ``log_odds_lost`` (mode, sigma), mean over draws, and its standard error
        ``log_odds_lost_error``; ``lost_to_common_more`` (sigma), what common noise takes more than opposite noise of the same
        draws, and its standard error; in nats.

    Raises
    ------
    PromptError
        The answer is among the distractors, or there are none.
    SpanError
        There is no such span.
    DiffscopeError
        As of :func:`diffscope.edits.inject_noise`.
    """
    _check_sigmas(sigmas)
    check_several("tokens of distractors", distractors, [17, 42])
    others = list(dict.fromkeys(distractors))
    if not others or answer in others:
        raise PromptError("log-odds are of an answer's token against other tokens; give at least one, and not the answer's own")
    encoded = scope.encode(prompt, spans)
    sets = encoded.span_positions()
    if span not in sets:
        raise SpanError(f"there is no span {span!r}; spans are {', '.join(sets)}")
    draws = whole_number(draws, 1, 2**16, "draws are a whole number from 1")
    seeds = [seed + draw for draw in range(draws)]
    unchanged = _log_odds(scope, encoded, 1, answer, others)[0]
    lost = np.empty((len(MODES), len(sigmas), draws))
    for row, mode in zip(lost, MODES):
        for at, sigma in enumerate(sigmas):
            with scope.edit(inject_noise(sigma, mode, sets[span], seeds, layers=layers, heads=heads)):
                row[at] = unchanged - _log_odds(scope, encoded, draws, answer, others)
    more = lost[0] - lost[1]  # of the same draws
    dims = ("mode", "sigma")
    variables = {
        "log_odds": ((), unchanged),
        "log_odds_lost": (dims, lost.mean(-1)),
        "log_odds_lost_error": (dims, _error(lost)),
        "lost_to_common_more": ("sigma", more.mean(-1)),
        "lost_to_common_more_error": ("sigma", _error(more)),
    }
    attrs = {"model": scope.name, "span": span, "draws": draws, "seed": seed}
    return with_attributes("log_odds_under_noise", xr.Dataset(variables, {"mode": list(MODES), "sigma": list(sigmas)}, attrs))


def _error(values: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean of draws (..., draw); NaN of one draw."""
    draws = values.shape[-1]
    return values.std(-1, ddof=1) / np.sqrt(draws) if draws > 1 else np.full(values.shape[:-1], np.nan)


def _log_odds(scope: Scope, prompt: Encoded, copies: int, answer: int, others: list[int]) -> np.ndarray:
    """Return the log-odds of the answer after each of several copies of a prompt that run together, (copy,)."""
    logits = scope.logits(torch.tensor([prompt.ids] * copies), 1)[:, 0].double()  # (copy, vocabulary)
    return token_odds(logits, answer, others).cpu().numpy()
