"""Levels stand for values to less than a grey level, and zero is zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diffscope.errors import DiffscopeError
from diffscope.figures.pixels import pixels

VALUES = arrays(np.float32, (4, 5), elements=st.floats(-1, 1, width=32))


@given(values=VALUES, contrast=st.sampled_from(["sqrt", "linear"]), depth=st.sampled_from(["uint8", "uint16", "float16"]))
def test_levels_are_values_to_half_a_level(values, contrast, depth):
    packed = pixels(values, contrast=contrast, depth=depth)
    assert packed.levels.nbytes <= 2 * values.size and packed.signed == (values < 0).any()
    back = packed.values()
    assert (back[values == 0] == 0).all()

    def position(x):
        share = x / packed.limit
        return np.sign(share) * np.sqrt(np.abs(share)) if contrast == "sqrt" else share

    steps = {"uint8": 127 if packed.signed else 255, "uint16": 32767 if packed.signed else 65535, "float16": 2**11}[depth]
    assert np.abs(position(back) - position(values)).max() <= 0.51 / steps + 1e-4 * (depth != "uint8")


def test_several_maps_share_a_scale():
    a1, d = np.array([0.5, 0.1]), np.array([-0.2, np.nan])
    first, second = pixels(a1, limit=0.5), pixels(d, limit=0.5)
    assert first.levels[0] == 255 and second.values()[0] == pytest.approx(-0.2, abs=0.005) and second.values()[1] == 0
    assert second.scale() == {"limit": 0.5, "signed": True, "contrast": "sqrt", "dtype": "uint8"}
    assert pixels(np.array([2.0]), limit=1.0).values() == [1.0]
    for options, words in (({"contrast": "log"}, "'log'"), ({"depth": "int8"}, "'int8'"), ({"limit": 0}, "above 0")):
        with pytest.raises(DiffscopeError, match=words):
            pixels(a1, **options)
