"""Read the primaries of a part off its evidence, and judge them: ``python -m studies.subtraction.read sinks``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.accounts import ACCOUNTS
from diffscope.hypotheses.rules import Cost
from diffscope.hypotheses.statistics import Sample, estimate
from diffscope.storage.statistics import open_statistics
from studies.subtraction.judging import Judged, judge
from studies.subtraction.preregister import check_declared, complete
from studies.subtraction.primaries import PARTS

HERE = Path(__file__).parent


def cost_of(dataset: xr.Dataset) -> Cost | None:
    """Estimate the loss without A2 in all of DIFF's heads that tell the answer; None if no two runs of DIFF have it."""
    if "a2_cost_where_told" not in dataset or "diff" not in dataset["arm"].values:
        return None
    costs = dataset["a2_cost_where_told"].sel(arm="diff").values.astype(float)
    costs = costs[np.isfinite(costs)]
    if len(costs) < 2:
        return None
    over_seeds = estimate(Sample(costs[:, None], prompts="nested"), leave_out=False)
    return Cost(over_seeds.value, over_seeds.low, over_seeds.high)


def table(rows: Sequence[Judged], cost: Cost | None) -> str:
    """Write the results of the primaries as Markdown, one row a quantity."""
    columns = ("primary", "quantity", "estimate", "95 %", "p, corrected", *ACCOUNTS, "of", "A2 costs there")
    lines = [_line(columns), _line(["---"] * len(columns))]
    for row in rows:
        words = [row.words.get(account, "–") for account in ACCOUNTS]
        costs = "–"
        if row.test.inside:
            costs = "not measured" if cost is None else f"{cost.value:.3g} nats [{cost.low:.3g}, {cost.high:.3g}]"
        lead = [f"{row.test.id} ({row.note})" if row.note else row.test.id]
        tail = ["–" if np.isnan(row.p) else f"{row.p:.3g}", *words, row.test.of, costs]
        for name, of in row.estimates.items():
            numbers = [row.test.quantities[name].label, f"{of.value:.3g}", f"{of.low:.3g} to {of.high:.3g}"]
            lines.append(_line([*lead, *numbers, *tail]))
            lead, tail = [""], [""] * len(tail)
        if not row.estimates:
            lines.append(_line([*lead, "–", "–", "–", *tail]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Read a part as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--evidence", type=Path, default=HERE / "evidence", help="the folder of the parts' datasets")
    options = parser.parse_args()
    try:
        check_declared()
        dataset = complete(options.part, open_statistics(options.evidence / f"{options.part}.nc"))
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    cost = cost_of(dataset)
    print(table(judge(options.part, dataset, cost), cost))


if __name__ == "__main__":
    main()
