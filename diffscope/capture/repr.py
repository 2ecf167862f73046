"""Show a capture: in one line in a terminal; in a notebook with its facts, fidelity and spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diffscope import render
from diffscope.numbers import layers_by_heads
from diffscope.prompts.encoded import Encoded

if TYPE_CHECKING:
    from diffscope.capture.capture import Capture

MANY = 4  # prompts; of more, only the least and the greatest length
ROWS = 12  # of a batch's table in a notebook
LIKELY = 3  # next tokens


def line(capture: Capture) -> str:
    """Describe a capture in one line."""
    error = max(proof.error for proof in capture._proofs)
    edits = f", under {capture.facts['edits']}" if "edits" in capture.facts else ""
    what = f"{lengths(capture.prompts)}, {_shape(capture)}, fidelity {error:.1e}{edits}"
    return f"<{type(capture).__name__} of {capture.facts['model']}: {what}>"


def as_html(capture: Capture) -> str:
    """Describe a capture in HTML: a table of facts, the prompts of a batch, and the text with its spans marked."""
    title = f"{type(capture).__name__} of {capture.facts['model']}"
    table = render.facts(facts(capture))
    if not capture.batch:
        return render.card(title, table, spans_marked(capture.prompts[0]))
    rows = (
        (str(number), str(len(prompt.ids)), likely(following))
        for number, (prompt, following) in enumerate(zip(capture.prompts[:ROWS], capture._next))
    )
    more = render.paragraph(f"and {len(capture) - ROWS} more") if len(capture) > ROWS else ""
    first = render.folded("the first prompt", spans_marked(capture.prompts[0]))
    return render.card(title, table, render.table(("prompt", "tokens", "most likely next"), rows), more, first)


def facts(capture: Capture) -> dict[str, str]:
    """Describe a capture in words by name; empty where there is nothing to say."""
    words = {
        "family": f"{capture.facts['family']}, attention {capture.facts['attention']}, {capture.facts['dtype']}",
        "prompt": lengths(capture.prompts),
        "layers": _shape(capture),
        "keys": "" if capture.key_prompts is None else f"{lengths(capture.key_prompts)}, which cross-attention looks at",
        "λ": _lambda_range(capture),
        "fidelity": _fidelity(capture),
        "edits": capture.facts.get("edits", ""),
        "warnings": capture.facts.get("warnings", ""),
    }
    return words if capture.batch else words | {"most likely next": likely(capture._next[0])}


def lengths(prompts: list[Encoded]) -> str:
    """Count the tokens of one prompt or of several, in words."""
    return in_tokens([len(prompt.ids) for prompt in prompts])


def in_tokens(counts: Sequence[int]) -> str:
    """Write how many tokens one prompt or several have: 1 token, 5 + 9 tokens, 12 prompts of 5 to 9 tokens."""
    if len(counts) <= MANY:
        return f"{' + '.join(map(str, counts))} token{'' if tuple(counts) == (1,) else 's'}"
    least, most = min(counts), max(counts)
    return f"{len(counts)} prompts of {least} tokens" if least == most else f"{len(counts)} prompts of {least} to {most} tokens"


def likely(following: list[tuple[str, float]]) -> str:
    """List the most likely next tokens with their probabilities; empty where the model predicts none."""
    return ", ".join(f"{token!r} {probability:.3f}" for token, probability in following[:LIKELY])


def spans_marked(prompt: Encoded) -> str:
    """Return the text of a prompt as HTML, with the spans that the user named marked."""
    return render.marked(prompt.pieces(), prompt.spans)


def _shape(capture: Capture) -> str:
    counts = sorted({layer.n_heads for layer in capture.layers})
    heads = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return layers_by_heads(len(capture.layers), heads)


def _lambda_range(capture: Capture) -> str:
    if not capture.differential:
        return "none: one map a head, D = A"
    layers = [layer for layer in capture.layers if layer.differential]
    values = [layer.prompt(index).lam for layer in layers for index in range(len(capture.prompts))]  # without padding
    least, largest = min(float(lam.min()) for lam in values), max(float(lam.max()) for lam in values)
    return f"{least:.3g}" if least == largest else f"{least:.3g} to {largest:.3g}"


def _fidelity(capture: Capture) -> str:
    number, worst = max(zip(capture.layer_numbers, capture._proofs), key=lambda pair: pair[1].error)
    undecided = ", ".join(str(layer) for layer, proof in zip(capture.layer_numbers, capture._proofs) if not proof.decided)
    others = f"; how maps are paired is not decided in layer {undecided}" if undecided else ""
    within = f"every layer's output rebuilt, off by {worst.error:.1e} at most"
    return f"{within} (layer {number}; {worst.tolerance:.1e} is allowed){others}"
