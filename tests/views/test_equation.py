"""The small pictures of A1 − λ·A2 = D: what they show are the weights."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import diffscope
from diffscope import DiffscopeError
from diffscope.views.equation import BLUE, ORANGE, PARTS, equation
from tests import tiny


@pytest.fixture(scope="module")
def capture():
    return diffscope.load(tiny.own("v1")).capture(tiny.ids(12))


def test_cells_have_the_sign_and_the_size_of_the_weights(capture):
    svg = equation(capture, 1, 2)
    cells = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" .*? fill="(#\w+)" fill-opacity="([\d.]+)"', svg)
    maps = [capture.map(name, 1, 2).values for name in PARTS]
    limit = max(np.nanmax(np.abs(values)) for values in maps)
    drawn = iter(cells)
    for number, values in enumerate(maps):
        for query, key in zip(*np.tril_indices(12)):
            x, y, colour, opacity = next(drawn)
            assert (float(x), float(y)) == pytest.approx((108 * number + key * 80 / 12, query * 80 / 12), abs=0.06)
            assert colour == (BLUE if values[query, key] >= 0 else ORANGE)
            assert float(opacity) == pytest.approx((abs(values[query, key]) / limit) ** 0.5, abs=0.006)
    assert next(drawn, None) is None and {colour for _, _, colour, _ in cells} == {BLUE, ORANGE}
    assert [text.text for text in ElementTree.fromstring(svg).iter("text")][:2] == ["−", "="]


def test_a_head_that_is_not_there_is_refused(capture):
    with pytest.raises(DiffscopeError, match="no head 9"):
        equation(capture, 0, 9)
