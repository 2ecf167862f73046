"""What the instruments show of the bundled models, as docs/instruments.md quotes it: ``python -m benchmarks.instruments``.

20 retrieval prompts of 160 tokens in the models' own sentence, the answering query, irrelevant tokens; ratios of mean squares and
means over prompts.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import diffscope
from diffscope.instruments.injection import with_a2_moved
from diffscope.tasks import Retrieval
from diffscope.tasks.sampling import draw
from diffscope.tasks.trained_on import template_of

PROMPTS = 20
LENGTH = 160
NEEDLES = 4
SEED = 20_000
SIGMA = 0.5  # of the noise in single heads
STRONG = 1.0  # of the noise in all layers
PARTS = ("uniform", "distance", "key", "other", "rest")


def rejection(captures: list[diffscope.Capture]) -> tuple[np.ndarray, np.ndarray]:
    """Common-mode rejection by injection and its ceiling in dB, (layer, head), ratios of mean squares over prompts."""
    runs = [diffscope.cmrr_by_injection(capture, spans=["irrelevant"], sigmas=[SIGMA]).squeeze() for capture in captures]

    def ratio(end: str) -> np.ndarray:
        of_mode = [np.mean([run[f"change_{mode}{end}"] ** 2 for run in runs], 0) for mode in ("differential", "common")]
        return 10 * np.log10(of_mode[0] / of_mode[1])

    return ratio(""), ratio("_ceiling")


def lost(scope: diffscope.Scope, prompts: list) -> xr.Dataset:
    """Nats of log-odds that noise in all layers costs, by prompt."""
    by_prompt = [
        diffscope.log_odds_under_noise(
            scope, p.ids, p.answer[0], [ids[0] for ids in p.distractors], spans=p.spans, sigmas=(STRONG,)
        )
        for p in prompts
    ]
    return xr.concat(by_prompt, "prompt")


def main() -> None:
    """Print the tables."""
    scope = diffscope.load("mini-diff")
    task = Retrieval(scope.tokenizer, held_out=True, template=template_of("mini-diff"))
    prompts, others = (draw(task, PROMPTS, LENGTH, NEEDLES, seed) for seed in (SEED, SEED + 1))
    captures = [scope.capture(list(prompt.ids), spans=prompt.spans) for prompt in prompts]
    (own, most), (moved, _) = rejection(captures), rejection([with_a2_moved(capture) for capture in captures])
    lam = captures[0].lam.mean([dim for dim in captures[0].lam.dims if dim != "layer"]).values
    columns = ("layer", "λ", "if maps were equal", "CMRR_inj of its two heads", "of at most", "with A2 of the other head")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for layer, value in enumerate(lam):
        equal = 20 * np.log10((1 + value) / abs(1 - value))
        cells = (", ".join(f"{each:.1f}" for each in of[layer]) for of in (own, most, moved))
        print(f"| {layer} | {value:.2f} | {equal:.1f} dB | {' dB | '.join(cells)} dB |")
    for name in ("mini-diff", "mini-standard"):
        values = lost(diffscope.load(name), prompts)
        nats = values["log_odds_lost"].isel(sigma=0)  # (prompt, mode)
        errors = nats.std("prompt", ddof=1) / np.sqrt(PROMPTS)
        words = [
            f"{float(nats.sel(mode=mode).mean()):.2f} ± {float(errors.sel(mode=mode)):.2f} to {mode} noise"
            for mode in nats["mode"].values
        ]
        print(f"\n{name} loses {', '.join(words)}, of {float(values['log_odds'].mean()):.1f} nats")
    batch = scope.capture([list(prompt.ids) for prompt in others])
    parts = [diffscope.average(diffscope.anatomy(capture, batch), "head").shapley for capture in captures]
    means = xr.concat(parts, "prompt").mean("prompt")
    print(f"\n| layer | map | {' | '.join(PARTS)} |\n|---|---|{'---|' * len(PARTS)}")
    for of in ("A2", "A1"):
        for layer in means["layer"].values:
            cells = " | ".join(f"{float(means.sel(map=of, layer=layer, part=part)):.2f}" for part in PARTS)
            print(f"| {layer} | {of} | {cells} |")


if __name__ == "__main__":
    main()
