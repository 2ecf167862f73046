"""Signal-to-noise gain of planted truths and of the bundled models.

python -m studies.laptop.calibration.signal_to_noise truths   # truth × size: mean and sd of the gain, and what is told; into results/
python -m studies.laptop.calibration.signal_to_noise models   # by layer and head, as docs/instruments.md quotes it
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import xarray as xr

import diffscope
from diffscope.hypotheses.planted_signal import EXPECTED, TRUTHS, WORDS, PlantedSignal, account_of
from diffscope.instruments.signal_to_noise import DRAWS, mean_gain, over_prompts
from diffscope.lab.scoring import draw
from diffscope.tasks import Recall, Retrieval
from diffscope.tasks.pieces import after_word
from diffscope.tasks.tokenizer import CITIES
from diffscope.tasks.trained_on import template_of

FILE = Path(__file__).parent / "results" / "signal_to_noise.json"
SIZES = {"small": (32, 4, 4), "middle": (64, 16, 8), "large": (128, 32, 10)}  # keys, width, answers and fillers
REPETITIONS = 50
PROMPTS = 10
SEED = 20_000
CASES = {
    "4 sentences, 160 tokens": (4, 160),
    "25 sentences, 256 tokens": (25, 256),
}  # as many sentences as these, the asked one too
FILLERS = {"text": False, "text and the other sentences": True}


def of_truth(truth: str, size: str, repetitions: int) -> dict:
    """Gains of one truth at one size over repetitions."""
    keys, width, draws = SIZES[size]
    measured = [PlantedSignal(truth, seed, keys, width).measured(draws) for seed in range(repetitions)]
    means = xr.concat([mean_gain(each, least=-np.inf).sel(stage="before") for each in measured], "repetition")
    own = means["snr_gain"].sel(a2="own")
    snr = xr.concat([each["snr"].sel(stage="before").mean("head") for each in measured], "repetition").mean(
        ["repetition", "layer"]
    )
    words = Counter(map(account_of, measured))
    return {
        "truth": truth,
        "size": size,
        "true_gain": PlantedSignal(truth, 0, keys, width).true_gain(),
        "gain": float(own.mean()),
        "sd": float(own.std(ddof=1)),
        "error": float(
            np.sqrt((xr.concat([each["snr_gain_error"].sel(stage="before", a2="own") for each in measured], "r") ** 2).mean())
        ),
        "signal_change": float(means["signal_change"].sel(a2="own").mean()),
        "noise_change": float(means["noise_change"].sel(a2="own").mean()),
        "uniform": float(means["snr_gain"].sel(a2="uniform").mean()),
        "snr": {name: float(snr.sel(output=name)) for name in ("A1", "lambda_A2", "D")},
        "told": {word: words[word] / repetitions for word in WORDS},
        "found": words[EXPECTED[truth]] / repetitions,
    }


def truths(repetitions: int) -> None:
    """Measure, keep and print every truth at every size."""
    rows = [of_truth(truth, size, repetitions) for truth in TRUTHS for size in SIZES]
    FILE.write_text(json.dumps({"repetitions": repetitions, "sizes": SIZES, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print("| truth | size | true gain | gain, mean (sd) | error | signal | noise | uniform A2 | SNR of A2 − A1 | told |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        words = ", ".join(f"{word} {share:.0%}" for word, share in row["told"].items() if share)
        cells = [f"{row[name]:.1f}" for name in ("error", "signal_change", "noise_change", "uniform")]
        second = row["snr"]["lambda_A2"] - row["snr"]["A1"]
        print(
            f"| {row['truth']} | {row['size']} | {row['true_gain']:.1f} | {row['gain']:.1f} ({row['sd']:.1f}) | "
            f"{' | '.join(cells)} | {second:.1f} | {words} |"
        )


def of_retrieval(name: str, sentences: int, length: int, anew: bool) -> xr.Dataset:
    """Of a bundled model at the answering query; the other sentences stay, or are about other cities and numbers `anew`."""
    scope = diffscope.load(name)
    task = Retrieval(scope.tokenizer, template=template_of(name))
    rng = np.random.default_rng(SEED)
    tables = []
    for prompt in draw(task, PROMPTS, length, sentences, SEED):
        fillers = [task.redrawn(prompt, rng) for _ in range(DRAWS)]
        tables.append(diffscope.signal_to_noise(scope, prompt.ids, spans=prompt.spans, fillers=fillers, needles=anew))
    return over_prompts(tables)


def of_city(name: str, sentences: int, length: int) -> xr.Dataset:
    """Of a bundled model at the first token of the number: the signal is the city before it."""
    scope = diffscope.load(name)
    task = Retrieval(scope.tokenizer, template=template_of(name))
    rng = np.random.default_rng(SEED)
    tables = []
    for prompt in draw(task, PROMPTS, length, sentences, SEED):
        number = prompt.spans["answer"][0]
        cities = [ids for city in CITIES if len(ids := after_word(scope.tokenizer, [f" {city}"])[0]) == 1]
        spans = prompt.spans | {"city": [number - 1], "sentence": list(range(number - len(prompt.spans["query"]), number))}
        fillers = [task.redrawn(prompt, rng) for _ in range(DRAWS)]
        exchanged = dict(answers=cities, fillers=fillers, needles=True, keep=("answer", "sentence"), queries=[number])
        tables.append(diffscope.signal_to_noise(scope, prompt.ids, spans=spans, signal="city", **exchanged))
    return over_prompts(tables)


def of_text(name: str, length: int) -> xr.Dataset:
    """Of a bundled language model where a pair of tokens stands again: the signal is the token that followed it before."""
    scope = diffscope.load(name)
    recall = Recall(scope.tokenizer)
    rng = np.random.default_rng(SEED)
    tables = []
    for _ in range(PROMPTS):
        prompt = recall.prompt(length, rng)
        others = [[int(token)] for token in recall.filler.take(4 * DRAWS, rng)[0]]
        spans = {name: at for name, at in prompt.spans.items() if at}
        tables.append(diffscope.signal_to_noise(scope, prompt.ids, spans=spans, answers=others))
    return over_prompts(tables)


def show(title: str, measured: xr.Dataset) -> None:
    """Print what was measured as a table by layer and head."""
    print(f"\n{title}\n")
    print("| head | SNR of A1·V, λA2·V, D·V | gain | signal, noise | uniform A2 | next head's A2 | gain after the norm |")
    print("|---|---|---|---|---|---|---|")
    for layer in measured["layer"].values:
        for head in measured["head"].values:
            here = measured.sel(layer=layer, head=head)
            before = here.sel(stage="before")
            snr = ", ".join(words(before["snr"].sel(output=name)) for name in ("A1", "lambda_A2", "D"))
            gain, uniform, following = (words(before["snr_gain"].sel(a2=name)) for name in ("own", "uniform", "next head"))
            sides = ", ".join(words(before[f"{name}_change"].sel(a2="own")) for name in ("signal", "noise"))
            error, after = words(before["snr_gain_error"].sel(a2="own")), words(here["snr_gain"].sel(a2="own", stage="after"))
            print(f"| L{layer}H{head} | {snr} | {gain} ± {error} | {sides} | {uniform} | {following} | {after} |")


def words(value: xr.DataArray) -> str:
    """One decimal; what is undefined is a dash."""
    return "–" if np.isnan(value) else f"{float(value):.1f}".replace("-0.0", "0.0").replace("-", "−")


def models() -> None:
    """Print the tables of the bundled models."""
    for (case, (sentences, length)), (filler, anew) in product(CASES.items(), FILLERS.items()):
        show(f"mini-diff, {case}, filler: {filler}", of_retrieval("mini-diff", sentences, length, anew))
    case, (sentences, length) = next(iter(CASES.items()))
    show(f"mini-standard, {case}, filler: text", of_retrieval("mini-standard", sentences, length, False))
    show("mini-diff, 4 sentences, 160 tokens, at the number, of its city", of_city("mini-diff", 4, 160))
    show("mini-text, 256 tokens, where a pair of tokens stands again", of_text("mini-text", 256))


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("truths", "models"))
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    options = parser.parse_args()
    if options.what == "truths":
        truths(options.repetitions)
    else:
        models()


if __name__ == "__main__":
    main()
