"""Stable Audio 3 at a tiny size, of diffusers' own classes with random weights."""

import warnings

import pytest
import torch

from tests import tiny

pytest.importorskip("diffusers", reason="needs diffusers, the extra 'audio'")
from diffusers import FlowMatchEulerDiscreteScheduler, StableAudio3DiTModel, StableAudio3Pipeline
from diffusers.models.autoencoders.autoencoder_same import AutoencoderSAME
from diffusers.pipelines.stable_audio_3.modeling_stable_audio_3 import StableAudio3DurationEmbedder
from transformers import T5GemmaEncoderModel
from transformers.models.t5gemma.configuration_t5gemma import T5GemmaConfig, T5GemmaModuleConfig

CHANNELS, WIDTH, PLACES, WORDS, MEMORY = 6, 12, 10, 5, 3


def transformer(differential=True, memory=MEMORY, depth=2):
    torch.manual_seed(0)
    made = StableAudio3DiTModel(
        io_channels=CHANNELS,
        embed_dim=32,
        depth=depth,
        num_heads=4,
        cond_token_dim=WIDTH,
        global_cond_dim=WIDTH,
        local_add_cond_dim=7,
        timestep_features_dim=16,
        num_memory_tokens=memory,
        use_differential_attention=differential,
    )
    draw = torch.Generator().manual_seed(3)
    for name, parameter in tiny.awake(made).named_parameters():
        if name.endswith("gamma"):  # of a norm, which is 1 before training
            parameter.data = 0.5 + torch.rand(parameter.shape, generator=draw)
    return made


def inputs(count=1, seed=1):
    """Return what the transformer's forward takes."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "hidden_states": torch.randn(count, CHANNELS, PLACES, generator=draw),
        "timestep": torch.full((count,), 0.7),
        "encoder_hidden_states": torch.randn(count, WORDS, WIDTH, generator=draw),
        "global_hidden_states": torch.randn(count, WIDTH, generator=draw),
    }


def pipeline(differential=True):
    """Return the real pipeline with tiny random parts: 16 samples a latent, at 160 samples a second."""
    tokenizer = tiny.tokenizer()
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token or "<pad>"
    tokenizer.model_max_length = 12
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=6,
        layer_types=["full_attention"],
    )
    text = T5GemmaConfig(encoder=T5GemmaModuleConfig(**sizes), decoder=T5GemmaModuleConfig(**sizes), is_encoder_decoder=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about weight_norm
        sound = _autoencoder()
    duration = StableAudio3DurationEmbedder(output_dim=WIDTH, fourier_dim=8)
    scheduler = FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)
    made = StableAudio3Pipeline(
        sound.eval(), T5GemmaEncoderModel(text).eval(), tokenizer, duration.eval(), transformer(differential), scheduler
    )
    made.set_progress_bar_config(disable=True)
    return made


def _autoencoder():
    return AutoencoderSAME(
        audio_channels=1,
        patch_size=4,
        encoder_channels=4,
        encoder_c_mults=(2,),
        encoder_strides=(4,),
        encoder_transformer_depths=(1,),
        latent_dim=CHANNELS,
        dim_heads=4,
        sampling_rate=160,
    )
