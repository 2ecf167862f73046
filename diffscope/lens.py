"""TransformerLens: hook points for A1, A2, λ and D on DIFF Transformers.

>>> from diffscope import lens
>>> bridge = lens.boot("mini-diff")
>>> logits, cache = bridge.run_with_cache("Magic numbers. Paris 7421. Rome 2174. Paris")
>>> cache["blocks.2.attn.hook_a2"].shape  # (batch, head, query, key)
torch.Size([1, 2, 15, 15])

Hook points of each attention layer (a differential head has two maps, M = 2; a standard one has one, M = 1):

| hook point of blocks.i.attn                  | shape                                              |
| -------------------------------------------- | -------------------------------------------------- |
| hook_q, hook_rot_q                           | (batch, query, head, M·d): queries of both maps    |
| hook_k, hook_rot_k                           | (batch, key, kv head, M·d); d in V2, one key a head |
| hook_v                                       | (batch, key, kv head, width)                       |
| hook_attn_scores_1, hook_attn_scores_2       | (batch, head, query, key), masked, before softmax  |
| hook_a1, hook_a2                             | (batch, head, query, key)                          |
| hook_lambda                                  | (batch, head, query)                               |
| hook_pattern                                 | (batch, head, query, key): D = A1 − λ·A2           |
| hook_z                                       | (batch, query, head, width): after the per-head norm |
| hook_result, if ``set_use_attn_result(True)`` | (batch, query, head, d_model)                      |

The model continues with the value that a hook returns. Importing this module changes nothing in TransformerLens.
:func:`register` lets ``TransformerBridge.boot_transformers`` open these models (docs/other_tools.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.conversion_utils.conversion_steps.base_tensor_conversion import BaseTensorConversion
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    BlockBridge,
    EmbeddingBridge,
    RMSNormalizationBridge,
    RotaryEmbeddingBridge,
    UnembeddingBridge,
)
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import PreTrainedModel
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from diffscope.errors import UnsupportedModel
from diffscope.families.foreign import COMPILED
from diffscope.models import load_model
from diffscope.models.controls import GatedAttention
from diffscope.models.mechanisms import (
    Attention,
    DiffV1Attention,
    DiffV2Attention,
    PlusAttention,
    SharedA2Attention,
    exponentials,
)

__all__ = ["DifferentialAdapter", "DifferentialAttentionBridge", "boot", "register"]


class HeadParts(BaseTensorConversion):
    """Conversion of a projection (…, rows) to (…, head, parts·dim), and back.

    The rows of a projection are ordered by head, or by part: in DiffLlama the first maps of all heads come before the second
    ones, and the halves of the values likewise.
    """

    splits_attention_heads = True  # TransformerLens finds the positions by this

    def __init__(self, heads: int, parts: int = 1, part_first: bool = False):
        super().__init__()
        self.heads = heads
        self.parts = parts
        self.part_first = part_first

    def handle_conversion(self, x: Tensor, *context) -> Tensor:
        if not self.part_first:
            return x.unflatten(-1, (self.heads, -1))
        return x.unflatten(-1, (self.parts, self.heads, -1)).transpose(-3, -2).flatten(-2)

    def revert(self, x: Tensor, *context) -> Tensor:
        if not self.part_first:
            return x.flatten(-2)
        return x.unflatten(-1, (self.parts, -1)).transpose(-3, -2).flatten(-3)


class MapParts(BaseTensorConversion):
    """Conversion of maps (batch, map·head, token, dim) to (batch, token, head, maps·dim), and back."""

    splits_attention_heads = True

    def __init__(self, maps: int):
        super().__init__()
        self.maps = maps

    def handle_conversion(self, x: Tensor, *context) -> Tensor:
        return x.unflatten(1, (self.maps, -1)).permute(0, 3, 2, 1, 4).flatten(-2)

    def revert(self, x: Tensor, *context) -> Tensor:
        return x.unflatten(-1, (self.maps, -1)).permute(0, 3, 2, 1, 4).flatten(1, 2)


@dataclass(frozen=True)
class Geometry:
    """Heads and widths of an attention module; `dim` is the width d of one map's queries and keys."""

    heads: int
    kv_heads: int
    query_maps: int
    key_maps: int
    dim: int
    width: int
    part_first: bool

    @classmethod
    def of(cls, module: nn.Module) -> Geometry:
        """Read the sizes of a module.

        Raises
        ------
        UnsupportedModel
            The module is of another class, or already inside a bridge.
        """
        if isinstance(module, DiffLlamaAttention):  # its configuration counts maps
            heads = module.config.num_attention_heads // 2
            kv_heads = module.config.num_key_value_heads // 2
            return cls(heads, kv_heads, 2, 2, module.head_dim, 2 * module.head_dim, part_first=True)
        if isinstance(module, Attention) and not _has_more(module):
            dim = module.head_dim
            width = dim * module.value_width
            return cls(module.heads, module.kv_heads, module.query_maps, module.key_maps, dim, width, part_first=False)
        raise UnsupportedModel(
            f"no hook points for attention of the class {type(module).__name__}: they exist for DiffLlama and for diffscope's "
            "own V1 and plus (with second maps of full width), V2 and standard models, and a model can be bridged once"
        )

    @property
    def q(self) -> HeadParts:
        return HeadParts(self.heads, self.query_maps, self.part_first)

    @property
    def k(self) -> HeadParts:
        return HeadParts(self.kv_heads, self.key_maps, self.part_first)

    @property
    def v(self) -> HeadParts:
        return HeadParts(self.kv_heads, self.width // self.dim, self.part_first)

    @property
    def z(self) -> HeadParts:
        return HeadParts(self.heads)


def _has_more(module: Attention) -> bool:
    """Return whether a module changes its maps or heads in a way that no hook point shows."""
    narrow = getattr(module, "second_dim", None) is not None
    return narrow or module.changes_weights or isinstance(module, (GatedAttention, SharedA2Attention))


def lambda_of(module: nn.Module, x: Tensor) -> Tensor:
    """Return λ of D = A1 − λ·A2 for the module's input x (batch, query, d_model), broadcastable to (batch, head, query).

    It is negative in a model that adds its second map.
    """
    if isinstance(module, DiffV2Attention):
        return module.lam(x).transpose(1, 2)
    if isinstance(module, DiffV1Attention):
        lam = module.lam().to(x.dtype).reshape(1, 1, 1)
        return -lam if isinstance(module, PlusAttention) else lam
    first, second = (each.to(x.dtype) for each in exponentials(module, torch.float32))
    return (first - second + module.lambda_init).reshape(1, 1, 1)


def normed(module: nn.Module, x: Tensor) -> Tensor:
    """Return the input of the output projection, from D·V; both are (batch, query, head, width)."""
    if isinstance(module, DiffLlamaAttention):
        return (1 - module.lambda_init) * module.groupnorm(x)
    if isinstance(module, DiffV1Attention):
        return (1 - module.lambda_init) * module.subln(x)
    return module.subln(x) if isinstance(module, Attention) else x


class DifferentialAttentionBridge(AttentionBridge):
    """Attention with hook points, computed from the wrapped module's projections, λ and norm.

    The table at the top of this module lists the hook points and their shapes.
    """

    supports_split_qkv_fork = False
    supports_attn_result = True

    def set_original_component(self, original_component: nn.Module) -> None:
        super().set_original_component(original_component)
        self._geometry = Geometry.of(original_component)
        self.hook_pattern.pos_dim = -2
        if self._geometry.query_maps == 1:
            # D = A1 is one tensor, with the names of stock bridges and those of this one.
            self.hook_attn_scores.pos_dim = -2
            self.hook_aliases = {
                **type(self).hook_aliases,
                "hook_a1": "hook_pattern",
                "hook_attn_scores_1": "hook_attn_scores",
            }
            return
        for name in ("hook_attn_scores_1", "hook_attn_scores_2", "hook_a1", "hook_a2"):
            setattr(self, name, HookPoint())
            getattr(self, name).pos_dim = -2
        self.hook_lambda = HookPoint()
        self.hook_lambda.pos_dim = -1
        # A differential head has two scores, so the stock hook point would never fire.
        del self.hook_attn_scores
        del self._hook_registry["hook_attn_scores"]

    def _setup_qkv_hook_reshaping(self) -> None:
        geometry = self._geometry
        for projection, parts in ((self.q, geometry.q), (self.k, geometry.k), (self.v, geometry.v)):
            projection.hook_out.hook_conversion = parts
        self.o.hook_in.hook_conversion = geometry.z
        self.hook_rot_q.hook_conversion = MapParts(geometry.query_maps)
        self.hook_rot_k.hook_conversion = MapParts(geometry.key_maps)

    def _project(self, x: Tensor, position_embeddings, past_key_values) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, (batch, map·head, token, d), and values (batch, kv head, key, width)."""
        geometry = self._geometry
        q = MapParts(geometry.query_maps).revert(geometry.q.convert(self.q(x)))
        k = MapParts(geometry.key_maps).revert(geometry.k.convert(self.k(x)))
        v = geometry.v.convert(self.v(x)).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        q = self.hook_rot_q(q)
        return q, *self._update_kv_cache(self.hook_rot_k(k), v, past_key_values=past_key_values)

    def _scores(self, q: Tensor, k: Tensor, mask: Tensor | None) -> list[Tensor]:
        """Return the masked scores of each map, (batch, head, query, key)."""
        geometry = self._geometry
        q = q.unflatten(1, (geometry.query_maps, geometry.heads))  # (batch, map, head, query, d)
        k = k.unflatten(1, (geometry.key_maps, geometry.kv_heads))  # (batch, map or 1, kv head, key, d)
        k = k.repeat_interleave(geometry.heads // geometry.kv_heads, dim=2)
        scores = q @ k.transpose(-1, -2) * self.original_component.scaling
        queries, keys = scores.shape[-2:]
        return [self._apply_reconstruct_attention_mask(each, mask, keys, queries) for each in scores.unbind(1)]

    def _map(self, scores: Tensor) -> Tensor:
        """Apply softmax in float32 or wider, and the module's dropout."""
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
        return nn.functional.dropout(weights, self.original_component.config.attention_dropout, self.training)

    def _difference(self, x: Tensor, scores: list[Tensor]) -> Tensor:
        """Return D, (batch, head, query, key)."""
        if len(scores) == 1:
            return self.hook_pattern(self._map(self.hook_attn_scores(scores[0])))
        a1 = self.hook_a1(self._map(self.hook_attn_scores_1(scores[0])))
        a2 = self.hook_a2(self._map(self.hook_attn_scores_2(scores[1])))
        # Each head and query has a copy of λ, so that a hook can change one of them.
        lam = self.hook_lambda(lambda_of(self.original_component, x).expand(a1.shape[:3]).clone())
        return self.hook_pattern(a1 - lam[..., None] * a2)

    def _project_out(self, z: Tensor) -> Tensor:
        """Apply the output projection: z (batch, query, head·width) → (batch, query, d_model)."""
        if not self.config.use_attn_result:
            return self.o(z)
        heads = self._geometry.heads
        width = self._geometry.width
        return self._compute_per_head_result(self.o.hook_in(z).unflatten(-1, (heads, width)), heads, width)

    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        x = self.hook_in(hidden_states)  # (batch, query, d_model)
        q, k, v = self._project(x, position_embeddings, past_key_values)
        pattern = self._difference(x, self._scores(q, k, attention_mask))
        v = v.repeat_interleave(self._geometry.heads // self._geometry.kv_heads, dim=1)  # (batch, head, key, width)
        z = normed(self.original_component, (pattern @ v).transpose(1, 2))  # (batch, query, head, width)
        return self.hook_out(self._project_out(z.flatten(2))), pattern

    def get_random_inputs(self, batch_size=2, seq_len=8, device=None, dtype=None) -> dict[str, Any]:
        """Return inputs to try this component alone, without rotation or mask."""
        like = dict(device=device, dtype=dtype or torch.float32)
        angle = torch.zeros(batch_size, seq_len, self._geometry.dim, **like)
        x = torch.randn(batch_size, seq_len, self.config.d_model, **like)
        return {"hidden_states": x, "position_embeddings": (angle.cos(), angle.sin())}

    def _weight(self, name: str) -> Tensor:
        """Return a projection by head, (head, d_model, width)."""
        if name != "v" and self._geometry.query_maps == 2:
            raise UnsupportedModel(
                f"W_{name.upper()} does not exist: a differential head has two score circuits, and one matrix would add them up; "
                f"blocks[i].attn.{name}.weight is the projection itself"
            )
        return getattr(self._geometry, name).convert(getattr(self, name).weight.T).transpose(0, 1)

    W_Q = property(lambda self: self._weight("q"), doc="(head, d_model, d); standard attention only.")
    W_K = property(lambda self: self._weight("k"), doc="(kv head, d_model, d); standard attention only.")
    W_V = property(lambda self: self._weight("v"), doc="(kv head, d_model, width).")

    def _bias(self, name: str) -> Tensor | None:
        """Return the bias of a projection by head, in the layout of its hook point."""
        bias = getattr(self, name).bias
        return None if bias is None else getattr(self._geometry, name).convert(bias)

    b_Q = property(lambda self: self._bias("q"), doc="(head, M·d), or None.")
    b_K = property(lambda self: self._bias("k"), doc="(kv head, M·d), or None.")
    b_V = property(lambda self: self._bias("v"), doc="(kv head, width), or None.")


class DifferentialBlockBridge(BlockBridge):
    """A block without a copy of the residual for each head, which TransformerLens splits by head, not by map."""

    hook_aliases = {
        alias: target for alias, target in BlockBridge.hook_aliases.items() if not target.endswith(("_input", "hook_attn_in"))
    }


class DifferentialAdapter(ArchitectureAdapter):
    """TransformerLens' adapter of DiffLlama and of diffscope's own models.

    In ``cfg``, ``n_heads`` and ``n_key_value_heads`` count heads, whose outputs are ``d_head`` wide; one
    map's queries and keys are ``d_map`` wide. ``attention``, ``lambda_init`` and ``lambda_std_dev`` are the model's own.

    Weight processing and compatibility mode raise UnsupportedModel: they know neither the per-head norm between D·V and the
    output projection (V1) nor the projection of λ (V2).
    """

    supports_compatibility_mode = False
    _attention_bridge_cls = DifferentialAttentionBridge

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._set_rms_rotary_defaults()
        self.cfg.attn_implementation = "eager"  # so that masks are explicit
        self.component_mapping = {
            "embed": EmbeddingBridge(name="model.embed_tokens"),
            "rotary_emb": RotaryEmbeddingBridge(name="model.rotary_emb"),
            "blocks": DifferentialBlockBridge(
                name="model.layers",
                submodules={
                    "ln1": RMSNormalizationBridge(name="input_layernorm", config=self.cfg),
                    "ln2": RMSNormalizationBridge(name="post_attention_layernorm", config=self.cfg),
                    "attn": self._build_attention_bridge(),
                    "mlp": self._gated_mlp(),
                },
            ),
            "ln_final": RMSNormalizationBridge(name="model.norm", config=self.cfg),
            "unembed": UnembeddingBridge(name="lm_head", config=self.cfg),
        }

    def _build_attention_bridge(self) -> AttentionBridge:
        # Not "required", or TransformerLens' component benchmark would skip the attention.
        return self._qkvo_attention_bridge(requires_attention_mask=None, requires_position_embeddings=None)

    def prepare_model(self, hf_model: PreTrainedModel) -> None:
        """Read from the model the fields that TransformerLens drops or misreads in its configuration.

        Raises
        ------
        UnsupportedModel
            Its attention is of another class, or already inside a bridge.
        """
        geometry = Geometry.of(hf_model.model.layers[0].self_attn)
        super().prepare_model(hf_model)
        self.cfg.n_heads = geometry.heads
        self.cfg.n_key_value_heads = geometry.kv_heads
        self.cfg.d_head = geometry.width
        self.cfg.d_map = geometry.dim
        self.cfg.attention = getattr(hf_model.config, "attention", "v1")  # DiffLlama is V1
        self.cfg.lambda_init = getattr(hf_model.config, "lambda_init", None)
        self.cfg.lambda_std_dev = hf_model.config.lambda_std_dev

    def preprocess_weights(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Raise UnsupportedModel: TransformerLens calls this before it folds weights.

        Raises
        ------
        UnsupportedModel
            Always.
        """
        raise UnsupportedModel("weights of these models cannot be folded or centred; use the bridge as it was booted")


ARCHITECTURES = ("DiffLlamaForCausalLM", "DiffForCausalLM")


def boot(model: str | PathLike | nn.Module, *, tokenizer=None, dtype=None, device=None) -> TransformerBridge:
    """Open a model as a TransformerBridge with hook points for A1, A2, λ and D.

    Parameters
    ----------
    model : str, PathLike or torch.nn.Module
        A bundled name, a folder, a hub id, or a loaded model, whose layers are replaced by those of the bridge; one that
        ``torch.compile`` wraps is opened inside that.
    tokenizer : PreTrainedTokenizerBase, optional
        By default the one saved with the model.
    dtype : torch.dtype, optional
        By default as saved. `dtype` and `device` are ignored for a loaded model.
    device : str or torch.device, optional

    Returns
    -------
    TransformerBridge

    Raises
    ------
    ModelNotFound
        There is no such model.
    CorruptFile
        A file of it is damaged, or its weights do not fit its config.json.
    UnsupportedModel
        Its architecture or its attention has no hook points here.
    """
    name = "external"
    if isinstance(model, nn.Module):
        model = model._modules.get(COMPILED, model)
    else:
        name = str(model)
        model, saved = load_model(name, dtype=dtype, device=device)
        tokenizer = tokenizer or saved
    architecture = type(model).__name__
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{architecture} is none of {', '.join(ARCHITECTURES)}; TransformerBridge.boot_transformers may have it"
        )
    return build_bridge_from_module(model, architecture, hf_config=model.config, tokenizer=tokenizer, model_name=name)


def register() -> None:
    """Let ``TransformerBridge.boot_transformers`` open these models, until the process ends.

    TransformerLens 4.3 refuses architectures that are not in its table before it reads entry points. This function adds both
    names to the table. :func:`boot` does not need it.
    """
    for architecture in ARCHITECTURES:
        SUPPORTED_ARCHITECTURES.setdefault(architecture, DifferentialAdapter)
