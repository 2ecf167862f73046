"""What parts of a model add to the logits of tokens, directly: each branch of each head, MLPs, embedding."""

from diffscope.attribution.api import branch_attribution

__all__ = ["branch_attribution"]
