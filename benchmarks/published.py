"""Published figures of differential attention beside the same measured on a trained cohort: means over its seeds, ± their spread.

    python benchmarks/published.py runs/laptop --out published.json

Models are small and look up numbers in short prompts, which the published ones (1.4B to 3B parameters, 4K to 64K tokens) do not:
the form of the figures is compared, not their size.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import diffscope
from diffscope import edits
from diffscope.evidence.answers import answers
from diffscope.evidence.flows import flows
from diffscope.hypotheses import Settings
from diffscope.hypotheses.api import models_of, open_cohort
from diffscope.hypotheses.declared.robustness import likeness
from diffscope.readings.depths import depths_of
from diffscope.tasks.sampling import DEPTHS

BITS = (16, 8, 6, 4)
FEW = 10  # prompts of what takes long

# Standard, DIFF. Of "Differential Transformer" (Ye et al., 2024): attention by depth, outliers, scores in few bits, answers.
# Of notes on the DEX paper: ranks, key tokens, one of two claims on sparsity. Of the DEX paper itself: heads, the other claim.
# Of arXiv 2510.00517: opposed gradients. docs/sources.md lists them.
PUBLISHED = {
    "answer, by depth 0 to 100 %": (".03 .03 .03 .07 .09", ".27 .30 .31 .32 .40"),
    "other needles, by depth": (".51 .54 .52 .49 .49 (noise context)", ".01 .02 .02 .02 .01 (noise context)"),
    "scores: top 1, 2, 3, 10, 100, median": ("318 / 308 / 305 / 285 / 252 / 5.4", "38.8 / 38.8 / 37.3 / 32.0 / 27.4 / 3.3"),
    "layer outputs: the same": ("3609 / 3607 / 3604 / 3552 / 2448 / 0.6", "1688 / 1673 / 1672 / 1624 / 741 / 1.2"),
    "exact answers with scores of 16, 8, 6, 4 bits": ("falls at 6 bits", "holds to 6 bits; 4 bits ≈ standard's 6"),
    "exact answers by number of distractors": (".62 (4 needles, 2 asked)", ".84 (4 needles, 2 asked)"),
    "effective rank of λA2, exp H(σ) and exp H(σ²)": ("–", "2–5 (which of the two is not said)"),
    "the same over the uniform map's": ("–", "–"),
    "gain of key tokens in D over A1: share, positive": ("–", "+30–50 % (which of the two is not said)"),
    "norm of the second branch's gradient over the first's, over λ": ("–", "near 1"),
    "cosine of the branches' gradients": ("–", "often negative"),
    "cosine distance between heads (D)": ("smaller", "larger"),
    "CKA between heads' outputs": ("larger", "lower"),
    "Gini of the answering row": ("higher (DEX), lower (notes on it)", "lower (DEX), higher (notes on it)"),
    "normalised entropy of the answering row": ("lower (DEX), higher (notes on it)", "higher (DEX), lower (notes on it)"),
}


def measured(scope, prompts) -> dict[str, list[float]]:
    """Every figure that one model has, as lists of numbers."""
    few = prompts[:FEW]
    ids = [prompt.ids for prompt in prompts]
    figures = {}
    cells = {(len(prompts[0].ids), depth): prompts[index :: len(DEPTHS)] for index, depth in enumerate(DEPTHS)}
    by_depth = depths_of(scope, cells)["mass"].isel(length=0).sel(map="D", normalisation="share")
    figures["answer, by depth 0 to 100 %"] = by_depth.sel(span="answer").values.tolist()
    figures["other needles, by depth"] = by_depth.sel(span="needles").values.tolist()
    rows = (
        scope.capture(ids)
        .measure(["gini", "entropy_normalised"], queries=[-1])
        .sel(map="D")
        .mean(("prompt", "query"))
        .mean("head")
    )
    figures["Gini of the answering row"] = [float(rows["gini"].mean())]
    figures["normalised entropy of the answering row"] = [float(rows["entropy_normalised"].mean())]
    tails = scope.capture(ids[:FEW]).measure(["logit_outliers"]).mean("prompt").max("layer")
    figures["scores: top 1, 2, 3, 10, 100, median"] = tails["logit_outliers"].values.tolist()
    figures["layer outputs: the same"] = tails["layer_output_outliers"].values.tolist()
    quantised = (answers(scope, prompts, edits.quantise_logits(bits)).right.mean() for bits in BITS)
    figures["exact answers with scores of 16, 8, 6, 4 bits"] = list(map(float, quantised))
    like = likeness(scope, few)
    figures["cosine distance between heads (D)"] = [float(np.nanmean(like["distance_d"]))]
    figures["CKA between heads' outputs"] = [float(np.nanmean(like["cka"]))]
    if scope.capture(ids[0]).differential:
        figures |= _of_differential(scope, prompts)
    return figures


def _of_differential(scope, prompts) -> dict[str, list[float]]:
    """The figures that a differential model has and a standard one has not."""
    few = prompts[:FEW]
    ranks = scope.capture([prompt.ids for prompt in few]).measure(["effective_rank"])["effective_rank"]
    ranks = ranks.sel(ranked_map="lambda_A2", definition=["erank", "erank_energy"]).median(("prompt", "layer", "head"))
    gradients = flows(scope, few)
    spans = [{"answer": prompt.spans["answer"]} for prompt in prompts]
    mass = scope.capture([prompt.ids for prompt in prompts], spans).measure(["span_mass"], queries=[-1])["span_mass"]
    mass = mass.sel(span="answer").isel(query=0).mean("prompt")
    answering = mass.sel(map="A1", normalisation="share", drop=True)  # (layer, head): heads count by what they give the answer
    mass = mass.weighted(answering).mean(("layer", "head"))
    gain = mass.sel(map="D") / mass.sel(map="A1") - 1
    return {
        "effective rank of λA2, exp H(σ) and exp H(σ²)": ranks.sel(control="map").values.tolist(),
        "the same over the uniform map's": ranks.sel(control="ratio_uniform").values.tolist(),
        "gain of key tokens in D over A1: share, positive": gain.sel(normalisation=["share", "positive"]).values.tolist(),
        "norm of the second branch's gradient over the first's, over λ": [2 ** float(gradients["ratio_lambda"].mean())],
        "cosine of the branches' gradients": [float(gradients["cosine"].mean())],
    }


def in_words(values: list[list[float]]) -> str:
    """Means over seeds with their standard deviations."""
    table = np.array(values, dtype=float)  # (seed, number)
    means = table.mean(0)
    spreads = table.std(0, ddof=1) if len(table) > 1 else 0 * table[0]
    if len(means) > 2:
        return " / ".join(f"{mean:.3g}" for mean in means) + f" (± {np.nanmax(spreads):.2g} at most)"
    return " / ".join(f"{mean:.3g} ± {spread:.2g}" for mean, spread in zip(means, spreads))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--out", help="a JSON file for all numbers")
    options = parser.parse_args()
    cohort = open_cohort(options.cohort)
    settings = Settings(prompts=options.prompts, template=json.loads(cohort.attrs["recipe"])["grid"]["template"])
    arms = dict(zip(("standard", "diff"), models_of(options.cohort, cohort, "standard", "diff")))
    figures = {}
    for arm, models in arms.items():
        scopes = [diffscope.load(model) for model in models]
        figures[arm] = [measured(scope, settings.prompts_for(scope)) for scope in scopes]
        seeds = [int(model.rpartition("-")[2]) for model in models]
        right = cohort["exact_match"].sel(arm=arm, seed=seeds).mean(("length", "prompt"))
        for of_model, by_distractors in zip(figures[arm], right.values):
            of_model["exact answers by number of distractors"] = by_distractors.tolist()
    print("| figure | published: standard | DIFF | here: standard | DIFF |\n|---|---|---|---|---|")
    for name, theirs in PUBLISHED.items():
        ours = [
            in_words([of_model[name] for of_model in figures[arm]]) if name in figures[arm][0] else "–"
            for arm in ("standard", "diff")
        ]
        print(f"| {name} | {' | '.join(theirs)} | {' | '.join(ours)} |")
    if options.out:
        with open(options.out, "w") as file:
            json.dump(figures, file, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
