"""DIFF V1 in the manner of Megatron's attention: tensors are (token, batch, width); keeps A1, A2 and λ as `seen`."""

import math

import torch
from torch import nn

from tests import tiny as sizes
from tests.layouts.ports import WIDTH, far_from_start


class Linear(nn.Linear):
    """Gives its bias beside its output."""

    def forward(self, x):
        return super().forward(x), None


class SelfAttention(nn.Module):
    """`over` is the width under the root of the scores; `planted` is a mistake in words."""

    def __init__(self, depth, heads=4, groups=2, norms=False, norm="subln", over="half", planted=None):
        super().__init__()
        self.num_attention_heads_per_partition, self.num_query_groups_per_partition = heads, groups
        self.width, self.over, self.norm, self.planted = WIDTH // heads, over, norm, planted
        self.linear_qkv = Linear(WIDTH, (heads + 2 * groups) * self.width, bias=False)
        self.linear_proj = Linear(WIDTH, WIDTH, bias=False)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        for name in ("q1", "k1", "q2", "k2"):
            self.register_parameter(f"lambda_{name}", nn.Parameter(torch.zeros(self.width // 2)))
        self.q_layernorm = nn.RMSNorm(self.width) if norms else None
        self.k_layernorm = nn.RMSNorm(self.width) if norms else None
        setattr(self, norm, nn.RMSNorm(self.width, eps=1e-5))

    def forward(self, hidden_states, attention_mask, rotary_pos_emb=None):
        tokens, batch, _ = hidden_states.shape
        groups, width = self.num_query_groups_per_partition, self.width
        packed = self.linear_qkv(hidden_states)[0].view(tokens, batch, groups, -1)
        q, k, v = packed.tensor_split([packed.shape[-1] - 2 * width, packed.shape[-1] - width], -1)
        q = q.reshape(tokens, batch, -1, width)
        if self.q_layernorm is not None:
            q, k = self.q_layernorm(q), self.k_layernorm(k)
        repeats = q.shape[2] // groups
        maps = []
        for first, second in zip(*(self.halves(x, rotary_pos_emb) for x in (q, k))):
            scores = torch.einsum("qbhd,kbhd->bhqk", first, second.repeat_interleave(repeats, 2))
            scores = scores / math.sqrt(width if self.over == "whole" else width // 2)
            later = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
            maps.append(scores.masked_fill(later, -torch.inf).softmax(-1))
        if self.planted == "maps of other heads":
            maps[1] = maps[1].roll(1, 1)
        dots = [(getattr(self, f"lambda_q{i}") * getattr(self, f"lambda_k{i}")).sum() for i in (1, 2)]
        lam = (dots[0].exp() - dots[1].exp() if self.planted != "no exponentials" else dots[0] - dots[1]) + self.lambda_init
        self.seen = (*maps, lam)
        v = v.repeat_interleave(repeats, 2)
        v1, v2 = v.tensor_split(2, -1)
        branches = [torch.cat([torch.einsum("bhqk,kbhd->qbhd", a, x) for x in (v1, v2)], -1) for a in maps]
        out = getattr(self, self.norm)(branches[0] - lam * branches[1])
        return self.linear_proj((out if self.planted == "no factor" else out * (1 - self.lambda_init)).flatten(2))

    def halves(self, x, angles):
        """The halves of heads (token, batch, head, width), turned before or after they are split."""
        if angles is not None and angles.shape[-1] == x.shape[-1]:
            x, angles = turned(x, angles), None
        halves = x.tensor_split(2, -1)
        return halves if angles is None else [turned(half, angles) for half in halves]


def turned(x, angles):
    left, right = x.tensor_split(2, -1)
    return x * angles.cos().to(x.dtype) + torch.cat([-right, left], -1) * angles.sin().to(x.dtype)


class Decoder(nn.Module):
    """Token ids (batch, token) → logits."""

    def __init__(self, layers=2, rope="half", **more):
        super().__init__()
        self.embed = nn.Embedding(sizes.VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(layers))
        self.layers = nn.ModuleList(SelfAttention(depth, **more) for depth in range(layers))
        self.head = nn.Linear(WIDTH, sizes.VOCABULARY, bias=False)
        self.rope = {"half": self.layers[0].width // 2, "whole": self.layers[0].width, None: None}[rope]

    def forward(self, ids):
        x = self.embed(ids).transpose(0, 1)
        angles = None
        if self.rope:
            frequencies = 10_000.0 ** -(torch.arange(0, self.rope, 2, device=x.device) / self.rope)
            angles = torch.outer(torch.arange(128.0, device=x.device)[: len(x)], frequencies)
            angles = torch.cat([angles, angles], -1)[:, None, None]  # (token, 1, 1, width)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x), None, rotary_pos_emb=angles)[0]
        return self.head(x.transpose(0, 1))


def tiny(seed=0, **more):
    torch.manual_seed(seed)
    return far_from_start(Decoder(**more), seed)
