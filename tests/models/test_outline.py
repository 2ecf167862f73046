"""What a model's files say before it is loaded is what it is once it is loaded; what does not agree is refused before."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import diffscope
from diffscope import CorruptFile, InsufficientMemory, ModelNotFound, UnsupportedModel
from diffscope.models import outline as outlines
from diffscope.models.outline import check_memory, outline
from diffscope.models.settings import Weights, check_counts
from tests.tiny import SHAPE


@pytest.fixture
def folder(tiny_diff_folder, tmp_path):
    return shutil.copytree(tiny_diff_folder, tmp_path / "model")


def rewrite(folder, **fields):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["diffllama", "gpt2"])  # one that ties its head to the embedding
def test_the_memory_is_that_of_the_loaded_model(kind, dtype, tmp_path):
    config = AutoConfig.for_model(kind, **SHAPE, num_attention_heads=4, num_key_value_heads=2)
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(tmp_path)
    model = diffscope.load(tmp_path).model
    loaded = [*model.parameters(), *model.buffers()]
    known = outline(str(tmp_path))
    assert known.nbytes == pytest.approx(sum(tensor.nbytes for tensor in loaded), rel=1e-3)
    assert known.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert known.kind == kind and not known.code


def test_a_checkpoint_is_outlined_by_its_own_weights():
    assert outline("mini-diff@0").parameters == outline("mini-diff").parameters


def test_a_model_larger_than_the_memory_is_refused_before_it_is_made(folder, monkeypatch):
    known = outline(str(folder))
    monkeypatch.setattr(outlines, "free_memory", lambda device: known.nbytes - 1)
    with pytest.raises(InsufficientMemory, match="GiB are free"):
        check_memory(known)
    monkeypatch.setattr(outlines, "free_memory", lambda device: known.nbytes)
    assert check_memory(known) == known.nbytes


def test_weights_of_other_shapes_are_named(folder):
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    save_file(weights | {name: weights[name].T[:, :-1].contiguous()}, folder / "model.safetensors")
    with pytest.raises(CorruptFile, match=rf"do not fit its config.json: {name} is \d+ × \d+, and has to be \d+ × \d+"):
        outline(str(folder))


def test_a_configuration_that_asks_for_more_than_there_is_makes_nothing(folder):
    rewrite(folder, vocab_size=10**9)  # a terabyte, would it be made
    with pytest.raises(UnsupportedModel, match="vocab_size = 1,000,000,000, and at most 10,000,000"):
        outline(str(folder))
    rewrite(folder, vocab_size=64, num_hidden_layers=10**8)
    with pytest.raises(UnsupportedModel, match="num_hidden_layers = 100,000,000"):
        outline(str(folder))
    rewrite(folder, num_hidden_layers="many")
    with pytest.raises(UnsupportedModel, match="cannot be built"):
        outline(str(folder))


def test_a_model_of_an_unknown_kind_needs_code(folder):
    rewrite(folder, model_type="motif", auto_map={"AutoModelForCausalLM": "modeling_motif.Motif"})
    known = outline(str(folder))
    assert known.code == ("modeling_motif.Motif",) and known.nbytes > 0


def test_an_index_names_only_what_lies_beside_it(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}))
    assert outline(str(folder)).parameters
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../model/model-00001-of-00001.safetensors"}}))
    with pytest.raises(CorruptFile, match="not beside it"):
        outline(str(folder))


def test_a_model_of_the_hub_is_outlined_by_its_headers_alone(folder, monkeypatch):
    tensors = load_file(folder / "model.safetensors")
    fields = json.loads((folder / "config.json").read_text())
    header = {name: SimpleNamespace(dtype="F32", shape=list(x.shape), data_offsets=[0, x.nbytes]) for name, x in tensors.items()}
    metadata = SimpleNamespace(files_metadata={"model.safetensors": SimpleNamespace(tensors=header)})
    monkeypatch.setattr(outlines, "get_safetensors_metadata", lambda name: metadata)
    monkeypatch.setattr(outlines.PretrainedConfig, "get_config_dict", lambda name: (fields, {}))
    assert outline("nobody/small").nbytes == outline(str(folder)).nbytes


@pytest.mark.parametrize(
    "raised, words", [(ValueError("no such model"), "not to be had from the hub"), (ConnectionError("off"), "cannot be reached")]
)
def test_what_the_hub_does_not_have_is_one_line(raised, words, monkeypatch):
    def fail(name):
        raise raised

    monkeypatch.setattr(outlines, "get_safetensors_metadata", fail)
    with pytest.raises(ModelNotFound, match=words):
        outline("nobody/nothing")


def test_many_experts_in_few_tensors_are_no_fault(tmp_path):
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    rope = dict(rope_type="default", rope_theta=10000.0)
    config = AutoConfig.for_model("gpt_oss", **SHAPE, **heads, num_local_experts=128, num_experts_per_tok=1, rope_parameters=rope)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert outline(str(tmp_path)).parameters == sum(x.numel() for x in diffscope.load(tmp_path).model.parameters())


def test_the_counts_of_published_mixtures_are_possible():
    fields = {"num_hidden_layers": 32, "num_experts": 16_384}  # Doge, which fuses them
    check_counts("doge", fields, Weights(tensors=400, numbers=10**8))
    with pytest.raises(UnsupportedModel, match="1,000 layers of 2,000 experts, and at most 1,000,000"):
        check_counts("no model", {"num_hidden_layers": 1000, "num_experts": 2000}, Weights(10**4, 10**8))


def test_a_configuration_with_an_infinity_is_read(tmp_path):
    """JSON has no infinity: transformers writes a table in its place, as for the steps of Mamba."""
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_heads=4, head_dim=16, state_size=8, n_groups=1, vocab_size=90)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba2", **sizes)).save_pretrained(tmp_path)
    assert "Infinity" in (tmp_path / "config.json").read_text()
    assert outline(str(tmp_path)).kind == "mamba2"
