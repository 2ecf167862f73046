"""The DIFF Transformer and its matched controls as Hugging Face models, and the bundled weights."""

from diffscope.cards import bundled
from diffscope.models.configuration import ATTENTIONS, DiffConfig, lambda_init_schedule
from diffscope.models.loading import load_model
from diffscope.models.modeling import DiffForCausalLM, DiffModel

__all__ = ["ATTENTIONS", "DiffConfig", "DiffForCausalLM", "DiffModel", "bundled", "lambda_init_schedule", "load_model"]
