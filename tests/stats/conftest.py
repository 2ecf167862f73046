"""Small layers of random attention."""

import pytest
import torch

from diffscope.attention.layer import LayerAttention, Mask, Pairing


def _layer(tokens=24, heads=3, width=4, differential=True, dtype=torch.float64, mask=None, lam=0.8, gain=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    maps = 2 * heads if differential else heads
    if not torch.is_tensor(lam):
        lam = torch.full((1, 1, 1), lam if differential else 0.0, dtype=dtype)
    every = torch.arange(maps)
    first, second = (every[0::2], every[1::2]) if differential else (every, None)
    pairing = Pairing(a1=first, a2=second, key_of_map=every, value_of_head=torch.arange(heads))

    def random(count, size):
        return torch.randn(1, count, tokens, size, generator=generator, dtype=torch.float64).to(dtype)

    return LayerAttention(
        layer=0,
        family="test",
        q=random(maps, 8) * 2,
        k=random(maps, 8),
        v=random(heads, width),
        scale=8**-0.5,
        mask=mask or Mask("causal"),
        pairing=pairing,
        lam=lam,
        gain=torch.full((1, 1, 1), gain, dtype=dtype),
        lam_fp32=lam.float(),
        lam_init=0.2 if differential else None,
        norm=None,
        post_scale=1.0,
        lengths=(tokens,),
    )


@pytest.fixture(scope="session")
def make_layer():
    """A function that makes a LayerAttention of one prompt with random queries, keys and values."""
    return _layer
