"""A capture under edits is proved once: the layer against what the model computed, the edited output by what enters next."""

import pytest
import torch

import diffscope
from diffscope import FidelityError, edits
from diffscope.proof import prove
from diffscope.proof.fidelity import fidelities
from tests import tiny
from tests.layouts import planted

pytestmark = pytest.mark.usefixtures("no_causes")

IDS = tiny.ids(30)
CHANGES = {
    "field": edits.set_lambda(0.3, layers=1),
    "rows": edits.uniform_a2(layers=1),
    "output": edits.ablate_heads(layers=1, heads=0),
}


@pytest.mark.parametrize("edit", CHANGES.values(), ids=CHANGES)
def test_each_layer_is_rebuilt_once_under_edits(edit, monkeypatch):
    rebuilt = []

    def counted(layers, observed, *args, **kwargs):
        rebuilt.extend(layer.layer for layer in layers)
        return fidelities(layers, observed, *args, **kwargs)

    monkeypatch.setattr(prove, "fidelities", counted)
    scope = diffscope.load(tiny.own("v2"))
    plain = scope.capture(IDS).fidelity
    assert sorted(rebuilt) == [0, 1]
    rebuilt.clear()
    with scope.edit(edit):
        edited = scope.capture(IDS).fidelity
    assert sorted(rebuilt) == [0, 1]
    # the layer is proved on what the model computed before the edit, which is the same computation
    assert float(abs(edited.error - plain.error).max()) < 2e-7 and edited.drop_vars("error").equals(plain.drop_vars("error"))


@pytest.mark.parametrize("edit", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("mistake", ["λ × 1.05", "scores × 1.05", "eps of the norm"])
def test_a_layer_that_is_misread_is_refused_under_edits(edit, mistake):
    scope = diffscope.load(planted.tiny(mistake))
    with scope.edit(edit), pytest.raises(FidelityError, match="layer [01]"):
        scope.capture(IDS)


def planted_after(scope, change):
    """Change what enters the output projection of layer 1 after the edits, and before a capture sees it."""
    projection = scope.model.model.layers[1].self_attn.o_proj
    return projection.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]))


def one_row(out):
    out = out.clone()
    out[:, 7, 3] += 0.01 * out.abs().max()
    return out


WRONG = {
    "scaled": lambda out: 1.001 * out,
    "one element of one row": one_row,
    "heads swapped": lambda out: out.unflatten(-1, (2, -1)).flip(-2).flatten(-2),
    "not finite": lambda out: out * torch.nan,
    "in place": lambda out: out.mul_(1.001),
}


@pytest.mark.parametrize("edit", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_changes_an_edited_output_is_refused(edit, wrong):
    scope = diffscope.load(tiny.own("v2", heads=2))
    with scope.edit(edit):
        hook = planted_after(scope, wrong)
        with pytest.raises(FidelityError, match="layer 1"):
            scope.capture(IDS)
        hook.remove()
        assert scope.capture(IDS).fidelity.decided.all()


def test_a_change_in_place_of_what_no_edit_changed_is_refused():
    scope = diffscope.load(tiny.own("v2"))
    with scope.edit(edits.ablate_heads(layers=0)):
        planted_after(scope, WRONG["in place"])
        with pytest.raises(FidelityError, match="layer 1"):
            scope.capture(IDS)


def test_a_change_within_rounding_of_an_edited_output_is_none():
    scope = diffscope.load(tiny.own("v2"))
    with scope.edit(edits.uniform_a2()):
        planted_after(scope, lambda out: out * (1 + 2e-7))
        assert scope.capture(IDS).fidelity.decided.all()


def test_a_change_of_one_prompt_of_an_edited_batch_is_refused():
    scope = diffscope.load(tiny.own("v2"))
    with scope.edit(edits.uniform_a2(layers=1)):
        alone = scope.capture([IDS, IDS[:11]])
        hook = planted_after(scope, one_row)
        with pytest.raises(FidelityError, match="layer 1"):
            scope.capture([IDS, IDS[:11]])
        hook.remove()
    assert (alone.fidelity.error <= alone.fidelity.tolerance).all()
