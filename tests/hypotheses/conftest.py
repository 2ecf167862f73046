"""What tests of the hypotheses share."""

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope.lab.scoring import draw
from diffscope.tasks import Retrieval


@pytest.fixture(scope="session")
def tokenizer():
    return diffscope.load("mini-diff").tokenizer


@pytest.fixture(scope="session")
def prompts(tokenizer):
    return draw(Retrieval(tokenizer), 10, 128, 2, 0)


@pytest.fixture
def cohort_of_rates():
    """Five seeds of arms whose rates of exact answers are known."""
    rng = np.random.default_rng(0)
    rates = {"standard": 0.6, "diff": 0.9, "half-width": 0.9, "signed": 0.6, "double-width": 0.6}
    lengths = [128, 256, 512]
    distractors = [0, 4, 8, 16]
    shape = (len(rates), 5, len(lengths), len(distractors), 400)
    exact = rng.random(shape) < np.array(list(rates.values()))[:, None, None, None, None]
    coords = {"arm": list(rates), "seed": range(5), "length": lengths, "distractors": distractors, "step": [25, 200]}
    dataset = xr.Dataset({"exact_match": (("arm", "seed", "length", "distractors", "prompt"), exact.astype(float))}, coords)
    dataset["formation"] = ("arm", "seed"), np.where(np.array(list(rates.values()))[:, None] > 0.8, 25.0 + np.arange(5), np.nan)
    dataset["finished"] = ("arm", "seed"), np.ones((len(rates), 5), dtype=int)
    return dataset
