"""What is read of a cohort of plain text is what its models do, by arm and seed."""

import numpy as np
import pytest
import torch

import diffscope
from diffscope import DiffscopeError, readings
from diffscope.lab.training.run import save_checkpoint
from diffscope.tasks import recall as recall_module
from diffscope.tasks import retrieval
from diffscope.tasks.recall import Recall
from diffscope.tasks.text import standard_library_text
from studies.laptop import text as text_cohort
from tests import tiny

MANY = 9  # windows of text
windows = text_cohort.windows


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
    """Few texts, which each model's tokenizer encodes anew."""
    for module in (recall_module, retrieval):
        monkeypatch.setattr(module, "standard_library_text", lambda held_out: standard_library_text(held_out)[:300])
    for name, value in {"LENGTH": 192, "TEXTS": 3, "FEW": 2, "PROMPTS": 1}.items():
        monkeypatch.setattr(text_cohort, name, value)
    monkeypatch.setattr(text_cohort, "windows", lambda scope: tuple(part[:MANY] for part in windows(scope)))


def test_it_is_what_the_models_do(cohort, small):
    result = text_cohort.run(cohort)
    columns = text_cohort.summary(result["runs"])
    scope = diffscope.load(cohort / "diff" / "seed-1")
    recall = Recall(scope.tokenizer)
    ids, _ = recall.rows(2, 192, np.random.default_rng([text_cohort.SEED, 1]))
    rows = torch.from_numpy(recall.filler.ids[: len(recall.filler.ids) // 191 * 191].reshape(-1, 191).copy())
    rows = torch.cat([torch.full((len(rows), 1), scope.tokenizer.bos_token_id), rows], dim=1)  # (window, token)
    assert np.array_equal(windows(scope)[0], rows)
    rows = rows[:MANY]
    with torch.inference_mode():
        loss = scope.model(rows, labels=rows).loss
    ours = result["runs"]["diff"]["1"]
    assert ours["loss"] == pytest.approx(float(loss), rel=1e-5)
    early = ours["loss on held-out text, step 4"]
    assert early == pytest.approx(float(loss), rel=1e-3)  # the same weights, in half precision
    assert abs(ours["loss on text of the training, step 4"] - early) > 1e-4  # other texts
    cap = [scope.capture(row.tolist()) for row in ids[:2]]
    first = [one.map("D", layer=0, head=head).values[64:, 0] for one in cap for head in (0, 1)]
    assert ours["mass on the first token in D, raw"] == pytest.approx(np.mean(first), abs=1e-6)
    floor = np.mean(
        [one.measure("residual_floor", queries=range(64, 192))["residual_floor"].sel(span="irrelevant") for one in cap]
    )
    assert ours["left of A1 by the best coefficient of its own A2"] == pytest.approx(floor, rel=1e-4)
    own, other = ([one.map("D", layer=0, head=head).values.diagonal(-1)[63:].mean() for one in cap] for head in (0, 1))
    before = "given to the token before by D, "
    assert ours[before + "layer 0"] == pytest.approx((np.mean(own) + np.mean(other)) / 2, abs=1e-6)
    assert ours[before + "head that gives most"] == pytest.approx(max(np.mean(own), np.mean(other)), abs=1e-6)
    gini = [one.measure("gini", queries=range(64, 192))["gini"] for one in cap]
    taken = np.mean([float((one.sel(map="D") - one.sel(map="A1")).mean()) for one in gini])
    assert ours["gini of D − A1"] == pytest.approx(taken, rel=1e-4)
    lam = float(cap[0].lam[0].mean())
    assert ours["λ of L0 at step 4"] == pytest.approx(lam, rel=1e-3)  # checkpoints are half precision
    assert ours["λ of L0 at the end"] == pytest.approx(lam) and columns["diff"]["λ of L0 at the end"]["seeds"] == 3
    by_seed = [result["runs"]["diff"][str(seed)]["loss"] for seed in (0, 1, 2)]
    other = [result["runs"]["standard"][str(seed)]["loss"] for seed in (0, 1, 2)]
    mean = columns["diff"]["loss"]
    assert mean["value"] == pytest.approx(np.mean(by_seed)) and mean["low"] < mean["value"] < mean["high"] and mean["seeds"] == 3
    paired = columns["diff − standard"]
    assert paired["loss"]["value"] == pytest.approx(np.mean(np.subtract(by_seed, other)))
    assert paired["mass on the first token in A2"]["seeds"] == 0 and not columns["diff − double-width"]
    depths = readings.depths(scope, [96], prompts=1, seed=text_cohort.SEED + 1).estimates.isel(length=0).sel(depth=0.5)
    signed = depths["by_head"].sel(map="D", span="answer", normalisation="signed")
    assert ours["answer, signed, median of heads, depth 50 %"] == pytest.approx(float(np.median(signed)))
    assert ours["answer, signed, depth 50 %"] == pytest.approx(float(np.mean(signed)))  # one layer
    assert ours["answer, uniform attention, depth 50 %"] == pytest.approx(float(depths["uniform"].sel(span="answer")))
    shown = text_cohort.page(result)
    row = next(line for line in shown.splitlines() if line.startswith("| loss |"))
    assert row.startswith(f"| loss | {mean['value']:.3g} ({mean['low']:.3g} to {mean['high']:.3g}) |")
    assert "Means over 3 seeds" in shown and f"{len(rows)} windows of 192 tokens" in shown
    named = [line.split(" | ")[0].removeprefix("| ") for line in shown.splitlines()]
    assert all(named.count(name) == 1 for name in columns["diff"])  # everything that was read is shown, once
    assert "exact answers, depth 0 %" in paired and not any(name.startswith("λ") for name in paired)


def test_a_folder_without_models_is_one_line(tmp_path):
    with pytest.raises(DiffscopeError, match="no trained models.*diffscope train laptop-text"):
        text_cohort.run(tmp_path)
