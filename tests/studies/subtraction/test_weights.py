"""Weights of the study's runs as files: packed as they are kept, opened wherever they are unpacked, refused if damaged."""

import shutil
import zipfile
from dataclasses import replace

import pytest
import torch

import diffscope
from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.lab.training.recipe import Recipe
from studies.subtraction.runs import pack_weights
from tests.lab.small_recipes import COPYING, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    file = folder / "small.toml"
    file.write_text(COPYING)
    train(replace(Recipe.load(str(file)), name="sinks"), "diff", folder / "sinks", seed=0)
    return folder


def test_unpacked_weights_open_with_their_checkpoints(trained, tmp_path):
    unfinished = trained / "sinks" / "weights" / "diff" / ".seed-1.tmp"  # as training leaves it when it is killed
    shutil.copytree(trained / "sinks" / "weights" / "diff" / "seed-0", unfinished, dirs_exist_ok=True)
    assert pack_weights(trained, tmp_path / "out") == {"sinks": 1}
    (archive,) = (tmp_path / "out").iterdir()
    assert archive.name == "diffscope-sinks-weights.zip"
    with zipfile.ZipFile(archive) as packed:
        assert not [name for name in packed.namelist() if ".tmp" in name]
        packed.extractall(tmp_path / "elsewhere")
    place = tmp_path / "elsewhere" / "sinks" / "weights" / "diff" / "seed-0"
    of_run = diffscope.load(trained / "sinks" / "diff" / "seed-0").model.state_dict()
    for name, tensor in diffscope.load(place).model.state_dict().items():
        assert torch.equal(tensor, of_run[name].half().float()), name
    scope = diffscope.load(f"{place}@4")
    assert not torch.equal(scope.model.lm_head.weight, of_run["lm_head.weight"])
    assert scope.capture(diffscope.tasks.examples("copies")[0].text[:20]).n_tokens == 21  # with <bos>


def test_folders_without_weights_and_damaged_weights_are_refused(trained, tmp_path):
    with pytest.raises(DiffscopeError, match="has no weights of finished runs; give one that"):
        pack_weights(tmp_path, tmp_path / "out")
    damaged = shutil.copytree(trained, tmp_path / "damaged")
    kept = damaged / "sinks" / "weights" / "diff" / "seed-0" / "checkpoints" / "step-000004" / "model.safetensors"
    kept.write_bytes(kept.read_bytes()[:-4] + b"\0\1\2\3")
    with pytest.raises(CorruptFile):
        pack_weights(damaged, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
