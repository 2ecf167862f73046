"""Write the conformance pages of docs/: what was opened of each family, held in each wrapping, and read of transformers' models.

    python -m benchmarks.conformance_tables                         # all pages, ten minutes
    python -m benchmarks.conformance_tables --part families wrappings
    python -m benchmarks.conformance_tables --part families --device cuda --quick

The part `lens` compares bridges to TransformerLens with the models they were made from; its tables are in RESULTS.md.
"""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

import diffscope
from benchmarks import results, transformers_models
from benchmarks.results import Section, table
from diffscope import edits
from diffscope.attention.layer import LayerAttention
from diffscope.conformance.prompts import Prompts
from diffscope.models import load_model
from diffscope.storage.atomic import write_text
from diffscope.tables.table import Table
from tests import tiny
from tests.layouts import planted
from tests.layouts.published import MODELS
from tests.reference import Slow
from tests.wrappings import WRAPPINGS, Wrapping, difference, own_maps, state

DOCS = Path(__file__).parents[1] / "docs"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def uniform(a1: np.ndarray, a2: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A1, and in A2's place equal weights on all keys that are seen."""
    return a1, seen / seen.sum(-1, keepdims=True)


# Each edit beside what it changes in the slow reference of a layer.
EDITS: dict[str, tuple[edits.Edit, Callable[[Slow], dict]]] = {
    "λ = 0.3": (edits.set_lambda(0.3), lambda slow: {"lam": lambda row, head: np.full_like(row, 0.3)}),
    "A2 uniform": (edits.uniform_a2(), lambda slow: {"maps": lambda a1, a2, head: uniform(a1, a2, slow.seen())}),
    "|D|": (edits.absolute_d(), lambda slow: {"difference": lambda d, head: np.abs(d)}),
    "head 0 ablated": (edits.ablate_heads(heads=0), lambda slow: {"output": lambda out, head: out * (head != 0)}),
}


def edited(model: nn.Module, prompt: object) -> str:
    """Return how many edits do what they say in every layer, and how exactly."""
    scope, worst, tried = diffscope.load(model), 0.0, 0
    differential = scope.capture(prompt).differential
    for name, (edit, change) in EDITS.items():
        if name in ("λ = 0.3", "A2 uniform") and not differential:
            continue
        tried += 1
        with scope.edit(edit):
            layers, entered = watched(scope, prompt)
        for layer, got in zip(layers, entered):
            slow = Slow(layer.__class__(**{**vars(layer), "changes": ()}))  # the tensors, without the edit
            want = slow.output(**change(slow))  # (query, head·width)
            off = np.abs(got.double().cpu().numpy().reshape(want.shape) - want).max() / np.abs(want).max()
            worst = np.maximum(worst, off)
    return f"{tried} exact to {worst:.0e}"


def watched(scope: diffscope.Scope, prompt: object) -> tuple[list[LayerAttention], list[torch.Tensor]]:
    """Return the layers of a capture, and what entered each output projection meanwhile, (query, head·width)."""
    entered, handles = [], []
    for module in scope.family.modules(scope.model):
        projection, width = scope.family.output_projection(module), scope.family.attention_width(module)
        first = (slice(None), 0) if scope.family.tokens_first else 0
        handles.append(
            projection.register_forward_pre_hook(lambda _, args, n=width, at=first: entered.append(args[0][at][:, :n]))
        )
    capture = scope.capture(prompt)
    for handle in handles:
        handle.remove()
    return capture.layers, entered


def in_half(make: Callable[[], nn.Module], report) -> str:
    """Return whether a check passes in half precision and leaves nothing undecided that it decides in float32, on the CPU."""
    reports = [diffscope.check(make().to(dtype)) for dtype in DTYPES[1:]]
    if not all(each.passed for each in reports):
        return "no"
    undecided, known = (
        {finding.says for each in of for finding in each.findings if finding.verdict == "undecided"} for of in (reports, [report])
    )
    return "; ".join(sorted(undecided - known)) or "yes"


def family_row(name: str, make: Callable[[], nn.Module], device: str) -> list[str]:
    """Open one published implementation at a tiny size."""
    model = make().to(device)
    report = diffscope.check(model)
    prompt = Prompts(diffscope.load(model), seed=0, long=40).of_length(40)
    cache = next((finding for finding in report.findings if finding.check == "cached decoding"), None)
    cached = "has none" if cache is None or cache.verdict == "undecided" else {"pass": "yes", "fail": "no"}[cache.verdict]
    first = report.layers[0]
    warned = "; ".join(sorted({finding.says for finding in report.findings if finding.verdict == "warn"}))
    keys = first["keys"] + (f" (warned: {warned})" if warned else "")
    worst = np.max(list(report.fidelity.values()))  # a NaN stays a NaN
    opened = [name, report.family, "yes" if report.passed else "no", first["pairing"], first["λ formula"], keys, cached]
    return [*opened, edited(model, prompt), f"{worst:.1e}", in_half(make, report), report.tried_on]


def mistake_row(mistake: str) -> list[str]:
    """Check one planted mistake in each dtype, on the CPU."""
    verdicts: list[str] = []
    causes: dict[str, None] = {}
    for dtype in DTYPES:
        report = diffscope.check(planted.tiny(mistake).to(dtype))
        undecided = "; ".join(finding.says for finding in report.findings if finding.verdict == "undecided")
        verdicts.append((f"undecided: {undecided}" if undecided else "passed") if report.passed else "found")
        fails = [finding.says for finding in report.findings if finding.verdict == "fail"]
        causes |= dict.fromkeys(says.rpartition("likely cause: ")[2] for says in fails)
    return [mistake, *verdicts, "; ".join(causes) or "nothing"]


def families(options: Namespace) -> list[Table]:
    """Open every family: pairing, cached decoding, edits, proof; and check planted mistakes."""
    header = ("model", "family", "opened", "maps of head h", "λ", "keys", "cached decoding", "edits", "fidelity")
    header += ("decided in half precision", "tried on")
    some, rows = 2 if options.quick else None, []
    for name, make in islice(MODELS.items(), some):
        try:
            rows.append(family_row(name, make, options.device))
        except ImportError as error:
            print(f"{name} left out: {error}", file=sys.stderr)
    mistakes = [mistake_row(mistake) for mistake in islice(planted.MISTAKES, some)]
    opened = (
        "“Opened”: whether diffscope check passes on a prompt that is longer than any window, on two prompts of different "
        "length, and on steps from the cache. “Edits”: how many edits (λ set, A2 uniform, |D|, a head ablated) were compared "
        "with a slow recomputation in float64 from the captured q, k, v and λ, and the largest difference relative to the "
        "largest value. “Fidelity”: the largest error over prompts, layers, heads and rows, as "
        "diffscope.attention.fidelity.Fidelity defines it. “Decided in half precision”: whether the same check passes in "
        "bfloat16 and in float16, where a float32 run of each layer's own module proves how the layer is read. “Tried on”: "
        "“real class” is the published class itself; “documented layout” is a module of ours that follows its documentation."
    )
    found = (
        "Planted mistakes: DIFF V1 was written anew in the layout of the authors' file, with one mistake at a time. The rounding "
        "of half precision hides several of these mistakes; there a float32 run of each layer's own module finds them."
    )
    columns = ("planted", "float32", "bfloat16", "float16", "finding")
    return [table(opened, header, rows), table(found, columns, mistakes)]


HELD: dict[str, Callable[[], nn.Module]] = {
    "DiffLlama": tiny.diffllama,
    "diffscope V1": partial(tiny.own, "v1"),
    "diffscope V2": partial(tiny.own, "v2"),
    "Llama": partial(tiny.standard, "llama"),
}


def held(make: Callable[[], nn.Module], wrapping: Wrapping) -> tuple[str, str]:
    """Return the difference or the refusal, and what was changed in the model."""
    ids = tiny.ids(20)
    bare = own_maps(make(), ids)
    model = make()
    model.set_attn_implementation("eager")
    wrapped = wrapping.wrap(model)
    before = state(wrapped)
    try:
        with wrapping.context():
            capture = diffscope.load(wrapped).capture(ids)
    except diffscope.DiffscopeError as refusal:
        return f"refused: {refusal}", changes(before, state(wrapped))
    after = changes(before, state(wrapped))
    with wrapping.context():
        maps = bare if wrapping.same else own_maps(wrapped, ids)
    return f"{difference(capture, maps):.0e}", after


def changes(before: dict, after: dict) -> str:
    """Return the names of what differs between two states of a model."""
    changed = [name for name in before.keys() | after.keys() if before.get(name, 0) != after.get(name, 0)]
    return f"changed: {', '.join(sorted(changed)[:3])}" if changed else ""


def wrappings(options: Namespace) -> list[Table]:
    """Capture models as people hold them, wrapping by wrapping."""
    rows = []
    for name, wrapping in islice(WRAPPINGS.items(), 3 if options.quick else None):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                outcomes, changed = zip(*(held(make, wrapping) for make in HELD.values()))
        except ImportError as error:
            print(f"{name} left out: {error}", file=sys.stderr)
            continue
        if all(outcome.startswith("refused") for outcome in outcomes):
            outcomes = (outcomes[0], *["refused"] * (len(outcomes) - 1))
        rows.append([name, *outcomes, " ".join(sorted({*changed} - {""})) or "yes"])
    caption = (
        "Each number is the largest difference between a captured A1 or A2 and the maps that eager attention itself returns "
        "(output_attentions). They are compared with the maps of the bare model if the wrapped model computes the same, and "
        "with those of the wrapped model if it does not (adapters, autocast, half precision, quantised weights). “Left "
        "alone”: whether modes, hooks, attributes, configurations, weights and random generators are as they were before."
    )
    return [table(caption, ("held as", *HELD, "left alone"), rows)]


def bridged() -> dict[str, nn.Module]:
    """Return random tiny models of every kind that has a bridge, and mini-diff."""
    torch.manual_seed(0)
    made = {f"DiffLlama, 4 heads, {kv // 2} kv heads": tiny.diffllama(kv=kv) for kv in (8, 4)}
    made |= {f"diffscope {kind}, 4 heads, 2 kv heads": tiny.own(kind, kv_heads=2) for kind in ("v1", "v2", "standard")}
    return made | {"mini-diff": load_model("mini-diff")[0].eval()}


@torch.no_grad()
def lens(options: Namespace) -> list[Table]:
    """Compare bridges with their models: logits in two precisions, and TransformerLens' own benchmark of components."""
    from transformer_lens.benchmarks.component_benchmark import benchmark_all_components

    from diffscope import lens

    ids, rows = torch.randint(2, 400, (1, 40), generator=torch.Generator().manual_seed(0)), []
    for name, model in islice(bridged().items(), 1 if options.quick else None):
        apart = []
        for dtype, implementation in ((torch.float32, "eager"), (torch.float64, "sdpa")):
            bridge = lens.boot(copy.deepcopy(model).to(dtype))
            own = copy.deepcopy(model).to(dtype)
            own.set_attn_implementation(implementation)
            expected = own(ids).logits
            apart.append(f"{float((bridge(ids) - expected).abs().max() / expected.std()):.1e}")
        components = benchmark_all_components(lens.boot(copy.deepcopy(model)), model, atol=1e-5, rtol=1e-5)
        details = components.details
        rows.append([name, *apart, "passed" if components.passed else components.message, details["total_components"]])
    caption = "Largest deviation of the logits in units of their standard deviation; components equal within 1e-5."
    return [table(caption, ("model", "float32", "float64", "components", "of"), rows)]


# What a page of docs/ says first.
INTRODUCTIONS = {
    "families": (
        "This page lists every implementation of attention that diffscope reads, with what opening it showed: how "
        "the maps of a head are ordered, how λ is computed, whether edits do what they say, and how closely each "
        "layer's output is rebuilt. A second table says of one planted mistake after the other whether the proof "
        "finds it."
    ),
    "wrappings": (
        "This page says in which forms a model can be handed to diffscope (with adapters, compiled, under "
        "autocast, offloaded, sharded, quantised), and how far the captured maps are then from the model's own."
    ),
    "transformers": (
        "This page says of every causal language model, model of images and text, and encoder-decoder in "
        "transformers whether diffscope reads its attention and, if not, why it refuses."
    ),
}

# part: title, page of docs/, how it is measured, of what
PARTS: dict[str, tuple[str, str | None, Callable[[Namespace], Sequence[Table]], str]] = {
    "families": (
        "What was opened of each family",
        "evidence/families.md",
        families,
        "tiny random models in float32, 64 wide, a few layers",
    ),
    "wrappings": ("Wrapped, compiled and quantised models", "evidence/wrappings.md", wrappings, "tiny random models on the CPU"),
    "transformers": (
        "The models of transformers",
        "evidence/transformers.md",
        transformers_models.tables,
        "tiny random models of every class that transformers maps to causal language models, and to models of images and text",
    ),
    "lens": ("Bridges to TransformerLens", None, lens, "random tiny models, and mini-diff as it is bundled"),
}


def main() -> None:
    """Write the pages that are wanted; exit 1 if a table says that something is wrong."""
    parser = results.parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--device", default="cpu", help="for the part families")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    wrong = False
    for part in options.part:
        title, page, measure, models = PARTS[part]
        tables = list(measure(options))
        section = Section(part, title, f"python -m benchmarks.conformance_tables --part {part}", models, tables)
        wrong |= any(cell in ("WRONG", "BUG") for of in tables for row in of.rows for cell in row)
        if page is None:
            results.keep("conformance_tables", [section], options)
            continue
        made = f"Made by `{section.command}` on {section.measured}: {models}. {section.machine}.\n"
        text = "\n".join([f"# {title}\n", f"{INTRODUCTIONS[part]}\n", made, *(of.to_markdown() for of in tables)])
        print(text, flush=True)
        if not options.quick:
            write_text(DOCS / page, text)
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
