"""Where the claims come from, as the tests cite it; docs/sources.md says more of each."""

import re
from collections.abc import Iterator

PAPER = "Differential Transformer (Ye et al., 2024)"
REVIEW = "a review of Differential Transformer (Vivory Research)"
DEX = "Understanding Differential Transformer Unchains Pretrained Self-Attentions (DEX; Kong et al., 2025)"
NOTES = "notes on the DEX paper"  # which says the opposite in places
SENSITIVITY = "Sensitivity of Differential Attention (arXiv 2510.00517)"

#: where each of them is read
LINKS = {
    PAPER: "https://arxiv.org/abs/2410.05258",
    REVIEW: "https://research.vivory.app/posts/DiLGKmbEovf",
    DEX: "https://arxiv.org/abs/2505.16333",
    NOTES: "https://en.papernotes.org/NeurIPS2025/model_compression/"
    "understanding_differential_transformer_unchains_pretrained_self-attentions/",
    SENSITIVITY: "https://arxiv.org/abs/2510.00517",
}
ISSUES = "https://github.com/microsoft/unilm/issues"
CITED = re.compile("|".join([*map(re.escape, LINKS), r"\b1[67]\d\d\b"]))  # the numbers are of issues of unilm


def linked(source: str) -> Iterator[tuple[str, str]]:
    """A test's source in parts, each with its address, which is empty where a part has none."""
    end = 0
    for match in CITED.finditer(source):
        cited = match.group()
        yield source[end : match.start()], ""
        yield cited, LINKS.get(cited, f"{ISSUES}/{cited}")
        end = match.end()
    yield source[end:], ""
