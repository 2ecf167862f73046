"""What the library wrote opens with one word, and anything else gets one line that says what to do."""

import pytest
import xarray as xr

import diffscope
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
