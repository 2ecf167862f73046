"""Gradients on the maps of the last query: against Hugging Face's own attention weights, and against finite differences."""

import pytest
import torch

import diffscope
from diffscope import edits
from diffscope.errors import PromptError, UnsupportedModel
from diffscope.evidence.gradients import last_rows
from tests import tiny

IDS = [list(range(3, 23)), list(range(40, 60))]
TARGETS = [7, 9]


def test_gradients_are_those_of_eager_attention_weights():
    """Llama's attention weights are leaves that the loss reaches: their gradient at the last query is ours."""
    model = tiny.standard("llama").double()
    model.set_attn_implementation("eager")
    rows = last_rows(diffscope.load(model), IDS, TARGETS)
    out = model(torch.tensor(IDS), output_attentions=True, use_cache=False)
    loss = torch.nn.functional.cross_entropy(out.logits[:, -1], torch.tensor(TARGETS), reduction="sum")
    for row, attention, wanted in zip(rows, out.attentions, torch.autograd.grad(loss, out.attentions)):
        torch.testing.assert_close(row.a1, attention[:, :, -1].detach(), rtol=0, atol=1e-6)  # its softmax is in float32
        torch.testing.assert_close(row.gradient, wanted[:, :, -1], rtol=1e-5, atol=1e-5)
        assert row.a2 is None and torch.equal(row.a1, row.d)


@pytest.mark.parametrize("attention", ["v1", "v2", "plus", "d_plus", "shared_a2"])
def test_gradients_say_what_a_small_change_of_lambda_does(attention):
    """In the last layer the loss sees the last query alone: dL/dλ = −Σ A2·∂L/∂(A1 − λ·A2)."""
    scope = diffscope.load(tiny.own(attention, vocab_size=64).double().eval())
    layer = scope.layer_numbers[-1]
    head = 1
    step = 1e-2
    row = last_rows(scope, IDS, TARGETS)[-1]

    def losses(factor):
        with scope.edit(edits.scale_lambda(factor, layers=layer, heads=head)):
            logits = scope.logits(torch.tensor(IDS), 1)[:, 0]
        return torch.nn.functional.cross_entropy(logits, torch.tensor(TARGETS), reduction="none")

    kinks = attention == "d_plus"  # weights that reach 0 within the step
    near = dict(rtol=2e-2, atol=5e-5) if kinks else dict(rtol=1e-3, atol=1e-5)
    wanted = (losses(1 + step) - losses(1 - step)) / (2 * step)
    torch.testing.assert_close(-row.lam[:, head] * (row.a2 * row.pull).sum(-1)[:, head], wanted, **near)  # norms are in float32


def test_nothing_is_left_behind_and_what_cannot_be_done_is_said():
    model = tiny.own("v1", vocab_size=64).eval()
    scope = diffscope.load(model)
    last_rows(scope, IDS, TARGETS)
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    with pytest.raises(PromptError, match="one length"):
        last_rows(scope, [IDS[0], IDS[1][:-1]], TARGETS)
    with pytest.raises(UnsupportedModel, match="frozen"):
        last_rows(diffscope.load(model.requires_grad_(False)), IDS, TARGETS)
