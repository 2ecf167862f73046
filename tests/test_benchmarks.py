"""The benchmarks: methods give what float64 gives, failures are named and harm no other, and pages quote what was measured."""

import math
import multiprocessing
import os
import pickle
import re
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import meter, results
from benchmarks.engine import __main__ as engine
from benchmarks.engine import methods, report, subjects, sweeps
from diffscope.attention.memory import free_memory
from tests import reference

ROOT = Path(__file__).parents[1]
TOKENS = 96
STATISTICAL = [name for name in methods.METHODS if name not in (*methods.FORWARDS, "capture alone")]
PEERS = {"TransformerLens": "transformer_lens", "nnsight": "nnsight"}
QUANTITIES = (*reference.NUMBERS, "row_sum", "top_k_mass", "quantiles")


@pytest.fixture(scope="module", params=subjects.SUBJECTS)
def subject(request):
    """Name, and the reference's rows."""
    model = subjects.SUBJECTS[request.param](TOKENS, "cpu")
    return request.param, subjects.reference_of(model, subjects.prompt(model, TOKENS), reference.spread(TOKENS))


@pytest.mark.parametrize("method", STATISTICAL)
def test_a_method_gives_what_float64_gives(subject, method):
    if method in PEERS:
        peer = pytest.importorskip(PEERS[method])
        if method == "nnsight" and hasattr(object, "save"):
            peer._c.unmount("save")  # a method it gives every object of the process, with which anyio cannot be imported
    name, exact = subject
    run, pick = subjects.Whole(method, name, TOKENS, "cpu").prepare()
    error, where = reference.error(pick(run()), exact)
    assert error < 1e-4, where


def test_a_sample_is_compared_at_its_own_rows():
    sampled = subjects.Sampled(TOKENS, 40, "cpu")
    (run, pick), (exact, _) = sampled.prepare(), subjects.SampledReference(sampled).prepare()
    assert reference.error(pick(run()), exact())[0] < 1e-4


def test_the_attention_is_neither_uniform_nor_on_one_key(subject):
    name, exact = subject
    if name == "random":
        assert 0.3 < np.nanmean(exact["entropy_normalised"]) < 0.7


@pytest.mark.parametrize("name", QUANTITIES)
def test_one_wrong_value_is_noticed(name):
    q, k = (np.random.default_rng(seed).normal(size=(4, 24, 8)) * 2 for seed in (0, 1))
    exact = reference.of_layer(q, k, 0.8, [0, 11, 23])
    measured = {of: exact[of].copy() for of in QUANTITIES}
    assert reference.error(measured, exact) == (0.0, "")
    measured[name][2, 1, 1] += 2
    assert reference.error(measured, exact)[1] == name
    measured[name][2, 1, 1] = np.nan
    assert reference.error(measured, exact)[0] == np.inf


def test_a_count_on_the_edge_may_fall_either_way():
    x = np.array([0.9, 0.1 / 4 * (1 - 1e-6), 0.05, 0.025])  # p < 0.1/n holds of one key, and nearly of a second
    x[0] = 1 - x[1:].sum()
    row = reference.row_statistics(x, x)
    assert (row["near_zero_low"], row["near_zero_high"]) == (0, 0.5)
    tied = reference.row_statistics(np.array([0.4, 0.2, 0.4]), np.ones(3))
    assert dict(zip(tied["peaks"], tied["shortfalls"]))[2] == 0


def test_a_job_can_be_sent_to_another_interpreter():
    sampled = subjects.Sampled(96, 40, "cpu")
    for job in (subjects.Whole("diffscope", "random", 96, "cpu"), subjects.SampledReference(sampled)):
        assert pickle.loads(pickle.dumps(job)) == job


@pytest.fixture
def quick(monkeypatch):
    """Children that need not each import torch: forks of one process that has; their jobs are sent to them as before."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([meter.__name__])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: server)


def job(run, *given):
    """Return a job that a process can get without importing this module."""
    return SimpleNamespace(prepare=partial(tuple, (partial(run, *given), None)))


FILLED = "(b'x' * 2**29, __import__('time').sleep(600))"  # the memory is held until the process is ended


@pytest.mark.usefixtures("quick")
def test_a_failure_is_named_and_the_others_go_on():
    patient = meter.Limits(seconds=120.0, share=1.0)
    todo = {"dies": job(os._exit, 3), "refuses": job(int, "a layout"), "works": job(time.sleep, 0)}
    died, refused, worked = engine.compare(todo, {}, 16, "cpu", 2, patient)
    assert died.state == meter.REFUSED and "3" in died.why
    assert refused.state == meter.REFUSED and refused.why.startswith("ValueError: ")
    assert worked.state == meter.OK and len(worked.seconds) == 2
    hurried, narrow = meter.Limits(1.0, share=1.0), meter.Limits(120.0, share=2**28 / free_memory(torch.device("cpu")))
    cases = ((job(time.sleep, 60), hurried, meter.TIME), (job(eval, FILLED), narrow, meter.MEMORY))
    for run, strict, state in cases:
        with meter.Child(run, "cpu", patient) as child:
            child.limits = strict
            assert child.run().state == state


def test_the_meter_sees_a_peak_that_is_given_back():
    measured = meter.Meter().measure(lambda: len(bytes(range(256)) * 2**18))
    assert measured.result == 2**26 and 0.9 * 2**26 < measured.peak < 3 * 2**26


def test_tables_and_pictures_of_results(tmp_path):
    found = [
        report.Result("diffscope", 128, seconds=[0.1, 0.2, 0.3], peaks=[2.0**20], error=1e-6),
        report.Result("model forward", 128, seconds=[0.05], peaks=[2.0**19]),
        report.Result("numpy, full maps", 128, seconds=[2.0], peaks=[2.0**30], error=2e-6),
        report.Result("numpy, full maps", 256, state=meter.MEMORY, why="over 2 GiB"),
    ]
    records = [result.record() for result in found]
    table = report.table_of("÷", records)
    assert table.rows[2] == ("128", "numpy, full maps", "2 s", "1", "1 GiB", "10", "1.02e+03", "40", "2.0e-06", "ok")
    assert table.rows[3][2:] == ("–",) * 7 + ("out of memory",)
    report.draw(records, tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_all_ways_of_a_sweep_give_the_same():
    for module in PEERS.values():
        pytest.importorskip(module)
    records = sweeps.measure(256, 2, 1)
    assert {record["state"] for record in records} == {"ok"} and len(records) == 5
    wrong = {"entropy": np.ones(3)}
    assert sweeps.largest_difference({"entropy": np.array([1, 1.01, 1])}, wrong) > sweeps.CLOSE


# What is kept of them.


def test_a_section_replaces_its_own_alone(tmp_path):
    options = SimpleNamespace(out=tmp_path, quick=True)
    shown = results.table("of [two] things", ("n", "time"), [["|D|", None]])
    for name, title in (("a", "First"), ("b", "Second"), ("a", "Third")):
        results.keep(
            "costs", [results.Section(name, title, "python -m it", "none", [shown], numbers={"x": [1.5, None]})], options
        )
    kept = results.read(tmp_path)["costs"]
    assert [record["title"] for record in kept.values()] == ["Third", "Second"]
    assert kept["a"]["tables"][0]["rows"] == [["|D|", "–"]] and kept["a"]["numbers"] == {"x": [1.5, None]}
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "## Third" in page and "## First" not in page and r"| \|D\| | – |" in page


def test_a_quick_run_leaves_the_results_alone(monkeypatch, capsys):
    monkeypatch.setattr(results, "write", None)
    results.keep("costs", [results.Section("a", "First", "it", "none")], SimpleNamespace(out=None, quick=True))
    assert "## First" in capsys.readouterr().out


def test_the_page_is_written_from_the_numbers():
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert text == results.page(results.read())


SCALES = {"s": 1, "ms": 1e-3, "MB": 1e6, "GB": 1e9, "MiB": 2**20, "GiB": 2**30}
QUOTED = re.compile(rf"(?<![\w.^])(\d[\d,]*(?:\.\d+)?)(?: ({'|'.join(SCALES)})\b)?")


def numbers_in(value):
    """Return all numbers in a record, those in words too."""
    if isinstance(value, dict | list):
        return [number for of in (value.values() if isinstance(value, dict) else value) for number in numbers_in(of)]
    if isinstance(value, str):
        return [float(text.replace(",", "")) * SCALES.get(unit, 1) for text, unit in QUOTED.findall(value)]
    return [abs(float(value))] if isinstance(value, int | float) and math.isfinite(value) else []


def quotes(text, scripts):
    """Return the measurements that a page quotes from each script, (script, number in words, unit).

    A page quotes in a paragraph that names the command, and in the tables that follow it; decimals, and numbers with a unit.
    """
    text, named = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), ()
    for paragraph in re.split(r"\n\s*\n", text):
        here = tuple(script for script in re.findall(r"python -m benchmarks\.(\w+)", paragraph) if script in scripts)
        named = here or (named if paragraph.startswith("|") else ())
        words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", paragraph)
        for number, unit in QUOTED.findall(words) if named else ():
            if unit or "." in number:
                yield named, number, unit


def test_pages_quote_what_was_measured():
    kept = results.read()
    known = {script: numbers_in(records) for script, records in kept.items()}
    stale, found = [], 0
    for page in (ROOT / "docs").rglob("*.md"):
        for named, number, unit in quotes(page.read_text(encoding="utf-8"), kept):
            value, digits, found = float(number.replace(",", "")), len(number.partition(".")[2]), found + 1
            if not any(round(of / SCALES.get(unit, 1), digits) == value for script in named for of in known[script]):
                stale.append(f"{page.name}: {number} {unit} of {', '.join(named)}")
    assert not stale and found > 100, stale


def test_a_stale_quote_is_found():
    kept = {"costs": numbers_in({"rows": [["6.34 s", "2 of 3"]], "x": 1.5})}
    text = "It takes 6.3 s (`python -m benchmarks.costs`).\n\n| a |\n|---|\n| 1.5 |\n\nElsewhere 9.9 s."
    assert [(number, unit) for _, number, unit in quotes(text, kept)] == [("6.3", "s"), ("1.5", "")]
    assert kept["costs"] == [6.34, 2.0, 3.0, 1.5]
