"""Tiny random models of the real classes, with weights large enough that every map matters."""

import numpy as np
import torch
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from diffscope.attention import LayerAttention, Pairing
from diffscope.attention.fidelity import Fidelity
from diffscope.capture.capture import Capture
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.prompts.encoded import Encoded
from diffscope.tasks.tokenizer import train_tokenizer

VOCABULARY = 900
SHAPE = dict(
    hidden_size=64,
    intermediate_size=48,
    num_hidden_layers=2,
    vocab_size=VOCABULARY,
    max_position_embeddings=256,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=1,
)


def awake(model, seed=0):
    """Weights with attention far from uniform: random initialisation leaves all maps nearly equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 2 / parameter.shape[1] ** 0.5)
    return model.eval()


def own(attention="v1", heads=4, kv_heads=None, seed=0, **more):
    torch.manual_seed(seed)
    config = DiffConfig(
        attention=attention, num_attention_heads=heads, num_key_value_heads=kv_heads or heads, **{**SHAPE, **more}
    )
    return awake(DiffForCausalLM(config), seed)


def diffllama(maps=8, kv=8, seed=0, **more):
    torch.manual_seed(seed)
    config = DiffLlamaConfig(num_attention_heads=maps, num_key_value_heads=kv, **{**SHAPE, **more})
    return awake(DiffLlamaForCausalLM(config), seed)


def standard(kind, seed=0):
    torch.manual_seed(seed)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    if kind == "llama":
        return awake(LlamaForCausalLM(LlamaConfig(**SHAPE, **heads)), seed)
    if kind == "qwen3":
        return awake(Qwen3ForCausalLM(Qwen3Config(**SHAPE, **heads, head_dim=16)), seed)
    if kind == "mistral":
        return awake(MistralForCausalLM(MistralConfig(**SHAPE, **heads, sliding_window=7)), seed)
    small = dict(n_embd=64, n_head=4, n_layer=2, vocab_size=VOCABULARY, n_positions=256, bos_token_id=0, eos_token_id=0)
    return awake(GPT2LMHeadModel(GPT2Config(**small)), seed)


def gemma2(cap=2.0, seed=0):
    """Scores are capped; a window in layer 0."""
    torch.manual_seed(seed)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=7)
    config = Gemma2Config(**SHAPE, **heads, attn_logit_softcapping=cap)
    return awake(Gemma2ForCausalLM._from_config(config, attn_implementation="eager"), seed)


def gpt_oss(seed=0, layers=2):
    """Sink logits in the softmax; a window in layer 0."""
    torch.manual_seed(seed)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=7, num_hidden_layers=layers)
    experts = dict(num_local_experts=2, num_experts_per_tok=1, experts_implementation="eager")
    rope = dict(rope_type="default", rope_theta=10000.0)
    model = awake(GptOssForCausalLM(GptOssConfig(**{**SHAPE, **heads}, **experts, rope_parameters=rope)), seed)
    with torch.no_grad():
        for layer, (least, most) in zip(model.model.layers, ((-9, 0), (-3, 1))):
            layer.self_attn.sinks.copy_(torch.linspace(least, most, 4))
    return model


def tokenizer():
    """A small tokenizer of the bundled models' kind; its ids stay below ``VOCABULARY``."""
    text = ["The magic number of a city is found in the text, once or more often. Return the answer to the question."] * 20
    return train_tokenizer(text, 300)


def ids(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (n,), generator=generator).tolist()


def stepwise(model, ids, first=10):
    """Logits of a prompt whose first tokens are run at once and the others one by one with a cache, (token, vocabulary)."""
    with torch.no_grad():
        begun = model(torch.tensor([ids[:first]]), use_cache=True)
        steps, cache = [begun.logits[0]], begun.past_key_values
        for token in ids[first:]:
            steps.append(model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0])
    return torch.cat(steps)


def random_capture(tokens, heads=1, layers=1, width=32):
    """Layers of random queries and keys, as a capture of a prompt of so many tokens; there are no values."""
    generator = torch.Generator().manual_seed(0)

    def random(count):
        return torch.randn(1, count, tokens, width, generator=generator)

    held = [
        LayerAttention(
            layer=number,
            family="random",
            q=1.5 * random(2 * heads),
            k=random(2 * heads),
            v=torch.zeros(1, heads, tokens, 1),
            scale=width**-0.5,
            pairing=Pairing.stripes(heads),
            lengths=(tokens,),
            lam=torch.full((1, heads, 1), 0.7),
        )
        for number in range(layers)
    ]
    texts = tuple(f"t{i}" for i in range(tokens))
    prompt = Encoded(None, tuple(range(tokens)), texts, tuple((0, 0) for _ in texts), {"sink": (0,)})
    proofs = [Fidelity(error=0.0, tolerance=1e-5, rows=tokens, decided=True, reason="") for _ in held]
    facts = {"model": "random", "family": "random", "attention": "eager", "dtype": "float32"}
    return Capture([prompt], held, proofs, [[]], np.zeros((layers, 1, 6)), facts)
