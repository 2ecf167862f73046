"""The bundled models by their cards, and the families of attention in a line each: known before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from diffscope.storage.checksum import check_sums

BUNDLED = Path(__file__).parent / "models" / "bundled"
CARD_FILE = "card.json"
ALIKE = ("task", "layers", "positions", "sentence", "evaluated")  # what cards of matched models have in common
TRAINED_ON = {
    "answers": "trained to look up numbers that a text states as “{sentence}”",
    "text": "trained on Debian's documentation, in which “{sentence}” stands now and then",
    "copies": "trained to repeat, after the characters t, a and n, the one before them (Bigram-Backcopy)",
}
USUAL = "mini-standard"  # of several models that are as good to compare with


class FamilyCard(NamedTuple):
    """One family of attention: where its class is in :mod:`diffscope.families`, and the models that it reads, in a line."""

    where: str
    reads: str


#: The families, listed without importing torch. The most particular comes first: the first that recognises a model reads it.
FAMILIES = {
    "diffscope": FamilyCard(
        "bundled.Bundled",
        "diffscope's own models: DIFF V1, DIFF V2 (λ per token and head), their standard baseline and their controls",
    ),
    "diffllama": FamilyCard(
        "diffllama.DiffLlama", "DIFF V1 in transformers: head h pairs maps h and h + H, one λ a layer, norm without weight"
    ),
    "motif": FamilyCard("motif.Motif", "Motif-2.6B (remote code): head h pairs maps 2h and 2h + 1, λ_init counts layers from −1"),
    "motif-grouped": FamilyCard(
        "motif.GroupedMotif",
        "Motif-2-12.7B (remote code), grouped differential attention: one A2 with keys of its own serves several A1",
    ),
    "motif-latent": FamilyCard(
        "motif_latent.MotifLatent",
        "Motif-3 (remote code), latent attention: one A2 serves several A1, λ per token and head, gated output",
    ),
    "phi4flash": FamilyCard(
        "phi4flash.Phi4Flash",
        "Phi-4-mini-flash (remote code): head h pairs maps 2h and 2h + 1, no RoPE, late layers share one layer's keys",
    ),
    "timm": FamilyCard("timm.Timm", "DiffAttention and DiffParallelScalingBlock of timm's vision transformers"),
    "diffclip": FamilyCard(
        "diffclip.DiffClip",
        "DiffCLIP's vision and text transformers: head h pairs maps 2h and 2h + 1, one λ a layer around a constant",
    ),
    "unilm": FamilyCard(
        "unilm.UnilmV1", "DIFF V1 as its authors published it, naive or flash: head h pairs maps 2h and 2h + 1, one λ a layer"
    ),
    "unilm-v2": FamilyCard(
        "unilm.UnilmV2",
        "DIFF V2 as its authors published it: head h pairs maps 2h and 2h + 1 on shared K and V, λ per token and head",
    ),
    "megatron": FamilyCard(
        "megatron.Megatron",
        "DIFF V1 in Megatron's attention: linear_qkv packed by key group, a head's halves are its maps, one λ a layer",
    ),
    "nanogpt": FamilyCard(
        "nanogpt.NanoGpt",
        "DIFF V2 in nanoGPT descendants (BlaGPT): fused kv_proj or c_attn, maps 2h and 2h + 1, λ per token and head",
    ),
    "nanowell": FamilyCard(
        "nanowell.Nanowell",
        "DIFF V1 in nanowell's PyTorch port and its copies: head h pairs maps 2h and 2h + 1, one λ a head, no RoPE",
    ),
    "kyegomez": FamilyCard(
        "kyegomez.Kyegomez",
        "kyegomez' DifferentialTransformer: a module a head, λ given by the model, attention run twice a block",
    ),
    "yoco": FamilyCard(
        "yoco.Yoco",
        "YOCO with DIFF V3 or V2: head h pairs maps 2h and 2h + 1 on shared K and V, gates per token for both maps or A2",
    ),
    "axolotl": FamilyCard(
        "axolotl.Axolotl", "axolotl's differential Llama: head h pairs maps h and h + H, one λ a layer times diff_attn_mix"
    ),
    "dex": FamilyCard("dex.Dex", "standard attention with DEX: heads' outputs corrected by λ·O·W_D, which is no map; D = A"),
    "stable-audio": FamilyCard(
        "stable_audio.StableAudio",
        "Stable Audio 3 (diffusers): head h pairs maps h and h + H, λ = 1, no norm, cross-attention to the text",
    ),
    "stable-audio-tools": FamilyCard(
        "stable_audio.StableAudioTools",
        "Stable Audio 3 in stable-audio-tools: to_qkv holds q1, k1, v, q2, k2; λ = 1, no norm, cross-attention",
    ),
    "standard": FamilyCard(
        "standard.Standard", "any Hugging Face decoder that goes through the attention interface (Llama, Qwen, GPT-2, ...): D = A"
    ),
}


def bundled() -> list[dict]:
    """Return the cards of the models that come with diffscope.

    Returns
    -------
    list of dict
        name, path, task, attention, layers, heads, parameters, positions, scores, checkpoints (steps along training).
    """
    cards = sorted(BUNDLED.glob(f"*/{CARD_FILE}"))
    for card in cards:
        check_sums(card.parent, only=[CARD_FILE])
    return [{**json.loads(card.read_text(encoding="utf-8"))["summary"], "path": str(card.parent)} for card in cards]


def trained_on(card: Mapping[str, Any]) -> str:
    """Return what a model was trained on, as far as its card says."""
    return TRAINED_ON.get(card.get("task", ""), "").format_map(card)


def size_of(card: Mapping[str, Any]) -> str:
    """Return how many parameters a model has, as far as its card says: 0.7 M parameters, or 31,008 of a small one."""
    count = card.get("parameters")
    if not count:
        return ""
    return f"{count / 1e6:.1f} M parameters" if count >= 1e5 else f"{count:,} parameters"


def is_standard(card: Mapping[str, Any]) -> bool:
    """Return whether a model has standard attention."""
    return card.get("attention") == "standard"


def are_matched(card: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two bundled models are matched: of one depth, and trained on the same data."""
    return "matched" in card and "matched" in other and all(card.get(name) == other.get(name) for name in ALIKE)


def to_compare_with(name: str, cards: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the other models by name: matched ones first, of these first those of the other attention."""
    first = cards.get(name, {})

    def rank(other: str) -> tuple[bool, bool, bool]:
        card = cards[other]
        return not are_matched(card, first), is_standard(card) == is_standard(first), other != USUAL

    return sorted((other for other in cards if other != name), key=rank)
