"""What is kept on disk comes back as it was."""

import json
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import xarray as xr
from pyarrow import parquet as pq
from safetensors.torch import save_file

from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.storage.checksum import seal
from diffscope.storage.statistics import FORMATS, open_statistics, save_statistics
from diffscope.storage.tensors import open_tensors, save_tensors


@pytest.fixture
def statistics():
    random = np.random.default_rng(0)
    dims = ("layer", "head", "map", "query")
    entropy = random.random((2, 2, 3, 4), dtype=np.float32)
    entropy[..., 0] = np.nan
    return xr.Dataset(
        {
            "entropy": (dims, entropy, {"units": "nats"}),
            "argmax": (dims, random.integers(0, 9, (2, 2, 3, 4), dtype=np.int32)),
            "rank": (("layer",), np.array([1.5, np.nan])),
            "area": 0.25,
            "count": ("layer", np.array([3, 4])),
        },
        coords={
            "layer": [2, 5],
            "head": [0, 1],
            "map": ["D", "A1", "A2"],
            "query": [0, 1, 2, 3],
            "query_token": ("query", ["a,", "b\n", 'ü"', "NA"]),
            "statistic": ("layer", ["what tables have", "a column of too"]),
        },
        attrs={"model": "mini-diff"},
    )


@pytest.mark.parametrize("suffix", FORMATS)
def test_round_trip(statistics, tmp_path, suffix):
    path = tmp_path / f"statistics{suffix}"
    save_statistics(statistics, path)
    opened = open_statistics(path)
    assert opened.drop_attrs().identical(statistics.drop_attrs())
    assert list(opened) == list(statistics) and list(opened.sizes) == list(statistics.sizes)
    numbers = {name: array.dtype for name, array in statistics.variables.items() if array.dtype.kind != "U"}
    assert {name: opened[name].dtype for name in numbers} == numbers
    assert opened["entropy"].attrs == {"units": "nats"}
    assert opened.attrs["model"] == "mini-diff"
    assert {"diffscope", "torch", "transformers", "python", "created"} <= set(opened.attrs)


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_earlier_file_is_replaced(statistics, tmp_path, suffix):
    path = tmp_path / f"statistics{suffix}"
    save_statistics(statistics, path)
    save_statistics(statistics[["rank"]], path)
    assert list(open_statistics(path)) == ["rank"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_result_of_nothing_is_no_damaged_file(tmp_path, suffix):
    path = tmp_path / f"nothing{suffix}"
    save_statistics(xr.Dataset(attrs={"model": "mini-diff"}), path)
    opened = open_statistics(path)
    assert not opened.variables and opened.attrs["model"] == "mini-diff"


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_damaged_file_says_so(tmp_path, suffix):
    path = tmp_path / f"statistics{suffix}"
    path.write_text("something else")
    with pytest.raises(CorruptFile, match="measure again"):
        open_statistics(path)


def test_a_csv_that_lost_rows_says_so(statistics, tmp_path):
    path = tmp_path / "statistics.csv"
    save_statistics(statistics, path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    with pytest.raises(CorruptFile, match="damaged"):
        open_statistics(path)


def test_other_programs_read_one_row_a_value(statistics, tmp_path):
    save_statistics(statistics, tmp_path / "statistics.parquet")
    table = pd.read_parquet(tmp_path / "statistics.parquet")
    row = table.query("statistic == 'argmax' and layer == 5 and head == 1 and map == 'A1' and query == 3")
    assert row["value"].item() == statistics["argmax"].sel(layer=5, head=1, map="A1", query=3)
    assert row["query_token"].item() == "NA"
    assert len(table) == 48 + 48 + 2 + 1 + 2


def test_tensors_can_be_read_by_whoever_can_read_other_files(tmp_path):
    save_tensors(tmp_path / "x.dscope", {"q": torch.zeros(2)}, {})
    (tmp_path / "plain").touch()
    assert (tmp_path / "x.dscope").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_tensors_come_back_with_their_record(tmp_path):
    q = torch.arange(6.0).reshape(2, 3)
    tensors = {"q": q, "transposed": q.T, "part": q[0], "flag": torch.tensor([True, False])}
    save_tensors(tmp_path / "x.dscope", tensors, {"text": "ü", "n": np.int64(3)})
    opened, record = open_tensors(tmp_path / "x.dscope", lambda *parts: parts)
    assert (record["text"], record["n"]) == ("ü", 3)
    assert "torch" in record["made_with"]
    assert all(torch.equal(opened[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("keep", [0, 5, -3])
def test_damaged_tensors_say_so(tmp_path, keep):
    path = tmp_path / "x.dscope"
    save_tensors(path, {"q": torch.zeros(8)}, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptFile, match="capture again"):
        open_tensors(path, lambda *parts: parts)


def test_tensors_of_another_program_say_so(tmp_path):
    save_file({"q": torch.zeros(8)}, tmp_path / "x.dscope")
    with pytest.raises(CorruptFile, match="not written by diffscope"):
        open_tensors(tmp_path / "x.dscope", lambda *parts: parts)


@pytest.mark.parametrize("path", ["statistics.txt", "statistics", "no/such/folder/statistics.csv"])
def test_where_statistics_cannot_go(statistics, tmp_path, path):
    with pytest.raises(DiffscopeError):
        save_statistics(statistics, tmp_path / path)


LARGE = xr.Dataset({"large": ("x", np.array([1, 2**53 + 1]))})


@pytest.mark.parametrize(
    "dataset, suffix, words",
    [
        (xr.Dataset({"reason": ("x", ["", "no"])}), ".csv", "'reason' is text, .* a .csv file .* end the name in .zarr, .nc$"),
        (xr.Dataset({"reason": ("x", ["", "no"])}), ".parquet", "'reason' is text"),
        (LARGE, ".csv", "'large' is whole numbers from 1 to 9007199254740993, .* end the name in .zarr$"),
        (LARGE, ".parquet", "'large' is whole numbers from 1"),
        (xr.Dataset({"large": ("x", np.array([2**31]))}), ".nc", "end the name in .zarr, .parquet, .csv$"),
        (xr.Dataset(coords={"x": np.array([40000], np.uint16)}), ".nc", "'x' is whole numbers"),
        (xr.Dataset({"root": ("x", [1j])}), ".csv", "'root' is complex128"),
    ],
)
def test_what_a_format_does_not_hold_is_refused_and_others_hold_it(dataset, suffix, words, tmp_path):
    with pytest.raises(DiffscopeError, match=words) as error:
        save_statistics(dataset, tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())
    for other in str(error.value).partition("end the name in ")[2].split(", "):
        save_statistics(dataset, tmp_path / f"a{other}")
        assert open_statistics(tmp_path / f"a{other}").drop_attrs().identical(dataset)


def test_a_missing_file_is_not_called_damaged(tmp_path):
    with pytest.raises(DiffscopeError, match="there is no"):
        open_statistics(tmp_path / "statistics.nc")


@pytest.mark.parametrize("name", ["results", "results.zarr"])
def test_a_folder_is_not_replaced_by_a_file(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "thesis.tex").write_text("the work of years")
    with pytest.raises(DiffscopeError, match="is a folder") as error:
        save_tensors(folder, {"q": torch.zeros(8)}, {})
    assert "\n" not in str(error.value)
    assert (folder / "thesis.tex").read_text() == "the work of years"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("record", ["[1]", "{}", '{"format": "diffscope-capture-0", "prompts": []}'])
def test_tensors_of_another_structure_say_so(tmp_path, record):
    save_file({"q": torch.zeros(8)}, tmp_path / "x.dscope", metadata={"diffscope": record})
    with pytest.raises(CorruptFile, match="not of the format diffscope-capture-1"):
        open_tensors(tmp_path / "x.dscope", lambda *parts: parts)


def test_a_small_file_that_would_fill_the_memory_is_refused(statistics, tmp_path):
    """What its header says is looked at before anything is unpacked; whoever wrote it wrote its digest too."""
    zarr = tmp_path / "large.zarr"
    save_statistics(statistics[["rank"]], zarr)
    for array in ("rank", "layer", "statistic"):
        described = json.loads((zarr / array / "zarr.json").read_text())
        (zarr / array / "zarr.json").write_text(json.dumps({**described, "shape": [10**11]}))
    parquet = tmp_path / "large.parquet"
    pq.write_table(pa.table({"value": pa.array(np.zeros(5 * 10**7))}), parquet)  # run lengths: a file of kilobytes
    for path in (zarr, parquet):
        if path.is_dir():
            seal(path)
        with pytest.raises(CorruptFile, match="MiB say that they hold"):
            open_statistics(path)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": {"layer": 10**12, "head": 2, "map": 3, "query": 4}},
        {"sizes": {"layer": -2, "head": 2, "map": 3, "query": -4}},
        {"statistics": {"entropy": [["layer"], "<U100000000", {}]}},
        {"statistics": {"entropy": [["layer"], "O", {}]}},
        {"labels": {"coords": {"layer": {"dims": ["layer"], "data": "x", "attrs": 3}}}},
    ],
)
def test_a_table_whose_first_line_lies_is_refused(change, statistics, tmp_path):
    path = tmp_path / "a.csv"
    save_statistics(statistics, path)
    first, _, rows = path.read_text().partition("\n")
    path.write_text(f"# {json.dumps({**json.loads(first.removeprefix('# ')), **change})}\n{rows}")
    seal(path)
    with pytest.raises(CorruptFile, match="measure again") as error:
        open_statistics(path)
    assert str(error.value).isprintable()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_a_store_is_not_waited_for(statistics, tmp_path):
    save_statistics(statistics, tmp_path / "a.zarr")
    os.mkfifo(tmp_path / "a.zarr" / "rank" / "pipe")
    with pytest.raises(CorruptFile, match="'pipe' in it is no regular file"):
        open_statistics(tmp_path / "a.zarr")


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.float64())], ids=str)
def test_a_table_of_other_values_than_numbers_is_refused_unread(kind, statistics, tmp_path, monkeypatch):
    """A few hundred bytes of repeated text would be unpacked to gigabytes."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"value": pa.array([None] * 9, kind)}), path)
    monkeypatch.setattr(pq, "read_table", lambda *_, **__: pytest.fail("the values were read"))
    with pytest.raises(CorruptFile, match="have to be numbers in float64"):
        open_statistics(path)
