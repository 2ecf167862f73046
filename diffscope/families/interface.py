"""The keywords of the Hugging Face attention interface: which of them say what the maps are, and which change no map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffscope.families.attention_pass import Call

UNDERSTOOD = frozenset("scaling sliding_window softcap s_aux is_causal dropout".split())

#: What models hand through to their attention that changes no map: it is for the model, its cache, the loss or the kernel.
NEUTRAL = frozenset(
    "attention_mask cache_position deterministic image_grid_thw kernel_options labels logits_to_keep max_length_k max_length_q "
    "mm_token_type_ids num_items_in_batch output_attentions output_hidden_states output_router_logits past_key_values "
    "position_embeddings position_ids return_dict shift_labels token_type_ids use_cache video_grid_thw".split()
)

#: What an implementation of transformers takes and does not compute with.
NOT_COMPUTED = {
    "sdpa": frozenset({"softcap", "s_aux"}),
    "flash_attention_2": frozenset({"s_aux"}),
    "flash_attention_3": frozenset({"s_aux"}),
}


def record_call(
    module: nn.Module, implementation: str, query: Tensor, key: Tensor, value: Tensor, mask: Any, keywords: dict[str, Any]
) -> Call:
    """What a call of the interface says of the maps, as the implementation computes them.

    Parameters
    ----------
    module : nn.Module
    implementation : str
        The model's own.
    query, key, value, mask
        As the interface has them.
    keywords : dict
        Everything else.
    """
    scaling = keywords.get("scaling")
    eager = implementation == "eager"
    ignored = NOT_COMPUTED.get(implementation, frozenset())
    soft_cap = keywords.get("softcap")
    sinks = keywords.get("s_aux")
    without = []
    if soft_cap is not None and "softcap" in ignored:
        without.append(f"soft cap of {float(soft_cap):g}")
        soft_cap = None
    if sinks is not None and "s_aux" in ignored:
        without.append("sink logits")
        sinks = None
    advice = "load it with attn_implementation='eager'"
    q, k, v = (_as_multiplied(x) for x in (query, key, value))
    return Call(
        q,
        k,
        v,
        mask,
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        keywords.get("sliding_window"),
        # Eager attention keeps its scores in the activations' dtype; SDPA and flash-attn keep them in float32.
        score_dtype=q.dtype if eager and q.dtype in (torch.bfloat16, torch.float16) else None,
        soft_cap=None if soft_cap is None else float(soft_cap),
        sink_logit=None if sinks is None else sinks.clone(),  # of the model, which may be trained on
        is_causal=keywords.get("is_causal"),
        ignored=f"{implementation} attention leaves out the model's {' and '.join(without)}; {advice}" if without else None,
        unread=_unread(module, eager, keywords),
        given_dtype=query.dtype,
    )


def _as_multiplied(x: Tensor) -> Tensor:
    """A query, key or value in the dtype in which it is multiplied: under autocast, half precision."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) and x.dtype != torch.float64 else x


def _unread(module: nn.Module, eager: bool, keywords: dict[str, Any]) -> str | None:
    """What of the keywords may change the maps and is not understood, in words."""
    sinks = keywords.get("s_aux")
    if sinks is not None and sinks.dim() != 1:
        return f"sink logits of shape {tuple(sinks.shape)}"
    dropout = keywords.get("dropout") or 0.0
    if dropout > 0 and (module.training or not eager):  # eager attention drops nothing in evaluation
        return f"a dropout of {dropout:g}"
    unknown = (
        name for name in keywords.keys() - UNDERSTOOD - NEUTRAL if keywords[name] is not None and keywords[name] is not False
    )
    name = min(unknown, default=None)
    return None if name is None else f"the keyword {name!r}"
