"""The side-by-side benchmark: methods give what float64 gives, and what goes wrong with one is said and harms no other."""

import json
import multiprocessing
import operator
import os
import pickle
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.side_by_side import jobs, methods, oracle, process, report, subjects

import diffscope
from benchmarks import engine, old_cohort, sweeps
from diffscope.lab.scoring import draw
from diffscope.stats.registry import select
from diffscope.tasks import Retrieval

TOKENS = 96
STATISTICAL = [name for name in methods.METHODS if name not in (*methods.FORWARDS, "capture alone")]
PEERS = {"TransformerLens": "transformer_lens", "nnsight": "nnsight"}
NUMPY_ALONE = "numpy, full maps"


@pytest.fixture(scope="module", params=subjects.SUBJECTS)
def subject(request):
    """Name, and the reference's rows."""
    model = subjects.SUBJECTS[request.param](TOKENS, "cpu")
    ids = subjects.prompt(model, TOKENS)
    return request.param, jobs.reference_of(model, ids, oracle.spread(TOKENS))


@pytest.mark.parametrize("method", STATISTICAL)
def test_a_method_gives_what_float64_gives(subject, method):
    if method in PEERS:
        peer = pytest.importorskip(PEERS[method])
        if method == "nnsight" and hasattr(object, "save"):
            peer._c.unmount("save")  # a method it gives every object of the process, with which anyio cannot be imported
    name, exact = subject
    run, pick = jobs.Measured(method, name, TOKENS, "cpu").prepare()
    measured, where = oracle.error(pick(run()), exact)
    assert measured < 1e-4, where


def test_a_sample_is_compared_at_its_own_rows():
    for through_model in (False, True):
        what = (through_model, TOKENS, 40, "cpu")
        (run, pick), (exact, _) = jobs.Sampled(*what).prepare(), jobs.SampledReference(*what).prepare()
        assert oracle.error(pick(run()), exact())[0] < 1e-4


def test_the_attention_is_neither_uniform_nor_on_one_key(subject):
    name, exact = subject
    if name == "random":
        assert 0.3 < np.nanmean(exact["entropy_normalised"]) < 0.7


def exact_rows():
    """A layer's reference at three rows, and itself as if a method had found it."""
    q, k = (np.random.default_rng(seed).normal(size=(4, 24, 8)) * 2 for seed in (0, 1))
    exact = oracle.of_layer(q, k, 0.8, [0, 11, 23])
    return exact, {name: exact[name].copy() for name in (*oracle.NUMBERS, "row_sum", "top_k_mass", "quantiles")}


@pytest.mark.parametrize("name", [*oracle.NUMBERS, "row_sum", "top_k_mass", "quantiles"])
def test_one_wrong_value_is_noticed(name):
    exact, measured = exact_rows()
    assert oracle.error(measured, exact) == (0.0, "")
    measured[name][2, 1, 1] += 2
    assert oracle.error(measured, exact)[1] == name
    measured[name][2, 1, 1] = np.nan
    assert oracle.error(measured, exact)[0] == np.inf


def test_a_count_on_the_edge_may_fall_either_way():
    x = np.array([0.9, 0.1 / 4 * (1 - 1e-6), 0.05, 0.025])  # p < 0.1/n holds of one key, and nearly of a second
    x[0] = 1 - x[1:].sum()
    row = oracle.of_row(x, x)
    assert (row["near_zero_low"], row["near_zero_high"]) == (0, 0.5)
    tied = oracle.of_row(np.array([0.4, 0.2, 0.4]), np.ones(3))
    assert dict(zip(tied["peaks"], tied["shortfalls"]))[2] == 0


@pytest.mark.parametrize("named", [jobs.Measured("diffscope", "random", 96, "cpu"), jobs.Reference("random", 96, "cpu")])
def test_a_job_can_be_sent_to_another_interpreter(named):
    assert pickle.loads(pickle.dumps(named)) == named


@pytest.fixture
def quick(monkeypatch):
    """Children that need not each import torch: forks of one process that has; what they are told is sent to them as before."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([process.__name__])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: server)


def job(run, *given):
    """One that a process can be told without importing this module."""
    return SimpleNamespace(prepare=partial(tuple, (partial(run, *given), None)))


@pytest.mark.usefixtures("quick")
def test_what_goes_wrong_is_said_and_the_others_go_on():
    patient = process.Limits(seconds=120.0, share=1.0)
    todo = {"dies": job(os._exit, 3), "refuses": job(int, "a layout"), "works": job(time.sleep, 0)}
    died, refused, worked = engine.compare(todo, {}, "random", 16, "cpu", 2, patient)
    assert died.state == process.REFUSED and "3" in died.why
    assert refused.state == process.REFUSED and refused.why.startswith("ValueError: ")
    assert worked.state == process.OK and len(worked.seconds) == 2
    hurried, narrow = process.Limits(1.0, share=1.0), process.Limits(120.0, share=2**28 / process.available())
    cases = ((job(time.sleep, 60), hurried, process.TIME), (job(operator.mul, b"x", 2**31), narrow, process.MEMORY))
    for run, strict, state in cases:
        with process.Child(run, "cpu", patient) as child:
            child.limits = strict
            assert child.run().state == state


def test_tables_and_pictures_of_results(tmp_path):
    result = [
        report.Result("random", "diffscope", 128, seconds=[0.1, 0.2, 0.3], peaks=[2.0**20], error=1e-6),
        report.Result("random", "model forward", 128, seconds=[0.05], peaks=[2.0**19]),
        report.Result("random", NUMPY_ALONE, 128, seconds=[2.0], peaks=[2.0**30], error=2e-6),
        report.Result("random", NUMPY_ALONE, 256, state=process.MEMORY, why="over 2 GiB"),
    ]
    table = report.markdown(result)
    assert "| 128 | numpy, full maps | 2 s | 1 | 1 GiB | 10 | 1.02e+03 | 40 | 2.0e-06 | ok |" in table
    assert "- numpy, full maps, 256 tokens: out of memory: over 2 GiB" in table
    report.draw(result, tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text(encoding="utf-8")


def test_a_finding_that_does_not_come_out_is_said():
    finding = old_cohort.Finding("gain", (0.05, -0.27), (0.052, -0.269), 0.005, "of three seeds")
    assert str(finding) == "gain: reported 0.05, -0.27; here 0.052, -0.269; agrees (of three seeds)"
    for measured in ((0.05, 0.27), (0.05, np.nan)):
        assert str(replace(finding, measured=measured)).endswith("differs by more than 0.005 (of three seeds)")


def test_the_old_cohort_is_measured_by_statistics_that_there_are():
    named = (*old_cohort.ROWS, *old_cohort.BRANCHES)
    assert {statistic.name for statistic in select(named)} == set(named)


def test_what_the_history_does_not_have_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="error: no benchmarks/results/laptop of revision nowhere") as error:
        old_cohort.fetch("nowhere", tmp_path)
    assert "\n" not in str(error.value)


def test_spans_of_the_old_prompts_are_the_numbers_and_text_beside_them():
    tokenizer = diffscope.load("mini-diff").tokenizer
    for index, prompt in enumerate(draw(Retrieval(tokenizer, template=" {city} {number}."), 5, 160, 4, 0)):
        spans = old_cohort.spans_of(prompt, index)
        numbers = [tokenizer.decode([prompt.ids[i] for i in spans[f"number_{number}"]]).strip() for number in range(3)]
        sentences = tokenizer.decode([prompt.ids[i] for i in prompt.spans["needles"]]).split(".")
        assert numbers == [sentence.split()[-1] for sentence in sentences[:3]] and all(number.isdigit() for number in numbers)
        taken = {*prompt.spans["needles"], *prompt.spans["query"], *prompt.spans["answer"], *range(4)}
        assert all(len(spans[f"text_{i}"]) == 2 and not taken & set(spans[f"text_{i}"]) for i in range(8))


@pytest.mark.slow
def test_all_ways_of_a_sweep_give_the_same(tmp_path):
    for module in PEERS.values():
        pytest.importorskip(module)
    sweeps.main(["--tokens", "256", "--prompts", "2", "--rounds", "1", "--out", str(tmp_path / "sweeps.json")])
    ways = json.loads((tmp_path / "sweeps.json").read_text())["results"]["256"]
    assert {way["state"] for way in ways.values()} == {"ok"} and len(ways) == 5
    wrong = {"entropy": np.ones(3)}
    assert sweeps.largest_difference({"entropy": np.array([1, 1.01, 1])}, wrong) > sweeps.CLOSE
