"""A re-implementation of DIFF V1 as a reader of the paper might write it, with one mistake at a time planted in it."""

import math

import torch
from torch import nn

MISTAKES = {
    "none": "",
    "heads paired by halves": r"head h owns maps h and h \+ H",
    "(1 − λ_init) missing": r"factor \(1 − λ_init\) after the norm is missing",
    "λ without the exponentials": "λ lacks the exponentials",
    "norm missing": "norm of the heads' outputs is missing",
    "λ_init of the wrong layer": r"λ_init of layer l is the paper's of l \+ 1",
    "K repeated before pairing": "K is repeated before the maps are paired",
    "K and V tiled over the heads": "K is tiled over the heads .* and V is tiled over the heads",
    "V of a head from two halves": r"V of a head is v_h beside v_\(h \+ G\)",
    "RoPE missing": "RoPE is missing",
    "RoPE by halves": "RoPE turns element i with i \\+ d/2",
    "scores over the wrong root": r"scaled by 1/√\(2d\)",
    "causal mask missing": "causal mask is missing",
    "a window of 9 keys": "queries see only the last 9 keys, not all keys up to their own",
    "eps of the norm": "the norm's eps is 1e-03, not 1e-05",
    "λ × 1.05": "λ is not the value that the model used",
    "scores × 1.05": "the scores are 1.05 times",
    "soft cap": r"caps its scores \(soft cap 5\)",
    "attention sink": r"sink logit .* \(about -1\)",
}


def turned(x, cos, sin, mistake):
    """Interleaved RoPE of x (batch, token, map, d)."""
    if mistake == "RoPE missing":
        return x
    cos, sin = cos[: x.shape[1], None], sin[: x.shape[1], None]
    if mistake == "RoPE by halves":
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class DifferentialAttention(nn.Module):
    """The paper's attention: maps 2h and 2h + 1, grouped keys paired first; or what a mistake makes of it."""

    def __init__(self, width, depth, heads, kv_heads, mistake):
        super().__init__()
        self.mistake, self.num_heads, self.num_kv_heads = mistake, heads, kv_heads
        self.head_dim = width // heads // 2
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, 2 * kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, 2 * kv_heads * self.head_dim, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        index = depth + 1 if mistake == "λ_init of the wrong layer" else depth
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * index)
        for name in ("q1", "k1", "q2", "k2"):
            self.register_parameter(f"lambda_{name}", nn.Parameter(torch.randn(self.head_dim) * 0.3))
        self.subln = nn.RMSNorm(2 * self.head_dim, eps=1e-5)
        self.used_eps = 1e-3 if mistake == "eps of the norm" else 1e-5

    def lam(self):
        first, second = (self.lambda_q1 * self.lambda_k1).sum(), (self.lambda_q2 * self.lambda_k2).sum()
        if self.mistake == "λ without the exponentials":
            return first - second + self.lambda_init
        return (first.exp() - second.exp() + self.lambda_init) * (1.05 if self.mistake == "λ × 1.05" else 1)

    def norm(self, out):
        if self.used_eps == self.subln.eps:
            return self.subln(out)
        return out * (out.square().mean(-1, keepdim=True) + self.used_eps).rsqrt() * self.subln.weight

    def forward(self, x, rel_pos, attn_mask=None):
        heads, groups, d, n = self.num_heads, self.num_kv_heads, self.head_dim, x.shape[1]
        q = turned(self.q_proj(x).unflatten(-1, (2 * heads, d)), *rel_pos, self.mistake)
        k = turned(self.k_proj(x).unflatten(-1, (2 * groups, d)), *rel_pos, self.mistake)
        v = self.v_proj(x).unflatten(-1, (groups, 2 * d))
        if self.mistake == "V of a head from two halves":
            v = torch.cat(self.v_proj(x).unflatten(-1, (2 * groups, d)).chunk(2, 2), -1)
        v = v.repeat_interleave(heads // groups, 2)
        if self.mistake == "K and V tiled over the heads":
            v = self.v_proj(x).unflatten(-1, (groups, 2 * d)).repeat(1, 1, heads // groups, 1)
            k = k.repeat(1, 1, heads // groups, 1)
        elif self.mistake == "K repeated before pairing":
            k = k.repeat_interleave(heads // groups, 2)
        else:
            k = k.unflatten(2, (groups, 2)).repeat_interleave(heads // groups, 2).flatten(2, 3)
        root = (2 * d if self.mistake == "scores over the wrong root" else d) ** 0.5
        scores = torch.einsum("bqmd,bkmd->bmqk", q, k) / root  # (batch, map, query, key)
        if self.mistake == "scores × 1.05":
            scores = scores * 1.05
        if self.mistake == "soft cap":
            scores = 5 * (scores / 5).tanh()
        if self.mistake != "causal mask missing":
            scores = scores + scores.new_full((n, n), -torch.inf).triu(1)
        if self.mistake == "a window of 9 keys":
            scores = scores.masked_fill(torch.ones(n, n).tril(-9) > 0, -torch.inf)
        if self.mistake == "attention sink":
            sink = torch.full_like(scores[..., :1], -1.0)
            maps = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            maps = scores.softmax(-1)
        if self.mistake == "heads paired by halves":
            a1, a2 = maps[:, :heads], maps[:, heads:]
        else:
            a1, a2 = maps[:, 0::2], maps[:, 1::2]
        out = torch.einsum("bhqk,bkhw->bqhw", a1 - self.lam() * a2, v)
        out = out if self.mistake == "norm missing" else self.norm(out)
        out = out if self.mistake == "(1 − λ_init) missing" else out * (1 - self.lambda_init)
        return self.out_proj(out.flatten(2))


class Planted(nn.Module):
    """Layers of it around a residual stream: token ids (batch, token) → logits."""

    def __init__(self, mistake="none", width=64, heads=4, kv_heads=2, vocabulary=900, layers=2):
        super().__init__()
        self.angles = width // heads // 4
        self.embed = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(DifferentialAttention(width, i, heads, kv_heads, mistake) for i in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        angle = torch.arange(ids.shape[1])[:, None] * 10_000 ** -(torch.arange(self.angles) / self.angles)
        x = self.embed(ids)
        rel_pos = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x), rel_pos)
        return self.head(x)


def tiny(mistake="none", seed=0, layers=2):
    """A small awake one, every weight random."""
    torch.manual_seed(seed)
    model = Planted(mistake, layers=layers)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_().mul_(2 / parameter.shape[1] ** 0.5)
        for layer in model.layers:
            layer.subln.weight.uniform_(0.5, 2)
    return model.eval()
