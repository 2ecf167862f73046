"""Observe the calls of the Hugging Face attention interface, and read from their keywords what the maps are."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import Call
from diffscope.families.flex import FLEX, compiled, compiled_apart
from diffscope.families.foreign import ForeignModule
from diffscope.families.threads import CURRENT, others_run_modules

_OBSERVED = "diffscope_of_"  # before the name of an implementation whose calls are observed
See = Callable[[Call, nn.Module], None]

UNDERSTOOD = frozenset("scaling sliding_window softcap s_aux position_bias is_causal dropout".split())

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
    """Return what a call of the interface says of the maps, as the implementation computes them.

    Parameters
    ----------
    module : nn.Module
    implementation : str
        The model's own.
    query, key, value, mask
        As the interface has them; the call has copies of the first three.
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
    # The module may change them in place, or use their memory again.
    q, k, v = (x.clone(memory_format=torch.contiguous_format) for x in (query, key, value))
    if torch.is_autocast_enabled(device := query.device.type):  # which multiplies in half precision
        q, k, v = (x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
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
        position_bias=by_distance(keywords.get("position_bias")),
        is_causal=keywords.get("is_causal"),
        ignored=f"{implementation} attention leaves out the model's {' and '.join(without)}; {advice}" if without else None,
        unread=_unread(module, eager, keywords),
        given_dtype=query.dtype,
    )


def by_distance(bias: Tensor | None) -> Tensor | None:
    """Return a bias of scores (1, map, query, key) by the distance of the key from the query, (1, map, distance).

    None if there is none, if it is 0, or if it differs between pairs of one distance. The last query stands at the last key.
    """
    if bias is None or bias.dim() != 4 or len(bias) > 1 or bias.shape[2] > bias.shape[3] or not bool(bias.any()):
        return None
    queries, keys = bias.shape[2:]
    centre = keys - 1
    table = bias.new_zeros(1, bias.shape[1], 2 * centre + 1)
    table[..., : centre + 1] = bias[:, :, -1]  # of the last query, who stands at the last key
    first = keys - queries  # where query 0 stands
    table[..., centre - first : centre - first + keys] = bias[:, :, 0]
    distance = torch.arange(keys, device=bias.device) - torch.arange(first, keys, device=bias.device)[:, None]  # (query, key)
    return table if torch.equal(table[..., distance + centre], bias) else None


def _unread(module: nn.Module, eager: bool, keywords: dict[str, Any]) -> str | None:
    """Return in words what of the keywords may change the maps and is not understood."""
    sinks = keywords.get("s_aux")
    if sinks is not None and sinks.dim() != 1:
        return f"sink logits of shape {tuple(sinks.shape)}"
    bias = keywords.get("position_bias")
    if bias is not None and by_distance(bias) is None and bool(bias.any()):
        return "the keyword 'position_bias', which is not one number for each distance"
    dropout = keywords.get("dropout") or 0.0
    if dropout > 0 and (module.training or not eager):  # eager attention drops nothing in evaluation
        return f"a dropout of {dropout:g}"
    unknown = (
        name for name in keywords.keys() - UNDERSTOOD - NEUTRAL if keywords[name] is not None and keywords[name] is not False
    )
    name = min(unknown, default=None)
    return None if name is None else f"the keyword {name!r}"


def attention_configs(model: nn.Module) -> tuple[str, list[Any]]:
    """Return the model's own attention implementation, and the configurations that name it: of models, and of single layers.

    Raises
    ------
    UnsupportedModel
        It is not a Hugging Face model, or its parts differ.
    """
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise UnsupportedModel(
            f"{kind} is not a Hugging Face PreTrainedModel, so its attention cannot be observed; wrap it in one"
        )
    configs = {}
    for part in model.modules():
        config: Any = getattr(part, "config", None)
        layer_of_its_own = hasattr(part, "layer_idx") and getattr(config, "_attn_implementation", None) is not None
        if isinstance(part, PreTrainedModel) or layer_of_its_own:
            configs[id(config)] = config
    used = {own_implementation(str(config._attn_implementation)) for config in configs.values()}
    if len(used) != 1:
        raise UnsupportedModel(f"parts of this model differ in attention implementation ({', '.join(sorted(used))}); set one")
    return used.pop(), list(configs.values())


def own_implementation(implementation: str) -> str:
    """Return the name of the model's own implementation, of one that :func:`observed` may have registered on top of it."""
    return implementation.removeprefix(_OBSERVED)


def _original(module: nn.Module, implementation: str) -> Callable:
    """Return the function that `module` would have called."""
    if implementation in ALL_ATTENTION_FUNCTIONS:
        return ALL_ATTENTION_FUNCTIONS[implementation]
    # "eager" is not registered: every model brings its own, which its forward names, or else the file that defines the module.
    forward = inspect.unwrap(type(module).forward)
    named = [name for name in forward.__code__.co_names if "eager" in name and callable(forward.__globals__.get(name))]
    holder = forward.__globals__ if len(named) == 1 else vars(sys.modules[type(module).__module__])
    eager = holder.get(named[0] if len(named) == 1 else "eager_attention_forward")
    if eager is None:
        kind = type(module).__name__
        raise UnsupportedModel(f"{kind} has no eager attention of its own; load it with attn_implementation='sdpa'")
    return eager


class _ObservedName(str):
    """The name of an implementation whose calls are observed; a copy or pickle of it is the plain name, without the prefix."""

    def __reduce__(self) -> tuple:
        return str, (own_implementation(self),)


class _Observers:
    """Observers of the calls of attention implementations, and the configurations that name another implementation meanwhile.

    Models may share a configuration or a part, and whoever observes one of them may begin and end in any order. Each is shown the
    calls of its own thread alone.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.seeing: dict[str, list[tuple[object, See]]] = {}  # by implementation: threads, in the order in which they began
        self.renamed: dict[int, tuple[Any, int]] = {}  # by identity, a configuration and how many observe its models
        self.unobserved: set[str] = set()  # implementations no longer observed, whose name another thread may be about to look up

    @contextmanager
    def observed(self, model: ForeignModule, see: See) -> Iterator[None]:
        """Run the model's own attention implementation, and show `see` every call of it that this thread makes.

        Calls of other models may be among them. On leaving, the model is set back, and the registered name is gone as soon as
        nobody observes it and no other thread can be about to look it up.
        """
        implementation, configs = attention_configs(model)
        if implementation not in ALL_MASK_ATTENTION_FUNCTIONS:
            raise UnsupportedModel(
                f"attention implementation {implementation!r} has no mask function registered; use 'sdpa' or 'eager'"
            )
        observer = CURRENT.thread, see
        with self.lock:
            name = _ObservedName(_OBSERVED + implementation)
            mask = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
            self.seeing.setdefault(implementation, []).append(observer)
            AttentionInterface.register(name, partial(self._attend, implementation))
            AttentionMaskInterface.register(name, compiled(mask) if implementation == FLEX else mask)
            for config in configs:
                _, count = self.renamed.get(id(config), (config, 0))
                self.renamed[id(config)] = config, count + 1
                config._attn_implementation = name
        try:
            yield
        finally:
            self._remove(implementation, configs, observer)

    def _remove(self, implementation: str, configs: list[Any], observer: tuple[object, See]) -> None:
        """Forget an observer; with the last, configurations are set back, and the name goes as soon as no thread can need it."""
        with self.lock:
            self.seeing[implementation].remove(observer)
            for config in configs:
                _, count = self.renamed.pop(id(config))
                if count > 1:
                    self.renamed[id(config)] = config, count - 1
                elif config._attn_implementation == _OBSERVED + implementation:  # nobody has set another since
                    config._attn_implementation = implementation
            # Setting a configuration sets those nested in it: what others still observe is renamed again.
            for config, _ in self.renamed.values():
                if config._attn_implementation == implementation:
                    config._attn_implementation = _ObservedName(_OBSERVED + implementation)
            if not self.seeing[implementation]:
                del self.seeing[implementation]
                self.unobserved.add(implementation)
            self.unobserved -= self.seeing.keys()
            if others_run_modules():
                return
            for name in self.unobserved:
                for interface in (AttentionInterface, AttentionMaskInterface):
                    interface._global_mapping.pop(_OBSERVED + name, None)
            self.unobserved.clear()

    def _attend(
        self, own: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> Any:
        thread = CURRENT.thread
        looking = [see for of, see in tuple(self.seeing.get(own, ())) if of is thread]
        if looking:
            call = record_call(module, own, query, key, value, attention_mask, kwargs)
            for see in looking:
                see(call, module)
        function = _original(module, own)
        if own == FLEX and looking:
            function = compiled_apart(function)
        return function(module, query, key, value, attention_mask, **kwargs)


observed = _Observers().observed
