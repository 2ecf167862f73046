"""Weights with NaN are called that, in their layer, and no wrong reading of the maps."""

import pytest
import torch

import diffscope
from diffscope import FidelityError
from tests import tiny

IDS = tiny.ids(12)


@pytest.mark.parametrize("name", ["v1", "v2", "standard"])
@pytest.mark.parametrize("projection", ["q_proj", "k_proj", "v_proj"])
def test_nan_in_a_projection_is_named_with_its_layer(name, projection):
    model = tiny.own(name)
    poison(model, 1, projection)
    with pytest.raises(
        FidelityError, match=rf"^layer 1: {projection}\.weight of this layer holds NaN; .* check the model's weights$"
    ):
        diffscope.load(model).capture(IDS)


def test_nan_that_comes_from_an_earlier_layer_is_said_to():
    model = tiny.own("v1")
    poison(model, 0, "o_proj")
    with pytest.raises(FidelityError, match="^layer 1: the queries, keys, values of this layer .* so what enters it does;"):
        diffscope.load(model).capture(IDS)


def poison(model, layer, projection):
    """Put one NaN into a projection of a layer."""
    weight = dict(model.named_parameters())[f"model.layers.{layer}.self_attn.{projection}.weight"]
    with torch.no_grad():
        weight[0, 0] = torch.nan
