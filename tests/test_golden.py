"""Numbers of the library are those that are committed, on any machine, and a number that changed is named."""

import numpy as np
import pytest
import torch

from tools import golden


@pytest.mark.slow
@torch.no_grad()
def test_numbers_are_those_that_are_committed():
    saved = golden.read(golden.COMMITTED / golden.DIGITS)
    lines = golden.differences(saved, golden.digits(), golden.TOLERANCE)
    assert not lines, "\n".join([*lines, "if they should: python -m tools.golden save tests/golden --only digits.npz"])


@pytest.mark.parametrize("tolerance", [0.0, 1e-6])
def test_what_differs_is_named(tolerance, tmp_path):
    path = tmp_path / (golden.DIGITS if tolerance else golden.EXACT)
    saved = {"a": np.array([1.0, np.nan, 1000.0]), "b": np.array([[2.0]]), "c": np.array(True), "gone": np.array(1.0)}
    golden.write(saved, path)
    before = golden.read(path)
    assert not golden.differences(before, saved, tolerance)
    off = saved["a"] * (1 + 3e-6)
    now = {"a": off, "b": np.array([2.0]), "c": np.array(False), "new": np.array(1.0)}
    lines = golden.differences(before, now, tolerance)
    assert lines[:2] == ["gone: only saved", "new: only computed"]
    assert lines[2].startswith("a: differs by up to 0.003") and lines[3] == "b: shape (1, 1) saved, (1,) computed"
    assert lines[4].startswith("c: differs by up to 1") and len(lines) == 5
    slightly = {**saved, "a": saved["a"] * (1 + 1e-9)}
    assert bool(golden.differences(before, slightly, tolerance)) == (tolerance == 0)
