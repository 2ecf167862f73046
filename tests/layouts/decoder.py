"""A small Hugging Face decoder, around whichever attention a layout describes."""

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from tests import tiny


class Config(PreTrainedConfig):
    vocab_size: int = tiny.VOCABULARY
    hidden_size: int = 64
    intermediate_size: int = 48
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 256
    use_cache: bool = True
    bos_token_id: int = 0
    eos_token_id: int = 0
    pad_token_id: int = 1


def wide(x):
    """x in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def exponential_lambda(part, dtype):
    """λ of two products of vectors, which are summed and exponentiated in float32 or wider."""
    dots = ((part.lambda_q1 * part.lambda_k1).sum(-1), (part.lambda_q2 * part.lambda_k2).sum(-1))
    first, second = (wide(dot).exp().to(dtype) for dot in dots)
    return first - second + part.lambda_init


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, x):
        full = wide(x)
        full = full * torch.rsqrt(full.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * full.to(x.dtype)


class PolyNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1 / 3))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        powers = (wide(x) ** power for power in (3, 2, 1))
        normed = (power * torch.rsqrt(power.square().mean(-1, keepdim=True) + 1e-6) for power in powers)
        return (sum(weight * part for weight, part in zip(self.weight, normed)) + self.bias).to(x.dtype)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = PolyNorm()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class RotaryEmbedding(nn.Module):
    def __init__(self, width, theta):
        super().__init__()
        self.register_buffer("inv_freq", theta ** -(torch.arange(0, width, 2).float() / width), persistent=False)

    def forward(self, x, position_ids):
        """cos and sin, (batch, token, width), each angle twice."""
        angles = position_ids[..., None] * wide(self.inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def turned(x, cos, sin):
    """RoPE of x (batch, head, token, d): element i goes with i + d/2."""
    left, right = x.tensor_split(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return x * cos + torch.cat((-right, left), -1) * sin


def seen_keys(tokens, keys, padding=None, window=None):
    """bool (batch or 1, 1, query, key), for the last `tokens` of `keys`; `padding` (batch, key) is 1 on tokens."""
    device = None if padding is None else padding.device
    distance = torch.arange(keys - tokens, keys, device=device)[:, None] - torch.arange(keys, device=device)
    seen = (distance >= 0) & (distance < (window or keys))
    return seen[None, None] if padding is None else seen & padding[:, None, None, -keys:].bool()


def attention_maps(q, k, scale, seen, eager=False):
    """softmax(scale·q·kᵀ) in float32 or wider; eager attention keeps its scores in the activations' dtype before it."""
    q, k = (q, k) if eager else (wide(q), wide(k))
    scores = wide(q @ k.transpose(-1, -2) * scale).masked_fill(~seen.to(q.device), -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0)  # a row that sees nothing has no weight


class DecoderLayer(nn.Module):
    def __init__(self, config, attention):
        super().__init__()
        self.self_attn = attention
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, **given):
        x = x + self.self_attn(hidden_states=self.input_layernorm(x), **given)[0]
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, config, attentions, rotary):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, attention) for attention in attentions)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = rotary


class ForCausalLM(PreTrainedModel, GenerationMixin):
    """The model with its head; a layout says which attention it has and what is handed to it."""

    config_class = Config
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.model = self.decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None, **ignored):
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(past, past + input_ids.shape[1], device=input_ids.device)[None].expand(len(input_ids), -1)
        hidden = self.model.norm(self.decode(self.model.embed_tokens(input_ids), attention_mask, position_ids, past_key_values))
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), past_key_values=past_key_values)

    def decode(self, x, attention_mask, position_ids, cache):
        """All layers."""
        argument = self.handed_down(x, attention_mask, position_ids, cache)
        for layer in self.model.layers:
            x = layer(x, **argument)
        return x


def tiny_of(model, seed):
    """The model with awake weights: norms, biases and λ vectors random too."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() != 1:
                continue
            noise = torch.rand(parameter.shape, generator=generator)
            if "lambda" in name:
                parameter.copy_(1.2 * (noise - 0.5))
            elif name.endswith("bias"):
                parameter.copy_(noise - 0.5)
            else:
                parameter.copy_(0.5 + 1.5 * noise)
    return tiny.awake(model, seed)
