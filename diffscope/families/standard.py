"""Standard attention: any Hugging Face decoder that goes through the attention interface."""

from __future__ import annotations

from torch import nn

from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, expect_calls
from diffscope.families.base import Family
from diffscope.families.foreign import REGISTER, ForeignModule, encoder_of, parts_of

OUTPUT_NAMES = ("o_proj", "out_proj", "c_proj", "dense", "wo", "o")
# Attributes of differential implementations, whose maps would be wrong if they were read as standard attention.
DIFFERENTIAL_MARKS = (
    "lambda_q1 lambda_init lambda_proj lambda_a lambda_learn subln diff_attn_mix inner_cross_attn use_diff_v2 diff_v3"
).split()


def interface_attention(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a Hugging Face model that look like its layers' attention, of any mechanism."""
    attention = (module for module in parts_of(model) if hasattr(module, "layer_idx") and hasattr(module, "is_causal"))
    paired = encoder_of(model) is not None  # an encoder's layers, which have no cache, may have no number
    return [module for module in attention if paired or isinstance(module.layer_idx, int)]


class Standard(Family):
    """Llama, Qwen, Mistral, GPT-2 and others: A1 = A, λ = 0, D = A."""

    name = "standard"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        modules = interface_attention(model)
        for module in modules:
            mark = next((name for name in DIFFERENTIAL_MARKS if hasattr(module, name)), None)
            if mark:
                raise UnsupportedModel(
                    f"{type(module).__name__} has {mark!r}, so it is differential attention of a family that diffscope "
                    f"does not know yet, and as standard attention its maps would be wrong; {REGISTER}"
                )
        return modules

    def output_projection(self, module: ForeignModule) -> nn.Module:
        for name in OUTPUT_NAMES:
            if isinstance(getattr(module, name, None), nn.Module):
                return getattr(module, name)
        raise UnsupportedModel(
            f"{type(module).__name__} has no output projection named {', '.join(OUTPUT_NAMES)}, so its maps cannot be proved"
        )

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        expect_calls(attention_pass, self.name, 1)
        call = attention_pass.calls[0]
        pairing = Pairing.plain(call.query.shape[1], call.key.shape[1], call.query.device)
        return attention_pass.layer(call.query, call.key, call.value, pairing, call=call)
