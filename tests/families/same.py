"""What is asked of every family: its cached steps, its edits and what it keeps are those of the layout."""

import torch
from transformers import DynamicCache

import diffscope
from diffscope import edits
from diffscope.families.hooks import attention_passes
from diffscope.proof.prove import prove_passage


@torch.no_grad()
def cached_steps_see_the_whole_prompt(model, ids, sizes=(20, 1, 1, 5, 6), cache=None, masked=False):
    """Decode in steps of some sizes: every layer of every step proves itself, and its rows are those of one pass."""
    scope, begin = diffscope.load(model), 0
    whole, cache = scope.capture(ids).layers, DynamicCache() if cache is None else cache
    for size in sizes:
        steps, end = [], begin + size
        argument = {"attention_mask": torch.ones(1, end)} if masked else {}
        with attention_passes(model, scope.family, None, steps.append):
            model(torch.tensor([ids[begin:end]]), past_key_values=cache, use_cache=True, **argument)
        for passage, layer in zip(steps, whole, strict=True):
            step = prove_passage(scope.family, passage)[0]
            assert step.n_queries == size and step.layer == layer.layer
            assert step.n_keys == end or step.mask.kind == "window"
            now, then = step.rows(), layer.rows(slice(begin, end))
            for seen, full in ((now.a1, then.a1), (now.a2, then.a2), (now.d, then.d)):
                assert seen is full is None or torch.allclose(seen, full[..., end - step.n_keys : end], atol=1e-5)
            assert torch.allclose(now.lam, then.lam, atol=1e-6)
            assert torch.allclose(step.output(), layer.output(slice(begin, end)), atol=1e-4)
        begin = end


@torch.no_grad()
def a_set_lambda_is_that_of(other, model, ids, count=8):
    """With λ edited to 0.3 a model gives the logits and the text of `other`, whose λ really is 0.3."""
    scope, batch = diffscope.load(model), torch.tensor([ids])
    plain, expected = model(batch).logits, other(batch).logits
    before = scope.generate(ids[:15], count)
    with scope.edit(edits.set_lambda(0.3)):
        edited, text = model(batch).logits, scope.generate(ids[:15], count)
    assert (plain - expected).abs().max() > 0.1 and torch.allclose(edited, expected, atol=1e-3)
    assert text == diffscope.load(other).generate(ids[:15], count)
    assert scope.generate(ids[:15], count) == before


@torch.no_grad()
def what_is_kept_outlives_the_weights(model, ids):
    layers = diffscope.load(model).capture(ids).layers
    before = [layer.output() for layer in layers]
    for parameter in model.parameters():
        parameter.mul_(2)
    assert all(torch.equal(layer.output(), out) for layer, out in zip(layers, before, strict=True))
