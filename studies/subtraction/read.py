"""Read the primaries of a part off its evidence, and judge them: ``python -m studies.subtraction.read sinks``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.inference import Observed, estimate
from diffscope.hypotheses.rules import Cost
from diffscope.store import open_statistics
from studies.subtraction.judging import Judged, judge
from studies.subtraction.preregister import check_declared
from studies.subtraction.primaries import PARTS

HERE = Path(__file__).parent


def cost_of(dataset: xr.Dataset) -> Cost | None:
    """What A2 costs DIFF's heads, each counting with what it costs; of a seed in which no head's A2 costs anything it is 0.

    None if no run of DIFF has it.
    """
    if "lost_without_a2_of_head" not in dataset or "diff" not in dataset["arm"].values:
        return None
    costs = dataset["lost_without_a2_of_head"].sel(arm="diff").transpose("seed", "layer", "head").values
    costs = costs[np.isfinite(costs).any((1, 2))]
    if len(costs) < 2:
        return None
    weights = np.nan_to_num(costs).clip(min=0)
    total = weights.sum((1, 2))
    means = (weights * np.nan_to_num(costs)).sum((1, 2)) / np.where(total > 0, total, 1.0)
    over_seeds = estimate(Observed(means[:, None], prompts="nested"), leave_out=False)
    return Cost(over_seeds.value, over_seeds.low, over_seeds.high)


def table(rows: Sequence[Judged], cost: Cost | None) -> str:
    """What came of the primaries as Markdown."""
    lines = ["| primary | estimate | 95 % | p, corrected | NC | SP | SH | of | A2 costs there |", "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        words = [row.words.get(account, "–") for account in ("NC", "SP", "SH")]
        numbers = ["–"] * 3
        if row.estimate is not None:
            numbers = [f"{row.estimate.value:.3g}", f"{row.estimate.low:.3g} to {row.estimate.high:.3g}", f"{row.p:.3g}"]
        costs = "–"
        if row.test.inside:
            costs = "not measured" if cost is None else f"{cost.value:.3g} nats [{cost.low:.3g}, {cost.high:.3g}]"
        note = f" ({row.note})" if row.note else ""
        lines.append(f"| {row.test.id}{note} | {' | '.join([*numbers, *words, row.test.of, costs])} |")
    return "\n".join(lines)


def main() -> None:
    """Read a part as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--evidence", type=Path, default=HERE / "evidence", help="the folder of the parts' datasets")
    options = parser.parse_args()
    try:
        check_declared()
        dataset = open_statistics(options.evidence / f"{options.part}.nc")
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    finished = int(dataset["finished"].sum())
    if finished < dataset["finished"].size:
        sys.exit(f"error: {finished} of {dataset['finished'].size} runs are finished; a part is read once, when all are")
    cost = cost_of(dataset)
    print(table(judge(options.part, dataset, cost), cost))


if __name__ == "__main__":
    main()
