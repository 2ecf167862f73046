"""Hold the findings of a conformance check, and say them in words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from diffscope import render as display
from diffscope.numbers import between

VERDICTS = ("fail", "warn", "undecided", "pass")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    verdict : {"pass", "warn", "undecided", "fail"}
    check : str
        Name of the check.
    says : str
        The result in words.
    layers : tuple of int
        Layers that it is about; empty for the model as a whole.
    """

    verdict: str
    check: str
    says: str
    layers: tuple[int, ...] = ()


@dataclass(repr=False)
class Report:
    """The result of :func:`check`.

    Attributes
    ----------
    model, family : str
        Their names.
    why : str
        The attention modules by which the family was found.
    attention : str
        The model's attention implementation.
    dtype : str
        The precision that the model runs in.
    tried_on : str
        The implementations that the family was tried on.
    fidelity : dict of str to float
        The worst layer's error on each kind of prompt; NaN if a layer was not rebuilt.
    errors, tolerances : dict of int to float
        Each layer's worst error over all prompts, and the error that is tolerated there.
    layers : list of dict
        Each layer's maps, λ, norm and mask, as read from its tensors.
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
        layers = [(str(row["layer"]), row["verdict"], row["reading"]) for row in self.rows()]
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
        """Return whether no check failed."""
        return not any(finding.verdict == "fail" for finding in self.findings)

    def as_dict(self) -> dict:
        """Return all fields and whether the model passed, as plain values."""
        return {**asdict(self), "passed": self.passed}

    @property
    def sentence(self) -> str:
        """Say the result in a sentence or two."""
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
        parts += [f"{_are(left['warn'], 'warning')} below."] if left["warn"] else []
        parts += [f"{_are(left['undecided'], 'point')} left undecided."] if left["undecided"] else []
        return " ".join(parts)

    def rows(self) -> list[dict]:
        """Return a record for each layer: what it is, how closely it is rebuilt, and the verdict on it.

        To the keys of :attr:`layers` come ``error`` and ``tolerance`` (NaN if it was not rebuilt), ``verdict``, ``reading``, what
        it is in words, and ``remarks``, a list of what is not simply passed.
        """
        return [
            {
                **row,
                "error": self.errors.get(row["layer"], math.nan),
                "tolerance": self.tolerances.get(row["layer"], math.nan),
                "verdict": self.verdict_of(row["layer"]),
                "reading": self.reading_of(row),
                "remarks": self.remarks_on(row["layer"]),
            }
            for row in self.layers
        ]

    def reading_of(self, row: dict) -> str:
        """Say the maps, λ, norm and mask of one of :attr:`layers` in words."""
        heads = f"{row['heads']} heads"
        seen = f"mask: {row['mask']}"
        if row["λ"] is None:
            return f"{heads} of one map each; {seen}"
        factor = between(row["λ"], "{:.3g}".format)
        return f"{heads} of two maps each ({row['pairing']}); λ = {factor}; norm: {row['norm']}; {seen}"

    def add(self, verdict: str, check: str, says: str, layers: tuple[int, ...] = ()) -> None:
        """Add a finding."""
        self.findings.append(Finding(verdict, check, says, layers))

    def note(self, layer: int, error: float, tolerance: float) -> None:
        """Keep the worst error of a layer and its tolerance. NaN, of a layer that was not rebuilt, is worse than any number."""
        if math.isnan(error) or error >= self.errors.get(layer, 0.0):
            self.errors[layer] = error
            self.tolerances[layer] = tolerance

    def verdict_of(self, layer: int) -> str:
        """Return the worst verdict on one layer, or on the model as a whole if that failed."""
        verdicts = {finding.verdict for finding in self.findings if layer in finding.layers}
        verdicts |= {finding.verdict for finding in self.findings if not finding.layers and finding.verdict == "fail"}
        return min(verdicts, key=VERDICTS.index, default="undecided")

    def remarks_on(self, layer: int) -> list[str]:
        """Say every finding about one layer that is not a pass."""
        concerned = (finding for finding in self.findings if layer in finding.layers and finding.verdict != "pass")
        return [f"{finding.check}: {finding.says}" for finding in concerned]


def _are(count: int, what: str) -> str:
    """Begin a sentence about so many of something: "1 warning is", "2 warnings are"."""
    return f"1 {what} is" if count == 1 else f"{count} {what}s are"
