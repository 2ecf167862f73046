"""Make the shipped study anew from the kept runs: ``python -m studies.laptop.shipped_study laptop``, about ten minutes of one core.

It is what ``diffscope study run`` makes of ``benchmarks/results/NAME`` under today's rules. Of models there are no weights any
more, so the board of the seeds whose weights were at hand is carried over from the study that was shipped before. Afterwards:
``python -m studies.laptop.pages NAME``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from diffscope.digests import read_proven_json
from diffscope.hypotheses.kept_study import FILE, REMEDY, SHIPPED
from diffscope.hypotheses.study import WEIGHTS, run_study
from diffscope.hypotheses.tests import TESTS
from diffscope.hypotheses.verdict import Board, Verdict

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def main() -> None:
    """Run the study, and put it in the place of the shipped one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="its name, which is also that of the recipe and of the folder of its kept runs")
    name = parser.parse_args().study
    before = read_proven_json(SHIPPED / name / FILE, REMEDY)
    carried = Board(Verdict.from_dict(row, TESTS) for row in before["boards"].get(WEIGHTS, []))
    with TemporaryDirectory() as home:
        cohort = Path(home) / name
        shutil.copytree(RESULTS / name, cohort)
        subprocess.run([sys.executable, "-m", "diffscope", "train", name, "--out", cohort, "--report"], check=True)
        study = run_study(cohort, Path(home) / "study", before["facts"]["fresh"])
    boards = {**study.boards, **({WEIGHTS: carried} if carried else {})}
    print(replace(study, boards=boards).save(SHIPPED / name))


if __name__ == "__main__":
    main()
