"""Rebuild each layer's output on several kinds of prompts, and judge how close it comes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from diffscope.attention.fidelity import UNDECIDED, Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.conformance.report import Report
from diffscope.conformance.run import CheckRun
from diffscope.errors import DiffscopeError, FidelityError
from diffscope.families import AttentionPass
from diffscope.proof.prove import prove_passage
from diffscope.proof.tolerance import tolerated
from diffscope.scope import Scope
from diffscope.scope.images import ImageModel
from diffscope.scope.two_sides import Denoiser


class LayerProof(NamedTuple):
    """How close one layer was rebuilt.

    Attributes
    ----------
    number : int
        The layer.
    fidelity : Fidelity
        Of a refused layer its error is NaN.
    cause : str
        Likely cause of a refusal; empty if the layer was rebuilt.
    """

    number: int
    fidelity: Fidelity
    cause: str = ""


class ObservedLayer(NamedTuple):
    """One layer as it ran on one batch of prompts.

    Attributes
    ----------
    layer : LayerAttention
    module : torch.nn.Module
    proof : LayerProof
    warnings : list of str
        Of the pass through the module.
    """

    layer: LayerAttention
    module: nn.Module
    proof: LayerProof
    warnings: list[str]


def check_fidelity(run: CheckRun, window: int | None) -> list[ObservedLayer]:
    """Report how well layers are rebuilt on a long prompt and on a padded batch; return the layers on the long prompt.

    Parameters
    ----------
    run : CheckRun
    window : int or None
        The widest attention window that the model declares.

    Raises
    ------
    DiffscopeError
        The model could not be run on any prompt.
    """
    scope, report, prompts, _ = run
    observed_by_kind: list[list[ObservedLayer]] = []
    for kind, batch in batches(run).items():
        run.announce(f"rebuilding what it attends with: {kind}")
        try:
            observed = observe_layers(scope, batch)
        except DiffscopeError as error:
            report.add("undecided", "fidelity", f"{kind}: {error}")
            continue
        observed_by_kind.append(observed)
        judge(report, kind, [each.proof for each in observed])
    if not observed_by_kind:
        raise DiffscopeError(f"{scope.name} could not be run on any prompt; the last reason: {report.findings[-1].says}")
    all_observed = [each for observed in observed_by_kind for each in observed]
    _judge_decided(report, all_observed)
    for each in all_observed:
        report.note(each.proof.number, each.proof.fidelity.error, each.proof.fidelity.tolerance)
    if unseen := tuple(sorted({*scope.layer_numbers} - {each.proof.number for each in all_observed})):
        report.add("undecided", "fidelity", "the model did not run the attention of these layers", unseen)
    if window is not None and prompts.long <= window:
        says = f"the prompts are no longer than the window of {window}; the window itself was not seen at work"
        report.add("undecided", "window", says)
    return observed_by_kind[0]


def batches(run: CheckRun) -> dict[str, list]:
    """Return the batches of prompts that layers are rebuilt on, by their description."""
    prompts = run.prompts
    if isinstance(run.scope.runner, ImageModel):
        return {"an image": [prompts.of_length(0)], "two images": [prompts.of_length(0), prompts.of_length(0)]}
    if isinstance(run.scope.runner, Denoiser):
        return {
            f"{prompts.long} latents": [prompts.of_length(prompts.long)],
            "two of them": [prompts.of_length(prompts.long) for _ in "12"],
        }
    long, short = prompts.long, max(2, prompts.long * 2 // 3)
    return {
        f"a prompt of {long} tokens": [prompts.of_length(long)],
        "two prompts, one of them padded": [prompts.of_length(long), prompts.of_length(short)],
    }


def observe_layers(scope: Scope, batch: list) -> list[ObservedLayer]:
    """Run a batch of prompts, and return every layer with its proof, also layers that are refused.

    Raises
    ------
    DiffscopeError
        The model calls no attention module, or attends more than once in a layer.
    """
    inputs = scope.prepare(batch if len(batch) > 1 else batch[0], embedded=True)
    observed: list[ObservedLayer] = []

    def take(passage: AttentionPass) -> None:
        scope.runner.check_tokens(passage)
        scope.runner.check_batch(scope.family.read(passage))
        observed.append(observe(scope, passage))

    with scope.exclusively(inputs.lengths, False, inputs.key_lengths), scope.hooked(take, lengths=inputs.lengths):
        scope.run(inputs, columns=[0])  # all logits of long prompts would fill the memory
    if not observed:
        raise DiffscopeError(f"{scope.name} ran without calling any of its attention modules")
    if len({each.proof.number for each in observed}) < len(observed):
        raise DiffscopeError("the model attends more than once in a layer, where diffscope reads one attention a layer")
    return observed


def observe(scope: Scope, passage: AttentionPass) -> ObservedLayer:
    """Return a layer with its proof, or with the likely cause of its refusal."""
    try:
        layer, fidelity = prove_passage(scope.family, passage)
        cause = ""
    except FidelityError as error:
        cause = str(error).partition("); ")[2] or str(error)
        layer = scope.family.read(passage)
        fidelity = Fidelity(math.nan, tolerated(layer, passage.observed.dtype), rows=0, decided=False)
    return ObservedLayer(layer, passage.module, LayerProof(layer.layer, fidelity, cause), passage.warnings)


def judge(report: Report, kind: str, proofs: list[LayerProof]) -> None:
    """Report how well layers were rebuilt on one kind of prompts."""
    report.fidelity[kind] = float(torch.tensor([proof.fidelity.error for proof in proofs]).max())  # a NaN stays a NaN
    for cause in dict.fromkeys(proof.cause for proof in proofs if proof.cause):
        layers = _numbers(proof for proof in proofs if proof.cause == cause)
        report.add("fail", "fidelity", f"{kind}: not what the model computed; {cause}", layers)
    rebuilt = [proof for proof in proofs if not proof.cause]
    if rebuilt:
        worst = max((proof.fidelity for proof in rebuilt), key=lambda fidelity: fidelity.error)
        says = f"{kind}: rebuilt to {worst.error:.1e} (tolerance {worst.tolerance:.0e})"
        in_float32 = [error for proof in rebuilt if not math.isnan(error := proof.fidelity.error_float32)]
        says += f"; each layer run in float32: {max(in_float32):.1e}" if in_float32 else ""
        report.add("pass", "fidelity", says, _numbers(rebuilt))


def _numbers(proofs: Iterable[LayerProof]) -> tuple[int, ...]:
    """Return the number of every layer once, in the order of the proofs."""
    return tuple(dict.fromkeys(proof.number for proof in proofs))


def _judge_decided(report: Report, observed: list[ObservedLayer]) -> None:
    """Report whether the same comparison would have refused other pairings, on any of the prompts."""
    decided = {each.proof.number for each in observed if each.proof.fidelity.decided}
    proved = {each.proof.number for each in observed if not each.proof.cause and each.layer.differential}
    # A standard layer has no pairing to decide, but it may have a formula that half precision cannot decide.
    open_formulas = {each.proof.number for each in observed if each.proof.fidelity.reason not in ("", UNDECIDED)}
    undecided = (proved | open_formulas) - decided
    reasons = {each.proof.number: each.proof.fidelity.reason for each in observed if each.proof.number in undecided}
    for reason in dict.fromkeys(reasons.values()):
        layers = tuple(sorted(number for number, of_layer in reasons.items() if of_layer == reason))
        report.add("undecided", "pairing", reason, layers)
    if certain := tuple(sorted(proved & decided)):
        report.add("pass", "pairing", "every other pairing of the maps is refused", certain)
