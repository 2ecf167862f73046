"""Row statistics without rows: log-sum-exp identities over plain attention, an oracle that shares no code with blocks.

With s the scaled scores of a branch, p its row of A1 or A2 and L(·) a row's log-sum-exp:

=============== =============================================================================
sum p^a         exp(L(a·s) - a·L(s)): squares with a = 2, roots with a = 1/2
sum p ln p      E_p[s] - L(s), and E_p[s] = scale·q·(A K) is attention with the keys for values
<A1, A2>        exp(L(s1 + s2) - L1 - L2): s1 + s2 are the scores of concatenated queries and keys
KL(A1 | A2)     E_1[s1 - s2] - L1 + L2, with E_1[s2] from the keys of the second branch for values
sum D²          g²·sum A1² - 2gλ·<A1, A2> + λ²·sum A2²
=============== =============================================================================
"""

import torch


def attend(q, k, v, *, scale, causal, offset):
    """Return the output (map, query, width) and the log-sum-exp (map, query) of attention; query t sees keys up to t + offset."""
    scores = scale * q @ k.mT
    hidden = torch.arange(k.shape[1]) > torch.arange(q.shape[1])[:, None] + offset
    scores = scores.masked_fill(hidden & causal, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


class Branch:
    """The maps that the heads of a layer use for A1, or for A2; everything (head, query)."""

    def __init__(self, layer, maps):
        self.q = layer.q[0][maps]  # (head, query, d)
        self.k = layer.k[0][layer.pairing.key_of_map[maps]]  # (head, key, d)
        self.scale = layer.scale
        self.mask = {"causal": layer.mask.kind == "causal", "offset": layer.n_keys - layer.n_queries}
        self.lse = self.log_sum(1)
        self.squares = (self.log_sum(2) - 2 * self.lse).exp()
        self.roots = (self.log_sum(0.5) - self.lse / 2).exp()
        self.logs = self.mean_score(self) - self.lse

    def log_sum(self, factor):
        """L(factor·s)."""
        return attend(self.q, self.k, self.k[..., :1], scale=factor * self.scale, **self.mask)[1]

    def mean_score(self, other):
        """The mean under this branch of the scores of the other."""
        mean_key = attend(self.q, self.k, other.k, scale=self.scale, **self.mask)[0]
        return self.scale * (other.q * mean_key).sum(-1)

    def kl(self, other):
        return self.logs - self.mean_score(other) + other.lse

    def dot(self, other):
        q, k = torch.cat([self.q, other.q], -1), torch.cat([self.k, other.k], -1)
        lse = attend(q, k, k[..., :1], scale=self.scale, **self.mask)[1]
        return (lse - self.lse - other.lse).exp()


def of_branch(branch, n):
    """Statistics of A1 or A2 by name; n (query,) visible keys."""
    participation = 1 / branch.squares
    return {
        "entropy": -branch.logs,
        "effective_tokens": (-branch.logs).exp(),
        "participation": participation,
        "hoyer": (n.sqrt() - participation.sqrt()) / (n.sqrt() - 1),
        "pseudo_norm": branch.roots.square(),
    }


def of_pair(layer):
    """Statistics of both branches on the set of all keys, by name."""
    first, second = Branch(layer, layer.pairing.a1), Branch(layer, layer.pairing.a2)
    dot = first.dot(second)
    gain, lam = (x[0].expand(layer.n_heads, layer.n_queries) for x in (layer.gain, layer.lam))
    squares = gain**2 * first.squares - 2 * gain * lam * dot + lam**2 * second.squares
    return {
        "cosine": dot / (first.squares * second.squares).sqrt(),
        "lambda_star": dot / second.squares,
        "residual_noise": (squares.clamp_min(0) / (gain**2 * first.squares)).sqrt(),
        "kl_12": first.kl(second),
        "kl_21": second.kl(first),
    }
