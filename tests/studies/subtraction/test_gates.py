"""What became of λ is measured of models, and refused without them."""

import json
import math
import sys

import numpy as np
import pytest
import torch
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.storage.statistics import save_statistics
from diffscope.tasks import Backcopy
from diffscope.tasks.prompt import Prompt
from studies.subtraction import evidence, gates
from studies.subtraction.train import recipe_of


def saved(folder, lam):
    """A model of one layer whose maps are both uniform, so that a row of max(A1 − λ·A2, 0) is 0 if λ is 1 or more."""
    task = Backcopy()
    sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    torch.manual_seed(0)
    model = DiffForCausalLM(
        DiffConfig(
            attention="d_plus",
            max_position_embeddings=64,
            vocab_size=len(task.tokenizer),
            bos_token_id=0,
            eos_token_id=0,
            **sizes,
        )
    )
    attention = model.model.layers[0].self_attn
    torch.nn.init.zeros_(attention.q_proj.weight)
    # λ = exp(q1 · k1) − exp(q2 · k2) + λ_init
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        torch.nn.init.zeros_(getattr(attention, name))
    with torch.no_grad():
        attention.lambda_q1[0] = 1.0
        attention.lambda_k1[0] = math.log(lam - attention.lambda_init + 1)
    model.save_pretrained(folder)
    task.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("lam", "empty"), [(0.9, 0.0), (3.0, 1.0)])
def test_rows_are_empty_if_a_larger_part_is_subtracted_than_there_is(tmp_path, monkeypatch, lam, empty):
    monkeypatch.setattr(evidence, "COUNT", 2)
    found = gates.of_model("sinks", saved(tmp_path, lam), 0, recipe_of("sinks"))
    assert found.pop("lambda") == pytest.approx([lam], rel=1e-5)
    assert found == {"dormant": empty, "triggers": empty}


def test_lambda_is_read_of_the_checkpoints_along_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "COUNT", 2)
    monkeypatch.setattr(gates, "ALONG", ("sinks",))
    saved(tmp_path, 0.9)
    for step, lam in {5: 0.2, 40: 0.6}.items():
        saved(tmp_path / "checkpoints" / f"step-{step}", lam)
    found = gates.of_model("sinks", tmp_path, 0, recipe_of("sinks"))
    assert found["along"] == {"5": pytest.approx([0.2], rel=1e-5), "40": pytest.approx([0.6], rel=1e-5)}


def test_a_row_of_the_course_has_the_range_over_models_of_each_layer():
    models = [{"along": {"5": [0.1, 0.3], "40": [-0.2, lam]}, "lambda": [-0.2, lam]} for lam in (0.4, 0.8)]
    models[0]["along"]["30"] = [0.0, 0.0]  # at which one of them ended
    rows = gates.course({"plus": models}).splitlines()
    assert rows[2:] == ["| plus | 5 | 0.10 | 0.30 |", "| plus | 40 | −0.20 | 0.40 to 0.80 |"]


def test_a_folder_without_the_models_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "FILE", tmp_path / "gates.json")
    monkeypatch.setattr(sys, "argv", ["gates", "sinks", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match=r"^error: no model is in .*sinks; train them with: python -m .*--part sinks$"):
        gates.main()
    assert not gates.FILE.exists()


def test_a_row_has_the_mean_and_the_range_over_models():
    models = [{"lambda": [lam], "dormant": lam / 10, "triggers": 0.0, "same": lam > 2} for lam in (2.0, 8.0)]
    row = gates.table("sinks", {"d-plus": models}).splitlines()[2]
    assert row == "| d-plus | 2 | 1 | 2.0 to 8.0 | 50 % (20 % to 80 %) | 0 % (0 %) |"


def test_models_that_are_found_take_the_place_of_what_was_known_of_their_seeds_alone():
    known = {"diff": [{"seed": 0, "lambda": [0.1]}, {"seed": 2, "lambda": [0.2]}]}
    merged = gates.merged(known, {"diff": [{"seed": 1, "lambda": [0.3]}, {"seed": 2, "lambda": [0.4]}], "plus": []})
    assert merged == {"diff": [{"seed": seed, "lambda": [lam]} for seed, lam in enumerate((0.1, 0.3, 0.4))], "plus": []}


def test_only_models_that_were_trained_are_asked_for_and_all_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "FILE", tmp_path / "gates.json")
    gates.FILE.write_text(json.dumps({"lookup": {"diff": [{"seed": 0}, {"seed": 2}]}}))  # 1 diverged
    assert gates.read("lookup", {"diff": [0, 2]}) == {"diff": [{"seed": 0}, {"seed": 2}]}
    for trained in ({"diff": [0, 1, 2]}, {"diff": [0, 2], "plus": [0]}):
        with pytest.raises(DiffscopeError, match="not of all models of"):
            gates.read("lookup", trained)


def test_each_layer_and_kind_of_queries_has_its_column():
    models = [{"seed": seed, "lambda": [seed, -1.5], gates.ALL: 0.25, gates.ANSWERING: 0.75, "same": True} for seed in (1, 2)]
    assert (
        gates.table("lookup", {"plus": models}).splitlines()[2]
        == "| plus | 2 | 2 | 1.0 to 2.0 | −1.5 | 25 % (25 %) | 75 % (75 %) |"
    )


@pytest.mark.parametrize(
    ("read", "same"),
    [
        ({10: 1.0, 20: 0.5}, True),
        ({10: 1.0, 20: 0.5, 30: np.nan}, True),
        ({10: 1.0, 20: 0.51}, False),
        ({10: 1.0, 30: 0.5}, False),
    ],
)
def test_a_model_is_the_one_that_was_read_if_it_has_the_same_losses_at_the_same_steps(tmp_path, read, same):
    def curve(losses):
        return xr.DataArray(list(losses.values()), {"step": list(losses)}, "step")

    save_statistics(xr.Dataset({"answer_loss": curve({10: 1.0, 20: 0.5})}), tmp_path / "scores.nc")
    assert gates.alike(tmp_path, curve(read)) is same


def test_losses_are_those_that_the_training_lowers():
    losses = xr.Dataset({"answer_loss": ("step", [np.nan, np.nan]), "text_loss": ("step", [3.0, 2.0])})
    assert gates.lowered(losses).values.tolist() == [3.0, 2.0]


@pytest.mark.parametrize(("queries", "places"), [(gates.ALL, [0, 1, 2, 3]), (gates.ANSWERING, [3]), ("triggers", [1])])
def test_queries_are_those_of_their_name(queries, places):
    assert list(gates.at(Prompt(ids=[5, 6, 7, 8], answer=[9], spans={"triggers": [1]}), queries)) == places
