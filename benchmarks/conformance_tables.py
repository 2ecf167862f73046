"""Every family: opened, paired, decoded from the cache, edited, rebuilt; and the mistakes that a check finds.

python -m benchmarks.conformance_tables > docs/family_table.md
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice

import numpy as np
import torch
from torch import Tensor

import diffscope
from diffscope import edits
from diffscope.scope.runners import ImageModel
from tests import tiny
from tests.layouts import planted
from tests.layouts.published import MODELS


def slow_output(layer, change: str) -> Tensor:
    """What should enter the output projection of one prompt under an edit, from q, k, v and λ alone: (query, head·width)."""
    outs, seen = [], layer.visible()
    for head in range(layer.n_heads):
        lam = layer.lam[0].expand(layer.n_heads, layer.n_queries)[head][:, None].float()
        gain = layer.gain[0].expand(layer.n_heads, layer.n_queries)[head][:, None].float()
        maps = []
        for of_head in (layer.pairing.a1, layer.pairing.a2):
            index = 0 if of_head is None else int(of_head[head])
            q, k = layer.q[0, index].float(), layer.k[0, layer.pairing.key_of_map[index]].float()
            maps.append((q @ k.T * layer.scale).masked_fill(~seen, -torch.inf).softmax(-1))
        a1, a2 = maps
        a2 = seen / seen.sum(-1, keepdim=True) if change == "A2 uniform" else a2
        lam = torch.full_like(lam, 0.3) if change == "λ = 0.3" else lam
        d = gain * a1 - lam * a2 if layer.differential else gain * a1
        d = d.abs() if change == "|D|" else d
        outs.append(d @ layer.v[0, layer.pairing.value_of_head[head]].float())
    out = torch.stack(outs)  # (head, query, width)
    out = (out if layer.norm is None else layer.norm(out)) * layer.post_scale
    out = out if layer.correction is None else out - out @ layer.correction
    out = out if layer.gate is None else out * layer.gate[0]
    out = out * (torch.arange(layer.n_heads, device=out.device) != 0)[:, None, None] if change == "head 0 ablated" else out
    return out.transpose(0, 1).flatten(1)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EDITS = {
    "λ = 0.3": edits.set_lambda(0.3),
    "A2 uniform": edits.uniform_a2(),
    "|D|": edits.absolute_d(),
    "head 0 ablated": edits.ablate_heads(heads=0),
}


def watched(scope, prompt):
    """A capture, and what entered each output projection meanwhile, (query, head·width)."""
    entered, handles = [], []
    for module in scope.family.modules(scope.model):
        projection, width = scope.family.output_projection(module), scope.family.attention_width(module)
        handles.append(projection.register_forward_pre_hook(lambda _, args, n=width: entered.append(args[0][0, :, :n])))
    capture = scope.capture(prompt)
    for handle in handles:
        handle.remove()
    return capture, entered


def edited(model, prompt) -> str:
    """How many edits do exactly what they say, in every layer."""
    scope, worst, tried = diffscope.load(model), 0.0, 0
    differential = scope.capture(prompt).differential
    for name, edit in EDITS.items():
        if name in ("λ = 0.3", "A2 uniform") and not differential:
            continue
        tried += 1
        with scope.edit(edit):
            capture, entered = watched(scope, prompt)
        for layer, got in zip(capture.layers, entered):
            bare = layer.__class__(**{**vars(layer), "changes": ()})  # the tensors, without the edit
            want = slow_output(bare.prompt(0), name)
            worst = np.maximum(worst, float((got.reshape(want.shape) - want).abs().max() / want.abs().max()))
    return f"{tried} exact to {worst:.0e}"


def in_half(make, report) -> str:
    """Whether a check passes in half precision and leaves nothing undecided that it decides in float32, always on the CPU."""
    reports = [diffscope.check(make().to(dtype)) for dtype in DTYPES[1:]]
    if not all(each.passed for each in reports):
        return "**no**"
    undecided, known = (
        {finding.says for each in of for finding in each.findings if finding.verdict == "undecided"} for of in (reports, [report])
    )
    return "; ".join(sorted(undecided - known)) or "yes"


def family_row(name: str, make, device: str) -> str:
    model = make().to(device)
    report = diffscope.check(model)
    runner = diffscope.load(model).runner
    generator = torch.Generator().manual_seed(0)
    image = isinstance(runner, ImageModel)
    prompt = runner.random_image(generator) if image else torch.randint(2, tiny.VOCABULARY, (40,), generator=generator).tolist()
    cache = next((finding for finding in report.findings if finding.check == "cached decoding"), None)
    cached = "has none" if cache is None or cache.verdict == "undecided" else {"pass": "yes", "fail": "**no**"}[cache.verdict]
    first = report.layers[0]
    worst = np.max(list(report.fidelity.values()))  # a NaN stays a NaN
    warned = "; ".join(sorted({finding.says for finding in report.findings if finding.verdict == "warn"}))
    cells = (
        name,
        report.family,
        "yes" if report.passed else "**no**",
        first["pairing"],
        first["λ formula"],
        first["keys"] + (f" (warned: {warned})" if warned else ""),
        cached,
        edited(model, prompt),
        f"{worst:.1e}",
        in_half(make, report),
        report.tried_on,
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def mistake_row(mistake: str) -> str:
    """What a check says of one planted mistake in each dtype, always on the CPU."""
    verdicts: list[str] = []
    causes: dict[str, None] = {}
    for dtype in DTYPES:
        report = diffscope.check(planted.tiny(mistake).to(dtype))
        undecided = "; ".join(finding.says for finding in report.findings if finding.verdict == "undecided")
        passed = f"undecided: {undecided}" if undecided else "passed"
        verdicts.append(passed if report.passed else "found")
        fails = [finding.says for finding in report.findings if finding.verdict == "fail"]
        causes |= dict.fromkeys(says.rpartition("likely cause: ")[2] for says in fails)
    return f"| {mistake} | {' | '.join(verdicts)} | {'<br>'.join(causes) or 'nothing'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--first", type=int, help="only so many models and mistakes")
    options = parser.parse_args()
    print(
        "# What was opened of each family\n\n"
        "Made by `python -m benchmarks.conformance_tables`, on tiny random models in float32 (64 wide, a few layers).\n"
    )
    print(
        "*Opened*: `diffscope check` passes on a prompt longer than any window, on two prompts of different length and on steps "
        "from the cache. *Edits*: λ set, A2 uniform, |D| and a head ablated, each held against a slow recomputation from the "
        "captured q, k, v and λ; relative to the largest value. Zero means the same "
        "operations in the same order. *Fidelity*: largest error over prompts, layers, heads and rows "
        "(`diffscope.proof.fidelity.Fidelity`). *Decided in half precision*: the same check in bfloat16 and in float16, where a "
        "float32 run of each layer's own module proves how it is read.\n"
    )
    columns = "model | family | opened | maps of head h | λ | keys | cached decoding | edits | fidelity"
    columns += " | decided in half precision | tried on"
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    for name, make in islice(MODELS.items(), options.first):
        try:
            print(family_row(name, make, options.device), flush=True)
        except ImportError as error:
            print(f"{name} left out: {error}", file=sys.stderr)
    print(
        "\n# Planted mistakes\n\nA re-implementation of DIFF V1 in the layout of the authors' file, with one mistake at a time. "
        "In half precision, whose rounding hides several of them, a float32 run of each layer's own module finds them.\n"
    )
    print("| planted | float32 | bfloat16 | float16 | what is said |\n|---|---|---|---|---|")
    for mistake in islice(planted.MISTAKES, options.first):
        print(mistake_row(mistake), flush=True)


if __name__ == "__main__":
    main()
