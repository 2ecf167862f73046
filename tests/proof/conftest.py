"""What tests of proofs share."""

import pytest


@pytest.fixture
def no_causes(monkeypatch):
    """Refuse layers without the search for a likely cause, which takes a second; test_diagnosis.py is about causes."""
    monkeypatch.setattr("diffscope.proof.diagnosis.likely_cause", lambda *_: "")
