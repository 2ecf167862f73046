"""Every published implementation passes the check of what it is meant to be."""

import pytest

import diffscope
from tests.layouts.published import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_it_is_opened_and_proved(name, request):
    if name.startswith("timm"):
        request.getfixturevalue("timm")
    if name.endswith("of diffusers"):
        pytest.importorskip("diffusers", reason="needs diffusers, the extra 'audio'")
    report = diffscope.check(MODELS[name]())
    assert report.passed, report.findings
    assert all(error < 1e-5 for error in report.fidelity.values())
    if report.layers[0]["λ"] is not None:
        measured = {finding.check: finding for finding in report.findings if finding.verdict == "pass"}
        layers = {layer["layer"] for layer in report.layers}
        assert {*measured["pairing"].layers} == {*measured["second map"].layers} == layers
