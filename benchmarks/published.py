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
from diffscope.hypotheses import Asked
from diffscope.hypotheses.api import models_of, open_cohort
from diffscope.hypotheses.declared.one_model import over_model
from diffscope.hypotheses.declared.robustness import likeness
from diffscope.hypotheses.evidence.answers import answers
from diffscope.hypotheses.evidence.flows import flows, noise_ranks
from diffscope.lab.scoring import span_by_depth

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
    "exact answers among 4, 8, 16 distractors": (".62 (4 needles, 2 asked)", ".84 (4 needles, 2 asked)"),
    "effective rank of λA2, exp H(σ) and exp H(σ²)": ("–", "2–5 (which of the two is not said)"),
    "weight of key tokens, share in D over share in A1": ("–", "+30–50 %"),
    "norm of the second branch's gradient over the first's, over λ": ("–", "near 1"),
    "cosine of the branches' gradients": ("–", "often negative"),
    "cosine distance between heads (D)": ("smaller", "larger"),
    "CKA between heads' outputs": ("larger", "lower"),
    "Gini of the answering row": ("higher (DEX), lower (notes on it)", "lower (DEX), higher (notes on it)"),
    "normalised entropy of the answering row": ("lower (DEX), higher (notes on it)", "higher (DEX), lower (notes on it)"),
}


def measured(scope, prompts) -> dict[str, list[float]]:
    """Every figure that one model has, as lists of numbers."""
    found, differential = {}, scope.capture(prompts[0].ids).differential
    looks = span_by_depth(scope, prompts)["mean"].sel(map="D", normalisation="share")
    found["answer, by depth 0 to 100 %"] = looks.sel(span="answer").values.tolist()
    found["other needles, by depth"] = looks.sel(span="needles").values.tolist()
    cap = scope.capture([prompt.ids for prompt in prompts])
    rows = cap.measure(["gini", "entropy_normalised"], queries=[-1]).sel(map="D").mean(("prompt", "query")).mean("head")
    found["Gini of the answering row"] = [float(rows["gini"].mean())]
    found["normalised entropy of the answering row"] = [float(rows["entropy_normalised"].mean())]
    few = prompts[:FEW]
    tails = scope.capture([prompt.ids for prompt in few]).measure(["logit_outliers"]).mean("prompt").max("layer")
    found["scores: top 1, 2, 3, 10, 100, median"] = tails["logit_outliers"].values.tolist()
    found["layer outputs: the same"] = tails["layer_output_outliers"].values.tolist()
    quantised = (answers(scope, prompts, edits.quantise_logits(bits)).right.mean() for bits in BITS)
    found["exact answers with scores of 16, 8, 6, 4 bits"] = list(map(float, quantised))
    like = likeness(scope, few)
    found["cosine distance between heads (D)"] = [float(np.nanmean(like["distance_d"]))]
    found["CKA between heads' outputs"] = [float(np.nanmean(like["cka"]))]
    if differential:
        ranks, pulls = noise_ranks(scope, few), flows(scope, few)
        found["effective rank of λA2, exp H(σ) and exp H(σ²)"] = [
            float(over_model(ranks[n]).mean()) for n in ("erank", "erank_energy")
        ]
        spans = [{"answer": prompt.spans["answer"]} for prompt in prompts]
        gain = scope.capture([prompt.ids for prompt in prompts], spans).measure(["selectivity"], queries=[-1])["selectivity"]
        gain = np.log2(gain.sel(span="answer").isel(query=0))
        found["weight of key tokens, share in D over share in A1"] = [2 ** float(gain.mean("head").mean()) - 1]
        ratio = float(over_model(pulls["ratio_lambda"]).mean())
        found["norm of the second branch's gradient over the first's, over λ"] = [2**ratio]
        found["cosine of the branches' gradients"] = [float(over_model(pulls["cosine"]).mean())]
    return found


def said(values: list[list[float]]) -> str:
    """Means over seeds with their standard deviations."""
    table = np.array(values, dtype=float)  # (seed, number)
    middle, spread = table.mean(0), table.std(0, ddof=1) if len(table) > 1 else 0 * table[0]
    if len(middle) > 2:
        return " / ".join(f"{one:.3g}" for one in middle) + f" (± {np.nanmax(spread):.2g} at most)"
    return " / ".join(f"{one:.3g} ± {about:.2g}" for one, about in zip(middle, spread))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--out", help="a JSON file for all numbers")
    options = parser.parse_args()
    cohort = open_cohort(options.cohort)
    asked = Asked(prompts=options.prompts, template=json.loads(cohort.attrs["recipe"])["grid"]["template"])
    arms = dict(zip(("standard", "diff"), models_of(options.cohort, cohort, "standard", "diff")))
    found = {}
    for arm, models in arms.items():
        scopes = [diffscope.load(model) for model in models]
        found[arm] = [measured(scope, asked.of(scope)) for scope in scopes]
        right = cohort["exact_match"].sel(arm=arm, distractors=[4, 8, 16], seed=[int(m.rpartition("-")[2]) for m in models])
        for one, by_distractors in zip(found[arm], right.mean(("length", "prompt")).values):
            one["exact answers among 4, 8, 16 distractors"] = by_distractors.tolist()
    print("| figure | published: standard | DIFF | here: standard | DIFF |\n|---|---|---|---|---|")
    for name, theirs in PUBLISHED.items():
        ours = [said([one[name] for one in found[arm]]) if name in found[arm][0] else "–" for arm in ("standard", "diff")]
        print(f"| {name} | {' | '.join(theirs)} | {' | '.join(ours)} |")
    if options.out:
        with open(options.out, "w") as file:
            json.dump(found, file, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
