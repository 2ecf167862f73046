"""Make the configurations of arms, and match their numbers of parameters."""

from __future__ import annotations

import torch
from huggingface_hub.errors import StrictDataclassError

from diffscope.errors import DiffscopeError
from diffscope.models import DiffConfig, DiffForCausalLM

# By what _in_words says of the fields: a cohort asks for the configuration of an arm again and again, and models take their time.
_COUNTS: dict[str, int] = {}
_POSSIBLE: set[str] = set()  # of which a model was made


def _in_words(fields: dict) -> str:
    return repr(sorted(fields.items()))


def parameters(fields: dict) -> int:
    """Count the parameters that a model of these fields uses, without allocating them.

    Where λ is fixed at 0, the queries and keys of the second map exist and learn nothing: they are not counted.
    """
    words = _in_words(fields)
    if words not in _COUNTS:
        _COUNTS[words] = _count(fields)
    return _COUNTS[words]


def _count(fields: dict) -> int:
    config = DiffConfig(**fields)
    with torch.device("meta"):
        count = DiffForCausalLM(config).num_parameters()
    if config.fixed_lambda != 0:
        return count
    maps = config.num_attention_heads + config.num_key_value_heads
    heads = 2 if config.attention == "shared_a2" else maps  # of which there are second queries and keys
    width = config.second_dim or config.head_dim
    return count - config.num_hidden_layers * heads * width * (config.hidden_size + config.attention_bias)


def make_config(arm: str, fields: dict) -> DiffConfig:
    """Make an arm's configuration, and check it by making a model of it without weights.

    A field that no model has is refused, since it would change nothing; so is dropout, with which no run could be repeated.
    """
    usual = DiffConfig()
    if unknown := [name for name in fields if not hasattr(usual, name)]:
        raise DiffscopeError(f"arm {arm!r}: models have no field {unknown[0]!r}")
    if fields.get("attention_dropout"):
        raise DiffscopeError(f"arm {arm!r}: with attention_dropout no run could be repeated; leave it out")
    try:
        config = DiffConfig(**fields)
        if _in_words(fields) not in _POSSIBLE:
            with torch.device("meta"):
                DiffForCausalLM(config)
            _POSSIBLE.add(_in_words(fields))
    except (
        ValueError,
        TypeError,
        KeyError,
        ArithmeticError,
        RuntimeError,
        AssertionError,
        StrictDataclassError,
        DiffscopeError,
    ) as error:
        raise DiffscopeError(f"arm {arm!r}: {' '.join(str(error).split())}") from None
    return config


def matching_width(fields: dict, target: int) -> int:
    """Return the width of the MLPs with which the number of parameters, linear in the width, comes nearest to `target`."""
    narrow = parameters({**fields, "intermediate_size": 1})
    step = parameters({**fields, "intermediate_size": 2}) - narrow
    width = 1 + round((target - narrow) / step)
    if width < 1:
        raise DiffscopeError(f"the arm has {narrow} parameters without its MLPs, more than the {target} of the arm to match")
    return width
