"""Check how a model behaves: the order of its tokens, the effect of its second maps, its cache, and whether hooks change it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diffscope import edits
from diffscope.attention.layer import LayerAttention
from diffscope.conformance.prompts import SHORT
from diffscope.conformance.rebuilding import LayerProof, ObservedLayer, judge, observe
from diffscope.conformance.run import CheckRun
from diffscope.errors import DiffscopeError, FidelityError
from diffscope.families import AttentionPass
from diffscope.families.model_call import CACHES

ORDERED = 8  # tokens of the prompt in which each token is changed in turn
CHANGED = 0.05  # of the size of a query or key; a smaller change may be rounding
STEPS = 48  # of decoding from the cache
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}  # of logits, in their spread


def check_order(run: CheckRun) -> None:
    """Report layers with a causal mask in which a token changes queries or keys before it."""
    scope, report, prompts, announce = run
    prompt = prompts.of_length(min(ORDERED, prompts.long))
    size = scope.runner.vocabulary or 1
    changed = [[*prompt[:at], (token + 1) % size, *prompt[at + 1 :]] for at, token in enumerate(prompt)]
    ids = torch.tensor([prompt, *changed])
    disordered: dict[int, None] = {}

    def take(passage: AttentionPass) -> None:
        readings = list(scope.family.readings(passage))  # of which one is right; heads taken for tokens are in no order
        if all(layer.mask.kind in ("causal", "window") and any(map(_changed_before, (layer.q, layer.k))) for layer in readings):
            disordered[passage.number] = None

    announce("changing one token after the other")
    lengths = (len(prompt),) * len(ids)
    try:
        with scope.hooked(take, lengths=lengths):
            scope.logits(ids, 1)
    except DiffscopeError as error:
        report.add("undecided", "order of tokens", str(error))
        return
    if disordered:
        says = "a token changes queries or keys of those before it: the model puts tokens into another order before it attends"
        report.add("fail", "order of tokens", says, tuple(disordered))


def _changed_before(x: Tensor) -> bool:
    """Return whether queries or keys (prompt, head, token, d) before token i of prompt i + 1 differ from those of prompt 0."""
    off = (x[1:] - x[0]).float().norm(dim=(1, 3)) / x[0].float().norm(dim=(0, 2)).clamp_min(1e-30)  # (changed token, token)
    return bool((off > CHANGED).tril(-1).any())


def check_second_map(run: CheckRun, observed: list[ObservedLayer]) -> None:
    """Report, layer by layer, whether a change of A2 changes the logits."""
    report, prompts = run.report, run.prompts
    rebuilt = [each.layer for each in observed if each.layer.differential and not each.proof.cause]
    without_effect = {layer.layer: reason for layer in rebuilt if (reason := _why_without_effect(layer))}
    for reason in dict.fromkeys(without_effect.values()):
        unused = tuple(number for number, of_layer in without_effect.items() if of_layer == reason)
        report.add("undecided", "second map", f"{reason}, so A2 has no effect to be seen", unused)
    layers = [layer.layer for layer in rebuilt if layer.layer not in without_effect]
    if not layers:
        return
    prompt = prompts.of_length(min(SHORT, prompts.long))
    effects = {layer: _effect_of_a2(run, layer, prompt) for layer in layers}
    if dead := tuple(layer for layer, effect in effects.items() if effect is False):
        says = "changing A2 does not change the logits: the layer's output is not used"
        report.add("fail", "second map", says, dead)
    if alive := tuple(layer for layer, effect in effects.items() if effect):
        report.add("pass", "second map", "changing A2 changes the logits", alive)


def _why_without_effect(layer: LayerAttention) -> str:
    """Return the reason why a change of A2 can have no effect in a layer; empty if it can have one."""
    if not layer.lam.any():
        return "λ is 0"
    queries = torch.arange(layer.n_queries, device=layer.q.device)
    visible = layer.mask.counts(queries, layer.n_keys, layer.offset)
    return "every query sees one key, on which both maps are 1" if int(visible.max()) < 2 else ""


def _effect_of_a2(run: CheckRun, layer: int, prompt: list[int]) -> bool | None:
    """Return whether a uniform A2 changes the logits; None if the layer is refused under an edit."""
    words = f"changing the second map of layer {layer}"
    logits = []
    for edit in (edits.scale_lambda(1.0, layers=layer), edits.uniform_a2(layers=layer)):  # both rebuild it, and round alike
        try:
            with run.scope.edit(edit):
                run.announce(words)
                logits.append(run.logits(prompt))
        except FidelityError:
            return None
    plain, changed = logits
    return bool((changed - plain).abs().max() > 0)


@dataclass
class _Decoding:
    """Logits of every step of decoding, proofs of every layer at every step, and causes of mistakes."""

    logits: list[Tensor] = field(default_factory=list)  # (1, vocabulary) each
    proofs: list[LayerProof] = field(default_factory=list)
    causes: dict[str, None] = field(default_factory=dict)


def check_cache(run: CheckRun) -> None:
    """Report whether decoding step by step gives the logits of one pass, and whether every step is rebuilt."""
    scope, report, prompts, announce = run
    if "past_key_values" not in inspect.signature(scope.model.forward).parameters:
        report.add("undecided", "cached decoding", "the model takes no cache")
        return
    prompt = prompts.of_length(prompts.long)  # longer than a window, so that its cache has to drop keys
    n = len(prompt)
    first = n - min(n // 2, STEPS)
    announce("decoding step by step")
    full = run.logits(prompt, list(range(first - 1, n)))
    try:
        decoding = _decode(run, prompt, first)
    except DiffscopeError as error:  # such as of a cache of its own kind
        report.add("undecided", "cached decoding", str(error))
        return
    if decoding is None:
        report.add("undecided", "cached decoding", "the model returns no cache")
        return
    off = float((torch.cat(decoding.logits) - full).abs().max() / full.std())
    if not off <= ROUNDING[scope.runner.dtype]:
        says = f"step by step the logits differ from those of one pass by {off:.1e} of their spread"
        report.add("fail", "cached decoding", says + "".join(f"; likely cause: {cause}" for cause in decoding.causes))
        return
    report.add("pass", "cached decoding", f"step by step the logits are those of one pass (to {off:.1e} of their spread)")
    judge(report, "steps from the cache", decoding.proofs)


def _decode(run: CheckRun, prompt: list[int], first: int) -> _Decoding | None:
    """Run the first tokens of a prompt at once and the rest one by one; return None if the model returns no cache."""
    scope = run.scope
    ids = torch.tensor([prompt], device=scope.runner.device)
    steps = [slice(0, first), *(slice(at, at + 1) for at in range(first, len(prompt)))]
    decoding = _Decoding()
    refused: set[int] = set()
    cache = None

    def take(passage: AttentionPass) -> None:
        decoding.causes.update(dict.fromkeys(_cache_mistakes(passage)))
        if passage.number in refused:  # its cause, which takes long to find, is known
            return
        proof = observe(scope, passage).proof  # without the layer: every step has all earlier keys
        decoding.proofs.append(proof)
        if proof.cause:
            refused.add(passage.number)

    with scope.exclusively(), torch.no_grad(), scope.hooked(take):
        for step in steps:
            run.announce("decoding step by step")
            out = scope.model(ids[:, step], past_key_values=cache, use_cache=True)
            decoding.logits.append(out.logits[0, -1:].float())
            cache = out.past_key_values
            if cache is None:
                return None
    return decoding


def _cache_mistakes(passage: AttentionPass) -> Iterator[str]:
    """Yield the known mistakes between a module and its cache that show before the output projection."""
    kind = type(passage.module).__name__
    parameters = inspect.signature(type(passage.module).forward).parameters
    for name in CACHES:
        if passage.arguments.get(name) is not None and name not in parameters and passage.cache_layer is None:
            other = next((known for known in CACHES if known in parameters), "no cache")
            yield f"{kind} takes {other} and is given {name}, so it keeps no keys; generate with use_cache=False"
    if getattr(passage.cache_layer, "sliding_window", None) == 1:
        yield "a cache for a window of one key lets go of none, so that steps see all of them; generate with use_cache=False"


def check_observation(run: CheckRun) -> None:
    """Report whether a model computes something else when it is observed, as it may if it asks for its implementation."""
    scope, report, prompts, announce = run
    if not scope.family.interface:
        return
    prompt = prompts.of_length(min(SHORT, prompts.long))
    announce("running it unobserved")
    alone = run.logits(prompt)
    announce("running it observed")
    with scope.hooked():
        observed = run.logits(prompt)
    off = float((observed - alone).abs().max() / alone.std())
    if not off <= ROUNDING[scope.runner.dtype]:
        says = f"the model computes something else when it is observed: its logits differ by {off:.1e} of their spread"
        report.add("fail", "observation", says)
