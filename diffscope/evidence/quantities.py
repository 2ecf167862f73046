"""From statistics of one model to the quantities that tests estimate: tables (prompt, layer, head) by name, controls taken off.

Ratios without a bound are never averaged as they are: they are ratios of sums (each prompt over the mean of what it is divided
by, so that their mean is the ratio of the sums) or logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import xarray as xr

from diffscope.evidence.last_query import LastQuery

Quantities = dict[str, xr.DataArray]
Read = Callable[..., Quantities]
NORMALISATIONS = ("share", "raw", "signed", "positive")
SIGNS = {"rho": ("", 1), "cosine": ("_cosine", -1), "js": ("_js", 1)}  # ρ and JS are small where maps agree, a cosine is large

#: labels of what edits cost the answer; that of other quantities is the name of the function that reads them
KNOCK_OUT = "knock_out"
A2_OUT = "a2_out"

#: the key set whose mass in A1 a ratio is over, and quantities that are one ratio minus another, by label
RATIOS = {
    "key_gain": dict.fromkeys(NORMALISATIONS, "answer"),
    "amplifier": {"noise_gain": "irrelevant", "noise_gain_without_needles": "context", "signal_gain": "answer"},
}
DIFFERENCES = {"amplifier": {"gain": ("noise_gain", "signal_gain")}}


def shared_noise(last_query: LastQuery) -> Quantities:
    """Return what the two maps share on irrelevant tokens and how they differ on the answer, above their controls."""
    heads = last_query.heads
    quantities = {}
    for statistic, (end, sign) in SIGNS.items():
        shared = sign * (heads[f"paired_{statistic}"] - heads[statistic])
        quantities[f"sharing{end}"] = _on(shared, "irrelevant")
        quantities[f"sharing_without_needles{end}"] = _on(shared, "context")
        answer = _on(heads[statistic], "answer")
        quantities[f"difference{end}"] = sign * (answer - heads[f"sized_{statistic}"])
        quantities[f"kind{end}"] = sign * (answer - heads[f"number_{statistic}"])
    return quantities


def amplifier(last_query: LastQuery) -> Quantities:
    """Return what the subtraction leaves of the noise, beside the least that any coefficient could leave, and its gains."""
    heads = last_query.heads
    quantities = {}
    for name, end in (("irrelevant", ""), ("context", "_without_needles")):
        floor = _on(heads["floor"], name)
        quantities[f"floor{end}"] = floor - _on(heads["paired_floor"], name)
        quantities[f"floor_itself{end}"] = floor
        quantities[f"excess{end}"] = octaves(_on(heads["residual"], name) / floor)
        quantities[f"noise_gain{end}"] = _on(heads["absolute"], name) / a1_on(last_query, name)
    quantities["signal_gain"] = _d(last_query, "raw") / a1_on(last_query, "answer")
    quantities["gain"] = quantities["noise_gain"] - quantities["signal_gain"]
    lam = heads["lam"] / heads["gain"]
    quantities["lam"] = lam
    # Of the common mode over that of the differential mode, of which nothing comes through where λ is −1.
    quantities["common_gain"] = 2 * abs(1 - lam) / abs(1 + lam).where(lam != -1)
    return quantities


def key_gain(last_query: LastQuery) -> Quantities:
    """Return the answer's mass in D over that in A1, minus 1: a ratio of sums over prompts, in four normalisations."""
    before = a1_on(last_query, "answer")
    return {name: _d(last_query, name) / before - 1 for name in NORMALISATIONS}


def answer_mass(last_query: LastQuery) -> Quantities:
    """Return the answer's and the other sentences' mass in D, in four normalisations."""
    masses = {name: _d(last_query, name) for name in NORMALISATIONS}
    return masses | {"needles": _d(last_query, "share", "needles"), "a1": _mass(last_query, "A1", "answer", "share")}


def a1_mass(last_query: LastQuery) -> Quantities:
    """Return A1's mass on the irrelevant tokens and on the text, which noise gains are over."""
    return {name: _mass(last_query, "A1", name, "raw") for name in ("irrelevant", "context")}


def sparser(last_query: LastQuery) -> Quantities:
    """Return by how much D (through |D|) is sparser than A1, in four measures."""
    d, a1 = (last_query.heads.sel(map=name, drop=True) for name in ("D", "A1"))
    return {
        "gini": d["gini"] - a1["gini"],
        "entropy": a1["entropy_normalised"] - d["entropy_normalised"],
        "hoyer": d["hoyer"] - a1["hoyer"],
        "pseudo_norm": octaves(a1["pseudo_norm"] / d["pseudo_norm"]),
    }


def sparsity_of_maps(last_query: LastQuery) -> Quantities:
    """Return the same measures of D, larger where it is sparser, and the Gini coefficient of A1."""
    d, a1 = (last_query.heads.sel(map=name, drop=True) for name in ("D", "A1"))
    return {
        "gini": d["gini"],
        "entropy": -d["entropy_normalised"],
        "hoyer": d["hoyer"],
        "pseudo_norm": -octaves(d["pseudo_norm"]),
        "gini_a1": a1["gini"],
    }


def sink_shares(last_query: LastQuery) -> Quantities:
    """Return the first token's share in D, A1 and A2 (one map is all three), the first four's in D, and D minus A1."""
    d, a1, a2 = (_mass(last_query, name, "sink", "share") for name in ("D", "A1", "A2"))
    a2 = a2 if last_query.differential else a1
    return {"d": d, "a1": a1, "a2": a2, "first_four": _d(last_query, "share", "first_four"), "kept": d - a1}


def lambda_fit(last_query: LastQuery) -> Quantities:
    """Return how far λ is from the coefficient that fits the mean map over prompts, (prompt,)."""
    return {"distance": last_query.by_prompt["lambda_distance"]}


def flow_shares(flows: xr.Dataset) -> Quantities:
    """Return shares of the information flow that come from the answer and from the other sentences."""
    return {
        "flow": flows["flow_answer"],
        "over_mass": flows["flow_answer"] - flows["mass_answer"],
        "needles": flows["flow_needles"],
    }


def pulls(flows: xr.Dataset) -> Quantities:
    """Return which way the loss pushes the scores of the two maps; nothing without a second map."""
    if "push" not in flows:
        return {}
    return {"push": flows["push"], "cosine": flows["cosine"], "ratio": flows["ratio_lambda"]}


def rank_ratios(ranks: xr.Dataset) -> Quantities:
    """Return five effective ranks of λA2: themselves, and in octaves over the uniform and the permuted control."""
    quantities = {}
    for definition in ranks["definition"].values:
        table = ranks.sel(definition=definition, drop=True)["rank"]
        quantities[f"{definition}"] = table.sel(control="map", drop=True)
        for control in ("uniform", "permuted"):
            quantities[f"{definition}_over_{control}"] = octaves(table.sel(control=f"ratio_{control}", drop=True))
    return quantities


def rejected_noise(injection: xr.Dataset) -> Quantities:
    """Return common-mode rejection in dB, on irrelevant tokens above the pairing control, and itself on every key set."""
    own = injection["cmrr_injected"].isel(sigma=0, drop=True)
    paired = injection["cmrr_injected_paired"].isel(sigma=0, drop=True)
    quantities = {"over_paired": _on(own - paired, "irrelevant")}
    return quantities | {name: _on(own, name) for name in ("irrelevant", "needles", "context", "answer") if name in own["span"]}


def noise_sweep(injection: xr.Dataset) -> Quantities:
    """Return common-mode rejection in dB, itself and above its pairing control, by strength of the noise and key set."""
    quantities = {}
    for sigma in injection["sigma"].values:
        for span in injection["span"].values:
            at = injection.sel(sigma=sigma, span=span, drop=True)
            quantities[f"{span}_{sigma:g}"] = at["cmrr_injected"]
            quantities[f"{span}_{sigma:g}_over_paired"] = at["cmrr_injected"] - at["cmrr_injected_paired"]
    return quantities


def parts_of_maps(anatomy: xr.Dataset) -> Quantities:
    """Return what the uniform row, distance, key and the other map explain of A1 and A2, and the rest: Shapley values."""
    shares = anatomy["shapley"]
    return {
        f"{name}_{part}": shares.sel(map=name, part=part, drop=True) for name in ("A1", "A2") for part in shares["part"].values
    }


def taken_back(attributions: xr.Dataset) -> Quantities:
    """Return whether A2 takes from the distractors what A1 gives them, above A2 of another prompt, and spares the answer."""
    quantities = {"rejection": attributions["rejection"] - attributions["rejection_control"]}
    quantities["rejection_itself"] = attributions["rejection"]
    if "branch" not in attributions.dims:
        return quantities
    margin, answer, distractors = (attributions[name] for name in ("margin", "answer", "distractors"))
    second, control = (margin.sel(branch=name, drop=True) for name in ("A2", "A2 of another prompt"))
    quantities |= {"margin": second - control, "margin_itself": second}
    return quantities | {"answer": answer.sel(branch="A2", drop=True), "distractors": distractors.sel(branch="A2", drop=True)}


def share_when(last_query: LastQuery, right: np.ndarray) -> Quantities:
    """Return the answer's share in D where the answer is right and where it is wrong, (prompt, layer, head)."""
    share = _d(last_query, "share")
    is_right = xr.DataArray(right > 0, dims="prompt")
    return {"right": share.where(is_right), "wrong": share.where(~is_right)}


#: functions of quantities, for each table that they are read off
OF_LAST_QUERY = (shared_noise, amplifier, key_gain, answer_mass, a1_mass, sparser, sparsity_of_maps, sink_shares)
OF_FLOWS = (flow_shares, pulls)
OF_INJECTION = (rejected_noise,)
OF_ATTRIBUTION = (taken_back,)


def named(functions: Iterable[Read], *taken: Any) -> Quantities:
    """Return the quantities of several functions of one table, by LABEL.NAME: a label is the name of its function."""
    return {f"{read.__name__}.{name}": array for read in functions for name, array in read(*taken).items()}


def a1_on(last_query: LastQuery, span: str) -> xr.DataArray:
    """Return A1's mass on a key set, mean over prompts: (layer, head)."""
    return _mass(last_query, "A1", span, "raw").mean("prompt")


def octaves(ratio: xr.DataArray) -> xr.DataArray:
    """Return log2 of what is above 0."""
    return np.log2(ratio.where(ratio > 0))


def _on(values: xr.DataArray, span: str) -> xr.DataArray:
    return values.sel(span=span, drop=True)


def _mass(last_query: LastQuery, name: str, span: str, normalisation: str) -> xr.DataArray:
    return last_query.heads["mass"].sel(map=name, span=span, normalisation=normalisation, drop=True)


def _d(last_query: LastQuery, normalisation: str, span: str = "answer") -> xr.DataArray:
    return _mass(last_query, "D", span, normalisation)
