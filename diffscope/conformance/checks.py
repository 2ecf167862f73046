"""Every reading proved on prompts that can fail it, and compared with its design."""

from __future__ import annotations

import inspect
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diffscope import edits
from diffscope.attention.fidelity import UNDECIDED
from diffscope.attention.layer import LayerAttention
from diffscope.conformance.prompts import LENGTH, SHORT, Prompts, check_length, declared_window, long_enough
from diffscope.conformance.report import VERDICTS, Finding, Report, differences, facts, in_words, schedule_offset, shares_keys
from diffscope.errors import DiffscopeError, FidelityError
from diffscope.families import AttentionPass, Convention, Family
from diffscope.families.coverage import unread_layers
from diffscope.families.model_call import CACHES
from diffscope.models import lambda_init_schedule
from diffscope.proof.fidelity import tolerated
from diffscope.proof.prove import prove
from diffscope.scope import Scope, load
from diffscope.scope.runners import ImageModel, LanguageModel

ORDERED = 8  # tokens of the prompt of which one after the other is changed
CHANGED = 0.05  # of the size of a query or key: less may be rounding
STEPS = 48  # of decoding from the cache
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}  # of logits, in their spread
Tell = Callable[[str], None]
OFFICIAL_NAIVE = "MultiheadDiffAttn"  # repeats K before it pairs the maps; its family warns of it


@dataclass(frozen=True)
class _Proof:
    """How well one layer was rebuilt, the likely cause where it was not, and why it is not decided where it is not."""

    number: int
    error: float
    tolerance: float
    decided: bool
    cause: str = ""
    reason: str = ""
    error_float32: float = math.nan


class _Look(NamedTuple):
    """One layer on one batch of prompts."""

    layer: LayerAttention
    module: nn.Module
    proof: _Proof
    warned: list[str]  # of the passage


def check(
    model: Scope | str | os.PathLike | nn.Module,
    tokenizer: Any = None,
    *,
    length: int = LENGTH,
    seed: int = 0,
    family: Family | None = None,
    device: Any = None,
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    progress: Callable[[int, int, str], object] | None = None,
) -> Report:
    """Check how a model attends against what its family does by design, on random prompts.

    Parameters
    ----------
    model : Scope, str, path or torch.nn.Module
        An opened model, or one to open.
    length : int
        Tokens of the long prompt, at most 4,096 and what the model has positions for; it is made longer where that is needed to
        exceed a window. The default is shortened to what the model takes.
    seed : int
        Of the random prompts.
    tokenizer, family, device, dtype, device_map, attn_implementation, trust_remote_code
        As for :func:`diffscope.load`; for an opened model they have no effect.
    progress : callable, optional
        Called with (runs of the model begun, runs in all, words); there are fewer where layers are not differential.

    Returns
    -------
    Report

    Raises
    ------
    DiffscopeError
        The model could not be run on any prompt, or takes none of that length; or as for :func:`diffscope.load`.
    """
    if isinstance(model, Scope):
        scope = model
    else:
        scope = load(
            model,
            tokenizer,
            device=device,
            dtype=dtype,
            device_map=device_map,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
            family=family,
        )
    check_length(scope, length)
    modules = scope.family.modules(scope.model)
    kinds = sorted({type(module).__name__ for module in modules})
    report = Report(
        scope.name,
        scope.family.name,
        f"{len(modules)} attention modules of class {', '.join(kinds)}: {scope.family.description}",
        scope.runner.implementation(scope.family),
        str(scope.runner.dtype).removeprefix("torch."),
        scope.family.tried_on,
    )
    window = declared_window(scope)
    prompts = Prompts(scope, seed, long_enough(scope, length, window))
    tell = _counted(progress, len(planned_runs(scope, length)))
    looks = _check_fidelity(scope, report, prompts, window, tell)
    if unread := unread_layers(scope.model, scope.family):
        report.findings.append(Finding("warn", "layers", unread))
    conventions = [scope.family.convention_of(look.module) for look in looks]
    report.layers = [facts(look.layer, convention) for look, convention in zip(looks, conventions)]
    _check_design(scope, report, looks)
    if not isinstance(scope.runner, ImageModel):
        _check_order(scope, report, prompts, tell)
    _check_second_map(scope, report, prompts, looks, tell)
    if isinstance(scope.runner, LanguageModel):
        _check_cache(scope, report, prompts, tell)
        _check_watching(scope, report, prompts, tell)
    report.findings.sort(key=lambda finding: VERDICTS.index(finding.verdict))
    report.differences = differences([look.layer for look in looks], conventions[0])
    return report


def planned_runs(scope: Scope, length: int = LENGTH) -> list[int]:
    """The tokens of every run of a model that :func:`check` makes, if all of its layers are differential."""
    long = long_enough(scope, length, declared_window(scope))
    fidelity = [long, long + max(2, long * 2 // 3)]
    second_map = 2 * scope.n_layers * [min(SHORT, long)]
    if not isinstance(scope.runner, ImageModel):
        fidelity.append(ORDERED * (ORDERED + 1))
    if not isinstance(scope.runner, LanguageModel):
        return fidelity + second_map
    steps = min(long // 2, STEPS)
    return [*fidelity, *second_map, long, long - steps, *(steps * [1]), *(2 * [min(SHORT, long)])]


def _counted(progress: Callable[[int, int, str], object] | None, total: int) -> Tell:
    """What each run is announced to by its words."""
    count = itertools.count()

    def tell(words: str) -> None:
        if progress:
            progress(min(next(count), total), total, words)

    return tell


# fidelity


def _look(scope: Scope, batch: list) -> list[_Look]:
    """Every layer on a batch of prompts, whether what its family reads rebuilds the model's output or not."""
    inputs = scope.prepare(batch if len(batch) > 1 else batch[0])
    looks: list[_Look] = []

    def take(passage: AttentionPass) -> None:
        scope.runner.check_tokens(passage)
        scope.runner.check_batch(scope.family.read(passage))
        looks.append(_looked(scope, passage))

    with scope.hooked(take, lengths=inputs.lengths):
        scope.run(inputs, columns=[0])  # all logits of long prompts would fill the memory
    if not looks:
        raise DiffscopeError(f"{scope.name} ran without calling any of its attention modules")
    if len({look.proof.number for look in looks}) < len(looks):
        raise DiffscopeError("the model attends more than once in a layer, where diffscope reads one attention a layer")
    return looks


def _looked(scope: Scope, passage: AttentionPass) -> _Look:
    try:
        layer, proof = prove(scope.family, passage)
    except FidelityError as error:
        cause = str(error).partition("); ")[2] or str(error)
        layer = scope.family.read(passage)
        tolerance = tolerated(layer, passage.observed.dtype)
        return _Look(layer, passage.module, _Proof(layer.layer, float("nan"), tolerance, False, cause), passage.warnings)
    proof_of_layer = _Proof(
        layer.layer, proof.error, proof.tolerance, proof.decided, reason=proof.reason, error_float32=proof.error_float32
    )
    return _Look(layer, passage.module, proof_of_layer, passage.warnings)


def _check_fidelity(scope: Scope, report: Report, prompts: Prompts, window: int | None, tell: Tell) -> list[_Look]:
    """Report on three kinds of prompts; returns the layers on the long one."""
    kinds = {f"a prompt of {prompts.long} tokens": [prompts.of_length(prompts.long)]}
    if isinstance(scope.runner, ImageModel):
        kinds = {"an image": [prompts.of_length(0)], "two images": [prompts.of_length(0), prompts.of_length(0)]}
    else:
        kinds["two prompts, one of them padded"] = [
            prompts.of_length(prompts.long),
            prompts.of_length(max(2, prompts.long * 2 // 3)),
        ]
    every: list[list[_Look]] = []
    for kind, batch in kinds.items():
        tell(f"rebuilding what it attends with: {kind}")
        try:
            looks = _look(scope, batch)
        except DiffscopeError as error:
            report.findings.append(Finding("undecided", "fidelity", f"{kind}: {error}"))
            continue
        every.append(looks)
        _judge(report, kind, [look.proof for look in looks])
    if not every:
        raise DiffscopeError(f"{scope.name} could not be run on any prompt; the last reason: {report.findings[-1].says}")
    all_looks = [look for looks in every for look in looks]
    _judge_decided(report, all_looks)
    for look in all_looks:
        report.note(look.proof.number, look.proof.error, look.proof.tolerance)
    if unseen := tuple(sorted({*scope.layer_numbers} - {look.proof.number for look in all_looks})):
        report.findings.append(Finding("undecided", "fidelity", "the model did not run the attention of these layers", unseen))
    if window is not None and prompts.long <= window:
        says = f"the prompts are no longer than the window of {window}; the window itself was not seen at work"
        report.findings.append(Finding("undecided", "window", says))
    return every[0]


def _judge(report: Report, kind: str, proofs: list[_Proof]) -> None:
    """Report how well the layers were rebuilt on one kind of prompts."""
    report.fidelity[kind] = float(torch.tensor([proof.error for proof in proofs]).max())  # a NaN stays a NaN
    for cause in dict.fromkeys(proof.cause for proof in proofs if proof.cause):
        layers = _numbers(proof for proof in proofs if proof.cause == cause)
        report.findings.append(Finding("fail", "fidelity", f"{kind}: not what the model computed; {cause}", layers))
    good = [proof for proof in proofs if not proof.cause]
    if good:
        says = f"{kind}: rebuilt to {max(proof.error for proof in good):.1e} (tolerance {good[0].tolerance:.0e})"
        in_float32 = [proof.error_float32 for proof in good if not math.isnan(proof.error_float32)]
        says += f"; each layer run in float32: {max(in_float32):.1e}" if in_float32 else ""
        report.findings.append(Finding("pass", "fidelity", says, _numbers(good)))


def _numbers(proofs: Iterable[_Proof]) -> tuple[int, ...]:
    """The layers' numbers, each once, however many steps there were."""
    return tuple(dict.fromkeys(proof.number for proof in proofs))


def _judge_decided(report: Report, looks: list[_Look]) -> None:
    """Report whether the same comparison would have refused other pairings, on some prompt."""
    decided = {look.proof.number for look in looks if look.proof.decided}
    proved = {look.proof.number for look in looks if not look.proof.cause and look.layer.differential}
    # A standard layer has no pairing to decide; it may have a formula that half precision cannot.
    open_formulas = {look.proof.number for look in looks if look.proof.reason not in ("", UNDECIDED)}
    wanted = (proved | open_formulas) - decided
    reasons = {look.proof.number: look.proof.reason for look in looks if look.proof.number in wanted}
    for reason in dict.fromkeys(reasons.values()):
        layers = tuple(sorted(number for number, why in reasons.items() if why == reason))
        report.findings.append(Finding("undecided", "pairing", reason, layers))
    if sure := tuple(sorted(proved & decided)):
        report.findings.append(Finding("pass", "pairing", "every other pairing of the maps is refused", sure))


# design


def _check_design(scope: Scope, report: Report, looks: list[_Look]) -> None:
    """Compare what was read with what the family does by design."""
    layers_of: dict[tuple[str, str, str], list[int]] = {}
    modules = scope.family.modules(scope.model)
    places = zip(scope.family.depths(scope.model), scope.family.numbers(scope.model))
    depths = {module: number if depth is None else depth for module, (depth, number) in zip(modules, places)}
    for look in looks:
        convention = scope.family.convention_of(look.module)
        if convention is not None and look.layer.differential:
            for verdict, name, says in _deviations(look, convention, depths[look.module]):
                layers_of.setdefault((verdict, name, says), []).append(look.layer.layer)
        for line in [*look.warned, *scope.family.warnings(look.layer)]:
            layers_of.setdefault(("warn", "family", line), []).append(look.layer.layer)
    report.findings += [Finding(*what, layers=tuple(layers)) for what, layers in layers_of.items()]


def _deviations(look: _Look, convention: Convention, depth: int) -> Iterator[tuple[str, str, str]]:
    """(verdict, check, what is said) of one layer, whose module is in the block of number `depth`."""
    layer = look.layer
    if convention.schedule is not None and layer.lam_init is not None:
        yield _schedule(depth, layer.lam_init, convention.schedule)
    if convention.norm is not None and layer.norm is None:
        yield "fail", "norm", "the norm of the heads' outputs is missing"
    if convention.post_scale and layer.lam_init is not None and layer.post_scale == 1 and layer.lam_init != 0:
        yield "fail", "post-scale", "the factor (1 − λ_init) after the norm is missing"
    if convention.keys == "one a map" and shares_keys(layer) and type(look.module).__name__ != OFFICIAL_NAIVE:
        yield "fail", "grouped keys", "K is repeated before the maps are paired, so both maps of a head look at one K head"


def _schedule(number: int, lam_init: float, expected: int) -> tuple[str, str, str]:
    """Whether λ_init of a layer is the paper's of layer + expected."""
    if abs(lam_init - lambda_init_schedule(number + expected)) < 1e-6:
        formula = f"the paper's of layer {in_words(expected)}" if expected else "0.8 − 0.6·exp(−0.3·l)"
        return "pass", "λ_init", f"λ_init of layer l is {formula}"
    offset = schedule_offset(number, lam_init)
    if offset is None:
        return "warn", "λ_init", f"λ_init = {lam_init:.4g} is not the paper's of this layer nor of one beside it"
    return "fail", "λ_init", f"λ_init of layer l is the paper's of {in_words(offset)}, where this family has {in_words(expected)}"


# order of the tokens, effect of the second map, and the cache


def _check_order(scope: Scope, report: Report, prompts: Prompts, tell: Tell) -> None:
    """Under a causal mask a token changes neither queries nor keys of those before it, if they are in the prompt's order."""
    prompt = prompts.of_length(min(ORDERED, prompts.long))
    size = scope.runner.vocabulary or 1
    changed = [[*prompt[:at], (token + 1) % size, *prompt[at + 1 :]] for at, token in enumerate(prompt)]
    ids = torch.tensor([prompt, *changed])
    disordered: dict[int, None] = {}

    def take(passage: AttentionPass) -> None:
        layer = scope.family.read(passage)
        if layer.mask.kind in ("causal", "window") and any(map(_changed_before, (layer.q, layer.k))):
            disordered[layer.layer] = None

    tell("changing one token after the other")
    lengths = (len(prompt),) * len(ids)
    try:
        with scope.hooked(take, lengths=lengths):
            scope.logits(ids, 1)
    except DiffscopeError as error:
        report.findings.append(Finding("undecided", "order of tokens", str(error)))
        return
    if disordered:
        says = "a token changes queries or keys of those before it: the model puts tokens into another order before it attends"
        report.findings.append(Finding("fail", "order of tokens", says, tuple(disordered)))


def _changed_before(x: Tensor) -> bool:
    """Whether queries or keys (prompt, head, token, d) before token i of prompt i + 1 differ from those of prompt 0."""
    off = (x[1:] - x[0]).float().norm(dim=(1, 3)) / x[0].float().norm(dim=(0, 2)).clamp_min(1e-30)  # (changed token, token)
    return bool((off > CHANGED).tril(-1).any())


def _logits(scope: Scope, prompt: Any, columns: list[int] | None = None) -> Tensor:
    """Logits of one prompt, (token, vocabulary), of some positions or of all."""
    return scope.run(scope.prepare(prompt), columns)[0].float()


def _check_second_map(scope: Scope, report: Report, prompts: Prompts, looks: list[_Look], tell: Tell) -> None:
    """Changing A2 must change the logits, layer by layer."""
    read = [look.layer for look in looks if look.layer.differential and not look.proof.cause]
    idle = {layer.layer: reason for layer in read if (reason := _idle(layer))}
    for reason in dict.fromkeys(idle.values()):
        unused = tuple(number for number, why in idle.items() if why == reason)
        report.findings.append(Finding("undecided", "second map", f"{reason}, so A2 has no effect to be seen", unused))
    layers = [layer.layer for layer in read if layer.layer not in idle]
    if not layers:
        return
    prompt = prompts.of_length(min(SHORT, prompts.long))
    dead: list[int] = []
    failed: list[int] = []
    for layer in layers:
        try:
            with scope.edit(edits.scale_lambda(1.0, layers=layer)):  # rebuilt as well, so rounded alike
                tell(f"changing the second map of layer {layer}")
                plain = _logits(scope, prompt)
            with scope.edit(edits.uniform_a2(layers=layer)):
                tell(f"changing the second map of layer {layer}")
                changed = _logits(scope, prompt)
        except FidelityError:
            failed.append(layer)
            continue
        if not (changed - plain).abs().max() > 0:
            dead.append(layer)
    if dead:
        says = "changing A2 does not change the logits: the layer's output is not used"
        report.findings.append(Finding("fail", "second map", says, tuple(dead)))
    if alive := tuple(layer for layer in layers if layer not in (*dead, *failed)):
        report.findings.append(Finding("pass", "second map", "changing A2 changes the logits", alive))


def _idle(layer: LayerAttention) -> str:
    """Why changing A2 can have no effect in a layer; empty where it can."""
    if not layer.lam.any():
        return "λ is 0"
    queries = torch.arange(layer.n_queries, device=layer.q.device)
    seen = layer.mask.counts(queries, layer.n_keys, layer.n_keys - layer.n_queries)
    return "every query sees one key, on which both maps are 1" if int(seen.max()) < 2 else ""


def _check_cache(scope: Scope, report: Report, prompts: Prompts, tell: Tell) -> None:
    """Decoding step by step must give the logits of one pass, and every step must prove itself."""
    if "past_key_values" not in inspect.signature(scope.model.forward).parameters:
        report.findings.append(Finding("undecided", "cached decoding", "the model takes no cache"))
        return
    prompt = prompts.of_length(prompts.long)  # beyond a window, so that its cache has to let go of keys
    ids = torch.tensor([prompt], device=scope.runner.device)
    n = len(prompt)
    first = n - min(n // 2, STEPS)
    steps = [slice(0, first), *(slice(i, i + 1) for i in range(first, n))]
    tell("decoding step by step")
    full = _logits(scope, prompt, list(range(first - 1, n)))
    proofs: list[_Proof] = []
    failed: set[int] = set()
    causes: dict[str, None] = {}
    rows = []
    cache = None

    def take(passage: AttentionPass) -> None:
        causes.update(dict.fromkeys(_wrong_caching(passage)))
        if passage.number in failed:  # why it is, which takes long to find, is known
            return
        proof = _looked(scope, passage).proof  # not the layer: every step has all keys so far
        proofs.append(proof)
        if proof.cause:
            failed.add(passage.number)

    with scope.exclusively(), torch.no_grad(), scope.hooked(take):
        for step in steps:
            tell("decoding step by step")
            out = scope.model(ids[:, step], past_key_values=cache, use_cache=True)
            rows.append(out.logits[0, -1:].float())
            cache = out.past_key_values
            if cache is None:
                report.findings.append(Finding("undecided", "cached decoding", "the model returns no cache"))
                return
    off = float((torch.cat(rows) - full).abs().max() / full.std())
    if not off <= ROUNDING[scope.runner.dtype]:
        says = f"step by step the logits differ from those of one pass by {off:.1e} of their spread"
        cause = "".join(f"; likely cause: {cause}" for cause in causes)
        report.findings.append(Finding("fail", "cached decoding", says + cause))
        return
    says = f"step by step the logits are those of one pass (to {off:.1e} of their spread)"
    report.findings.append(Finding("pass", "cached decoding", says))
    _judge(report, "steps from the cache", proofs)


def _check_watching(scope: Scope, report: Report, prompts: Prompts, tell: Tell) -> None:
    """A model must compute the same whether it is observed or not; some ask which attention implementation they are set to."""
    if not scope.family.interface:
        return
    prompt = prompts.of_length(min(SHORT, prompts.long))
    tell("running it unobserved")
    alone = _logits(scope, prompt)
    tell("running it observed")
    with scope.hooked():
        watched = _logits(scope, prompt)
    off = float((watched - alone).abs().max() / alone.std())
    if not off <= ROUNDING[scope.runner.dtype]:
        says = f"the model computes something else when it is observed: its logits differ by {off:.1e} of their spread"
        report.findings.append(Finding("fail", "observation", says))


def _wrong_caching(passage: AttentionPass) -> Iterator[str]:
    """What is known to go wrong between modules and their caches, as seen before an output projection."""
    kind = type(passage.module).__name__
    taken = inspect.signature(type(passage.module).forward).parameters
    for name in CACHES:
        if passage.arguments.get(name) is not None and name not in taken and passage.cache_layer is None:
            other = next((known for known in CACHES if known in taken), "no cache")
            yield f"{kind} takes {other} and is given {name}, so it keeps no keys; generate with use_cache=False"
    if getattr(passage.cache_layer, "sliding_window", None) == 1:
        yield "a cache for a window of one key lets go of none, so that steps see all of them; generate with use_cache=False"
