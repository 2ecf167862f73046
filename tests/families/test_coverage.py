"""Layers that stand beside those with attention that is read are named, in whatever list they stand; other parts are not."""

import pytest
from torch import nn

from diffscope.families.coverage import unread_layers
from tests.layouts import ports

READ = (2, 3)  # of five layers


def layers():
    attentions = [ports.MultiHeadDifferentialAttention(32, 4, 0.5) if at in READ else nn.Linear(32, 32) for at in range(5)]
    return [ports.Block(attention) for attention in attentions]


LISTS = {
    "list": (nn.ModuleList, 0),
    "sequence": (lambda blocks: nn.Sequential(*blocks), 0),
    "sequence with embedding and head": (lambda blocks: nn.Sequential(nn.Embedding(9, 32), *blocks, nn.Linear(32, 9)), 1),
    "dictionary": (lambda blocks: nn.ModuleDict({f"layer {at}": block for at, block in enumerate(blocks)}), 0),
    "list in a dictionary": (lambda blocks: nn.ModuleDict({"wte": nn.Embedding(9, 32), "h": nn.ModuleList(blocks)}), 0),
}


@pytest.mark.parametrize("kind", LISTS)
def test_layers_that_are_not_read_are_named(kind):
    held, first = LISTS[kind]
    blocks, model = layers(), nn.Module()
    model.layers = held(blocks)
    numbers = {blocks[at].attn: first + at for at in READ}
    without, shown = (", ".join(str(first + at) for at in places) for places in ((0, 1, 4), READ))
    words = f"layers {without} without attention that diffscope reads (Linear); what is shown is about layers {shown}"
    assert unread_layers(model, numbers) == words
    model.layers = held(blocks[2:4])
    assert unread_layers(model, numbers) is None
