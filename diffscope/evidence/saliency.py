"""Where the loss draws on attention, and which way it pushes the scores.

Functions of maps and of the gradients of a loss on them, (..., key).
"""

import torch
from torch import Tensor


def flow_share(d: Tensor, gradient: Tensor, keys: Tensor) -> Tensor:
    """Share of the information flow of a row that comes from some keys: sum_R |D·∂L/∂D| / sum |D·∂L/∂D|.

    The saliency of attention of Wang et al. 2023 ("Label words are anchors"), as a share, so that the size of the loss does not
    count.

    Parameters
    ----------
    d, gradient : Tensor (..., key)
        A map, and the gradient of the loss on it.
    keys : BoolTensor (key,)

    Returns
    -------
    Tensor (...)
        Between 0 and 1. NaN where nothing flows.
    """
    flow = (d * gradient).abs()
    return (flow * keys).sum(-1) / flow.sum(-1)


def on_scores(a: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient on the scores of a softmax row, from that on its weights: a·(∂L/∂a − sum a·∂L/∂a).

    Parameters
    ----------
    a, gradient : Tensor (..., key)

    Returns
    -------
    Tensor (..., key)
    """
    return a * (gradient - (a * gradient).sum(-1, keepdim=True))


def rho_gradient(a1: Tensor, a2: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of ρ_X = sum_X |A1 − A2| / sum_X (A1 + A2) on the weights of both branches.

    Parameters
    ----------
    a1, a2 : Tensor (..., key)
    keys : BoolTensor (key,)
        X.

    Returns
    -------
    two Tensors (..., key)
        Zero outside X.
    """
    total = ((a1 + a2) * keys).sum(-1, keepdim=True)
    rho = ((a1 - a2).abs() * keys).sum(-1, keepdim=True) / total
    sign = (a1 - a2).sign()
    return (sign - rho) / total * keys, (-sign - rho) / total * keys


def alignment(u: Tensor, v: Tensor) -> Tensor:
    """Cosine of two directions, (...), of Tensors (..., key). NaN where one of them is zero."""
    return (u * v).sum(-1) / (u.norm(dim=-1) * v.norm(dim=-1))


def descent_of_rho(gradients: tuple[Tensor, Tensor], directions: tuple[Tensor, Tensor]) -> Tensor:
    """How far descent of the loss goes along ρ: the cosine of −∂L/∂s with ∂ρ/∂s, over the scores s of both branches.

    Parameters
    ----------
    gradients, directions : pairs of Tensor (..., key)
        Of the loss and of ρ, on the scores of the first and of the second branch.

    Returns
    -------
    Tensor (...)
        Above 0 where a step down the loss makes the branches less alike, below 0 where it makes them more alike.
    """
    return alignment(-torch.cat(gradients, -1), torch.cat(directions, -1))
