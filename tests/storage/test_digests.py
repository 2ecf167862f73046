"""What is kept proves itself: damage is refused in one line, and what carries no digest says so."""

import hashlib
import json
import random
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import diffscope
from benchmarks.corruption import damage, keep_all, without_digests
from diffscope.cards import BUNDLED, CARD_FILE
from diffscope.cli import main
from diffscope.errors import CorruptFile, MissingChecksum
from diffscope.hypotheses.shipped import SHIPPED, shipped
from diffscope.storage.atomic import unfinished_folder
from diffscope.storage.checksum import END, KEY, MARK, SUMS, check_sums, write_sums
from diffscope.storage.statistics import FORMATS, open_statistics, save_statistics
from diffscope.storage.tensors import open_tensors, save_tensors

DIGEST = MARK.decode() + hashlib.sha256(b"").hexdigest()
LIKE_A_DIGEST = f'"{KEY}": "{DIGEST}'


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return keep_all(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def old(kept, tmp_path):
    """A capture and its model, as they were kept before digests were."""
    paths = {kind: tmp_path / kept[kind].name for kind in ("capture", "model")}
    shutil.copyfile(kept["capture"], paths["capture"])
    shutil.copytree(kept["model"], paths["model"])
    without_digests(paths)
    return paths


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_no_damage_goes_unseen_and_none_ends_in_a_traceback(kept):
    counts = damage(kept, 10, random.Random(1))
    assert {end for _, _, end in counts} <= {"unchanged", "refused"} and counts.total() > 9 * len(kept)


@pytest.mark.filterwarnings("ignore::diffscope.MissingChecksum")
def test_without_a_digest_damage_is_warned_of_and_never_a_traceback(kept, tmp_path):
    copies = {kind: tmp_path / path.name for kind, path in kept.items()}
    for kind, path in kept.items():
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copies[kind])
    del copies["model"]  # whose weights nobody can tell from others
    del copies["study"]  # which is refused without its digest
    without_digests(copies)
    counts = damage(copies, 10, random.Random(2))
    ends = {end for _, _, end in counts}
    assert {"refused", "warned"} <= ends <= {"unchanged", "refused", "warned"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_texts_that_look_like_a_digest_do_no_harm(tmp_path, suffix):
    labels = {"token": ("query", [DIGEST, LIKE_A_DIGEST])}
    dataset = xr.Dataset({"x": ("query", np.ones(2), {"note": LIKE_A_DIGEST})}, labels, {"text": LIKE_A_DIGEST})
    save_statistics(dataset, tmp_path / f"statistics{suffix}")
    opened = open_statistics(tmp_path / f"statistics{suffix}")
    assert opened.equals(dataset) and opened.attrs["text"] == LIKE_A_DIGEST and KEY not in opened.attrs
    if suffix == ".parquet":  # whose rows repeat the labels for other programs
        assert pd.read_parquet(tmp_path / "statistics.parquet")["token"].tolist() == [DIGEST, LIKE_A_DIGEST]


def test_a_prompt_that_looks_like_a_digest_does_no_harm(tmp_path):
    save_tensors(tmp_path / "x.dscope", {"q": torch.zeros(3)}, {"text": LIKE_A_DIGEST})
    _, record = open_tensors(tmp_path / "x.dscope", lambda *parts: parts)
    assert record["text"] == LIKE_A_DIGEST and KEY not in record


def test_a_digest_that_cannot_be_read_is_not_taken_for_none(kept, tmp_path):
    for kind in [kind for kind in kept if kind not in ("model", "study")]:
        copy = tmp_path / kept[kind].name
        (shutil.copytree if kept[kind].is_dir() else shutil.copyfile)(kept[kind], copy)
        file = copy / "zarr.json" if copy.is_dir() else copy
        whole = file.read_bytes()
        for part in (MARK, KEY.encode(), END):
            data = whole
            for other in {MARK, KEY.encode(), END} - {part}:
                data = data.replace(other, other.upper())
            file.write_bytes(data)
            with pytest.raises(CorruptFile, match="does not match its digest"):
                diffscope.open(copy)


def test_what_carries_no_digest_says_so_until_it_is_saved_again(old, kept, capsys):
    with pytest.warns(MissingChecksum, match="carries no digest.*save it again"):
        capture = diffscope.open(old["capture"])
    assert main(["measure", str(old["capture"]), "--statistics", "gini", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and printed.err.startswith("warning: ") and "carries no digest" in printed.err
    assert json.loads(printed.out)
    capture.save(old["capture"])
    assert diffscope.open(old["capture"]).measure("gini").equals(diffscope.open(kept["capture"]).measure("gini"))
    assert diffscope.load(old["model"]).n_layers == 2  # of other programs' models nothing is asked


def test_the_command_says_damage_in_one_line(kept, tmp_path, capsys):
    copy = tmp_path / "any name"
    shutil.copyfile(kept["capture"], copy)
    flip_a_bit(copy)
    assert main(["measure", str(copy)]) == 2
    error = capsys.readouterr().err
    assert error == f"error: {copy} is damaged: its content does not match its digest; capture again\n"


@pytest.mark.parametrize(
    "damaged", ["tokenizer.json", "arm/seed-0/config.json", "arm/seed-0/checkpoints/step-3/model.safetensors"]
)
def test_every_folder_that_a_model_is_made_of_is_compared(tiny_diff_folder, tmp_path, damaged):
    run = tmp_path / "arm" / "seed-0"
    for folder, names in {
        tmp_path: ["tokenizer.json", "tokenizer_config.json"],
        run: ["config.json"],
        run / "checkpoints" / "step-3": ["model.safetensors"],
    }.items():
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(tiny_diff_folder / name, folder / name)
        write_sums(folder, names)
    assert diffscope.load(f"{run}@3").tokenizer is not None
    flip_a_bit(tmp_path / damaged)
    with pytest.raises(CorruptFile, match=f"{damaged} is damaged.*or remove SHA256SUMS if you changed it yourself"):
        diffscope.load(f"{run}@3")
    (tmp_path / damaged).unlink()
    with pytest.raises(CorruptFile, match="which its SHA256SUMS names"):
        check_sums((tmp_path / damaged).parent)


def test_all_that_the_package_brings_carries_digests():
    for weights in BUNDLED.rglob("*.safetensors"):
        named = (weights.parent / SUMS).read_text()
        at_home = [name for name in ("config.json", "tokenizer.json", CARD_FILE) if (weights.parent / name).is_file()]
        assert all(f"  {name}\n" in named for name in (weights.name, *at_home))
        check_sums(weights.parent)
    for name in shipped():
        diffscope.open(SHIPPED / name)  # without a warning, which would be an error


def test_a_label_that_is_a_carriage_return_is_kept(tmp_path):
    dataset = xr.Dataset({"mass": ("token", [0.25, 0.75])}, {"token": ["a\r", "\r\n"]})
    save_statistics(dataset, tmp_path / "mass.csv")
    xr.testing.assert_equal(open_statistics(tmp_path / "mass.csv"), dataset)


def test_digests_are_written_beside_another_process_that_writes_them(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    others = unfinished_folder(tmp_path / SUMS)
    others.mkdir()
    write_sums(tmp_path, ["config.json"])
    assert others.is_dir()
    check_sums(tmp_path)
