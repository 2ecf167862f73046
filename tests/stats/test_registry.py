"""Statistics are asked for by name, and one that has another name is answered with that."""

import pytest

from diffscope.errors import UnknownStatistic
from diffscope.stats.registry import select


def test_what_is_given_as_its_complement_is_named_with_what_took_its_place():
    """A distance that turned into a likeness under one name would be read the wrong way round."""
    with pytest.raises(UnknownStatistic, match="ask for 'overlap', which is 1 − ρ"):
        select("rho")
