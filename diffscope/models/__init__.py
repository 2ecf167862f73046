"""The DIFF Transformer and its matched controls as Hugging Face models, and the bundled weights."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffscope.models.cards import bundled

_HOMES = {
    "ATTENTIONS": "configuration",
    "DiffConfig": "configuration",
    "DiffForCausalLM": "modeling",
    "DiffModel": "modeling",
    "lambda_init_schedule": "configuration",
    "load_model": "loading",
}

__all__ = ["ATTENTIONS", "DiffConfig", "DiffForCausalLM", "DiffModel", "bundled", "lambda_init_schedule", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"diffscope.models.{_HOMES[name]}"), name)


if TYPE_CHECKING:
    from diffscope.models.configuration import ATTENTIONS, DiffConfig, lambda_init_schedule
    from diffscope.models.loading import load_model
    from diffscope.models.modeling import DiffForCausalLM, DiffModel
