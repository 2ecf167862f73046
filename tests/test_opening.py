"""What the library wrote opens with one word, and anything else gets one line that says what to do."""

import re

import pytest
import torch
import xarray as xr

import diffscope
from diffscope import store
from diffscope.capture import open_capture
from diffscope.files import UNFINISHED
from diffscope.hypotheses.study import Study
from diffscope.store import FORMATS, save_statistics
from tests import tiny
from tests.studies import study as planted_study


@pytest.fixture(scope="module")
def capture():
    return diffscope.load(tiny.own("v1")).capture(tiny.ids(9))


@pytest.mark.parametrize("name", ["a.dscope", "a.safetensors", "a", "a.bin"])
def test_a_capture_opens_under_any_name_and_is_kept_under_its_own(capture, tmp_path, name):
    capture.save(tmp_path / "kept.DSCOPE")
    (tmp_path / "kept.DSCOPE").rename(tmp_path / name)
    assert diffscope.open(tmp_path / name).tokens == capture.tokens
    if name != "a.dscope":
        with pytest.raises(diffscope.DiffscopeError, match=r"name it 'a\.dscope'"):
            capture.save(tmp_path / name)


@pytest.mark.parametrize("suffix", FORMATS)
def test_statistics(capture, tmp_path, suffix):
    measured = capture.measure("gini")
    save_statistics(measured, tmp_path / f"rows{suffix}")
    assert diffscope.open(str(tmp_path / f"rows{suffix}"))["gini"].equals(measured["gini"])


@pytest.mark.parametrize("suffix", [".dscope", ".safetensors", ".nc", ".parquet", ".csv", ".pt"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_under_any_name_is_called_a_pickle(tmp_path, suffix, zipped):
    path = tmp_path / f"renamed{suffix}"
    torch.save({"weight": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(diffscope.DiffscopeError, match="is a pickle .as torch.save writes., not a file of diffscope; "):
        diffscope.open(path)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 0x0280, 0x0580])
def test_a_damaged_capture_is_no_pickle_whatever_its_header_begins_with(tmp_path, length):
    """A header of 640 bytes makes a file begin as a pickle of protocol 2 does."""
    (tmp_path / "damaged.dscope").write_bytes(length.to_bytes(8, "little") + b"{" * 700)
    with pytest.raises(diffscope.CorruptFile, match="damaged"):
        diffscope.open(tmp_path / "damaged.dscope")


def test_a_later_format_is_called_later_and_its_damage_damage(capture, tmp_path, monkeypatch):
    path = tmp_path / "later.dscope"
    with monkeypatch.context() as patch:
        patch.setattr(store, "NEWEST", 7)
        capture.save(path)
    with pytest.raises(diffscope.DiffscopeError, match=r"later diffscope \(format 7; this one reads up to 1\); update"):
        diffscope.open(path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(diffscope.CorruptFile, match="is damaged"):
        diffscope.open(path)


@pytest.mark.parametrize(
    "path", [None, 3, b"a.dscope", "", " ", "\0", "a\0.dscope", "x" * 300 + ".dscope", "a/" * 3000 + "a.dscope"]
)
def test_what_is_no_path_is_one_line(capture, path):
    for act in (
        diffscope.open,
        open_capture,
        capture.save,
        lambda path: save_statistics(capture.measure("gini"), path),
    ):
        with pytest.raises(diffscope.DiffscopeError) as error:
            act(path)
        assert str(error.value).count("\n") == 0 and len(str(error.value)) < 250
        assert re.search("path|has .* bytes", str(error.value))


def test_the_longest_name_that_can_be_written_opens(capture, tmp_path):
    path = tmp_path / ("x" * (255 - UNFINISHED - len(".dscope")) + ".dscope")
    capture.save(path)
    assert diffscope.open(path).tokens == capture.tokens
    with pytest.raises(diffscope.DiffscopeError, match="240 bytes, and 239 are taken; shorten it"):
        capture.save(path.with_name("x" + path.name))


def test_a_study(tmp_path):
    planted_study().save(tmp_path / "study")
    for path in (tmp_path / "study", tmp_path / "study" / "study.json"):
        study = diffscope.open(path)
        assert isinstance(study, Study) and study.boards


def test_a_cohort(tmp_path):
    cohort = xr.Dataset({"exact_match": ("seed", [1.0]), "finished": ("seed", [1])}, attrs={"recipe": "{}"})
    save_statistics(cohort, tmp_path / "cohort.nc")
    assert diffscope.open(tmp_path / "cohort.nc").identical(diffscope.open(tmp_path))


def test_anything_else_is_one_line_that_says_what_to_do(tiny_diff_folder, tmp_path):
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "broken.dscope").write_text("notes")
    (tmp_path / "empty").mkdir()
    for path, words in {
        tmp_path / "nowhere.nc": "there is no",
        tmp_path / "notes.txt": r"is not a capture, statistics.*; the files of these are \.dscope",
        tmp_path / "broken.dscope": "damaged",
        tmp_path: "it holds broken.dscope, empty, notes.txt; name one of the files",
        tmp_path / "empty": "it is empty",
        tiny_diff_folder: "a model's folder; open it with diffscope.load",
        tiny_diff_folder / "model.safetensors": "part of a model; open it with diffscope.load",
    }.items():
        with pytest.raises(diffscope.DiffscopeError, match=words) as error:
            diffscope.open(path)
        assert "\n" not in str(error.value)
