"""Measure the signal-to-noise gain of simulated attention with a known truth.

python -m studies.laptop.calibration.signal_to_noise    # truth × size: mean and sd of the gain, and how often it is named rightly
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.instruments.snr import mean_gain
from studies.laptop.calibration.signal import EXPECTED, TRUTHS, WORDS, PlantedSignal, account_of

FILE = Path(__file__).parent / "signal_to_noise.json"
SIZES = {"small": (32, 4, 4), "middle": (64, 16, 8), "large": (128, 32, 10)}  # keys, width, answers and fillers
REPETITIONS = 50


def of_truth(truth: str, size: str, repetitions: int) -> dict:
    """Measure one truth at one size over repetitions."""
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


def main() -> None:
    """Measure every truth at every size, keep the numbers and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    truths(parser.parse_args().repetitions)


if __name__ == "__main__":
    main()
