"""Where the claims come from, as the tests cite it; docs/sources.md says more of each."""

PAPER = "Differential Transformer (Ye et al., 2024)"
REVIEW = "a review of Differential Transformer (Vivory Research)"
DEX = "Understanding Differential Transformer Unchains Pretrained Self-Attentions (DEX; Kong et al., 2025)"
NOTES = "notes on the DEX paper"  # which says the opposite in places
SENSITIVITY = "Sensitivity of Differential Attention (arXiv 2510.00517)"
