"""What tests of evidence share with those of the hypotheses."""

from tests.hypotheses.conftest import prompts as prompts
from tests.hypotheses.conftest import tokenizer as tokenizer
