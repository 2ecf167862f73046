"""Phi-4-mini-flash as its ports describe it; where it has Mamba, a small gated block stands in."""

import math

import torch
from torch import nn

from tests.layouts.decoder import Config, ForCausalLM, RMSNorm, attention_maps, exponential_lambda, seen_keys, tiny_of


class Phi4FlashConfig(Config):
    model_type = "phi4flash"
    num_hidden_layers: int = 8
    layer_norm_eps: float = 1e-5
    tokens_first: bool = False  # of the keys and values that layers share, as a port has them
    sliding_window: int | list = 6  # of all layers, or layer by layer

    def __post_init__(self, **kwargs):
        half = self.num_hidden_layers // 2
        kinds = ("linear_attention", "sliding_attention", "linear_attention", "full_attention")
        self.layer_types = [kinds[layer % 2 + 2 * (layer >= half)] for layer in range(self.num_hidden_layers)]
        super().__post_init__(**kwargs)

    def window_of(self, layer):
        if isinstance(self.sliding_window, list):
            return self.sliding_window[layer]
        return self.sliding_window if layer < self.num_hidden_layers // 2 else None


class FlashDiffCustomAttention(nn.Module):
    def __init__(self, head_dim, depth):
        super().__init__()
        self.head_dim = head_dim
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.zeros(head_dim)))
        self.subln = RMSNorm(2 * head_dim, 1e-5)

    lam = exponential_lambda

    def forward(self, q, k, v, seen):
        """q, k and v (batch, token, head, d), striped → (batch, query, head, d)."""
        q, k, v = (x.unflatten(2, (-1, 2)) for x in (q, k, v))
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
        maps, outputs = [], []
        for branch in (0, 1):
            queries, keys = (x[:, :, :, branch].transpose(1, 2) for x in (q, k))  # (batch, head, token, d)
            maps.append(attention_maps(queries, keys, self.head_dim**-0.5, seen).to(v.dtype))
            halves = [torch.einsum("bhqk,bkhd->bqhd", maps[-1], v[:, :, :, half]) for half in (0, 1)]
            outputs.append(torch.cat(halves, dim=-1))
        self.maps = torch.stack(maps)  # (branch, batch, head, query, key)
        out = self.subln(outputs[0] - self.lam(q.dtype) * outputs[1]) * (1 - self.lambda_init)
        return out.unflatten(-1, (2, -1)).flatten(2, 3)


class FlashAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.num_heads, self.num_key_value_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.hidden_size // self.num_heads
        half = config.num_hidden_layers // 2
        self.yoco_cross, self.window = layer_idx >= half + 2, config.window_of(layer_idx)
        width = self.num_heads * self.head_dim
        kv_width = 0 if self.yoco_cross else 2 * self.num_key_value_heads * self.head_dim
        self.Wqkv = nn.Linear(config.hidden_size, width + kv_width, bias=True)
        self.out_proj = nn.Linear(width, config.hidden_size, bias=True)
        self.inner_cross_attn = FlashDiffCustomAttention(self.head_dim, layer_idx)

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        position_ids=None,
        past_key_value=None,
        output_attentions=False,
        use_cache=False,
        cache_position=None,
        yoco_key_values=None,
    ):
        batch, tokens, _ = hidden_states.shape
        projected = self.Wqkv(hidden_states).view(batch, tokens, -1, self.head_dim)
        q = projected[:, :, : self.num_heads]
        if not self.yoco_cross:
            k, v = projected[:, :, self.num_heads :].transpose(1, 2).split(self.num_key_value_heads, dim=1)
            if past_key_value is not None:
                k, v = past_key_value.update(k, v, self.layer_idx)
            yoco_key_values = (k.transpose(1, 2), v.transpose(1, 2)) if self.config.tokens_first else (k, v)
        k, v = yoco_key_values if self.config.tokens_first else (x.transpose(1, 2) for x in yoco_key_values)
        if attention_mask is not None:
            k, v = k[:, : attention_mask.shape[-1]], v[:, : attention_mask.shape[-1]]
        out = self.inner_cross_attn(q, k, v, seen_keys(tokens, k.shape[1], attention_mask, self.window))
        return self.out_proj(out.flatten(2)), None, yoco_key_values


class Mamba(nn.Module):
    """Stands in: no attention and no memory."""

    def __init__(self, config):
        super().__init__()
        self.in_proj = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x):
        gate, x = self.in_proj(x).chunk(2, dim=-1)
        return self.out_proj(gate.sigmoid() * x)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        gate, x = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(nn.functional.silu(gate) * x)


class DecoderLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.window = config.window_of(layer_idx)
        self.use_mamba = layer_idx % 2 == 0
        self.attn = Mamba(config) if self.use_mamba else FlashAttention(config, layer_idx)
        self.mlp = MLP(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x, attention_mask=None, position_ids=None, past_key_value=None, yoco_key_values=None):
        normed = self.input_layernorm(x)
        if self.use_mamba:
            out = self.attn(normed)
        else:
            if self.window is not None and attention_mask is not None and normed.shape[1] == 1:
                attention_mask = attention_mask[:, -self.window :]
            out, _, yoco_key_values = self.attn(
                normed, attention_mask, position_ids, past_key_value, yoco_key_values=yoco_key_values
            )
        x = x + out
        return x + self.mlp(self.post_attention_layernorm(x)), None, yoco_key_values


class Phi4FlashModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class Phi4FlashForCausalLM(ForCausalLM):
    config_class = Phi4FlashConfig

    def decoder(self, config):
        return Phi4FlashModel(config)

    def decode(self, x, attention_mask, position_ids, cache):
        shared = None
        for layer in self.model.layers:
            x, _, shared = layer(x, attention_mask, position_ids, cache, shared)
        return x


def tiny(seed=0, **more):
    torch.manual_seed(seed)
    return tiny_of(Phi4FlashForCausalLM(Phi4FlashConfig(**more)), seed)
