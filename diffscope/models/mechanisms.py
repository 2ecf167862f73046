"""The attention mechanisms of the DIFF Transformer: V1 and two arms close to it, V2, and the standard baseline.

All of them pass queries and keys (after RoPE) and values to the Hugging Face attention interface. So eager, SDPA and flash-attn
are a setting of the model, and an observer of the interface sees the tensors that each layer attends with. The other control
arms are in ``controls``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from diffscope.models.configuration import DiffConfig


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Attend by the formula, with the softmax in float32 or wider: the reference for the other implementations.

    query (batch, map, query, d), key (batch, key map, key, d), value (batch, key map, key, width)
    → output (batch, query, map, width), weights (batch, map, query, key).
    """
    key = repeat_kv(key, module.num_key_value_groups)
    value = repeat_kv(value, module.num_key_value_groups)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def exponentials(module: Any, sum_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Return exp(λq1·λk1) and exp(λq2·λk2) of a V1 module, scalars in float32 or wider.

    Parameters
    ----------
    module : nn.Module
        Any module with the four vectors ``lambda_q1``, ``lambda_k1``, ``lambda_q2`` and ``lambda_k2``.
    sum_dtype : torch.dtype, optional
        The dtype in which the products are summed; by default that of the vectors.
    """
    sums = [torch.sum(getattr(module, f"lambda_q{i}") * getattr(module, f"lambda_k{i}"), dtype=sum_dtype) for i in (1, 2)]
    first, second = (x.to(torch.promote_types(x.dtype, torch.float32)).exp() for x in sums)
    return first, second


class HeadRMSNorm(nn.RMSNorm):
    """RMSNorm of x (..., width) in the precision of its weight, which is wider than that of x under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class HeadScale(nn.Module):
    """One learned factor a head, initialised to 1, in place of a norm: x (..., head, width) → the same shape."""

    def __init__(self, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, None]


class Attention(nn.Module):
    """Standard attention, and the base of the other mechanisms: projections, RoPE, cache, dispatch, norm of the heads."""

    query_maps = 1  # query maps of one head
    key_maps = 1  # key maps of one key-value head
    value_width = 1  # width of a value in units of head_dim
    changes_weights = False  # whether it changes the attention weights, which only the implementation "eager" returns

    def __init__(self, config: DiffConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        # How often the interface repeats each key map; the same for both maps of a head.
        self.num_key_value_groups = self.heads * self.query_maps // (self.kv_heads * self.key_maps)

        hidden = config.hidden_size
        dim = config.head_dim
        self.q_proj = nn.Linear(hidden, self.heads * self.query_maps * dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.key_maps * dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.value_width * dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(self.heads * self.value_width * dim, hidden, bias=config.attention_bias)
        if config.head_norm == "rms":
            self.subln = HeadRMSNorm(self.value_width * dim, eps=config.rms_norm_eps)
        elif config.head_norm == "scalar":
            self.subln = HeadScale(self.heads)
        else:
            self.subln = nn.Identity()

    def split_maps(self, x: Tensor, maps: int) -> Tensor:
        """Split a projection into maps, in its order: (batch, token, heads·maps·dim) → (batch, heads·maps, token, dim)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def values(self, x: Tensor) -> Tensor:
        """Return the values, (batch, kv head, token, width), as a cache stores them."""
        return self.v_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)

    def project(self, x: Tensor, position_embeddings, past_key_values) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, with the keys and values of earlier tokens from the cache."""
        q = self.split_maps(self.q_proj(x), self.query_maps)  # (batch, query map, token, dim)
        k = self.split_maps(self.k_proj(x), self.key_maps)  # (batch, key map, token, dim)
        v = self.values(x)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask, **kwargs) -> tuple[Tensor, Tensor | None]:
        """Call the model's attention implementation: output (batch, query, map, width), and weights or None."""
        interface = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.config.attention_dropout if self.training else 0.0
        return interface(self, q, k, v, mask, dropout=dropout, scaling=self.scaling, **kwargs)

    def weights(self, q: Tensor, k: Tensor, v: Tensor, mask, **kwargs) -> Tensor:
        """Return the attention weights of all maps in float32 or wider, (batch, map, query, key), to be changed.

        In half precision many weights of a row would be equal.

        Raises
        ------
        ValueError
            The model's attention implementation does not return them.
        """
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            _, weights = self.attend(q.to(wide), k.to(wide), v.to(wide), mask, **kwargs)
        if weights is None or weights.dim() < 4:  # flex attention returns log-sum-exps instead
            raise ValueError(f'{self.config.attention} attention changes the weights, which takes attn_implementation="eager"')
        return weights

    def mix(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask, **kwargs) -> tuple[Tensor, Tensor | None]:
        """Return the heads' outputs, (batch, query, head, width), as they enter the output projection, and weights or None."""
        out, weights = self.attend(q, k, v, mask, **kwargs)
        return self.subln(out), weights

    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        q, k, v = self.project(hidden_states, position_embeddings, past_key_values)
        mixed, weights = self.mix(hidden_states, q, k, v, attention_mask, **kwargs)
        return self.o_proj(mixed.flatten(2)), weights


class DiffV1Attention(Attention):
    """Differential attention V1 (arXiv 2410.05258).

    Maps 2h and 2h + 1 of the projections belong to head h. λ is one scalar a layer:
    exp(λq1·λk1) − exp(λq2·λk2) + λ_init, or fixed. Values are 2d wide; they are attended in two halves of
    width d, because SDPA and flash-attn leave their fast kernels when value and key widths differ.
    """

    query_maps = 2
    key_maps = 2
    value_width = 2

    def __init__(self, config: DiffConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        if config.attention_dropout:
            raise ValueError("attention_dropout must be 0: the paper does not define dropout for a difference of maps")
        self.lambda_init = config.lambda_init_of(layer_idx)
        self.fixed = self.lambda_init if config.fixed_lambda == "init" else config.fixed_lambda
        if self.fixed is None:
            for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                self.register_parameter(name, nn.Parameter(torch.zeros(self.head_dim)))
        self.second_dim = config.second_dim
        if self.second_dim is not None:
            width = self.head_dim + self.second_dim
            self.q_proj = nn.Linear(config.hidden_size, self.heads * width, bias=config.attention_bias)
            self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * width, bias=config.attention_bias)

    def split_maps(self, x: Tensor, maps: int) -> Tensor:
        """Order maps by branch, first maps of all heads and then second ones, so that grouped keys repeat inside a branch."""
        if self.second_dim is not None:
            x = self._widened(x)
        x = x.unflatten(-1, (-1, maps, self.head_dim))  # (batch, token, head, map, dim)
        return x.permute(0, 3, 2, 1, 4).flatten(1, 2)

    def _widened(self, x: Tensor) -> Tensor:
        """Pad second maps with zeros to the width of first ones: (batch, token, head·(dim + few)) → (batch, token, head·2·dim).

        RoPE turns pairs of elements. The pairs of a second map are spread over the frequencies of a full map, so that its scores
        are those of a head of its own width with fewer frequencies, and are scaled as for that width.
        """
        dim = self.head_dim
        few = self.second_dim
        first, second = x.unflatten(-1, (-1, dim + few)).split([dim, few], dim=-1)
        pairs = torch.arange(few // 2, device=x.device) * (dim // 2) // (few // 2)
        places = torch.cat([pairs, pairs + dim // 2])
        wide = torch.zeros_like(first).index_copy(-1, places, second * (dim / few) ** 0.25)  # of queries and of keys
        return torch.stack([first, wide], dim=-2).flatten(2)

    def lam(self) -> Tensor:
        """Return λ of this layer, a scalar; both exponentials are in float32, as in every published implementation."""
        if self.fixed is not None:
            weight = self.o_proj.weight
            return torch.full((), self.fixed, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
        wide = torch.promote_types(self.lambda_q1.dtype, torch.float32)
        first, second = (each.to(wide) for each in exponentials(self, torch.float32))
        return first - second + self.lambda_init

    def mix(self, x, q, k, v, mask, **kwargs):
        halves = [self.attend(q, k, half.repeat(1, 2, 1, 1), mask, **kwargs) for half in v.chunk(2, dim=-1)]
        out = torch.cat([out for out, _ in halves], dim=-1)  # (batch, query, map, 2·dim)
        first, second = out.chunk(2, dim=2)  # (batch, query, head, 2·dim)
        difference = self.combine(first, second, self.lam())
        return (1 - self.lambda_init) * self.subln(difference), halves[0][1]

    def combine(self, first: Tensor, second: Tensor, lam: Tensor) -> Tensor:
        """Return the difference of A1 and λ·A2, or of A1·V and λ·A2·V; both have one shape, and λ is a scalar."""
        return first - lam.to(first.dtype) * second


class PlusAttention(DiffV1Attention):
    """V1 with a plus: A1 + λ·A2, so that the sign is the only difference from V1."""

    def combine(self, first, second, lam):
        return first + lam.to(first.dtype) * second


class SharedA2Attention(DiffV1Attention):
    """V1 with one second map for all heads of a layer; the last `head_dim` rows of the projections are its query and key.

    The idea is that of grouped differential attention: fewer second maps than first ones.
    """

    def __init__(self, config: DiffConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        dim = self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, (self.heads + 1) * dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, (self.kv_heads + 1) * dim, bias=config.attention_bias)

    def split_maps(self, x: Tensor, maps: int) -> Tensor:
        """Order maps as V1 does: first maps of all heads, then the second map repeated for each head."""
        x = x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (batch, head + 1, token, dim)
        first, second = x[:, :-1], x[:, -1:]
        return torch.cat([first, second.expand_as(first)], dim=1)


class DiffV2Attention(Attention):
    """Differential attention V2: maps 2h and 2h + 1 share keys and values, λ = sigmoid(W x) per token and head."""

    query_maps = 2

    def __init__(self, config: DiffConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.lambda_proj = nn.Linear(config.hidden_size, self.heads, bias=False)

    def lam(self, x: Tensor) -> Tensor:
        """Return λ, (batch, token, head)."""
        return self.lambda_proj(x).sigmoid()

    def mix(self, x, q, k, v, mask, **kwargs):
        out, weights = self.attend(q, k, v, mask, **kwargs)  # (batch, query, map, dim)
        return out[:, :, 0::2] - self.lam(x).unsqueeze(-1) * out[:, :, 1::2], weights


MECHANISMS: dict[str, type[Attention]] = {
    "standard": Attention,
    "v1": DiffV1Attention,
    "v2": DiffV2Attention,
    "plus": PlusAttention,
    "shared_a2": SharedA2Attention,
}
