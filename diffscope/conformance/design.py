"""Compare each layer with the convention that its family declares."""

from __future__ import annotations

from collections.abc import Iterator

from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF
from diffscope.conformance.description import in_words, schedule_offset, shares_keys
from diffscope.conformance.rebuilding import ObservedLayer
from diffscope.conformance.run import CheckRun
from diffscope.families import Convention
from diffscope.models import lambda_init_schedule

LAMBDA_TOLERANCE = 1e-3  # largest difference in float32, whose products may be in TF32
LAMBDA_IN_HALF = 0.1  # in half precision, which rounds the exponentials that λ is the difference of
OFFICIAL_NAIVE = "MultiheadDiffAttn"  # repeats K before it pairs the maps; its family warns of it


def check_design(run: CheckRun, observed: list[ObservedLayer]) -> None:
    """Report every deviation of a layer from its family's convention, a λ in float32 that is another, and every warning."""
    scope = run.scope
    layers_of: dict[tuple[str, str, str], list[int]] = {}
    numbers = scope.family.layers(scope.model)
    blocks = zip(numbers.items(), scope.family.depths(scope.model, list(numbers)))
    depths = {module: number if depth is None else depth for (module, number), depth in blocks}
    for each in observed:
        convention = scope.family.convention_of(each.module)
        if convention is not None and each.layer.differential:
            for deviation in _deviations(each, convention, depths[each.module]):
                layers_of.setdefault(deviation, []).append(each.layer.layer)
        for deviation in _lambda_in_float32(each.layer):
            layers_of.setdefault(deviation, []).append(each.layer.layer)
        for line in [*each.warnings, *scope.family.warnings(each.layer)]:
            layers_of.setdefault(("warn", "family", line), []).append(each.layer.layer)
    for (verdict, check, says), layers in layers_of.items():
        run.report.add(verdict, check, says, tuple(layers))


def _deviations(observed: ObservedLayer, convention: Convention, depth: int) -> Iterator[tuple[str, str, str]]:
    """Yield the verdict, check and message of every deviation of one layer, whose module is in block number `depth`."""
    layer = observed.layer
    if convention.schedule is not None and layer.lam_init is not None:
        yield _schedule(depth, layer.lam_init, convention.schedule)
    if convention.norm is not None and layer.norm is None:
        yield "fail", "norm", "the norm of the heads' outputs is missing"
    if convention.post_scale and layer.lam_init is not None and layer.post_scale == 1 and layer.lam_init != 0:
        yield "fail", "post-scale", "the factor (1 − λ_init) after the norm is missing"
    if convention.keys == "one a map" and shares_keys(layer) and type(observed.module).__name__ != OFFICIAL_NAIVE:
        yield "fail", "grouped keys", "K is repeated before the maps are paired, so both maps of a head look at one K head"


def _lambda_in_float32(layer: LayerAttention) -> Iterator[tuple[str, str, str]]:
    """Yield a failure, in half precision a warning, if ``lam_fp32`` differs from λ by more than rounding."""
    half = layer.q.dtype in HALF
    off = float((layer.lam.float() - layer.lam_fp32.float()).abs().max())
    if layer.differential and not off <= (LAMBDA_IN_HALF if half else LAMBDA_TOLERANCE):
        says = f"lam_fp32 is up to {off:.2g} off the λ that the model used; a family that sets lam sets lam_fp32 to the same λ"
        yield "warn" if half else "fail", "λ in float32", says


def _schedule(number: int, lam_init: float, expected: int) -> tuple[str, str, str]:
    """Return the verdict, check and message of whether λ_init of a layer is the paper's of layer + expected."""
    if abs(lam_init - lambda_init_schedule(number + expected)) < 1e-6:
        formula = f"the paper's of layer {in_words(expected)}" if expected else "0.8 − 0.6·exp(−0.3·l)"
        return "pass", "λ_init", f"λ_init of layer l is {formula}"
    offset = schedule_offset(number, lam_init)
    if offset is None:
        return "warn", "λ_init", f"λ_init = {lam_init:.4g} is not the paper's of this layer nor of one beside it"
    return "fail", "λ_init", f"λ_init of layer l is the paper's of {in_words(offset)}, where this family has {in_words(expected)}"
