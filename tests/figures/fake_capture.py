"""A capture made of random attention inputs: what a figure needs of a capture, without a model."""

from types import SimpleNamespace

import numpy as np
import torch
import xarray as xr

TOKENS = [
    "<s>",
    "The",
    " <b>&$",
    " magic",
    "\n",
    " number",
    " $x_1$",
    " of",
    " <i>",
    " Paris",
    " is",
    " 7",
    "4",
    "21",
    " %{x}",
    " .",
]


class FakeLayer(SimpleNamespace):
    """One layer of one prompt."""

    def prompt(self, index):
        return self

    def visible(self, queries):
        return self.seen[queries]


class FakeCapture:
    """Softmax maps of random q and k, causal, with the second branch scaled by one λ a layer."""

    def __init__(self, n=16, layers=3, heads=2, standard=False, seed=0, mask="causal"):
        self.n_tokens, self.n_layers, self.n_heads = n, layers, heads
        self.model_name, self.family = "fake", "standard" if standard else "diff_v1"
        self.tokens = (TOKENS * (n // len(TOKENS) + 1))[:n]
        self.text = "".join(self.tokens)
        self.spans = {
            "sink": np.array([0]),
            "answer": np.arange(11, 14),
            "needles": np.array([5, 6, 9]),
            "context": np.arange(1, 5),
        }
        self.standard = standard
        rng = np.random.default_rng(seed)
        self.q, self.k = (rng.normal(size=(layers, heads, 2, n, 8)) for _ in range(2))
        self.values = 0.0 if standard else 0.2 + 0.1 * np.arange(layers)
        self.differential = not standard
        seen = torch.ones(n, n, dtype=torch.bool)
        seen = seen if mask == "full" else seen.tril()
        seen = seen.triu(-2) if mask == "window" else seen  # a window of three
        self.layers = [
            FakeLayer(layer=layer, mask=SimpleNamespace(kind=mask), seen=seen, differential=not standard, d_is_a1=standard)
            for layer in range(layers)
        ]
        lam = np.zeros((layers, heads)) if standard else np.repeat(np.asarray(self.values)[:, None], heads, 1)
        coords = {"layer": np.arange(layers), "head": np.arange(heads)}
        self.lam = xr.DataArray(lam, dims=("layer", "head"), coords=coords)
        self.lam_init = [None] * layers if standard else list(0.8 - 0.6 * np.exp(-0.3 * np.arange(layers)))
        self.fidelity = xr.Dataset(
            {"error": ("layer", np.full(layers, 2e-7)), "tolerance": ("layer", np.full(layers, 1e-5))},
            coords={"layer": np.arange(layers)},
        )
        self.next = [(" <b>&$", 0.5), (" 7", 0.2)]
        self.mask = mask

    def _branch(self, layer, head, branch):
        s = self.q[layer, head, branch] @ self.k[layer, head, branch].T / np.sqrt(8)
        s = np.where(self.layers[layer].seen.numpy(), s, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)).astype(np.float32)

    def map(self, name, layer, head, prompt=0, queries=None, keys=None):
        lam = float(self.lam[layer, head])
        a1, a2 = self._branch(layer, head, 0), self._branch(layer, head, 1)
        values = {"A1": a1, "A2": a2, "lambda_A2": lam * a2, "D": a1 - lam * a2}[name]
        q, k = queries or slice(None), keys or slice(None)
        where = np.arange(self.n_tokens)
        words = np.array(self.tokens)
        return xr.DataArray(
            values[q, k],
            dims=("query", "key"),
            name=name,
            coords={
                "query": where[q],
                "key": where[k],
                "query_token": ("query", words[q]),
                "key_token": ("key", words[k]),
            },
            attrs={"layer": layer, "head": head, "lam": lam, "model": self.model_name, "name": name},
        )

    def overview(self, name, layer, head, size=512, prompt=0):
        whole = self.map(name, layer, head).values
        step = -(-self.n_tokens // size)
        starts = np.arange(0, self.n_tokens, step)
        pooled = np.empty((len(starts), len(starts)), np.float32)
        for i, a in enumerate(starts):
            for j, b in enumerate(starts):
                block = whole[a : a + step, b : b + step]
                pooled[i, j] = block.flat[np.abs(block).argmax()]
        return xr.DataArray(
            pooled,
            dims=("query", "key"),
            name=name,
            coords={"query": starts, "key": starts},
            attrs={"layer": layer, "head": head, "lam": float(self.lam[layer, head]), "bin": step},
        )

    def measure(self, statistics, queries=None):
        shape = (self.n_layers, self.n_heads, 3, self.n_tokens, 2, 4)
        rng = np.random.default_rng(1)
        array = xr.DataArray(
            rng.uniform(0, 1, shape),
            dims=("layer", "head", "map", "query", "span", "normalisation"),
            coords={
                "layer": np.arange(self.n_layers),
                "head": np.arange(self.n_heads),
                "map": ["A1", "A2", "D"],
                "query": np.arange(self.n_tokens),
                "span": ["answer", "sink"],
                "normalisation": ["raw", "share", "signed", "positive"],
            },
            attrs={"units": "1", "long_name": "span mass"},
        )
        return xr.Dataset({name: array for name in statistics})
