"""axolotl's differential Llama as its two generations document it, in eager attention and SDPA.

The newer one splits heads so that values g and g + G form a wide one and leaves the factor 1 − λ_init out; the older one (`old`)
takes neighbouring values, has the factor, and no grouped keys.
"""

import math

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from tests.layouts.decoder import (
    Config,
    ForCausalLM,
    Model,
    RMSNorm,
    RotaryEmbedding,
    exponential_lambda,
    seen_keys,
    tiny_of,
    turned,
    wide,
)


class LlamaDifferentialConfig(Config):
    model_type = "llama-differential"
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    attention_bias: bool = False
    split_heads: bool = False
    sublayer_norm: bool = True
    zero_init: bool = False
    old: bool = False
    kind: str = "eager"


class LlamaDifferentialAttention(nn.Module):
    """Eager attention. Keeps its maps as `attn1` and `attn2`, and λ as `lambda_full`."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = d = config.hidden_size // config.num_attention_heads
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.heads_per_component = config.num_attention_heads // (2 if config.split_heads else 1)
        self.kv_heads_per_component = config.num_key_value_heads // (2 if config.split_heads else 1)
        self.value_head_dim = d * (2 if config.split_heads else 1)
        shape = {"bias": config.attention_bias}
        self.q_proj = nn.Linear(config.hidden_size, 2 * self.heads_per_component * d, **shape)
        self.k_proj = nn.Linear(config.hidden_size, 2 * self.kv_heads_per_component * d, **shape)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * d, **shape)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, **shape)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.zeros(d)))
        init = 0.0 if config.zero_init else 0.8 - 0.6 * math.exp(-0.3 * layer_idx)
        self.lambda_init = nn.Parameter(torch.tensor(init), requires_grad=False)
        self.subln = RMSNorm(self.value_head_dim, config.rms_norm_eps) if config.sublayer_norm else nn.Identity()
        if config.old:
            self.split_heads = config.split_heads
            del self.kv_heads_per_component
        else:
            self.diff_attn_mix = 1.0

    def lam(self, dtype):
        lam = exponential_lambda(self, dtype)
        return lam if self.config.old else self.diff_attn_mix * lam

    def projected(self, x, position_embeddings, cache):
        """q1, q2 (batch, head, token, d), k1, k2 and v of all tokens so far, repeated to as many heads."""
        (q1, q2), (k1, k2) = (
            [part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in projection(x).chunk(2, dim=-1)]
            for projection in (self.q_proj, self.k_proj)
        )
        q1, q2, k1, k2 = (turned(part, *position_embeddings) for part in (q1, q2, k1, k2))
        width = self.value_head_dim if self.config.old else self.head_dim
        v = self.v_proj(x).unflatten(-1, (-1, width)).transpose(1, 2)
        if cache is not None:
            k, v = cache.update(torch.stack([k1, k2], dim=1), v, self.layer_idx)
            k1, k2 = k[:, 0], k[:, 1]
        k1, k2, v = (part.repeat_interleave(self.num_key_value_groups, 1) for part in (k1, k2, v))
        if self.config.split_heads and not self.config.old:
            v = torch.cat([v[:, : self.heads_per_component], v[:, self.heads_per_component :]], dim=-1)
        return q1, q2, k1, k2, v

    def attend(self, q, k, v, mask):
        """The map and what it gathers."""
        scores = q @ k.mT / self.head_dim**0.5
        if mask is not None:
            scores = scores + mask[..., : k.shape[2]]
        weights = wide(scores).softmax(-1).to(q.dtype)
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
        **kwargs,
    ):
        q1, q2, k1, k2, v = self.projected(hidden_states, position_embeddings, past_key_value)
        self.attn1, out1 = self.attend(q1, k1, v, attention_mask)
        self.attn2, out2 = self.attend(q2, k2, v, attention_mask)
        self.lambda_full = self.lam(q1.dtype)
        out = self.subln(out1 - self.lambda_full * out2)
        out = out * (1 - self.lambda_init) if self.config.old else out
        out = self.o_proj(out.transpose(1, 2).flatten(2))
        return (out, None, past_key_value) if self.config.old else (out, None)


class LlamaDifferentialSdpaAttention(LlamaDifferentialAttention):
    def attend(self, q, k, v, mask):
        mask = None if mask is None else mask[..., : k.shape[2]]
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and q.shape[2] > 1)
        return out, out


KINDS = {"eager": LlamaDifferentialAttention, "sdpa": LlamaDifferentialSdpaAttention}


class LlamaDifferentialForCausalLM(ForCausalLM):
    config_class = LlamaDifferentialConfig

    def decoder(self, config):
        attentions = [KINDS[config.kind](config, layer) for layer in range(config.num_hidden_layers)]
        return Model(config, attentions, RotaryEmbedding(attentions[0].head_dim, config.rope_theta))

    def handed_down(self, x, attention_mask, position_ids, cache):
        keys = x.shape[1] + (0 if cache is None else cache.get_seq_length())
        mask = None
        if self.config.kind == "eager" or (attention_mask is not None and not attention_mask.all()):
            seen = seen_keys(x.shape[1], keys, attention_mask)
            mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill(
                ~seen.to(x.device), torch.finfo(x.dtype).min
            )
        return {
            "attention_mask": mask,
            "position_ids": position_ids,
            "past_key_value": cache,
            "position_embeddings": self.model.rotary_emb(x, position_ids),
        }


def tiny(seed=0, **more):
    torch.manual_seed(seed)
    model = LlamaDifferentialForCausalLM(LlamaDifferentialConfig(**more))
    inits = [layer.self_attn.lambda_init.clone() for layer in model.model.layers]
    model = tiny_of(model, seed)
    for layer, init in zip(model.model.layers, inits):
        layer.self_attn.lambda_init.data.copy_(init)
    return model
