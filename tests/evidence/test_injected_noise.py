"""What tests read of injected noise: of each prompt, beside another head's second map."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import PromptError
from diffscope.evidence.noise import injection, log_odds_lost
from diffscope.instruments.injection import with_a2_moved
from diffscope.tasks import Retrieval

SIGMAS = [0.5]


def test_the_evidence_is_the_measurement_with_draws_of_each_prompt(prompts):
    scope = diffscope.load("mini-diff")
    measured = injection(scope, prompts[:2], sigmas=SIGMAS, draws=2)
    assert set(measured["cmrr_injected"].dims) == {"prompt", "layer", "head", "sigma", "span"}
    spans = {name: at for name, at in prompts[1].spans.items() if name != "sink"}
    cap = scope.capture(prompts[1].ids, spans)
    second = measured.isel(prompt=1)
    for capture, suffix in ((cap, ""), (with_a2_moved(cap), "_paired")):  # of two heads there is one other
        expected = diffscope.instruments.cmrr_by_injection(
            capture, spans=list(measured.span.values), sigmas=SIGMAS, draws=2, seed=2
        )
        for name in ("cmrr_injected", "change_common", "change_differential"):
            assert np.allclose(second[name + suffix], expected[name], rtol=1e-3, atol=1e-6)


def test_heads_that_share_all_second_maps_have_no_other_one(prompts):
    scope = diffscope.load("mini-standard")
    measured = injection(scope, prompts[:1], sigmas=SIGMAS, draws=2)
    assert measured["cmrr_injected"].isnull().all() and measured["cmrr_injected_paired"].isnull().all()
    assert np.allclose(measured["change_common"], measured["change_differential"])


def test_lost_log_odds_by_prompt(prompts):
    scope = diffscope.load("mini-diff")
    lost = log_odds_lost(scope, prompts[:2], sigmas=SIGMAS, draws=2)
    assert lost["log_odds_lost"].dims == ("prompt", "sigma", "mode") and lost["log_odds"].dims == ("prompt",)
    spans = {name: at for name, at in prompts[1].spans.items() if name != "sink"}
    others = [number[0] for number in prompts[1].distractors]
    alone = diffscope.instruments.log_odds_under_noise(
        scope, prompts[1].ids, prompts[1].answer[0], others, spans=spans, sigmas=SIGMAS, draws=2, seed=2
    )
    assert np.allclose(lost["log_odds_lost"].isel(prompt=1).transpose("mode", "sigma"), alone["log_odds_lost"])
    alike = replace(prompts[0], distractors=[[prompts[0].answer[0], *number] for number in prompts[0].distractors])
    assert log_odds_lost(scope, [alike, prompts[1]], sigmas=SIGMAS, draws=2)["log_odds_lost"].equals(
        lost["log_odds_lost"].where(xr.DataArray([False, True], dims="prompt"))
    )
    with pytest.raises(PromptError, match="all distractors begin with the answer's own token"):
        log_odds_lost(scope, [alike])
    without = Retrieval(scope.tokenizer).prompt(64, 1, np.random.default_rng(0))
    with pytest.raises(PromptError, match="a prompt has none"):
        log_odds_lost(scope, [without])
