"""The attention of stable-audio-tools, as its repository lays it out; keeps its maps as `seen`."""

from types import SimpleNamespace

import torch
from torch import nn

from tests import tiny as sizes

WIDTH, D = 16, 4


class Attention(nn.Module):
    """`keys` is the order of cross-attention's keys and values; `planted` is a mistake in words.

    RoPE of the shorter side is stretched to the longer one, unless keys have angles of their own.
    """

    def __init__(self, dim_context=None, differential=True, qk_norm="ln", keys=("k1", "k2", "v"), planted=None):
        super().__init__()
        self.num_heads, self.kv_heads, self.dim_heads = WIDTH // D, (dim_context or WIDTH) // D, D
        self.differential, self.qk_norm, self.causal, self.keys, self.planted = differential, qk_norm, False, keys, planted
        if dim_context is None:
            self.to_qkv = nn.Linear(WIDTH, WIDTH * (5 if differential else 3), bias=False)
        else:
            self.to_q = nn.Linear(WIDTH, WIDTH * (2 if differential else 1), bias=False)
            self.to_kv = nn.Linear(dim_context, dim_context * (3 if differential else 2), bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)
        if qk_norm == "ln":
            self.q_norm, self.k_norm = (nn.LayerNorm(D, eps=1e-6) for _ in "qk")

    def parts(self, x, context):
        split = lambda y, names: {  # noqa: E731
            name: part.unflatten(-1, (-1, D)).transpose(1, 2) for name, part in zip(names, y.tensor_split(len(names), -1))
        }
        if context is None:
            return split(self.to_qkv(x), ("q1", "k1", "v", "q2", "k2")[: 5 if self.differential else 3])
        queries = split(self.to_q(x), ("q1", "q2") if self.differential else ("q1",))
        return queries | split(self.to_kv(context), self.keys if self.differential else ("k1", "v"))

    def normed(self, x, side):
        if self.qk_norm == "none":
            return x
        return nn.functional.normalize(x, dim=-1) if self.qk_norm == "l2" else getattr(self, f"{side}_norm")(x)

    def turned(self, x, angles):
        width, angles = angles.shape[-1], angles.float()
        wide, rest = x[..., :width].float(), x[..., width:]
        left, right = wide.tensor_split(2, -1)
        return torch.cat([(wide * angles.cos() + torch.cat([-right, left], -1) * angles.sin()).to(x.dtype), rest], -1)

    def seen_by(self, queries, keys, causal, window):
        """Which keys queries see, (query, key); −1 is a window without an end."""
        seen = torch.ones(queries, keys, dtype=torch.bool)
        behind, ahead = window or (-1, 0 if causal else -1)
        seen = seen.triu(-behind) if behind >= 0 else seen
        return seen.tril(ahead) if ahead >= 0 else seen

    def forward(
        self,
        x,
        context=None,
        rotary_pos_emb=None,
        rotary_pos_emb_k=None,
        causal=None,
        flash_attn_sliding_window=None,
        padding_mask=None,
    ):
        parts = self.parts(x, context)
        v = parts.pop("v")
        ready = {name: self.normed(part, name[0]) for name, part in parts.items()}
        if rotary_pos_emb is not None:
            longest = max(part.shape[-2] for part in ready.values())
            for name, part in ready.items():
                angles = rotary_pos_emb[0] * (longest / part.shape[-2])
                if rotary_pos_emb_k is not None:
                    angles = (rotary_pos_emb_k if name[0] == "k" else rotary_pos_emb)[0]
                ready[name] = self.turned(part, angles[-part.shape[-2] :])
        if self.planted == "k2 of other heads":
            ready["k2"] = ready["k2"].roll(1, 1)
        repeats = self.num_heads // self.kv_heads
        v, self.seen = v.repeat_interleave(repeats, 1), []
        for number in "12" if self.differential else "1":
            scores = ready[f"q{number}"] @ ready[f"k{number}"].repeat_interleave(repeats, 1).mT / D**0.5
            seen = self.seen_by(*scores.shape[-2:], self.causal if causal is None else causal, flash_attn_sliding_window)
            self.seen.append(scores.masked_fill(~seen, -torch.inf).softmax(-1))
        weight = 0.95 if self.planted == "lambda" else 1
        out = (self.seen[0] - weight * self.seen[1] if self.differential else self.seen[0]) @ v
        return self.to_out(out.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Blocks of self- and cross-attention from latents (batch, channel, place) to a text.

    `across` is whose angles turn the keys of cross-attention: those of queries, "stretched", or their "own".
    """

    def __init__(self, layers=2, context=8, across=None, **more):
        super().__init__()
        self.across = across
        self.own = nn.ModuleList(Attention(**more) for _ in range(layers))
        self.cross = nn.ModuleList(Attention(context, **more) for _ in range(layers))
        self.config = SimpleNamespace(io_channels=WIDTH, cond_token_dim=context, global_cond_dim=1)
        self.register_buffer("frequencies", torch.tensor([1.0]), persistent=False)

    def forward(self, hidden_states, timestep, encoder_hidden_states, global_hidden_states=None, return_dict=True):
        x, text = hidden_states.transpose(1, 2), encoder_hidden_states
        places, tokens = (
            (torch.arange(count)[:, None] * torch.cat([self.frequencies, self.frequencies]), 1.0)
            for count in (x.shape[1], text.shape[1])
        )  # angles (place, 2), and a scale
        turns = {None: {}, "stretched": {"rotary_pos_emb": max(places, tokens, key=lambda angles: len(angles[0]))}}
        turns["own"] = {"rotary_pos_emb": places, "rotary_pos_emb_k": tokens}
        for own, cross in zip(self.own, self.cross):
            x = x + own(x, rotary_pos_emb=places)
            x = x + cross(x, context=text, **turns[self.across])
        return (x.transpose(1, 2),)


def tiny(seed=0, **more):
    torch.manual_seed(seed)
    return sizes.awake(Model(**more), seed)


def inputs(context=8, dtype=torch.float32, places=7, tokens=5):
    draw = torch.Generator().manual_seed(0)
    latents, text = torch.randn(1, WIDTH, places, generator=draw), torch.randn(1, tokens, context, generator=draw)
    return {"hidden_states": latents.to(dtype), "timestep": torch.ones(1), "encoder_hidden_states": text.to(dtype)}
