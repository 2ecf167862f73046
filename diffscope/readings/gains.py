"""A model as an amplifier of differences: its gains on noise and signal, head by head, each beside its pairing control."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.numbers import between, capital, counted, percent, two_figures
from diffscope.readings.captures import any_capture, irrelevant_in_words, place_of, query_position, with_fewest_spans
from diffscope.readings.pairing_control import HEADS, LEAST, MIDDLE, OWN, beside_controls, controls_of_each
from diffscope.readings.reading import Reading, described
from diffscope.readings.signs import by_head, negative_of_gains

ON_KEYS = ("lambda_star", "residual_noise", "residual_floor", "noise_gain", "signal_gain", "overlap", "cosine")
SPANS = ("irrelevant", "answer")
NEAR = 1.1  # times the least that any coefficient leaves: nearly the least

#: how each estimate is to be read
READS = {
    "lambda": "How much of A2 is subtracted: at λ = 1 (at λ = g where A1 has a gain g) all that both share is gone, at 0 none.",
    "cmrr": "How well equal maps would be rejected, by λ alone; whether they are equal it cannot tell.",
    "lambda_star": "The coefficient that would leave least of A1 there. A larger λ takes too much, a smaller one too little. "
    "Where A1 has a gain g, λ / g is compared.",
    "residual_over_floor": "At 1 the learned λ leaves as little of A1 there as any coefficient could: the floor.",
    "residual_floor": "What the best coefficient leaves of A1 there: 0 where A2 is a copy of A1, 1 where they share nothing.",
    "noise_gain": "Absolute weight that comes out, whatever its sign, over weight that went in: below 1 irrelevant tokens get "
    "less, above 1 more.",
    "signal_gain": "Net weight that comes out over weight that went in: near 1 the answer is spared, below 0 it turns negative.",
    "effective_rank": "Compare with the uniform map, which attends to nothing and still has a rank, and with each row permuted.",
}


def amplifier(cap: Capture, query: int | str = -1, *, ranks: bool = True) -> Reading:
    """Measure λ, common-mode rejection, the best coefficient, residuals and gains of every head, beside their controls.

    Parameters
    ----------
    cap : Capture
        Of one prompt, with a span ``answer`` for what is of the answer.
    query : int or "last"
        Whose row is read; by default the last. Effective ranks are of whole maps.
    ranks : bool
        Whether to compute effective ranks, which take most of the time.

    Returns
    -------
    Reading
        ``estimates``: ``lambda``, ``lambda_init``, ``gain`` and ``cmrr`` (layer, head); on irrelevant tokens and on the answer
        ``lambda_star``, ``residual_noise``, ``residual_floor``, ``residual_over_floor``, ``noise_gain``, ``signal_gain``,
        ``overlap`` and ``cosine`` (layer, head, span, control), and ``controls`` (layer, head), as of
        :func:`diffscope.readings.pairing_control.beside_controls`; ``effective_rank`` (layer, head, ranked_map, definition,
        rank_control). The attribute ``reads`` is how to read a variable, ``says`` what it comes to here; the sentence is all that
        they say. NaN where attention is standard, and on the answer where none is marked.

    Raises
    ------
    DiffscopeError
        There is no such token, or the capture is of several prompts.
    """
    cap = any_capture(cap).only()
    at = query_position(cap, query)
    estimates = beside_controls(with_fewest_spans(cap), lambda capture: _on_keys(capture, at)).assign(_of_layers(cap, at))
    estimates.attrs["irrelevant"] = irrelevant_in_words(cap.spans)
    if ranks:
        estimates["effective_rank"] = cap.measure("effective_rank")["effective_rank"].rename(control="rank_control")
    if not cap.differential:
        return Reading("It is standard attention: nothing is subtracted, so there is no amplifier to read.", estimates)
    says = {name: words for name, say in SAYS.items() if name in estimates and (words := say(estimates))}
    for name in READS.keys() & estimates.keys():
        estimates[name].attrs |= {"reads": READS[name]} | ({"says": says[name]} if name in says else {})
    start = f"{capital(place_of(at, cap.n_tokens))} of this one prompt:"
    return Reading(" ".join([start, *says.values()]), estimates)


def _on_keys(cap: Capture, query: int) -> xr.Dataset:
    """Measure what the two maps do on the key sets, (layer, head, span)."""
    measured = cap.measure(ON_KEYS, queries=[query]).isel(query=0, drop=True).reindex(span=list(SPANS))
    floor = measured["residual_floor"]
    over = described(
        measured["residual_noise"] / floor.where(floor > 0),
        "what the subtraction leaves over what the best coefficient leaves",
        "residual_noise / residual_floor",
        undefined="where the floor is, or is 0",
        averaged="median",
    )
    return measured.assign(residual_over_floor=over)


def _of_layers(cap: Capture, query: int) -> dict[str, xr.DataArray]:
    """Return λ, its initial value, the gain of A1 and the rejection that follows from them, each (layer, head)."""
    measured = cap.measure(["lambda", "cmrr"], queries=[query]).isel(query=0, drop=True)
    gains = measured["cmrr"].copy(data=np.full(measured["cmrr"].shape, np.nan))
    for row, layer in zip(gains.values, cap.layers):
        of_prompt = layer.prompt(0)
        row[: layer.n_heads] = of_prompt.gain[0].expand(layer.n_heads, of_prompt.n_queries)[:, query].cpu().numpy()
    initial = measured["lambda"].sel(lambda_value="init", drop=True)
    return {
        "lambda": measured["lambda"].sel(lambda_value="used", drop=True),
        "lambda_init": initial.assign_attrs(long_name="the constant λ_init of the formula of λ"),
        "gain": described(gains, "the coefficient of A1", "g"),
        "cmrr": measured["cmrr"],
    }


def _defined(*arrays: xr.DataArray) -> list[np.ndarray]:
    """Return the values of the heads for which all of some arrays (layer, head) are defined, each (head,)."""
    values = [array.transpose(*HEADS).values.ravel() for array in arrays]
    heads = np.all([~np.isnan(value) for value in values], axis=0)
    return [value[heads] for value in values]


def _heads(count: int, heads: int) -> str:
    return f"in {count} of {counted(heads, 'head')}"


def _of_lambda(estimates: xr.Dataset) -> str:
    (lam,) = _defined(estimates["lambda"])
    (initial,) = _defined(estimates["lambda_init"])
    began = f", λ_init of its formula {between(initial)}" if len(initial) else ""
    added = f" A2 is added where λ is negative, {_heads(int((lam < 0).sum()), len(lam))}." if (lam < 0).any() else ""
    return f"λ is {between(lam)}{began}.{added}"


def _of_cmrr(estimates: xr.Dataset) -> str:
    (decibels,) = _defined(estimates["cmrr"])
    if not len(decibels):
        return ""
    return f"Were both maps equal, what they share would be rejected by {between(decibels, two_figures)} dB."


def _of_lambda_star(estimates: xr.Dataset) -> str:
    star, lam = _defined(_on(estimates, "lambda_star"), estimates["lambda"] / estimates["gain"])
    if not len(star):
        return ""
    above = _heads(int((lam > star).sum()), len(star))
    start = f"On {estimates.attrs['irrelevant']} the coefficient that leaves least is {between(star)}"
    return f"{start}; {per_unit(estimates)} is above it {above}."


def _of_residual(estimates: xr.Dataset) -> str:
    (over,) = _defined(_on(estimates, "residual_over_floor"))
    if not len(over):
        return ""
    near = capital(_heads(int((over <= NEAR).sum()), len(over)))
    return f"{near} what λ leaves there is within {percent(NEAR - 1)} of the least possible."


def _of_floor(estimates: xr.Dataset) -> str:
    (floor,) = _defined(_on(estimates, "residual_floor"))
    if not len(floor):
        return ""
    own, least = _defined(_on(estimates, "residual_floor"), _on(estimates, "residual_floor", LEAST))
    control = f", below every control {_heads(int((own < least).sum()), len(own))}" if len(own) else ""
    return f"The least possible is {between(floor)} of A1{control}."


def _of_noise(estimates: xr.Dataset) -> str:
    (noise,) = _defined(_on(estimates, "noise_gain"))
    if not len(noise):
        return ""
    own, least = _defined(_on(estimates, "noise_gain"), _on(estimates, "noise_gain", LEAST))
    below = f"Noise gain on {estimates.attrs['irrelevant']} is below 1 {_heads(int((noise < 1).sum()), len(noise))}"
    signed = _signs(estimates, "irrelevant", estimates.attrs["irrelevant"])
    if not len(own):
        return f"{below}; there is no other A2 in a layer to compare with.{signed}"
    both = _heads(int(((own < 1) & (own < least)).sum()), len(own))
    return f"{below}; below 1 and every control {both} ({controls_of_each(estimates)}).{signed}"


def _signs(estimates: xr.Dataset, span: str, where: str) -> str:
    """Say in which heads D is partly negative on a span, and by how much."""
    noise, signal = (_on(estimates, name, span=span).drop_vars(["span", "control"]) for name in ("noise_gain", "signal_gain"))
    heads = by_head(noise, negative_of_gains(noise, signal) * noise, where)
    return f" {heads}" if heads else ""


def _of_signal(estimates: xr.Dataset) -> str:
    signal, noise = _defined(_on(estimates, "signal_gain", span="answer"), _on(estimates, "noise_gain"))
    if not len(signal):
        return ""
    above = f"Signal gain on the answer is above noise gain {_heads(int((signal > noise).sum()), len(signal))}"
    controls = _defined(_on(estimates, "signal_gain", MIDDLE, "answer"), _on(estimates, "noise_gain", MIDDLE))
    signed = _signs(estimates, "answer", "the answer")
    if not len(controls[0]):
        return f"{above}.{signed}"
    count = _heads(int((controls[0] > controls[1]).sum()), len(controls[0]))
    return f"{above}; by the medians over other heads' A2 {count}.{signed}"


def _of_ranks(estimates: xr.Dataset) -> str:
    ranks = estimates["effective_rank"].sel(ranked_map="lambda_A2", definition="erank")
    (uniform,), (permuted,) = (_defined(ranks.sel(rank_control=f"ratio_{control}")) for control in ("uniform", "permuted"))
    if not len(uniform) or not len(permuted):
        return ""
    over = f"{between(uniform)} times that of a uniform map and {between(permuted)} times that of its rows permuted"
    return f"The effective rank (erank) of λ·A2 is {over}."


SAYS: dict[str, Callable[[xr.Dataset], str]] = {
    "lambda": _of_lambda,
    "cmrr": _of_cmrr,
    "lambda_star": _of_lambda_star,
    "residual_over_floor": _of_residual,
    "residual_floor": _of_floor,
    "noise_gain": _of_noise,
    "signal_gain": _of_signal,
    "effective_rank": _of_ranks,
}


def per_unit(*estimates: xr.Dataset) -> str:
    """Name the coefficient of A2 if that of A1 is 1: λ, or λ over the gain g of A1 if any model has another gain."""
    gains = [each["gain"] for each in estimates]
    return "λ" if all(bool(((gain == 1) | gain.isnull()).all()) for gain in gains) else "λ / g"


def _on(estimates: xr.Dataset, name: str, control: str = OWN, span: str = "irrelevant") -> xr.DataArray:
    return estimates[name].sel(span=span, control=control)
