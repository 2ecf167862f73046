"""What tests of the hypotheses share."""

import pytest

import diffscope
from diffscope.tasks import Retrieval
from diffscope.tasks.sampling import draw


@pytest.fixture(scope="session")
def tokenizer():
    return diffscope.load("mini-diff").tokenizer


@pytest.fixture(scope="session")
def prompts(tokenizer):
    return draw(Retrieval(tokenizer), 10, 128, 2, 0)
