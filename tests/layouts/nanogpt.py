"""DIFF V2 in descendants of nanoGPT, as BlaGPT's repository lays it out; keeps A1, A2 and λ as `seen`."""

import torch
from torch import nn

from tests.layouts.ports import Block, Decoder, far_from_start

WIDTH = 32


class Rotary(nn.Module):
    """cos and sin of as many tokens as there are, each (1, token, 1, d/2)."""

    def __init__(self, d):
        super().__init__()
        angles = torch.outer(torch.arange(128.0), 10_000.0 ** -(torch.arange(0, d, 2) / d))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        return tuple(table[None, : x.shape[1], None] for table in (self.cos, self.sin))


class DiffAttention(nn.Module):
    """`fused` has one projection for q, k and v; `sign` is that of the angle; `planted` is a mistake in words.

    Norms of q and k are given tokens first, or `heads_first`, or the "whole" of a token; `v_norm` is of values that were repeated
    for their maps.
    """

    def __init__(
        self, heads, kv_heads, fused=False, sign=-1, norms=True, cap=0.0, rope=True, planted=None, v_norm=False, heads_first=False
    ):
        super().__init__()
        self.heads_first = heads_first
        self.n_head, self.n_kv_head, self.head_dim = heads, kv_heads, WIDTH // heads
        self.soft_cap, self.sign, self.planted, self.mask = cap, sign, planted, None
        wide, narrow = 2 * WIDTH, 2 * kv_heads * self.head_dim
        if fused:
            self.c_attn = nn.Linear(WIDTH, wide + narrow)
        else:
            self.q_proj, self.kv_proj = nn.Linear(WIDTH, wide), nn.Linear(WIDTH, narrow)
        if norms:
            widths = (wide, narrow // 2) if norms == "whole" else (self.head_dim, self.head_dim)
            self.q_norm, self.k_norm = map(nn.RMSNorm, widths)
        if v_norm:
            self.v_norm = nn.RMSNorm(self.head_dim)
        if rope:
            self.rotary = Rotary(self.head_dim)
        self.lambda_proj, self.c_proj = nn.Linear(WIDTH, heads, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, q=None, mask=None):
        if hasattr(self, "c_attn"):
            q, kv = self.c_attn(x).tensor_split([2 * WIDTH], -1)
        else:
            q, kv = self.q_proj(x), self.kv_proj(x)
        q = q.unflatten(-1, (2 * self.n_head, -1))
        k, v = kv.unflatten(-1, (2, self.n_kv_head, -1)).unbind(2)
        if hasattr(self, "q_norm") and self.heads_first:
            q, k = (norm(y.transpose(1, 2)).transpose(1, 2) for norm, y in ((self.q_norm, q), (self.k_norm, k)))
        elif hasattr(self, "q_norm"):
            whole = self.q_norm.weight.shape != q.shape[-1:]
            q, k = (norm(y.flatten(2)).view_as(y) if whole else norm(y) for norm, y in ((self.q_norm, q), (self.k_norm, k)))
        if hasattr(self, "rotary"):
            q, k = (self.turned(y, *self.rotary(q)) for y in (q, k))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        k, v = (y.repeat_interleave(2 * self.n_head // self.n_kv_head, 1) for y in (k, v))
        v = self.v_norm(v) if hasattr(self, "v_norm") else v
        self.mask = self.mask if mask is None else mask
        return self.c_proj(self.attended(x, q, k, v).transpose(1, 2).flatten(2))

    def turned(self, x, cos, sin):
        first, second = x.float().tensor_split(2, -1)
        sin = self.sign * sin
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)

    def attended(self, x, q, k, v):
        scores = q @ k.mT / q.shape[-1] ** (0.25 if self.planted == "scale" else 0.5)
        if self.soft_cap:
            scores = self.soft_cap * (scores / self.soft_cap).tanh()
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).tril() if self.mask is None else self.mask
        added = (seen < 0).any()
        maps = (scores + seen if added else scores.masked_fill(seen == 0, -torch.inf)).softmax(-1)
        halves = maps.tensor_split(2, 1)
        a1, a2 = halves if self.planted == "halves" else (maps[:, 0::2], maps[:, 1::2])
        lam = self.lambda_proj(x).sigmoid().mT[..., None]
        lam = 1.05 * lam if self.planted == "lambda" else lam
        self.seen = a1, a2, lam
        return (a1 - lam * a2) @ v[:, 0::2]


def tiny(seed=0, heads=4, kv_heads=2, layers=2, **more):
    torch.manual_seed(seed)
    blocks = (Block(DiffAttention(heads, kv_heads, **more)) for _ in range(layers))
    return far_from_start(Decoder(blocks), seed)
