"""Levels stand for values to less than a grey level, and zero is zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diffscope.errors import DiffscopeError
from diffscope.figures.pixels import pixels

VALUES = arrays(np.float32, (4, 5), elements=st.floats(-1, 1, width=32))


@given(values=VALUES, contrast=st.sampled_from(["sqrt", "linear"]))
def test_levels_are_values_to_half_a_level(values, contrast):
    packed = pixels(values, contrast=contrast)
    assert packed.levels.nbytes == values.size and packed.signed == (values < 0).any()
    back = packed.values()
    assert (back[values == 0] == 0).all()

    def position(x):
        share = x / packed.limit
        return np.sign(share) * np.sqrt(np.abs(share)) if contrast == "sqrt" else share

    steps = 127 if packed.signed else 255
    assert np.abs(position(back) - position(values)).max() <= 0.51 / steps


def test_several_maps_share_a_scale():
    a1, d = np.array([0.5, 0.1]), np.array([-0.2, np.nan])
    first, second = pixels(a1, limit=0.5), pixels(d, limit=0.5)
    assert first.levels[0] == 255 and second.values()[0] == pytest.approx(-0.2, abs=0.005) and second.values()[1] == 0
    assert second.limit == 0.5 and second.signed and not first.signed
    assert pixels(np.array([2.0]), limit=1.0).values() == [1.0]
    for options, words in (({"contrast": "log"}, "'log'"), ({"limit": 0}, "above 0")):
        with pytest.raises(DiffscopeError, match=words):
            pixels(a1, **options)
