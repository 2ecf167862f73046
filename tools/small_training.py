"""Train a small DiffLlama on the bundled text under a monitor: ``python -m tools.small_training FOLDER``, for pictures of it."""

from __future__ import annotations

import sys

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import diffscope
from diffscope.tasks.text import standard_library_text

STEPS = 200
LENGTH = 96  # tokens of a row and of a prompt
ACCIDENT = 110  # the step at which the learning rate becomes ten times as large, so that there is an alarm to see


def main() -> None:
    """Train into the folder that the command line names."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = diffscope.load("mini-diff").tokenizer
    ids = torch.tensor([tokenizer(" ".join(standard_library_text(held_out=False)[:300]))["input_ids"]])
    rows = ids[:, : ids.shape[1] // LENGTH * LENGTH].view(-1, LENGTH)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=8)
    model = DiffLlamaForCausalLM(DiffLlamaConfig(**sizes, vocab_size=len(tokenizer))).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    prompts = [tokenizer.decode(row) for row in rows[:2]]
    options = {"every": 5, "budget": None, "maps": [(0, 0)], "maps_every": 4, "tokenizer": tokenizer}
    monitor = diffscope.monitor(model, prompts, path=sys.argv[1], **options)
    for step in range(STEPS):
        if step == ACCIDENT:
            optimizer.param_groups[0]["lr"] *= 10
        batch = rows[2:][torch.randint(len(rows) - 2, (8,))]
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(step, loss=loss.item())


if __name__ == "__main__":
    main()
