"""What is read of a cohort of plain text is what its models do, by arm and seed."""

import numpy as np
import pytest
import torch

import diffscope
from benchmarks import text_cohort
from diffscope import DiffscopeError, readings
from diffscope.lab.training.run_folder import save_checkpoint
from diffscope.tasks.recall import Recall
from tests import tiny


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    tokenizer = diffscope.load("mini-diff").tokenizer
    home = tmp_path_factory.mktemp("text")
    for arm, attention in (("diff", "v1"), ("standard", "standard")):
        for seed in (0, 1, 2):
            model = tiny.own(attention, vocab_size=len(tokenizer), heads=2, num_hidden_layers=1, seed=seed)
            model.save_pretrained(home / arm / f"seed-{seed}")
            tokenizer.save_pretrained(home / arm / f"seed-{seed}")
            save_checkpoint(model, home / arm / f"seed-{seed}" / "checkpoints" / "step-000004")
    return home


@pytest.fixture
def small(monkeypatch):
    for name, value in {"LENGTH": 192, "TEXTS": 3, "FEW": 2, "PROMPTS": 1}.items():
        monkeypatch.setattr(text_cohort, name, value)


def test_it_is_what_the_models_do(cohort, small):
    result = text_cohort.run(cohort)
    scope = diffscope.load(cohort / "diff" / "seed-1")
    ids, _ = Recall(scope.tokenizer).rows(3, 192, np.random.default_rng([text_cohort.SEED, 1]))
    rows = torch.from_numpy(ids)
    with torch.inference_mode():
        loss = scope.model(rows, labels=rows).loss
    ours = result["runs"]["diff"]["1"]
    assert ours["values"]["loss"] == pytest.approx(float(loss), rel=1e-5)
    cap = [scope.capture(row.tolist()) for row in ids[:2]]
    first = [one.map("D", layer=0, head=head).values[64:, 0] for one in cap for head in (0, 1)]
    assert ours["values"]["mass on the first token in D, raw"] == pytest.approx(np.mean(first), abs=1e-6)
    lam = float(cap[0].lam[0].mean())
    assert ours["values"]["λ of L0 at step 4"] == pytest.approx(lam, rel=1e-3)  # checkpoints are half precision
    assert (
        ours["values"]["λ of L0 at the end"] == pytest.approx(lam) and result["arms"]["diff"]["λ of L0 at the end"]["seeds"] == 3
    )
    by_seed = [result["runs"]["diff"][str(seed)]["values"]["loss"] for seed in (0, 1, 2)]
    other = [result["runs"]["standard"][str(seed)]["values"]["loss"] for seed in (0, 1, 2)]
    mean = result["arms"]["diff"]["loss"]
    assert mean["value"] == pytest.approx(np.mean(by_seed)) and mean["low"] < mean["value"] < mean["high"] and mean["seeds"] == 3
    paired = result["differences"]["diff − standard"]
    assert paired["loss"]["value"] == pytest.approx(np.mean(np.subtract(by_seed, other)))
    assert paired["mass on the first token in A2"]["value"] is None and not result["differences"]["diff − double-width"]
    depths = readings.depths(scope, [96], prompts=1, seed=text_cohort.SEED + 1).estimates.isel(length=0).sel(depth=0.5)
    signed = depths["by_head"].sel(map="D", span="answer", normalisation="signed")
    assert ours["values"]["answer, signed, depth 50 %"] == pytest.approx(float(np.median(signed)))
    assert ours["values"]["answer, uniform attention, depth 50 %"] == pytest.approx(float(depths["uniform"].sel(span="answer")))
    assert "exact answers, depth 0 %" in paired and not any(name.startswith("λ") for name in paired)


def test_a_folder_without_models_is_one_line(tmp_path):
    with pytest.raises(DiffscopeError, match="no trained models.*diffscope train laptop-text"):
        text_cohort.run(tmp_path)
