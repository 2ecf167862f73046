"""Measure what the second map does in each layer of a model: what its loss costs, what can stand in for it, and where it looks.

python -m benchmarks.second_map mini-diff
python -m benchmarks.second_map mini-text --distractors 6
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
import xarray as xr

import diffscope
from benchmarks import results
from benchmarks.results import Section, table
from diffscope import edits
from diffscope.edits import Edit
from diffscope.evidence.ablations import answers, with_answer
from diffscope.evidence.costs import lost_without_a2, lost_without_heads
from diffscope.evidence.signs import previous_token_share, rises_by_signs, rises_when_blind
from diffscope.hypotheses import Settings
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt

DISTRACTORS = 24
CHANGES = {"negative": "D's negative weights set to 0", "scattered": "as much added at random keys", "plus": "A1 + λA2"}
BLIND = {
    "A2": "A2 does not see the token before the answer's number",
    "A1": "A1 does not see it",
    "A2 elsewhere": "A2 does not see the one before that",
}


def main() -> None:
    """Measure what the second map does, layer by layer."""
    parser = results.parser(__doc__)
    parser.add_argument("model", nargs="?", default="mini-diff")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--length", type=int, default=256, help="tokens a prompt")
    parser.add_argument("--distractors", type=int, default=DISTRACTORS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scope = diffscope.load(options.model)
    count = 2 if options.quick else options.prompts
    settings = Settings(prompts=count, length=options.length, needles=options.distractors + 1)
    prompts = settings.prompts_for(scope)
    cells = [[words, *of] for words, of in rows(scope, prompts, settings)]
    blind = [[words, mean(of)] for words, of in zip(BLIND.values(), rises_when_blind(scope, prompts).sel(blind=list(BLIND)))]
    caption = (
        f"Rises of the answer's loss in nats, mean over {len(prompts)} prompts of {options.length} tokens with "
        f"{options.distractors} distractors ± standard error."
    )
    tables = [table(caption, (scope.name, *(f"layer {layer}" for layer in scope.layer_numbers)), cells)]
    tables.append(table("The same of all layers, for keys that a map does not see.", ("", scope.name), blind))
    command = f"python -m benchmarks.second_map {scope.name}"
    command += "" if options.distractors == DISTRACTORS else f" --distractors {options.distractors}"
    title = "The second map, layer by layer"
    results.keep("second_map", [Section(scope.name, title, command, f"{scope.name}, as it is bundled", tables)], options)


def rows(scope: Scope, prompts: Sequence[Prompt], settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """Measure each quantity; yield its name and its cell in each layer."""
    a2 = lost_without_a2(scope, prompts).sel(measure="loss")
    yield "without A2", [mean(of) for of in a2["layer_together"]]
    yield "without A2 of one head", [", ".join(map(mean, of)) for of in a2["alone"]]
    yield "without a whole head", [", ".join(map(mean, of)) for of in lost_without_heads(scope, prompts).sel(measure="loss")]
    signs = rises_by_signs(scope, prompts)
    for name, words in CHANGES.items():
        yield words, [mean(of) for of in signs["layers"].sel(change=name)]
    before = answers(scope, prompts).loss
    for words, edit in stand_ins(scope, settings).items():
        yield words, [mean(answers(scope, prompts, edit(layer)).loss - before) for layer in scope.layer_numbers]
    shares = previous_token_share(scope, prompts).mean("prompt")
    for name in ("a2", "a1"):
        yield f"{name.upper()} on the token before the number, by head", by_head(shares[name])
    masses = on_answer(scope, prompts)
    for name in ("A2", "A1"):
        yield f"{name} on the answer, of the query that gives it, by head", by_head(masses.sel(map=name))


def by_head(shares: xr.DataArray) -> list[str]:
    """Return shares (layer, head) in words, a layer at a time."""
    return [", ".join(f"{value:.2f}" for value in of if np.isfinite(value)) for of in shares.transpose("layer", "head").values]


def on_answer(scope: Scope, prompts: Sequence[Prompt]) -> xr.DataArray:
    """Measure what maps give to the answer in the text at the last query, mean over prompts, (map, layer, head)."""
    measured = [
        scope.measure(prompt.ids, ["span_mass"], spans={"answer": prompt.spans["answer"]}, queries=[-1]) for prompt in prompts
    ]
    masses = [of["span_mass"].sel(span="answer", normalisation="raw").isel(query=0, drop=True) for of in measured]
    return xr.concat(masses, "prompt").mean("prompt")


def stand_ins(scope: Scope, settings: Settings) -> dict[str, Callable[[int], Edit]]:
    """Return what is put in A2's place in a layer, and A1 taken out, by name."""
    others = [with_answer(prompt) for prompt in replace(settings, seed=settings.seed + 1).prompts_for(scope)]
    longest = max(map(len, others))
    others = [ids for ids in others if len(ids) == longest]
    every = range(longest)
    return {
        "without A1": lambda layer: edits.knock_out(every, every, branch=1, layers=layer),
        "A1 uniform": lambda layer: edits.uniform_a1(layers=layer),
        "A2 uniform": lambda layer: edits.uniform_a2(layers=layer),
        "A2 = its mean over other prompts": lambda layer: edits.mean_a2(map(scope.capture, others), layers=layer),
        "A2 = its mean at each distance": lambda layer: edits.positional_a2(map(scope.capture, others), layers=layer),
        "A2 of head 0 in all heads": lambda layer: edits.a2_of_head(0, layers=layer),
        "A2 of the last head in all": lambda layer: edits.a2_of_head(
            scope.capture(others[0]).layers[0].n_heads - 1, layers=layer
        ),
    }


def mean(rises: np.ndarray | xr.DataArray) -> str:
    """Return the mean over prompts ± its standard error, in words."""
    values = np.asarray(rises, dtype=float)
    return "–" if np.isnan(values).all() else f"{values.mean():.2f} ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}"


if __name__ == "__main__":
    main()
