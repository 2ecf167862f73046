"""What one method came to at one length, as rows of a table and as a picture."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.meter import OK
from benchmarks.results import duration, size, table
from diffscope.tables.table import Table


@dataclass
class Result:
    """One method at one length.

    Attributes
    ----------
    method : str
    tokens : int
    state, why : str
    seconds : list of float
        Of every run after the first.
    peaks : list of float
        Bytes, of all runs.
    error : float
        Largest deviation from the reference, NaN of what gives no statistics; `where` is the statistic that has it.
    """

    method: str
    tokens: int
    state: str = OK
    why: str = ""
    seconds: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    error: float = math.nan
    where: str = ""

    @property
    def time(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.nan

    @property
    def peak(self) -> float:
        return max(self.peaks, default=math.nan)

    def record(self) -> dict:
        """Return it as JSON has it: medians of times, the largest peak, what is not a number as null."""
        values = {"seconds": self.time, "peak": self.peak, "error": self.error}
        values = {name: None if math.isnan(value) else value for name, value in values.items()}
        return {"method": self.method, "tokens": self.tokens, "state": self.state, "runs": len(self.seconds), **values}


COLUMNS = ("tokens", "method", "time", "runs", "peak memory", "time ÷", "memory ÷", "× forward", "error", "state")


def table_of(caption: str, records: Sequence[dict], against: str = "diffscope", forward: str = "model forward") -> Table:
    """Return a table of records, methods side by side; "÷" is a figure over that of `against` at the same length."""
    at = {(record["tokens"], record["method"]): record for record in records if record["state"] == OK}
    rows = []
    for record in records:
        base, plain = (at.get((record["tokens"], name), {}) for name in (against, forward))
        cells: list[str | None] = [None] * 6
        if record["state"] == OK:
            seconds, peak = record["seconds"], record["peak"]
            cells = [duration(seconds), str(record["runs"]), size(peak)]
            cells += [_ratio(seconds, base.get("seconds")), _ratio(peak, base.get("peak")), _ratio(seconds, plain.get("seconds"))]
        error = None if record["error"] is None else f"{record['error']:.1e}"
        rows.append([f"{record['tokens']:,}", record["method"], *cells, error, record["state"]])
    return table(caption, COLUMNS, rows)


def _ratio(value: float, base: float | None) -> str | None:
    return None if not base or base < 0 else f"{value / base:.3g}"


GREY = "#868e99"  # readable on white and on black
COLOURS = {
    "diffscope": "#2f81e0",
    "eager + numpy": "#f16913",
    "numpy, full maps": "#c79100",
    "TransformerLens": "#009e73",
    "nnsight": "#b46fd0",
}
STYLES = {"model forward": "--", "attention forward": ":"}
PANELS = {"seconds": ("Time", duration), "peak": ("Peak memory", size)}


def draw(records: Sequence[dict], path: str | os.PathLike) -> None:
    """Draw time and peak memory against length, one line a method, on a transparent ground; 900 pixels wide in SVG."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    from diffscope.figures import theme

    style = {"svg.fonttype": "path", "font.size": 10, "axes.labelsize": 10, "axes.titlesize": 11}
    style |= {name: GREY for name in ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor")}
    style |= {f"{axis}tick.{name}": GREY for axis in "xy" for name in ("color", "labelcolor")} | {
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
    }
    with theme.styled(), plt.rc_context(style):
        figure, panels = plt.subplots(1, 2, figsize=(9.375, 4.4), layout="constrained")
        for panel, (name, (title, words)) in zip(panels, PANELS.items()):
            panel.set(xscale="log", yscale="log", xlabel="tokens", title=title)
            if name == "peak":
                panel.yaxis.set_major_locator(LogLocator(base=8))
            for method in dict.fromkeys(record["method"] for record in records):
                _line(panel, [record for record in records if record["method"] == method], name)
            ticks = sorted({record["tokens"] for record in records})
            panel.set_xticks(ticks, map(_thousands, ticks))
            panel.yaxis.set_major_formatter(lambda value, _, words=words: words(value))
            panel.minorticks_off()
            panel.grid(True, color=GREY, alpha=0.25)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, labelcolor=GREY, fontsize=9)
        figure.savefig(path, transparent=True)
        plt.close(figure)


def _line(panel, records: list[dict], name: str) -> None:
    measured = [record for record in records if record["state"] == OK and record[name] > 0]
    if not measured:
        return
    method, ended = measured[0]["method"], records[-1]["state"]
    look = {
        "color": COLOURS.get(method, GREY),
        "linewidth": 2.6 if method == "diffscope" else 1.5,
        "linestyle": STYLES.get(method, "-"),
    }
    x, y = [record["tokens"] for record in measured], [record[name] for record in measured]
    label = method if ended == OK else f"{method} (× {ended} at {_thousands(records[-1]['tokens'])})"
    panel.plot(x, y, marker="o", markersize=4, label=label, **look)
    if ended != OK:
        panel.plot(x[-1:], y[-1:], marker="X", markersize=9, color=look["color"])


def _thousands(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)
