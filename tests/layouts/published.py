"""Every published implementation at a tiny size: the real class where it can be installed, else our module of its layout."""

from functools import partial

from tests import tiny
from tests.layouts import (
    audio_tools,
    axolotl,
    dex,
    gated,
    gdla,
    grouped,
    megatron,
    motif,
    nanogpt,
    phi4flash,
    ports,
    unilm,
    vision,
)


def stable_audio_3():
    """Return a tiny model of diffusers, or raise ImportError if that is not installed."""
    import diffusers  # noqa: F401

    from tests import stable_audio

    return stable_audio.transformer()


MODELS = {
    "diffscope V1": partial(tiny.own, "v1"),
    "diffscope V1, grouped": partial(tiny.own, "v1", kv_heads=2),
    "diffscope V2, grouped": partial(tiny.own, "v2", kv_heads=2),
    "diffscope standard": partial(tiny.own, "standard", kv_heads=2),
    "Hugging Face DiffLlama": tiny.diffllama,
    "Hugging Face DiffLlama, grouped": partial(tiny.diffllama, kv=4),
    "Llama": partial(tiny.standard, "llama"),
    "GPT-2": partial(tiny.standard, "gpt2"),
    "Mistral, window": partial(tiny.standard, "mistral"),
    "unilm V1 naive": partial(unilm.tiny, kind="naive"),
    "unilm V1 naive, grouped": partial(unilm.tiny, kind="naive", kv_heads=2),
    "unilm V1 flash 1, grouped": partial(unilm.tiny, kind="flash1", kv_heads=2),
    "unilm V1 flash 2, grouped": partial(unilm.tiny, kind="flash2", kv_heads=2),
    "unilm V2, grouped": partial(unilm.tiny, kind="v2", kv_heads=2),
    "YOCO (V3 gating)": gated.tiny,
    "Motif-2.6B": motif.tiny,
    "Motif-2-12.7B (grouped differential)": grouped.tiny,
    "Motif-3 (latent, gate)": gdla.tiny,
    "Phi-4-mini-flash": phi4flash.tiny,
    "axolotl": axolotl.tiny,
    "axolotl, split heads": partial(axolotl.tiny, split_heads=True),
    "DEX": dex.tiny,
    "nanowell's port, one λ a head": ports.nanowell,
    "kyegomez' port, attends twice a block": ports.kyegomez,
    "DiffCLIP, images": ports.diffclip,
    "DiffCLIP, text": partial(ports.diffclip, kind=ports.Text),
    "BlaGPT's V2, grouped": nanogpt.tiny,
    "BlaGPT's V2, one projection": partial(nanogpt.tiny, fused=True),
    "Megatron V1, grouped": megatron.tiny,
    "Stable Audio 3 of diffusers": stable_audio_3,
    "stable-audio-tools": audio_tools.tiny,
    "timm vision transformer": vision.tiny,
    "timm, parallel blocks": partial(vision.tiny, parallel=True),
}
