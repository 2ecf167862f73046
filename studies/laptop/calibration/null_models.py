"""The whole board on models in which there is nothing to find: do the tests find it all the same?

    python -m studies.laptop.calibration.null_models

A DiffLlama and a Llama of transformers with random weights, beside a random Llama as their standard model, and the first
checkpoint of the bundled DIFF model, before its first step, beside the bundled standard model with random weights. Ends with
status 1 if any test is for an account.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

import diffscope
from diffscope.hypotheses.accounts import ACCOUNTS, FOR
from diffscope.lab.training.train import initialise
from diffscope.models import DiffForCausalLM
from studies.laptop.results import write_result

SHAPE = dict(
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=1024,
)


def random_model(kind, config, tokenizer, seed):
    """Make a model of transformers with random weights and the tokenizer of the bundled pair."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        ids = dict(bos_token_id=0, eos_token_id=0, pad_token_id=1)
        model = kind(config(vocab_size=len(tokenizer), **SHAPE, **ids))
    return diffscope.load(model.eval(), tokenizer)


def main():
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--untrained", type=int, default=24)
    options = parser.parse_args()
    tokenizer = diffscope.load("mini-diff").tokenizer
    diffllama = random_model(DiffLlamaForCausalLM, DiffLlamaConfig, tokenizer, 0)
    llama, plain = (random_model(LlamaForCausalLM, LlamaConfig, tokenizer, seed) for seed in (1, 2))
    with torch.random.fork_rng():
        standard = DiffForCausalLM(diffscope.load("mini-standard").model.config)
    initialise(standard, seed=0)
    subjects = {
        "random DiffLlama": (diffllama, plain),
        "random Llama": (llama, plain),
        "step 0 of mini-diff": ("mini-diff@0", diffscope.load(standard.eval(), tokenizer)),
    }
    verdicts = {}
    for name, (model, baseline) in subjects.items():
        board = diffscope.hypotheses.test(model, baseline, prompts=options.prompts, untrained=options.untrained)
        verdicts[name] = {verdict.test.id: verdict.shown for verdict in board}
        counted = Counter("needs …" if verdict.startswith("needs ") else verdict for verdict in verdicts[name].values())
        print(f"{name}: " + ", ".join(f"{count} {verdict}" for verdict, count in counted.most_common()))
        for id, verdict in verdicts[name].items():
            print(f"    {id}: {verdict}")
    write_result("null_models", verdicts)
    return int(
        any(f"{account} {FOR}" in shown for board in verdicts.values() for shown in board.values() for account in ACCOUNTS)
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
