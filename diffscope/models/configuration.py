"""Configuration of the DIFF Transformer and its matched controls."""

from __future__ import annotations

import math

from transformers import LlamaConfig

from diffscope.fields import check, finite, maybe

ATTENTIONS = ("v1", "v2", "standard", "top_k", "signed", "gated", "plus", "d_plus", "shared_a2")
LIKE_V1 = ("v1", "plus", "d_plus", "shared_a2")  # V1 and the arms that differ from it in one respect
HEAD_NORMS = ("rms", "scalar", "none")
LAMBDA_STD_DEV = 0.1  # arXiv 2410.05258
MASK_DIM = 16


def lambda_init_schedule(layer: int) -> float:
    """Return λ_init of a layer, counted from 0: 0.8 − 0.6·exp(−0.3·layer) (arXiv 2410.05258, §2.1)."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DiffConfig(LlamaConfig):
    """A Llama configuration whose field ``attention`` chooses the attention mechanism.

    Parameters
    ----------
    attention : {"v1", "v2", "standard", "top_k", "signed", "gated", "plus", "d_plus", "shared_a2"}
        ``v1`` is arXiv 2410.05258: two maps a head, values twice as wide, per-head RMSNorm.
        ``v2`` has twice the query heads on the same keys and values and a λ per token and head.
        ``standard`` is one softmax a head, the baseline.
        ``top_k`` keeps the ``top_keys`` largest weights of each row and divides them by their sum.
        ``signed`` multiplies the weights with a learned mask between −1 and 1.
        ``gated`` gives every second head a learned signed gate per token.
        ``plus``, ``d_plus`` and ``shared_a2`` differ from ``v1`` in one respect: ``plus`` adds λ·A2 to A1 instead of subtracting
        it, ``d_plus`` sets the negative weights of A1 − λ·A2 to 0 before the norm, and in ``shared_a2`` all heads of a layer
        have one second map.
    num_attention_heads, num_key_value_heads : int
        Count heads, not maps: a differential head has two maps.
    head_dim : int, optional
        Width d of one map's queries and keys, even. By default, rounded down, that of a square output projection: d is
        ``hidden_size / (2 · heads)`` for ``v1``, ``plus``, ``d_plus`` and ``shared_a2``, whose values are 2d wide, and
        ``hidden_size / heads`` otherwise.
    lambda_init : float, optional
        Constant λ_init of every layer; by default the paper's schedule over depth.
    lambda_std_dev : float
        Standard deviation of the four λ vectors at initialisation.
    fixed_lambda : float or "init", optional
        Constant λ of every layer of ``v1`` and the arms like it, instead of a learned one; ``init`` is the layer's λ_init.
    head_norm : {"rms", "scalar", "none"}, optional
        Between a head's output and the output projection: RMSNorm over the head's width, one learned number a head, or
        nothing. By default ``rms`` for ``v1`` and the arms like it, and ``none`` otherwise; only these arms and ``standard``
        accept another one.
    second_dim : int, optional
        Width of the second map's queries and keys in ``v1``, ``plus`` and ``d_plus``, even and less than ``head_dim``. It
        bounds the rank of the second map's scores.
    top_keys : int, optional
        k of ``top_k`` attention (the name ``top_k`` is an option of generation).
    mask_dim : int
        Width of the two projections whose product is the mask of ``signed`` attention.
    """

    model_type = "diffscope"

    attention: str = "v1"
    lambda_init: float | None = None
    lambda_std_dev: float = LAMBDA_STD_DEV
    fixed_lambda: float | str | None = None
    head_norm: str | None = None
    second_dim: int | None = None
    top_keys: int | None = None
    mask_dim: int = MASK_DIM

    def __post_init__(self, **kwargs):
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention={self.attention!r} is unknown; choose one of {', '.join(ATTENTIONS)}")
        self._choose_width()
        usual = "rms" if self.attention in LIKE_V1 else "none"
        self.head_norm = self.head_norm or usual
        if self.head_norm not in HEAD_NORMS:
            raise ValueError(f"head_norm={self.head_norm!r} is unknown; choose one of {', '.join(HEAD_NORMS)}")
        if self.head_norm != usual and self.attention not in (*LIKE_V1, "standard"):
            raise ValueError(f"head_norm is for {', '.join(LIKE_V1)} and standard attention; {self.attention} has none")
        self._check_own_fields()
        super().__post_init__(**kwargs)

    def _choose_width(self) -> None:
        """Choose d, and check that heads and widths fit each other."""
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        groups = heads if groups is None else groups
        if groups < 1 or heads % groups:
            raise ValueError(f"num_key_value_heads={groups} must divide num_attention_heads={heads}")
        if self.head_dim is None:
            self.head_dim = self.hidden_size // ((2 if self.attention in LIKE_V1 else 1) * heads)
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even and at least 2, since RoPE turns pairs of numbers")

    def _check_own_fields(self) -> None:
        self._check_lambda()
        if self.attention not in LIKE_V1 and (self.fixed_lambda is not None or self.second_dim is not None):
            raise ValueError(f"fixed_lambda and second_dim are of {', '.join(LIKE_V1)} attention; this is {self.attention}")
        if self.attention == "shared_a2" and self.second_dim is not None:
            raise ValueError("shared_a2 attention takes no second_dim: its second map is as wide as the first ones; leave it out")
        if self.second_dim is not None and (self.second_dim % 2 or not 0 < self.second_dim < self.head_dim):
            raise ValueError(f"second_dim={self.second_dim} must be even, and between 2 and head_dim - 1 = {self.head_dim - 1}")
        whole = isinstance(self.top_keys, int) and self.top_keys >= 1
        if (self.attention == "top_k") != (self.top_keys is not None) or (self.top_keys is not None and not whole):
            raise ValueError('top_keys, a positive whole number, goes with attention="top_k"')
        if not isinstance(self.mask_dim, int) or self.mask_dim < 1:
            raise ValueError(f"mask_dim={self.mask_dim!r} must be a positive whole number")
        if self.attention != "signed" and self.mask_dim != MASK_DIM:
            raise ValueError(f'mask_dim goes with attention="signed"; this is {self.attention}')

    def _check_lambda(self) -> None:
        """Refuse a λ that is no number, and what the attention would not read."""
        if self.fixed_lambda not in (None, "init") and not finite().holds(self.fixed_lambda):
            raise ValueError(f'fixed_lambda is a number or "init", not {self.fixed_lambda!r}')
        check("lambda_init", self.lambda_init, maybe(finite()))
        check("lambda_std_dev", self.lambda_std_dev, finite(0))
        if self.lambda_init is not None and self.attention not in LIKE_V1:
            raise ValueError(f"lambda_init is of {', '.join(LIKE_V1)} attention; this is {self.attention}")
        learned = self.attention in LIKE_V1 and self.fixed_lambda is None
        if not learned and self.lambda_std_dev != LAMBDA_STD_DEV:
            raise ValueError("lambda_std_dev is of the four vectors of a learned λ, and here there are none; leave it out")

    def lambda_init_of(self, layer: int) -> float:
        """Return λ_init of a layer, counted from 0."""
        return lambda_init_schedule(layer) if self.lambda_init is None else self.lambda_init
