"""Control arms with another attention mechanism: top-k, a signed mask, gated heads, a difference without its negative part.

All but the gated heads change the attention weights, which only the implementation ``eager`` returns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import repeat_kv

from diffscope.models.configuration import DiffConfig
from diffscope.models.mechanisms import Attention, DiffV1Attention, eager_attention_forward

__all__ = ["CONTROLS", "eager_attention_forward"]  # transformers looks for eager attention in the module of a model's attention


class ReweightedAttention(Attention):
    """One softmax a head, whose weights are changed before they are multiplied with the values."""

    changes_weights = True

    def reweight(self, x: Tensor, weights: Tensor, extra: Tensor) -> Tensor:
        """Return the changed weights, (batch, head, query, key).

        Parameters
        ----------
        x : Tensor (batch, query, hidden)
        weights : Tensor (batch, head, query, key)
            Weights of the softmax.
        extra : Tensor (batch, kv head, key, extra)
            Elements that :meth:`values` appends to the value of each token.
        """
        raise NotImplementedError

    def mix(self, x, q, k, v, mask, **kwargs):
        extra = v[..., self.head_dim :]
        v = v[..., : self.head_dim]
        weights = self.reweight(x, self.weights(q, k, v, mask, **kwargs), extra).to(v.dtype)
        return torch.matmul(weights, repeat_kv(v, self.num_key_value_groups)).transpose(1, 2), weights


class TopKAttention(ReweightedAttention):
    """The k largest weights of each row, divided by their sum: the softmax of the k largest scores."""

    def reweight(self, x, weights, extra):
        best = weights.topk(min(self.config.top_keys, weights.shape[-1]), dim=-1)
        largest = torch.zeros_like(weights).scatter(-1, best.indices, best.values)
        return largest / largest.sum(-1, keepdim=True)


class SignedAttention(ReweightedAttention):
    """One softmax times a learned signed mask: weights ⊙ tanh(u·w/√r + b).

    u is a projection of the query's token and w one of the key's. b, one number a head, is initialised to 1, at which the mask
    changes little.
    """

    def __init__(self, config: DiffConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.mask_q_proj = nn.Linear(config.hidden_size, self.heads * config.mask_dim, bias=False)
        self.mask_k_proj = nn.Linear(config.hidden_size, self.kv_heads * config.mask_dim, bias=False)
        self.mask_bias = nn.Parameter(torch.ones(self.heads))

    def values(self, x):
        """Return the values with w appended, so that a cache stores both."""
        w = self.mask_k_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)  # (batch, kv head, token, r)
        return torch.cat([super().values(x), w], dim=-1)

    def left(self, x: Tensor) -> Tensor:
        """Return u/√r, (batch, head, query, r)."""
        return self.mask_q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) * self.config.mask_dim**-0.5

    def reweight(self, x, weights, extra):
        w = repeat_kv(extra, self.num_key_value_groups)
        return weights * torch.tanh(self.left(x) @ w.transpose(2, 3) + self.mask_bias[:, None, None])


class Gate(nn.Linear):
    """tanh(W·x + b), between −1 and 1. W is initialised to 0 and b to 1, so that all gates are equal and open at first."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


class GatedAttention(Attention):
    """Softmax heads, each with its own values; every second head has a learned signed gate per token."""

    def __init__(self, config: DiffConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        if self.heads % 2:
            raise ValueError(f"gated attention pairs its heads, and {self.heads} is odd")
        self.gate_proj = Gate(config.hidden_size, self.heads // 2)

    def gates(self, x: Tensor) -> Tensor:
        """Return the gates, (batch, token, head): 1 for the first head of each pair."""
        second = self.gate_proj(x)
        return torch.stack([torch.ones_like(second), second], dim=-1).flatten(2)

    def mix(self, x, q, k, v, mask, **kwargs):
        out, weights = self.attend(q, k, v, mask, **kwargs)
        return out * self.gates(x).unsqueeze(-1), weights


class DPlusAttention(DiffV1Attention):
    """V1 whose negative weights are set to 0: max(A1 − λ·A2, 0), then the norm. It cancels noise and is sparse, but unsigned."""

    changes_weights = True

    def mix(self, x, q, k, v, mask, **kwargs):
        first, second = self.weights(q, k, v.repeat(1, 2, 1, 1), mask, **kwargs).chunk(2, dim=1)
        positive = self.combine(first, second, self.lam()).clamp_min(0).to(v.dtype)  # (batch, head, query, key)
        out = torch.matmul(positive, repeat_kv(v, self.num_key_value_groups)).transpose(1, 2)
        return (1 - self.lambda_init) * self.subln(out), positive


CONTROLS: dict[str, type[Attention]] = {
    "top_k": TopKAttention,
    "signed": SignedAttention,
    "gated": GatedAttention,
    "d_plus": DPlusAttention,
}
