"""A block of edits acts from its entry to its exit, whatever else is opened, closed, copied or fails meanwhile."""

import copy
import io
import itertools
import pickle
import threading
from contextlib import ExitStack
from functools import cache

import pytest
import torch
from torch import nn

import diffscope
from diffscope import DiffscopeError, DiffscopeWarning, UnsupportedModel, edits
from diffscope.families.bundled import Bundled
from tests import tiny
from tests.wrappings import state

pytestmark = pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated:FutureWarning")

IDS = tiny.ids(12)
THREE = (edits.scale_lambda(0.5), edits.set_lambda(0.8, layers=1), edits.scale_lambda(3.0, heads=[0, 2]))


@pytest.fixture
def model():
    return tiny.own("v2")


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0]


@cache
def logits_under(*made):
    """The logits of a model that nobody else has touched, under one block of edits."""
    model = tiny.own("v2")
    with diffscope.load(model).edit(*made):
        return logits_of(model)


# Order


@pytest.mark.parametrize("starts", [(0, 1, 2), (2, 0, 1)], ids=str)
def test_blocks_are_closed_in_any_order(model, starts):
    first, second = diffscope.load(model), diffscope.load(model)
    before = state(model)
    for ends in itertools.permutations(range(3)):
        blocks = {number: (first, second)[number % 2].edit(THREE[number]) for number in starts}
        for block in blocks.values():
            block.__enter__()
        for number in ends:
            now = [THREE[each] for each in blocks]
            assert torch.equal(logits_of(model), logits_under(*now))
            assert first.capture(IDS).facts["edits"] == "; ".join(map(str, now)) and str(now[-1]) in repr(second)
            blocks.pop(number).__exit__(None, None, None)
        assert state(model) == before and torch.equal(logits_of(model), logits_under())
        assert "edits" not in second.capture(IDS).facts


def test_models_that_share_a_configuration_or_a_part_are_edited_in_any_order():
    """What is observed is written into the configuration."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = tiny.own("v2")
            self.two = tiny.own("v2")
            self.two.config = self.two.model.config = self.one.config
            for layer in self.two.model.layers:
                layer.self_attn.config = self.one.config

    for ends in itertools.permutations(range(2)):
        pair = Pair()
        before = state(pair)
        blocks = [diffscope.load(part).edit(THREE[0]) for part in (pair.one, pair.two)]
        for block in blocks:
            block.__enter__()
        for number in ends:
            assert torch.equal(logits_of([pair.one, pair.two][number]), logits_under(THREE[0]))
            blocks[number].__exit__(None, None, None)
            assert torch.equal(logits_of([pair.one, pair.two][number]), logits_under())
        assert state(pair) == before


def test_blocks_may_be_used_again_as_decorators_and_in_stacks(model):
    scope = diffscope.load(model)
    block = scope.edit(THREE[0])
    for _ in range(2):
        with block:
            assert torch.equal(logits_of(model), logits_under(THREE[0]))

    @scope.edit(THREE[0])
    def nested(times):
        return nested(times - 1) if times else logits_of(model)

    assert torch.equal(nested(0), logits_under(THREE[0])) and torch.equal(nested(1), logits_under(THREE[0], THREE[0]))
    with ExitStack() as stack:
        stack.enter_context(block)
        with pytest.raises(DiffscopeError, match="open already; close it first"):
            block.__enter__()
        assert torch.equal(logits_of(model), logits_under(THREE[0]))
    with pytest.raises(DiffscopeError, match="is not open; open and close it in one thread"):
        block.__exit__(None, None, None)
    assert torch.equal(logits_of(model), logits_under())


def test_an_error_closes_its_block_and_no_other(model):
    scope = diffscope.load(model)
    before = state(model)
    outer = scope.edit(THREE[0])
    with pytest.raises(ZeroDivisionError), scope.edit(THREE[1]):
        outer.__enter__()
        raise ZeroDivisionError
    assert torch.equal(logits_of(model), logits_under(THREE[0]))
    with pytest.raises(DiffscopeError, match="no layer 7"):
        scope.edit(edits.zero_a2(layers=7))
    with pytest.raises(DiffscopeError, match="no head 7"), scope.edit(edits.zero_a2(heads=7)):
        logits_of(model)  # within the forward
    assert torch.equal(logits_of(model), logits_under(THREE[0]))
    outer.__exit__(None, None, None)
    assert state(model) == before and torch.equal(logits_of(model), logits_under())


def test_a_generator_that_nobody_finishes_closes_its_block(model):
    scope = diffscope.load(model)
    before = state(model)

    def within(edit):
        with scope.edit(edit):
            yield

    abandoned, held = within(THREE[0]), within(THREE[1])
    next(abandoned), next(held)
    del abandoned
    assert torch.equal(logits_of(model), logits_under(THREE[1]))
    held.close()
    assert state(model) == before and not scope.lock._is_owned()


def test_a_block_that_nobody_holds_is_closed_with_a_warning(model):
    """``scope.edit(...).__enter__()`` alone would be an edit that acts on nothing, in silence."""
    scope = diffscope.load(model)
    before = state(model)
    with pytest.warns(DiffscopeWarning, match=r"open block of edits \(λ × 0.5\) any more, which closed it; use `with"):
        scope.edit(THREE[0]).__enter__()
    stack = ExitStack()
    stack.enter_context(scope.edit(THREE[1]))
    with pytest.warns(DiffscopeWarning, match="which closed it"):
        del stack
    assert state(model) == before and not scope.lock._is_owned()


def test_another_thread_cannot_close_a_block(model):
    scope = diffscope.load(model)
    block = scope.edit(THREE[0])
    said = []

    def close():
        try:
            block.__exit__(None, None, None)
        except DiffscopeError as error:
            said.append(str(error))

    with block:
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        assert torch.equal(logits_of(model), logits_under(THREE[0]))
    assert "was opened by another thread, which alone can close it" in said[0] and "\n" not in said[0]


def test_layers_are_not_edited_by_two_families_at_once(model):
    class Another(Bundled):
        name = "another"

    scope, other = diffscope.load(model), diffscope.load(model, family=Another())
    with scope.edit(THREE[0]):
        for use in (lambda: other.edit(THREE[1]).__enter__(), lambda: other.capture(IDS)):
            with pytest.raises(DiffscopeError, match="edits that read its layers as family 'diffscope', and .* 'another'; close"):
                use()
        assert torch.equal(logits_of(model), logits_under(THREE[0]))
    with other.edit(THREE[0]):
        assert torch.equal(logits_of(model), logits_under(THREE[0]))


class One(Bundled):
    """The attention of one layer alone."""

    def __init__(self, layer):
        self.name = f"layer {layer}"
        self.layer = layer

    def modules(self, model):
        return super().modules(model)[self.layer : self.layer + 1]


@pytest.mark.filterwarnings("ignore:.*without attention that diffscope reads:diffscope.DiffscopeWarning")
@pytest.mark.parametrize("ends", [(0, 1), (1, 0)], ids=str)
def test_layers_of_two_families_are_each_edited_by_their_own(model, ends):
    scopes = [diffscope.load(model, family=One(layer)) for layer in (0, 1)]
    before = state(model)
    made = [edits.set_lambda(0.8, layers=0), edits.scale_lambda(0.5, layers=1)]
    blocks = [scope.edit(edit) for scope, edit in zip(scopes, made)]
    for block in blocks:
        block.__enter__()
    assert torch.equal(logits_of(model), logits_under(*made))
    for scope, layer in zip(scopes, (0, 1)):
        capture = scope.capture(IDS)
        assert capture.facts["edits"] == "; ".join(map(str, made))
        with diffscope.load(copy.deepcopy(model)).edit(*made) as alone:
            assert capture.map("D", layer, 1).equals(alone.capture(IDS).map("D", layer, 1))
    blocks[ends[0]].__exit__(None, None, None)
    assert torch.equal(logits_of(model), logits_under(made[ends[1]]))
    blocks[ends[1]].__exit__(None, None, None)
    assert state(model) == before


@pytest.mark.filterwarnings("ignore:.*without attention that diffscope reads:diffscope.DiffscopeWarning")
def test_a_proof_in_float32_is_of_its_own_prompt_under_edits_of_another_family(model):
    def errors(model, *prompts):
        edited, captured = (diffscope.load(model, family=One(layer)) for layer in (0, 1))
        with edited.edit(edits.set_lambda(0.5, layers=0)):
            return [float(captured.capture(ids).fidelity.error_float32[0]) for ids in prompts]

    model.to(torch.bfloat16)
    alone = [errors(copy.deepcopy(model), ids)[0] for ids in (IDS, IDS[::-1])]
    assert errors(model, IDS, IDS[::-1]) == alone and alone[0] != alone[1]


def test_what_is_compiled_is_run_as_written_until_the_last_block_is_closed():
    """torch has one such setting for all models and threads, which two contexts left in another order would leave set."""
    ran = []

    def backend(graph, inputs):
        ran.append(graph)
        return graph.forward

    model = torch.compile(tiny.own("v2", num_hidden_layers=1), backend=backend)
    blocks = [diffscope.load(each).edit(THREE[0]) for each in (model, tiny.own("v2"))]
    for block in blocks:
        block.__enter__()
    blocks[0].__exit__(None, None, None)
    logits_of(model)
    assert not ran
    blocks[1].__exit__(None, None, None)
    logits_of(model)
    assert ran


# Copies


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_a_copy_of_an_edited_model_is_a_model_without_edits(model, copied):
    scope = diffscope.load(model)
    with scope.edit(THREE[0]):
        twin = copied(model)
        assert torch.equal(logits_of(twin), logits_under())
        with diffscope.load(twin).edit(THREE[1]):
            assert torch.equal(logits_of(twin), logits_under(THREE[1]))
            assert torch.equal(logits_of(model), logits_under(THREE[0]))
    assert torch.equal(logits_of(twin), logits_under()) and twin.config._attn_implementation == "sdpa"
    alone = copied(model)
    assert torch.equal(logits_of(alone), logits_under())
    assert diffscope.load(twin).capture(IDS).map("D", 1, 2).equals(scope.capture(IDS).map("D", 1, 2))


def test_a_copy_made_while_a_capture_runs_works(model):
    twins = []
    handle = model.model.layers[1].register_forward_hook(lambda *_: twins.append(copy.deepcopy(model)))
    capture = diffscope.load(model).capture(IDS)
    handle.remove()
    (twin,) = twins
    twin.model.layers[1]._forward_hooks.popitem()  # ours, which is copied as any is
    assert torch.equal(logits_of(twin), logits_under())
    assert diffscope.load(twin).capture(IDS).map("D", 1, 2).equals(capture.map("D", 1, 2))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_scope_is_one_of_a_copied_model(model, copied):
    scope = diffscope.load(model, tiny.tokenizer())
    with scope.edit(THREE[0]):
        twin = copied(scope)
        assert torch.equal(logits_of(twin.model), logits_under())
    assert twin.model is not model and twin.name == scope.name and twin.family.name == scope.family.name
    assert twin.capture("The code").tokens == scope.capture("The code").tokens
    assert copy.copy(scope).model is model


# Gradient checkpointing


def gradients(model, loss):
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def whole_model(reentrant):
    """The loss of a model that is one checkpoint, whose forward is run without gradients where it is reentrant."""

    def loss(model):
        given = model.model.embed_tokens(torch.tensor([IDS]))
        return torch.utils.checkpoint.checkpoint(
            lambda x: model(inputs_embeds=x, labels=torch.tensor([IDS])).loss, given, use_reentrant=reentrant
        )

    return loss


def by_layers(reentrant):
    def loss(model):
        model.train().gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model(torch.tensor([IDS]), labels=torch.tensor([IDS]), use_cache=False).loss

    return loss


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("loss_by", [whole_model, by_layers])
def test_edits_that_a_checkpoint_would_run_again_are_refused(model, loss_by, reentrant):
    scope, loss_of = diffscope.load(model), loss_by(reentrant)
    plain = gradients(model, loss_of(model))
    model.zero_grad()
    refused = pytest.raises(UnsupportedModel, match=r"under gradient checkpointing, .*; turn it off, or run .* torch.no_grad")
    with refused as raised, scope.edit(THREE[0]):
        loss_of(model)  # the backward pass would be another's after the block
    assert "\n" not in str(raised.value)
    loss = loss_of(model)
    with refused, scope.edit(THREE[0]):
        loss.backward()  # of a forward pass without the edit
    model.zero_grad()
    after = gradients(model, loss_of(model))
    assert all(torch.equal(after[name], grad) for name, grad in plain.items())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_a_checkpointed_model_is_edited_where_nothing_is_run_again(model):
    scope = diffscope.load(model)
    model.train().gradient_checkpointing_enable({"use_reentrant": True})
    with scope.edit(THREE[0]):
        assert torch.equal(logits_of(model), logits_under(THREE[0]))
        assert scope.capture(IDS).facts["edits"] == str(THREE[0])
        assert scope.loss(IDS) > 0


# Models without weights


def test_a_model_without_weights_is_one_line_wherever_it_is_run():
    scope = diffscope.load(tiny.own("v2").to("meta"), tiny.tokenizer())
    uses = {
        "capture": lambda: scope.capture("The code"),
        "measure": lambda: scope.measure("The code"),
        "generate": lambda: scope.generate("The code"),
        "loss": lambda: scope.loss("The code"),
        "answer": lambda: scope.answer("The code", " of"),
        "edit": lambda: scope.edit(THREE[0]).__enter__(),
        "check": lambda: diffscope.check(scope.model),
    }
    for use in uses.values():
        with pytest.raises(DiffscopeError, match="offloaded, or on the meta device; use a device_map") as raised:
            use()
        assert "\n" not in str(raised.value)
    assert not scope.lock._is_owned()
