"""The evidence of a run is what its model says, and tests read it in place of the model."""

import ast

import numpy as np
import pytest

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.hypotheses import run
from diffscope.hypotheses.evidence import code, of_run
from diffscope.hypotheses.evidence.last_query import last_query_of
from diffscope.hypotheses.evidence.quantities import amplifier, shared_noise
from diffscope.hypotheses.kept import for_cohort, kept_of, open_kept
from diffscope.hypotheses.subjects import Pair
from diffscope.lab.scoring import controlled
from diffscope.lab.training.run_folder import save_checkpoint
from diffscope.tasks import Retrieval
from tests import tiny


@pytest.fixture(scope="module")
def cohort(tmp_path_factory, tokenizer):
    """Two seeds of two tiny arms, one run with a checkpoint."""
    home = tmp_path_factory.mktemp("cohort")
    patch = pytest.MonkeyPatch()
    patch.setattr(of_run, "PROMPTS", 10)
    patch.setattr(of_run, "DISTRACTORS", (4,))
    patch.setattr(of_run, "LENGTH", 128)
    patch.setattr(of_run, "TEXTS", 2)
    for arm, attention in (("diff", "v1"), ("standard", "standard")):
        for seed in (0, 1):
            folder = home / arm / f"seed-{seed}"
            model = tiny.own(attention, vocab_size=len(tokenizer), heads=2, num_hidden_layers=1, seed=seed)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if arm == "diff":
                save_checkpoint(model, folder / "checkpoints" / "step-000000")
                save_checkpoint(model, folder / "checkpoints" / "step-000010")
            of_run.keep_evidence(folder, seed=seed)
    yield home
    patch.undo()


def test_evidence_is_what_the_model_says(cohort):
    folder = cohort / "diff" / "seed-1"
    kept = of_run.open_evidence(folder / of_run.EVIDENCE)
    scope = diffscope.load(folder)
    task = Retrieval(scope.tokenizer, held_out=True)
    prompts = controlled(task, 10, 128, 4, (of_run.FIRST_SEED, 1), slots=4)
    last_query = last_query_of([scope.capture([prompt.ids for prompt in prompts]).layers], prompts)
    for name in ("sharing", "difference", "kind"):
        live = shared_noise(last_query)[name].mean("prompt").values
        np.testing.assert_allclose(kept["value"].sel(quantity=f"shared_noise.{name}")[-1, 0], live, rtol=1e-4)
    table = open_kept([folder / of_run.EVIDENCE]).tables(amplifier)[0][0]
    live = amplifier(last_query)["noise_gain"].mean("prompt")
    assert float(table.mean("noise_gain")[0]) == pytest.approx(np.average(live, weights=last_query.answering), rel=1e-4)
    assert kept["step"].values.tolist() == [0, 10, 11]
    size = (folder / of_run.EVIDENCE).stat().st_size
    assert size < 200_000 and of_run.keep_evidence(folder, seed=1).read_bytes() == (folder / of_run.EVIDENCE).read_bytes()


def test_tests_read_what_was_kept(cohort):
    diff, standard = map(open_kept, kept_of(cohort, "diff", "standard"))
    verdicts = run(
        model=diff, pair=Pair(diff, standard), checkpoints=[open_kept([cohort / "diff/seed-0" / of_run.EVIDENCE], True)]
    )
    estimates = {verdict.test.id: verdict.estimates for verdict in verdicts}
    for id in ("noise-symmetry", "amplifier", "common-mode-injection", "sparsity-pair", "noise-symmetry-training"):
        assert estimates[id], [verdict.sentence for verdict in verdicts if verdict.test.id == id]
    assert estimates["noise-symmetry"]["sharing"].seeds == 2
    primary = for_cohort(diff.evidence[0])
    expected = np.average(primary["cmrr_over_paired_by_head"], weights=primary["answer_mass"])
    assert float(primary["cmrr_over_paired"]) == pytest.approx(expected, rel=1e-5)
    assert np.isnan(for_cohort(standard.evidence[0])["cmrr_over_paired"])
    with pytest.raises(DiffscopeError, match="one run"):
        open_kept(kept_of(cohort, "diff")[0], series=True)


def test_other_code_outdates_evidence_and_other_words_do_not(cohort, monkeypatch):
    source = 'def f(x):\n    """Words."""\n    # more\n    return x  # and more\n'
    assert code.lines_of_code(source) == code.lines_of_code("def f(x):\n    return x\n")
    assert ast.parse(code.lines_of_code(source)) and code.lines_of_code(source) != code.lines_of_code(
        "def f(x):\n    return -x\n"
    )
    assert of_run.outdated(cohort) == []
    monkeypatch.setattr(of_run, "code_digest", lambda: "other")
    assert of_run.outdated(cohort) == ["diff/seed-0", "diff/seed-1", "standard/seed-0", "standard/seed-1"]
