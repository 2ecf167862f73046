"""Uniform attention gives each set its part of the visible keys."""

import numpy as np

from diffscope.stats.uniform import keys_seen, uniform_share

VISIBLE = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=bool)
SETS = {"first": [0], "middle": [1, 2]}


def test_shares_are_of_what_a_query_sees():
    assert keys_seen(VISIBLE, SETS).tolist() == [[1, 0], [1, 1], [1, 2], [0, 0]]
    whole = uniform_share(VISIBLE, SETS, whole=True)
    np.testing.assert_array_equal(whole, [[1, 0], [0.5, 0.5], [0.25, 0.5], [np.nan, np.nan]])


def test_a_share_is_undefined_where_a_mass_is():
    nothing = [np.nan, np.nan]
    np.testing.assert_array_equal(uniform_share(VISIBLE, SETS), [nothing, [0.5, 0.5], [0.25, 0.5], nothing])
