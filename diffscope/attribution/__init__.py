"""What parts of a model add to the logits of tokens and to attention scores, directly: branches of heads, MLPs, embedding."""

from diffscope.attribution.api import branch_attribution
from diffscope.attribution.paths import path_patches
from diffscope.attribution.scores import score_attribution

__all__ = ["branch_attribution", "path_patches", "score_attribution"]
