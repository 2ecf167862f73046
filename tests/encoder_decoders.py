"""Tiny encoder-decoders of transformers with weights that make every map matter, and prompts for them."""

import torch
import transformers

from tests import tiny

SIZES = {
    "vocab_size": tiny.VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": tiny.VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}
WHISPER = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 30}
MODELS = {
    "bart": ("BartForConditionalGeneration", "BartConfig", SIZES),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", SIZES),
    "marian": ("MarianMTModel", "MarianConfig", SIZES),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", SIZES),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", SIZES | WHISPER),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5),
}


def model(name, attention="eager", **settings):
    """Return a tiny random model."""
    kind, config, sizes = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, kind)(getattr(transformers, config)(**sizes, **settings))
    made.set_attn_implementation(attention)
    return tiny.awake(made).eval()


def prompt(name, count=1):
    """Return what a forward takes: the source of the first prompt of several is shorter than the others."""
    draw = torch.Generator().manual_seed(1)
    given = {"decoder_input_ids": torch.randint(3, tiny.VOCABULARY, (count, 5), generator=draw)}
    if name == "whisper":
        return given | {"input_features": torch.randn(count, 8, 40, generator=draw)}
    ids = torch.randint(3, tiny.VOCABULARY, (count, 9), generator=draw)
    mask = torch.ones_like(ids)
    mask[: count - 1, 6:] = 0
    return given | {"input_ids": ids, "attention_mask": mask}
