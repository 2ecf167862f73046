"""Models with their prompts, the queries and keys of their layers, and what one process does with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import diffscope
from benchmarks.engine.script import Values, stacked
from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.models.loading import load_model
from diffscope.models.mechanisms import Attention
from tests import reference

HEADS, DIM, HIDDEN, VOCABULARY = 8, 64, 1024, 512
# Standard deviation of the scores: the entropy of a row of n keys is then around half of ln n, from 500 to 64K keys.
SPREAD = 2.75


def random_model(tokens: int, device: str) -> nn.Module:
    """Return one layer of DiffLlama with attention that is neither uniform nor on one key."""
    config = DiffLlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=2 * HEADS,
        num_key_value_heads=2 * HEADS,
        head_dim=DIM,
        vocab_size=VOCABULARY,
        max_position_embeddings=tokens,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )
    torch.manual_seed(0)
    model = DiffLlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):  # of inputs with unit variance
                projection.weight.normal_(0, (SPREAD / HIDDEN) ** 0.5)
    return model.to(device)


def bundled_model(tokens: int, device: str) -> nn.Module:
    """Return the bundled mini-diff."""
    return load_model("mini-diff", device=device)[0].eval()


SUBJECTS = {"random": random_model, "bundled": bundled_model}


def prompt(model: nn.Module, tokens: int) -> Tensor:
    """Return random token ids, (1, token)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2, model.config.vocab_size, (1, tokens), generator=generator).to(model.device)


def attentions(model: nn.Module) -> list[nn.Module]:
    """Return the attention module of each layer."""
    return [layer.self_attn for layer in model.model.layers]


@torch.no_grad()
def lambda_of(module: nn.Module) -> float:
    """Return λ of a layer: exp(λq1·λk1) − exp(λq2·λk2) + λ_init (Ye et al. 2024, eq. 2)."""
    first = torch.sum(module.lambda_q1.double() * module.lambda_k1.double()).exp()
    second = torch.sum(module.lambda_q2.double() * module.lambda_k2.double()).exp()
    return float(first - second) + module.lambda_init


@torch.no_grad()
def projected(model: nn.Module, ids: Tensor, names: str = "qk", dtype: torch.dtype | None = None) -> list[list[Tensor]]:
    """Return queries and keys after the rotation, and values, of every layer, from the inputs of its attention.

    Parameters
    ----------
    names : str
        Which of q, k and v.
    dtype : torch.dtype, optional
        That the projections and the rotation are computed in; by default the model's.

    Returns
    -------
    list of list of Tensor, each (map, token, d)
        All heads' first maps, then all heads' second maps.
    """
    layers = []

    def look(module: nn.Module, args, kwargs) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = (x.to(dtype or x.dtype) for x in kwargs["position_embeddings"])
        inputs = []
        for name in names:
            weight = getattr(module, f"{name}_proj").weight
            x = nn.functional.linear(hidden.to(dtype or hidden.dtype), weight.to(dtype or weight.dtype))
            x = x.unflatten(-1, (-1, module.head_dim)).transpose(1, 2)  # (batch, map, token, d)
            if isinstance(module, Attention):  # a head's two maps stand side by side
                x = torch.cat([x[:, 0::2], x[:, 1::2]], dim=1)
            inputs.append(x[0] if name == "v" else apply_rotary_pos_emb(x, x, cos, sin)[0][0])
        layers.append(inputs)

    hooks = [module.register_forward_pre_hook(look, with_kwargs=True) for module in attentions(model)]
    try:
        model(ids, use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    return layers


def random_layer(tokens: int, device: str) -> LayerAttention:
    """Return a layer of random queries and keys, as wide as the random model's, for lengths whose forward takes too long."""
    generator = torch.Generator().manual_seed(0)

    def random(maps: int, width: int, size: float) -> Tensor:
        return (torch.randn(1, maps, tokens, width, generator=generator) * size).to(device)

    return LayerAttention(
        layer=0,
        family="benchmark",
        q=random(2 * HEADS, DIM, math.sqrt(SPREAD)),
        k=random(2 * HEADS, DIM, math.sqrt(SPREAD)),
        v=random(HEADS, 1, 1.0),  # no statistic of a row looks at it
        scale=DIM**-0.5,
        pairing=Pairing.halves(HEADS, device=device),
        lengths=(tokens,),
        lam=torch.full((1, 1, 1), 0.8, device=device),
    )


# What one process does.

Prepared = tuple[Callable[[], Values | None], Callable[[Values], Values]]


def _at(rows: np.ndarray) -> Callable[[Values], Values]:
    """Return what takes some rows of values (layer, map, head, query, ...)."""
    return lambda values: {name: x[:, :, :, rows] for name, x in values.items()}


@dataclass(frozen=True)
class Whole:
    """All row statistics of all queries by one method, of which the reference's rows are sent back."""

    method: str
    subject: str
    tokens: int
    device: str

    def prepare(self) -> Prepared:
        from benchmarks.engine.methods import METHODS

        model = SUBJECTS[self.subject](self.tokens, self.device)
        return METHODS[self.method](model, prompt(model, self.tokens)), _at(reference.spread(self.tokens))


@dataclass(frozen=True)
class WholeReference:
    """The same rows in float64, (layer, map, head, row, ...)."""

    subject: str
    tokens: int
    device: str

    def prepare(self) -> Prepared:
        model = SUBJECTS[self.subject](self.tokens, self.device)
        return lambda: reference_of(model, prompt(model, self.tokens), reference.spread(self.tokens)), lambda result: result


def reference_of(model: nn.Module, ids: Tensor, rows: np.ndarray) -> Values:
    """Return the statistics of some rows of a model in float64."""
    layers = zip(attentions(model), projected(model, ids, dtype=torch.float64))
    return stacked([reference.of_layer(*(x.cpu().numpy() for x in qk), lambda_of(module), rows) for module, qk in layers])


@dataclass(frozen=True)
class Sampled:
    """Statistics of a sample of the queries of a layer whose inputs are at hand."""

    tokens: int
    rows: int
    device: str

    def prepare(self) -> Prepared:
        layer = random_layer(self.tokens, self.device)
        queries = self.queries()

        def run() -> Values:
            measured = diffscope.stats.measure_layer(layer, "row", queries=queries).expand_dims("layer")
            return {name: values.transpose("layer", "map", "head", "query", ...).values for name, values in measured.items()}

        return run, _at(reference.spread(len(queries)))

    def queries(self) -> np.ndarray:
        """Return the positions that are sampled, int64 (query,)."""
        drawn = diffscope.QuerySample(self.rows).draw(self.tokens)
        return np.arange(self.tokens) if drawn is None else drawn.queries.numpy()


@dataclass(frozen=True)
class SampledReference:
    """Some rows of the same sample in float64."""

    sampled: Sampled

    def prepare(self) -> Prepared:
        layer = random_layer(self.sampled.tokens, self.sampled.device)
        queries = self.sampled.queries()
        rows = queries[reference.spread(len(queries))]
        q, k = (x[0].double().cpu().numpy() for x in (layer.q, layer.k))
        return lambda: stacked([reference.of_layer(q, k, float(layer.lam), rows)]), lambda result: result
