"""Configuration of the DIFF Transformer and its matched controls."""

from __future__ import annotations

import math

from transformers import LlamaConfig

ATTENTIONS = ("v1", "v2", "standard")


def lambda_init_schedule(layer: int) -> float:
    """λ_init of a layer counted from 0: 0.8 − 0.6·exp(−0.3·layer) (arXiv 2410.05258, §2.1)."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DiffConfig(LlamaConfig):
    """A Llama configuration whose ``attention`` field chooses the attention mechanism.

    Parameters
    ----------
    attention : {"v1", "v2", "standard"}
        ``v1`` is arXiv 2410.05258: two maps a head, values twice as wide, per-head RMSNorm.
        ``v2`` has twice the query heads on the same keys and values and a λ per token and head.
        ``standard`` is one softmax a head, the baseline.
    num_attention_heads, num_key_value_heads : int
        Count heads, not maps: a differential head has two maps.
    head_dim : int, optional
        Width d of one map's queries and keys. By default ``hidden_size`` is shared out so that
        the output projection is square: ``hidden_size / (2 · heads)`` for ``v1``, whose values
        are 2d wide, and ``hidden_size / heads`` otherwise.
    lambda_init : float, optional
        Constant λ_init of every layer; by default the paper's schedule over depth.
    lambda_std_dev : float
        Standard deviation of the four λ vectors at initialisation.
    """

    model_type = "diffscope"

    attention: str = "v1"
    lambda_init: float | None = None
    lambda_std_dev: float = 0.1

    def __post_init__(self, **kwargs):
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention={self.attention!r} is unknown; choose one of {', '.join(ATTENTIONS)}")
        if self.head_dim is None:
            maps = 2 if self.attention == "v1" else 1
            self.head_dim = self.hidden_size // (maps * self.num_attention_heads)
        super().__post_init__(**kwargs)

    def lambda_init_of(self, layer: int) -> float:
        """λ_init of one layer, counted from 0."""
        return lambda_init_schedule(layer) if self.lambda_init is None else self.lambda_init
