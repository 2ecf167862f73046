"""What explains the rows of a map: least squares on a few other rows, and how their shares are told apart."""

import math
from collections.abc import Sequence
from itertools import combinations, permutations

import torch
from torch import Tensor

PREDICTORS = ("distance", "key", "both", "other")  # in the order of a Gram matrix; behind them stands the map itself
PLAYERS = ("distance", "key", "other")
RIDGE = 1e-5
PARTS = ("uniform", *PLAYERS, "rest")


def explained(gram: Tensor, predictors: Sequence[int]) -> Tensor:
    """Return how much of a target the best combination of predictors explains: v'(G + ε)⁻¹v, with ε = ``RIDGE``.

    The ridge keeps out what is next to nothing: a predictor whose square is below ε, for the target would have to be hundreds of
    times as large.

    Parameters
    ----------
    gram : Tensor (..., predictor + 1, predictor + 1)
        Products of predictors and, last, of the target, in units of what is to be explained.
    predictors : sequence of int
        Which of them.

    Returns
    -------
    Tensor (...)
        Between 0 and the target's own square; not less with more predictors.
    """
    chosen = list(predictors)
    products = gram[..., chosen, :][..., chosen]
    with_target = gram[..., chosen, -1:]
    ridge = RIDGE * torch.eye(len(chosen), dtype=gram.dtype, device=gram.device)
    return (with_target * torch.linalg.solve(products + ridge, with_target)).sum((-1, -2))


def parts(gram: Tensor, uniform: Tensor) -> dict[str, Tensor]:
    """Divide a map's rows by what explains them: uniform, distance, key, the other map, and the rest.

    Every row is divided by its Euclidean norm, so that its square is 1 and all rows count alike. Its uniform part, 1/n of the
    squared row sum, is orthogonal to rows that are centred on their visible keys, as the others are; so it is the same alone,
    when added, and in Shapley's sense. Distance and key together have a third predictor, the row of both, since scores add
    and maps do not.

    Parameters
    ----------
    gram : Tensor (..., 5, 5)
        Mean over rows of the products of centred rows in the order of ``PREDICTORS``, and the map itself.
    uniform : Tensor (...)
        Mean over rows of (sum a)² / (n sum a²).

    Returns
    -------
    dict of str to Tensor (..., part), in the order of ``PARTS``
        ``alone``: what a part explains by itself. ``added``: what it adds to those before it. ``shapley``: what it adds to those
        before it, mean over all orders (Shapley 1953). The rest is what all together leave. The last two sum to 1.
    """
    together = {players: explained(gram, _predictors(players)) for count in range(4) for players in combinations(PLAYERS, count)}

    def adds(order: Sequence[str], player: str) -> Tensor:
        before = set(order[: order.index(player)])
        return together[_as_listed(before | {player})] - together[_as_listed(before)]

    orders = list(permutations(PLAYERS))
    middle = {
        "alone": [together[(player,)] for player in PLAYERS],
        "added": [adds(PLAYERS, player) for player in PLAYERS],
        "shapley": [torch.stack([adds(order, player) for order in orders]).mean(0) for player in PLAYERS],
    }
    rest = 1 - uniform - together[PLAYERS]
    return {name: torch.stack([uniform, *values, rest], dim=-1) for name, values in middle.items()}


def _as_listed(players: set[str]) -> tuple[str, ...]:
    return tuple(player for player in PLAYERS if player in players)


def _predictors(players: Sequence[str]) -> list[int]:
    names = [*players, *(["both"] if {"distance", "key"} <= set(players) else [])]
    return [PREDICTORS.index(name) for name in names]


def uniform_share(a: Tensor, n: Tensor) -> Tensor:
    """Compute how much of a row's square is that of a uniform row: (sum a)² / (n sum a²).

    It is the participation of its shares over n, between 1/n (all on one key) and 1 (uniform).

    Parameters
    ----------
    a : Tensor (..., query, key)
        Not negative.
    n : Tensor (query,)
        Visible keys.

    Returns
    -------
    Tensor (..., query)
        NaN for rows of zeros.
    """
    square = a.square().sum(-1)
    return a.sum(-1).square() / (n * torch.where(square > 0, square, math.nan))
