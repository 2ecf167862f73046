"""How a capture shows itself: in a line in a terminal, in a notebook with its facts, its proof and its spans marked."""

from __future__ import annotations

from typing import Any, ClassVar

from diffscope import render as display
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.prompts.encoded import DERIVED_SETS, Encoded

MANY = 4  # prompts of which each length is told
SHOWN = 12  # prompts of a batch that a notebook has a row for
LIKELY = 3  # next tokens


class Portrait:
    """What a capture says of itself."""

    prompts: list[Encoded]
    layers: list[LayerAttention]
    facts: dict[str, Any]
    _proofs: list[Fidelity]  # one a layer
    _next: list[list[tuple[str, float]]]  # one list a prompt
    _batch: ClassVar[bool]  # whether results have a dimension `prompt`

    def __repr__(self) -> str:
        error = max(proof.error for proof in self._proofs)
        edits = f", under {self.facts['edits']}" if "edits" in self.facts else ""
        what = f"{lengths(self.prompts)}, {self._shape()}, fidelity {error:.1e}{edits}"
        return f"<{type(self).__name__} of {self.facts['model']}: {what}>"

    def _repr_html_(self) -> str:
        title = f"{type(self).__name__} of {self.facts['model']}"
        table = display.facts(self.portrait())
        if not self._batch:
            return display.card(title, table, spans_marked(self.prompts[0]))
        rows = (
            (str(number), str(len(prompt.ids)), likely(following))
            for number, (prompt, following) in enumerate(zip(self.prompts[:SHOWN], self._next))
        )
        more = display.paragraph(f"and {len(self.prompts) - SHOWN} more") if len(self.prompts) > SHOWN else ""
        first = display.folded("the first prompt", spans_marked(self.prompts[0]))
        return display.card(title, table, display.table(("prompt", "tokens", "most likely next"), rows), more, first)

    def portrait(self) -> dict[str, str]:
        """What is to be known of it, in words by name; empty where there is nothing to say."""
        words = {
            "family": f"{self.facts['family']}, attention {self.facts['attention']}, {self.facts['dtype']}",
            "prompt": lengths(self.prompts),
            "layers": self._shape(),
            "λ": self._lambda_range(),
            "fidelity": self._proof(),
            "edits": self.facts.get("edits", ""),
            "warnings": self.facts.get("warnings", ""),
        }
        return words if self._batch else words | {"most likely next": likely(self._next[0])}

    def _shape(self) -> str:
        counts = sorted({layer.n_heads for layer in self.layers})
        heads = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"{len(self.layers)} layers × {heads} heads"

    def _lambda_range(self) -> str:
        values = [layer.lam.float() for layer in self.layers if layer.differential]
        if not values:
            return "none: one map a head, D = A"
        least, largest = min(float(lam.min()) for lam in values), max(float(lam.max()) for lam in values)
        return f"{least:.3g}" if least == largest else f"{least:.3g} to {largest:.3g}"

    def _proof(self) -> str:
        worst = max(range(len(self._proofs)), key=lambda number: self._proofs[number].error)
        proof = self._proofs[worst]
        undecided = [str(layer.layer) for layer, each in zip(self.layers, self._proofs) if not each.decided]
        decided = f"; other pairings are not ruled out in layer {', '.join(undecided)}" if undecided else ""
        within = f"every layer's output rebuilt, off by {proof.error:.1e} at most"
        return f"{within} (layer {self.layers[worst].layer}; {proof.tolerance:.1e} is allowed){decided}"


def lengths(prompts: list[Encoded]) -> str:
    """How many tokens, of one prompt or of several."""
    counts = [len(prompt.ids) for prompt in prompts]
    if len(counts) <= MANY:
        return f"{' + '.join(map(str, counts))} tokens"
    least, most = min(counts), max(counts)
    return f"{len(counts)} prompts of {least} tokens" if least == most else f"{len(counts)} prompts of {least} to {most} tokens"


def likely(following: list[tuple[str, float]]) -> str:
    """The most likely next tokens with their probabilities; empty where the model predicts none."""
    return ", ".join(f"{token!r} {probability:.3f}" for token, probability in following[:LIKELY])


def spans_marked(prompt: Encoded) -> str:
    """The text of a prompt, its given spans marked, as HTML."""
    given = {name: at for name, at in prompt.spans.items() if name not in DERIVED_SETS}
    return display.marked(prompt.pieces(), given)
