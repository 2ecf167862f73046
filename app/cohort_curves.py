"""The curves of all runs of a trained cohort."""

from __future__ import annotations

import os
from pathlib import Path

import blocks

from diffscope import figures
from diffscope.lab.training.cohort import open_dataset


def show_cohort(folder: str) -> None:
    """Show exact answers of every arm in training, and in the end by length and distractors."""
    figure = figures.cohort(open_dataset(Path(os.path.expanduser(folder))))
    code = "from pathlib import Path\n\nimport diffscope\nfrom diffscope.lab.training.cohort import open_dataset\n\n"
    code += blocks.saved(figure, f"open_dataset(Path({folder!r}))", "cohort")
    alt = "Exact answers of every arm in training, and in the end by length and distractors"
    blocks.show_figure(figure, alt, key="cohort-curves", name="cohort", label="Export the curves", code=code)
