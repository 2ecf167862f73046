"""Motif-2-12.7B as its ports describe it: grouped differential attention, plain formulas."""

import math

import torch
from torch import nn

from tests.layouts.decoder import RMSNorm, attention_maps, exponential_lambda, seen_keys, tiny_of, turned
from tests.layouts.motif import MotifConfig, MotifForCausalLM


class GroupedConfig(MotifConfig):
    num_attention_heads: int = 10  # 8 signal and 2 noise heads
    num_key_value_heads: int = 4
    num_noise_heads: int = 2
    k_ratio: int = 1
    head_dim: int = 8


class MotifAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim, self.noise_heads = config.head_dim, config.num_noise_heads
        self.ratio = (config.num_attention_heads - self.noise_heads) // self.noise_heads
        self.pairs = config.num_key_value_heads // (config.k_ratio + 1)
        width, d = config.hidden_size, self.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * d, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(width, 2 * self.pairs * d, bias=False)
        self.o_proj = nn.Linear(2 * self.ratio * self.noise_heads * d, width, bias=False)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.zeros(d)))
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * (layer_idx - 1))
        self.subln = RMSNorm(2 * d, config.attn_rms_norm_eps)

    lam = exponential_lambda

    def attend(self, q, k, v, seen):
        """q (batch, head, query, d), fewer keys and values → weights and output of every head."""
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        eager = self.config._attn_implementation == "eager"
        weights = attention_maps(q, k, self.head_dim**-0.5, seen, eager).to(v.dtype)
        return weights, weights @ v

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        position_ids=None,
        past_key_value=None,
        output_attentions=False,
        use_cache=False,
        cache_position=None,
        position_embeddings=None,
    ):
        batch, tokens, _ = hidden_states.shape
        q, k, v = (
            projection(hidden_states).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = turned(q, *position_embeddings), turned(k, *position_embeddings)
        if past_key_value is not None:
            k, v = past_key_value.update(k, v, self.layer_idx)
        seen = seen_keys(tokens, k.shape[2]) if attention_mask is None else attention_mask
        seen = seen if seen.dtype == torch.bool else seen == 0
        groups = q.view(batch, self.noise_heads, self.ratio + 1, tokens, self.head_dim)
        signal, noise = groups[:, :, :-1].flatten(1, 2), groups[:, :, -1]
        keys = k.view(batch, self.pairs, 2, -1, self.head_dim)
        values = torch.cat(v.view(batch, self.pairs, 2, -1, self.head_dim).unbind(2), dim=-1)
        first, signal_out = self.attend(signal, keys[:, :, 0], values, seen)
        second, noise_out = (x.repeat_interleave(self.ratio, dim=1) for x in self.attend(noise, keys[:, :, 1], values, seen))
        self.maps = torch.stack([first, second])  # (branch, batch, head, query, key)
        out = self.subln(signal_out - self.lam(q.dtype) * noise_out) * (1 - self.lambda_init)
        return self.o_proj(out.transpose(1, 2).flatten(2)), None, past_key_value


class GroupedForCausalLM(MotifForCausalLM):
    config_class = GroupedConfig
    attention = MotifAttention


def tiny(seed=0, **more):
    torch.manual_seed(seed)
    return tiny_of(GroupedForCausalLM(GroupedConfig(**more)), seed)
