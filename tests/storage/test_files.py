"""A file appears whole or not at all, and JSON has no NaN."""

import errno
import json
import re
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest

import diffscope
from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.storage.atomic import is_pickle, replacing, to_json, unfinished_folder, write_json


@pytest.mark.parametrize("alone", [False, True])
def test_what_fails_leaves_nothing_behind(tmp_path, alone):
    path = tmp_path / "file.csv"
    path.write_text("before")
    with pytest.raises(RuntimeError), replacing(path, alone=alone) as unfinished:
        unfinished.write_text("half")
        raise RuntimeError
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("alone", [False, True])
def test_an_earlier_store_stays_if_the_new_one_cannot_be_moved_to_its_place(tmp_path, monkeypatch, alone):
    path = tmp_path / "store.zarr"
    path.mkdir()
    (path / "zarr.json").write_text("before")
    monkeypatch.setattr("os.replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), replacing(path, alone=alone) as unfinished:
        unfinished.mkdir()
        (unfinished / "zarr.json").write_text("after")
    assert (path / "zarr.json").read_text() == "before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("alone", [False, True])
def test_a_folder_that_takes_no_file_is_named_as_the_user_named_it(tmp_path, monkeypatch, alone):
    monkeypatch.setattr("os.mkdir", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied", ".file.csv-x3")))
    message = re.escape(f"{tmp_path} takes no new file (Permission denied); write file.csv into another folder")
    with pytest.raises(DiffscopeError, match=f"^{message}$"), replacing(tmp_path / "file.csv", alone=alone):
        pass


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    path = tmp_path / "file.json"
    unfinished_folder(path).mkdir()
    (unfinished_folder(path) / "file.json").write_text("half")
    write_json(path, {"a": 1}, alone=True)
    assert list(tmp_path.iterdir()) == [path] and json.loads(path.read_text()) == {"a": 1}


def test_json_of_arrays_paths_and_numbers_that_are_not_finite(tmp_path):
    value = {
        "a": np.array([1.0, np.nan]),
        3: (np.int64(2), -np.inf),
        "path": tmp_path,
        "none": None,
        "yes": np.bool_(True),
        "ü": "é",
    }
    expected = {"a": [1.0, None], "3": [2, None], "path": str(tmp_path), "none": None, "yes": True, "ü": "é"}
    assert json.loads(to_json(value)) == expected and "ü" in to_json(value)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda archive: archive.replace(b"\xc3\xa9", b"\xff\xfe"), id="a name that is not UTF-8"),
        pytest.param(lambda archive: archive.replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\x63"), id="a later version"),
        pytest.param(lambda archive: archive[:-9], id="cut"),
    ],
)
def test_a_damaged_archive_is_a_damaged_file(damage, tmp_path):
    path = tmp_path / "a.dscope"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("é", b"x")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole and not is_pickle(path)
    with pytest.raises(CorruptFile):
        diffscope.open(path)
