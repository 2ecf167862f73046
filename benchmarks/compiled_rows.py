"""Time ``torch.compile`` of the sums that row statistics are made of, beside the plain ones.

python -m benchmarks.compiled_rows
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.results import Section, table
from diffscope.stats import moments

VALUES = 2**20  # of each of the three maps of a block
SUMS = {"total", "net", "squares", "logs", "roots", "peak", "negative", "negatives"}
ORDER = {"gini", "quantiles", "small", "top"}
WANTED = {"sums": SUMS, "sums and order statistics": SUMS | ORDER}
MEANING = (
    "A block is A1, A2 and D of one head, 2²⁰ values each, random. *Compile* is the first call less a later one; where it is "
    "short, code compiled for other lengths was used again. *Off* is the largest difference of a value, over that value."
)


def block(tokens: int) -> tuple[Tensor, Tensor]:
    """Return random maps (map, query, key) and the number of keys that each row sees."""
    draws = torch.randn(2, VALUES // tokens, tokens, generator=torch.Generator().manual_seed(0))
    a1, a2 = draws.mul(2).softmax(-1)
    return torch.stack([a1, a2, a1 - 0.8 * a2]), torch.full((len(a1),), tokens)


def seconds(compute: Callable[[Tensor, Tensor], object], x: Tensor, n: Tensor, repeats: int) -> float:
    """Return the shortest of some runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        compute(x, n)
        times.append(time.perf_counter() - started)
    return min(times)


def compared(wanted: set[str], lengths: Sequence[int], repeats: int) -> list[tuple]:
    """Return tokens, milliseconds plain and compiled, seconds of compiling and the largest relative difference, by length."""

    def plain(x: Tensor, n: Tensor) -> dict[str, Tensor]:
        return moments.of_rows(x, n, wanted)

    torch.compiler.reset()
    compiled = torch.compile(plain, dynamic=True)
    rows = []
    for tokens in lengths:
        x, n = block(tokens)
        first = seconds(compiled, x, n, 1)
        times = [seconds(compute, x, n, repeats) for compute in (plain, compiled)]
        ours, theirs = plain(x, n), compiled(x, n)
        off = max(float(((theirs[name] - of).abs() / of.abs().clamp_min(1e-9)).max()) for name, of in ours.items())
        rows.append((tokens, *(f"{1000 * each:.3g}" for each in times), f"{first - times[1]:.3g}", f"{off:.1e}"))
    return rows


@torch.no_grad()
def main(argv: Sequence[str] | None = None) -> None:
    """Time both at several lengths of rows."""
    options = results.parser(__doc__).parse_args(argv)
    torch.set_num_threads(1)
    lengths, repeats = ((512,), 1) if options.quick else ((512, 2048, 8192, 16384), 7)
    header = ("tokens", "plain, ms", "compiled, ms", "compile, s", "off")
    numbers = {what: compared(wanted, lengths, repeats) for what, wanted in WANTED.items()}
    parts = [table(f"{what[0].upper()}{what[1:]}.", header, rows) for what, rows in numbers.items()]
    section = Section("compiled_rows", "Compiled sums of rows", "python -m benchmarks.compiled_rows", "none: random maps", parts)
    section.text, section.numbers = MEANING, {what: [list(map(str, row)) for row in rows] for what, rows in numbers.items()}
    results.keep("compiled_rows", [section], options)


if __name__ == "__main__":
    main()
