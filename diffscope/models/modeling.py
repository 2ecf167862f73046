"""The DIFF Transformer as a Hugging Face model: Llama in everything but its attention."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaMLP,
    LlamaModel,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from diffscope.models.configuration import DiffConfig
from diffscope.models.controls import CONTROLS, Gate
from diffscope.models.mechanisms import MECHANISMS, Attention, DiffV1Attention


class DiffDecoderLayer(LlamaDecoderLayer):
    """A Llama decoder layer around the mechanism that the configuration names."""

    def __init__(self, config: DiffConfig, layer_idx: int):
        # Llama's constructor would build and initialise an attention module that is not used.
        GradientCheckpointingLayer.__init__(self)
        self.hidden_size = config.hidden_size
        self.self_attn = (MECHANISMS | CONTROLS)[config.attention](config, layer_idx)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class DiffPreTrainedModel(LlamaPreTrainedModel):
    """Base class of the models of :class:`DiffConfig`."""

    config_class = DiffConfig
    config: DiffConfig
    _no_split_modules = ["DiffDecoderLayer"]
    _can_record_outputs = {"hidden_states": DiffDecoderLayer, "attentions": Attention}

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, Gate):
            nn.init.zeros_(module.weight)
            nn.init.ones_(module.bias)
        if isinstance(module, DiffV1Attention) and module.fixed is None:
            for vector in (module.lambda_q1, module.lambda_k1, module.lambda_q2, module.lambda_k2):
                nn.init.normal_(vector, 0.0, self.config.lambda_std_dev)


class DiffModel(DiffPreTrainedModel, LlamaModel):
    """The decoder without its language-model head."""

    def __init__(self, config: DiffConfig):
        if (MECHANISMS | CONTROLS)[config.attention].changes_weights:
            config._attn_implementation = "eager"
        DiffPreTrainedModel.__init__(self, config)
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        self.layers = nn.ModuleList([DiffDecoderLayer(config, layer) for layer in range(config.num_hidden_layers)])
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()


class DiffForCausalLM(DiffPreTrainedModel, LlamaForCausalLM):
    """The full language model: ``from_pretrained``, ``save_pretrained``, ``generate`` as for any Llama."""

    def __init__(self, config: DiffConfig):
        DiffPreTrainedModel.__init__(self, config)
        self.model = DiffModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


# Lets AutoModel open a saved folder once diffscope.models is imported.
AutoConfig.register(DiffConfig.model_type, DiffConfig, exist_ok=True)
AutoModel.register(DiffConfig, DiffModel, exist_ok=True)
AutoModelForCausalLM.register(DiffConfig, DiffForCausalLM, exist_ok=True)
