"""What a conformance check says: findings, and a model's attention in words and numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from diffscope import render as display
from diffscope.attention.changes import Reshape
from diffscope.attention.layer import LayerAttention
from diffscope.families.base import HALVES, STRIPES, Convention
from diffscope.models import lambda_init_schedule

VERDICTS = ("fail", "warn", "undecided", "pass")


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    verdict : {"pass", "warn", "undecided", "fail"}
    check, says : str
    layers : tuple of int
        Where; empty for the model as a whole.
    """

    verdict: str
    check: str
    says: str
    layers: tuple[int, ...] = ()


@dataclass(repr=False)
class Report:
    """What :func:`check` found.

    Attributes
    ----------
    model, family, why, attention, dtype, tried_on : str
    fidelity : dict of str to float
        The worst layer's error on each kind of prompt, NaN where a layer was not rebuilt.
    errors, tolerances : dict of int to float
        Each layer's worst error over all prompts, and what was tolerated there.
    layers : list of dict
        What each layer does, as read from its tensors.
    findings : list of Finding
    differences : list of str
        From the paper's V1, by design.
    """

    model: str
    family: str
    why: str
    attention: str
    dtype: str
    tried_on: str
    fidelity: dict[str, float] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)
    tolerances: dict[int, float] = field(default_factory=dict)
    layers: list[dict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Report on {self.model}: {'passed' if self.passed else 'failed'}>\n{display.lines(self.sentence)}"

    def _repr_html_(self) -> str:
        words = {"family": f"{self.family}: {self.why}", "attention": self.attention, "dtype": self.dtype}
        words["unlike V1"] = "; ".join(self.differences)
        layers = [(str(row["layer"]), self.verdict_of(row["layer"]), self.reading_of(row)) for row in self.layers]
        findings = [
            (finding.verdict, finding.check, ", ".join(map(str, finding.layers)) or "the model", finding.says)
            for finding in sorted(self.findings, key=lambda finding: VERDICTS.index(finding.verdict))
        ]
        return display.card(
            f"Report on {self.model}: {'passed' if self.passed else 'failed'}",
            display.paragraph(self.sentence),
            display.facts(words),
            display.table(("layer", "", "as the family reads it"), layers),
            display.folded(f"{len(findings)} checks", display.table(("", "check", "layers", "what was found"), findings)),
        )

    @property
    def passed(self) -> bool:
        return not any(finding.verdict == "fail" for finding in self.findings)

    def as_dict(self) -> dict:
        return {**asdict(self), "passed": self.passed}

    @property
    def sentence(self) -> str:
        """What came out, in a sentence or two."""
        count = len(self.layers)
        failed = {layer for finding in self.findings if finding.verdict == "fail" for layer in finding.layers}
        of_model = [finding for finding in self.findings if finding.verdict == "fail" and not finding.layers]
        left = {verdict: sum(finding.verdict == verdict for finding in self.findings) for verdict in ("warn", "undecided")}
        parts = []
        if failed:
            parts.append(f"{len(failed)} of {count} layers are not what they are meant to be, or are not read rightly.")
        if of_model:
            parts.append(f"The model fails {' and '.join(finding.check for finding in of_model)}.")
        if not parts and self.errors:
            worst = max(self.errors, key=lambda layer: (math.isnan(self.errors[layer]), self.errors[layer]))
            off = f"off by {self.errors[worst]:.0e} at most ({self.tolerances[worst]:.0e} is allowed there)"
            parts.append(f"The outputs of all {count} layers that were looked at are rebuilt, {off}.")
        parts += [f"{left['warn']} warnings are below."] if left["warn"] else []
        parts += [f"{left['undecided']} points are left undecided."] if left["undecided"] else []
        return " ".join(parts)

    def reading_of(self, row: dict) -> str:
        """What the family reads of one of :attr:`layers`, in words."""
        heads = f"{row['heads']} heads"
        seen = f"mask: {row['mask']}"
        if row["λ"] is None:
            return f"{heads} of one map each; {seen}"
        low, high = row["λ"]
        factor = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        return f"{heads} of two maps each ({row['pairing']}); λ = {factor}; norm: {row['norm']}; {seen}"

    def note(self, layer: int, error: float, tolerance: float) -> None:
        """Keep the worst error of a layer; NaN, where it was not rebuilt, is worse than any."""
        before = self.errors.get(layer, 0.0)
        self.errors[layer] = error if math.isnan(error) or error >= before else before
        self.tolerances[layer] = tolerance

    def verdict_of(self, layer: int) -> str:
        """The worst verdict of what was found of one layer, or of the model as a whole where that failed."""
        verdicts = {finding.verdict for finding in self.findings if layer in finding.layers}
        verdicts |= {finding.verdict for finding in self.findings if not finding.layers and finding.verdict == "fail"}
        return min(verdicts, key=VERDICTS.index, default="undecided")

    def remarks_on(self, layer: int) -> list[str]:
        """What was found of one layer that does not simply pass, in words."""
        concerned = (finding for finding in self.findings if layer in finding.layers and finding.verdict != "pass")
        return [f"{finding.check}: {finding.says}" for finding in concerned]


def schedule_offset(layer: int, lam_init: float) -> int | None:
    """The k for which λ_init is the paper's of layer + k, nearest to 0; None if there is none from −2 to 2."""
    offsets = sorted(range(-2, 3), key=abs)
    return next((k for k in offsets if abs(lam_init - lambda_init_schedule(layer + k)) < 1e-6), None)


def in_words(offset: int) -> str:
    """The layer by whose number λ_init is computed: l, l − 1, ..."""
    if offset == 0:
        return "l"
    return f"l + {offset}" if offset > 0 else f"l − {-offset}"


def shares_keys(layer: LayerAttention) -> bool:
    """Whether both maps of a head look at the same keys, in any head."""
    key_of_map = layer.pairing.key_of_map
    return bool((key_of_map[layer.pairing.of_branch(1)] == key_of_map[layer.pairing.of_branch(2)]).any())


def facts(layer: LayerAttention, convention: Convention | None) -> dict:
    """One layer in words and numbers."""
    offset = None if layer.lam_init is None else schedule_offset(layer.layer, layer.lam_init)
    return {
        "layer": layer.layer,
        "heads": layer.n_heads,
        "d": layer.q.shape[-1],
        "value width": layer.v.shape[-1],
        "pairing": described_pairing(layer) if convention is None else convention.pairing,
        "pairing as attended": described_pairing(layer),
        "keys": described_keys(layer),
        "λ formula": _formula(layer, convention),
        "λ": _range(layer.lam) if layer.differential else None,
        "λ in float32": _range(layer.lam_fp32) if layer.differential else None,
        "λ_init": layer.lam_init,
        "λ_init is that of layer": None if offset is None else layer.layer + offset,
        "norm": described_norm(layer),
        "post-scale": layer.post_scale,
        "gate": layer.gate is not None,
        "soft cap": layer.soft_cap,
        "sink logits": layer.sink_logit is not None,
        "RoPE": "as the model's own" if convention is None else convention.rope,
        "mask": layer.mask.kind if layer.mask.window is None else f"window of {layer.mask.window}",
    }


def _formula(layer: LayerAttention, convention: Convention | None) -> str:
    if convention is not None:
        return convention.lam
    return "not stated by the family" if layer.differential else "none"


def _range(values: Tensor) -> list[float]:
    return [float(values.float().min()), float(values.float().max())]


def described_pairing(layer: LayerAttention) -> str:
    """Which query maps belong to head h, read from the pairing itself."""
    if not layer.differential:
        return "one map a head"
    a1 = layer.pairing.of_branch(1).cpu()
    a2 = layer.pairing.of_branch(2).cpu()
    head = torch.arange(layer.n_heads)
    seconds = len(a2.unique())
    if seconds < layer.n_heads:
        return f"one A2 for {layer.n_heads // seconds} A1"
    if torch.equal(a1, 2 * head) and torch.equal(a2, 2 * head + 1):
        return STRIPES
    if torch.equal(a1, head) and torch.equal(a2, head + layer.n_heads):
        return HALVES
    return "a1 " + _numbers(a1) + "; a2 " + _numbers(a2)


def _numbers(index: Tensor) -> str:
    return " ".join(map(str, index.tolist()))


def described_keys(layer: LayerAttention) -> str:
    """How query maps share key maps."""
    maps, keys = layer.q.shape[1], layer.k.shape[1]
    shared = "shared by both maps of a head" if layer.differential and shares_keys(layer) else "one a map"
    return shared if maps == keys else f"{keys} for {maps} query maps, {shared}"


def described_norm(layer: LayerAttention) -> str:
    """Kind, eps and whether it has a weight."""
    if layer.norm is None:
        return "none"
    return f"{layer.norm.kind}, eps {layer.norm.eps:g}, {'no weight' if layer.norm.weight is None else 'weight'}"


def _shown(layer: LayerAttention) -> Convention:
    """What the tensors show where a family states no convention; of RoPE they show nothing, so it counts as the paper's."""
    return Convention(described_pairing(layer), "a number for each token or head", None, None, False, rope="interleaved")


def differences(layers: list[LayerAttention], convention: Convention | None) -> list[str]:
    """From the paper's V1, as its authors published it, in the order of the computation."""
    layer = layers[0]
    scores = [
        (f"scores are capped: {layer.soft_cap or 0:g}·tanh(s/{layer.soft_cap or 0:g})", layer.soft_cap is not None),
        ("a sink logit takes part in each softmax: rows sum to less", any(each.sink_logit is not None for each in layers)),
    ]
    if not layer.differential:
        return ["one softmax map a head: no A2, no λ", *(line for line, holds in scores if holds)]
    convention = convention or _shown(layer)
    width, d = layer.v.shape[-1], layer.q.shape[-1]
    positive = Reshape(tuple(range(layer.n_heads)), "positive")
    lines = [
        *scores,
        ("several heads share one second map", "one A2" in described_pairing(layer)),
        (
            f"head h owns the query maps {HALVES} instead of {STRIPES} (an order of weights)",
            convention.pairing == HALVES,
        ),
        (f"RoPE is {convention.rope} instead of interleaved (an order of weights)", convention.rope == "half"),
        (f"RoPE: {convention.rope}", convention.rope not in ("half", "interleaved")),
        ("both maps of a head look at the same keys", shares_keys(layer)),
        (f"λ = {convention.lam} instead of one number a layer", layer.lam[0].numel() > 1),
        ("λ is negative: A2 is added, D = A1 + |λ|·A2", bool((layer.lam <= 0).all() and layer.lam.any())),
        ("negative weights of D are set to 0", any(change == positive for change in layer.changes)),
        (f"values are {width} wide instead of 2d = {2 * d}", width != 2 * d),
        ("no norm of the heads' outputs", layer.norm is None),
        ("the norm has no learned weight", layer.norm is not None and layer.norm.weight is None),
        ("no factor (1 − λ_init) after the norm", layer.post_scale == 1),
        (f"λ_init of layer l is the paper's of {in_words(convention.schedule or 0)}", bool(convention.schedule)),
        ("the first map has a factor of its own", bool((layer.gain != 1).any())),
        ("a gate multiplies the output", layer.gate is not None),
        ("attention is not causal", layer.mask.kind == "full"),
        ("attention has a window in some layers", any(each.mask.kind == "window" for each in layers)),
    ]
    return [line for line, holds in lines if holds]
