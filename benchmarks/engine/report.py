"""What a run of the benchmark found: as Markdown, as JSON, as a picture."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.meter import OK, available

BUSY = 0.5  # load beside which times say little


@dataclass
class Result:
    """One method at one length.

    Attributes
    ----------
    table : str
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

    table: str
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

    @property
    def valued(self) -> bool:
        """Whether its figures may stand in a table."""
        return self.state == OK

    def record(self) -> dict:
        return asdict(self) | {"time": self.time, "peak": self.peak}


def machine(device: str) -> str:
    """Processor, cores, memory and versions, as the machine itself tells them."""
    import numpy
    import torch
    import transformers

    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    total = next((int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), math.nan)
    processor = names[0] if names else platform.processor()
    parts = [f"{processor}, {os.cpu_count()} cores, {total / 2**30:.0f} GiB ({available() / 2**30:.0f} GiB available)"]
    if device.startswith("cuda"):
        parts.append(f"{torch.cuda.get_device_name(device)} (CUDA {torch.version.cuda})")
    parts.append(f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    parts += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("OMP_", "MKL_", "GOMP_"))]
    modules = {"torch": torch, "numpy": numpy, "transformers": transformers}
    parts += [f"Python {platform.python_version()}", *(f"{name} {module.__version__}" for name, module in modules.items())]
    return "; ".join(parts)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def load_warning() -> str | None:
    """A line to print where something else is running."""
    load = os.getloadavg()[0]
    return (
        f"WARNING: load {load:.2f} over the last minute: others are at work, times are not to be trusted" if load > BUSY else None
    )


COLUMNS = ("tokens", "method", "time", "runs", "peak memory", "time ÷", "memory ÷", "× forward", "error", "state")


def markdown(results: Sequence[Result], against: str = "diffscope", forward: str = "model forward") -> str:
    """A table, methods side by side; "÷" is a method's figure over that of `against` at the same length."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    at = {(result.tokens, result.method): result for result in results if result.valued}
    for result in results:
        base, plain = at.get((result.tokens, against)), at.get((result.tokens, forward))
        if result.valued:
            cells = [duration(result.time), str(len(result.seconds)), size(result.peak)]
            cells += [_ratio(result.time, base and base.time), _ratio(result.peak, base and base.peak)]
            cells += [_ratio(result.time, plain and plain.time), "–" if math.isnan(result.error) else f"{result.error:.1e}"]
        else:
            cells = ["–"] * 6 + ["–" if math.isnan(result.error) else f"{result.error:.1e} ({result.where})"]
        lines.append(f"| {result.tokens} | {result.method} | {' | '.join(cells)} | {result.state} |")
    notes = [f"- {result.method}, {result.tokens} tokens: {result.state}: {result.why}" for result in results if result.why]
    return "\n".join([*lines, "", *notes]).rstrip()


def _ratio(value: float, base: float | None) -> str:
    return "–" if not base or base < 0 else f"{value / base:.3g}"


def duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def size(n: float) -> str:
    return f"{n / 2**30:.3g} GiB" if n >= 2**30 else f"{max(n, 0) / 2**20:.0f} MiB"


# ---------------------------------------------------------------- picture

GREY = "#868e99"  # readable on white and on black
COLOURS = {
    "diffscope": "#2f81e0",
    "eager + numpy": "#f16913",
    "numpy, full maps": "#c79100",
    "TransformerLens": "#009e73",
    "nnsight": "#b46fd0",
    "model forward": GREY,
    "attention forward": GREY,
}
PANELS = {"time": ("Time", duration), "peak": ("Peak memory", size)}


def draw(results: Sequence[Result], path: str | os.PathLike) -> None:
    """Time and peak memory against length, one line a method, on a transparent ground; 900 pixels wide in SVG."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    from diffscope.figures import theme

    methods = list(dict.fromkeys(result.method for result in results))
    style = {"svg.fonttype": "path", "font.size": 10, "axes.labelsize": 10, "axes.titlesize": 11}
    style |= {name: GREY for name in ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor")}
    ticks = {"color": GREY, "labelcolor": GREY, "labelsize": 9}
    style |= {f"{axis}tick.{name}": value for axis in "xy" for name, value in ticks.items()}
    with theme.styled(), plt.rc_context(style):
        figure, panels = plt.subplots(1, 2, figsize=(9.375, 4.4), layout="constrained")
        for panel, (name, (title, words)) in zip(panels, PANELS.items()):
            panel.set(xscale="log", yscale="log", xlabel="tokens", title=title)
            if name == "peak":
                panel.yaxis.set_major_locator(LogLocator(base=8))
            for method in methods:
                _line(panel, [result for result in results if result.method == method], name)
            ticks = sorted({result.tokens for result in results})
            panel.set_xticks(ticks, map(_thousands, ticks))
            panel.yaxis.set_major_formatter(lambda value, _, words=words: words(value))
            panel.minorticks_off()
            panel.grid(True, color=GREY, alpha=0.25)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, labelcolor=GREY, fontsize=9)
        figure.savefig(path, transparent=True)
        plt.close(figure)


def _line(panel, results: list[Result], name: str) -> None:
    measured = [result for result in results if result.valued and getattr(result, name) > 0]
    if not measured:
        return
    method, ended = measured[0].method, results[-1].state
    look = {"color": COLOURS.get(method, GREY), "linewidth": 2.6 if method == "diffscope" else 1.5}
    look |= {"linestyle": {"model forward": "--", "attention forward": ":"}.get(method, "-")}
    x, y = [result.tokens for result in measured], [getattr(result, name) for result in measured]
    label = method if ended == OK else f"{method} (× {ended} at {_thousands(results[-1].tokens)})"
    panel.plot(x, y, marker="o", markersize=4, label=label, **look)
    if ended != OK:
        panel.plot(x[-1:], y[-1:], marker="X", markersize=9, color=look["color"])


def _thousands(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)
