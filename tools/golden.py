"""Whether a change of the code left every number as it was, to the bit.

``python tools/golden.py save FILE`` writes every statistic of one prompt on the bundled models, what every edit that needs
no other prompts does to the next token's logits, and ``check`` of every published layout. ``python tools/golden.py compare
FILE`` takes them again and prints what differs. Both on the same machine, in the environment of the tests.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import diffscope
from diffscope import edits
from diffscope.tasks import examples

EDITS = {
    "set_lambda": (1.0,),
    "scale_lambda": (0.5,),
    "plus": (),
    "zero_a2": (),
    "uniform_a2": (),
    "share_a2": (),
    "a2_of_head": (0,),
    "low_rank_a2": (4,),
    "top_k_a1": (4,),
    "absolute_d": (),
    "d_plus": (),
    "normalise_d": (),
    "remove_norm": (),
    "ablate_heads": (1, 0),
    "knock_out": ([3, 4], [90, 91, 92, 93, 94, 95]),
    "drop_sink": (),
    "quantise_logits": (6,),
}


def statistics(name: str) -> dict[str, np.ndarray]:
    """Every statistic of one prompt."""
    example = examples()[0]
    capture = diffscope.load(name).capture(example.text, spans={"answer": example.answer})
    dataset = capture.measure(["all"])
    arrays = {f"{name}, statistic {variable}": values.values for variable, values in dataset.data_vars.items()}
    arrays |= {f"{name}, map {which}": capture.map(which, 2, 1).values for which in ("A1", "D", "share")}
    return arrays | {f"{name}, lambda": capture.lam.values}


def edited(name: str) -> dict[str, np.ndarray]:
    """The logits of the last token under every edit."""
    scope = diffscope.load(name)
    ids = torch.tensor([scope.tokenize(examples()[0].text)])
    arrays = {}
    for edit, args in EDITS.items():
        with scope.edit(getattr(edits, edit)(*args)):
            arrays[f"{name}, edit {edit}"] = scope.model(ids).logits[0, -1].numpy()
    return arrays


def conformance() -> dict[str, np.ndarray]:
    """The report of every published layout, as text."""
    from tests.layouts import published

    arrays = {}
    for name, make in published.MODELS.items():
        arrays[f"check {name}"] = np.array(repr(diffscope.check(make())))
    return arrays


def differing(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> list[str]:
    """What is not the same in both, a line each."""
    lines = [f"{name}: only {'before' if name in before else 'after'}" for name in sorted(before.keys() ^ after.keys())]
    for name in sorted(before.keys() & after.keys()):
        old = before[name]
        new = after[name]
        if old.shape != new.shape or old.tobytes() != new.tobytes():
            lines.append(f"{name}: {old} before, {new} after" if old.dtype.kind == "U" else f"{name}: differs")
    return lines


@torch.no_grad()
def main() -> int:
    """Save the numbers, or say which differ from those that were saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("save", "compare"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.file.suffix != ".npz":
        parser.error(f"{arguments.file} has to end in .npz")
    torch.set_num_threads(1)
    arrays = {**statistics("mini-diff"), **statistics("mini-standard"), **edited("mini-diff"), **conformance()}
    if arguments.what == "save":
        np.savez_compressed(arguments.file, **arrays)
        print(f"{len(arrays)} arrays in {arguments.file}")
        return 0
    with np.load(arguments.file) as saved:
        lines = differing(dict(saved), arrays)
    print("\n".join(lines) or f"all {len(arrays)} are the same")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
