"""Motif-2.6B as its ports describe it: plain formulas, the names and the order of arguments of the remote code."""

import math

import torch
from torch import nn

from tests.layouts.decoder import (
    Config,
    ForCausalLM,
    Model,
    RMSNorm,
    RotaryEmbedding,
    attention_maps,
    exponential_lambda,
    seen_keys,
    tiny_of,
    turned,
)


class MotifConfig(Config):
    model_type = "motif"
    attn_rms_norm_eps: float = 1e-5
    use_bias: bool = False
    rotary_inside: bool = False  # older files turn by a part of the attention's own
    wide_values: bool = False  # what is cached: heads of width d, or of 2d


class MotifAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.num_heads = config.num_attention_heads // 2
        self.num_key_value_heads = config.num_key_value_heads // 2
        self.head_dim = config.hidden_size // config.num_attention_heads
        width, kv_width = config.hidden_size, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, width, bias=config.use_bias)
        self.k_proj = nn.Linear(width, kv_width, bias=config.use_bias)
        self.v_proj = nn.Linear(width, kv_width, bias=config.use_bias)
        self.o_proj = nn.Linear(width, width, bias=config.use_bias)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.zeros(self.head_dim)))
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * (layer_idx - 1))
        self.subln = RMSNorm(2 * self.head_dim, config.attn_rms_norm_eps)
        if config.rotary_inside:
            self.rotary_emb = RotaryEmbedding(self.head_dim, config.rope_theta)

    lam = exponential_lambda

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
        if self.config.rotary_inside:
            position_embeddings = self.rotary_emb(v, position_ids)
        q, k = turned(q, *position_embeddings), turned(k, *position_embeddings)
        if self.config.wide_values:
            v = torch.cat([v[:, 0::2], v[:, 1::2]], dim=-1)
        if past_key_value is not None:
            k, v = past_key_value.update(k, v, self.layer_idx)
        seen = seen_keys(tokens, k.shape[2]) if attention_mask is None else attention_mask
        seen = seen if seen.dtype == torch.bool else seen == 0
        eager = self.config._attn_implementation == "eager"
        outputs, maps = [], []
        for head in range(self.num_heads):
            group = head // (self.num_heads // self.num_key_value_heads)
            wide = self.config.wide_values
            value = v[:, group] if wide else torch.cat([v[:, 2 * group], v[:, 2 * group + 1]], dim=-1)  # (batch, key, 2d)
            pair = []
            for branch in (0, 1):
                query, key = q[:, 2 * head + branch], k[:, 2 * group + branch]
                weights = attention_maps(query, key, self.head_dim**-0.5, seen[:, 0], eager)
                pair.append(weights.to(v.dtype))  # (batch, query, key)
            first, second = (weights @ value for weights in pair)
            difference = first - self.lam(q.dtype) * second
            outputs.append(self.subln(difference) * (1 - self.lambda_init))
            maps.append(torch.stack(pair))
        self.maps = torch.stack(maps, dim=2)  # (branch, batch, head, query, key)
        return self.o_proj(torch.cat(outputs, dim=-1)), None, past_key_value


class MotifForCausalLM(ForCausalLM):
    config_class = MotifConfig
    attention = MotifAttention

    def decoder(self, config):
        attentions = [self.attention(config, layer) for layer in range(config.num_hidden_layers)]
        return Model(config, attentions, RotaryEmbedding(attentions[0].head_dim, config.rope_theta))

    def handed_down(self, x, attention_mask, position_ids, cache):
        keys = x.shape[1] + (0 if cache is None else cache.get_seq_length())
        mask = seen_keys(x.shape[1], keys, attention_mask)
        if self.config._attn_implementation == "eager":
            mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(
                ~mask.to(x.device), torch.finfo(x.dtype).min
            )
        return {
            "attention_mask": mask,
            "position_ids": position_ids,
            "past_key_value": cache,
            "position_embeddings": None if self.config.rotary_inside else self.model.rotary_emb(x, position_ids),
        }


def tiny(seed=0, **more):
    torch.manual_seed(seed)
    return tiny_of(MotifForCausalLM(MotifConfig(**more)), seed)
