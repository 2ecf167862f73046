"""What differs between the cells of the length × distractors grid: the claim of ``Retrieval.controlled``, counted.

    python benchmarks/grid_claim.py

For every cell, over 200 seeds: tokens, distractors, tokens of theirs, tokens of other text, depth of the queried
needle; in how many prompts anything but distractors differs from the quiet prompt of the same seed and length; and in
how many the sentences, their order or the answer differ from the prompt of the same seed and distractors at the shortest length.
"""

import re

import numpy as np

import diffscope
from diffscope.tasks import Retrieval

LENGTHS, DISTRACTORS, SEEDS, SLOTS = (128, 256, 512), (0, 4, 8), range(200), 8


def sentences(task, prompt):
    return re.findall(r" The magic number: (?:\w+ )?\w+ \d{4}\.", task.tokenizer.decode(prompt.ids[1:]))


def main():
    task = Retrieval(diffscope.load("mini-diff").tokenizer)
    header = ("tokens", "distractors", "their tokens", "other text", "depth", "differs from none", "differs from shortest")
    print("length  distractors  " + "  ".join(f"{name:>12}" for name in header))
    for length in LENGTHS:
        for distractors in DISTRACTORS:
            rows = []
            for seed in SEEDS:
                depth = (seed % 5) / 4
                prompt, quiet, shortest = (
                    task.controlled(where, how, seed, slots=SLOTS, depth=depth)
                    for where, how in ((length, distractors), (length, 0), (LENGTHS[0], distractors))
                )
                changed = set(np.flatnonzero(np.array(prompt.ids) != quiet.ids))
                same = ("answer", "query", "sink")
                from_quiet = (
                    not changed <= set(prompt.spans["needles"])
                    or any(prompt.spans[name] != quiet.spans[name] for name in same)
                    or (prompt.answer, prompt.city, prompt.depth) != (quiet.answer, quiet.city, quiet.depth)
                )
                from_shortest = sentences(task, prompt) != sentences(task, shortest) or prompt.answer != shortest.answer
                count, text = len(sentences(task, prompt)) - 1, length - 1 - len(prompt.spans["needles"])
                counted = (len(prompt.ids), count, len(prompt.spans["needles"]), text, prompt.depth)
                rows.append((*counted, from_quiet, from_shortest))
            means = np.mean(rows, axis=0)[:-2]
            shown = [f"{value:12.2f}" for value in means] + [f"{count:12.0f}" for count in np.sum(rows, axis=0)[-2:]]
            print(f"{length:6d}  {distractors:5d}  " + "  ".join(shown))


if __name__ == "__main__":
    main()
