"""Whatever is done with two scopes of one model, and in whatever order: it gives what a model gives that was changed by hand."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import diffscope
from diffscope import DiffscopeError, edits
from tests import tiny
from tests.wrappings import state

LAYERS = HEADS = 2
IDS = tiny.ids(9)
places = st.sampled_from([None, 0, 1])
numbers = st.sampled_from([-0.5, 0.0, 0.25, 1.0, 2.0])
one_edit = st.tuples(st.sampled_from(["set", "scale", "zero", "ablate"]), numbers, places, places)
MADE = {
    "set": lambda number, **at: edits.set_lambda(number, **at),
    "scale": lambda number, **at: edits.scale_lambda(number, **at),
    "zero": lambda number, **at: edits.zero_a2(**at),
    "ablate": lambda number, **at: edits.ablate_heads(**at),
}


class Changed:
    """A twin of the model in which λ and the heads are changed by hand, in the modules themselves."""

    def __init__(self, model):
        self.model = copy.deepcopy(model)
        self.edits = []
        for number, layer in enumerate(self.model.model.layers):
            self._change(number, layer.self_attn)

    def _change(self, number, attention):
        attend, own_lam = attention.mix, attention.lam

        def of(*kinds):
            for kind, value, layers, heads in self.edits:
                if kind in kinds and layers in (None, number):
                    yield kind, value, slice(None) if heads is None else heads

        def lam():
            by_head = own_lam().expand(HEADS, 1).clone()
            for kind, value, heads in of("set", "scale"):
                by_head[heads] = value if kind == "set" else value * by_head[heads]
            for _, _, heads in of("zero"):
                by_head[heads] = 0.0
            return by_head

        def mix(*args, **kwargs):
            out, weights = attend(*args, **kwargs)  # (batch, query, head, width)
            silent = torch.zeros(HEADS, 1, dtype=torch.bool)
            for _, _, heads in of("ablate"):
                silent[heads] = True
            out = out.masked_fill(silent, 0.0)
            return (out.detach() if any(of(*MADE)) else out), weights

        attention.lam, attention.mix = lam, mix

    def lam(self):
        """λ as a capture shows it, of which an A2 of zeros takes nothing away; (layer, head)."""
        of_all, self.edits = self.edits, [edit for edit in self.edits if edit[0] != "zero"]
        with torch.no_grad():
            lam = torch.stack([layer.self_attn.lam()[:, 0] for layer in self.model.model.layers])
        self.edits = of_all
        return lam.numpy()


class EditedAtRandom(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.model = tiny.own("v1", heads=HEADS, num_hidden_layers=LAYERS).double()
        self.twin = Changed(self.model)
        self.scopes = [diffscope.load(self.model), diffscope.load(self.model)]
        self.before = self.seen()
        self.open, self.training = [], False

    def seen(self):
        """All that an edit could leave behind, but for weights and the generator of random numbers."""
        return {name: value for name, value in state(self.model).items() if name.split()[0] in ("interface", "module", "config")}

    def expected(self):
        with torch.no_grad():
            return self.twin.model(torch.tensor([IDS])).logits[0]

    @rule(which=st.integers(0, 1), several=st.lists(one_edit, max_size=3))
    def opening(self, which, several):
        made = [MADE[kind](number, layers=layers, heads=heads) for kind, number, layers, heads in several]
        block = self.scopes[which].edit(*made)
        block.__enter__()
        self.open.append((block, several, made))
        self.twin.edits = [edit for _, of_block, _ in self.open for edit in of_block]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def closing(self, data):
        block, _, _ = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        block.__exit__(None, None, None)
        self.twin.edits = [edit for _, of_block, _ in self.open for edit in of_block]

    @rule()
    def bare_call(self):
        with torch.no_grad():
            logits = self.model(torch.tensor([IDS])).logits[0]
        assert torch.allclose(logits, self.expected(), rtol=0, atol=1e-8)

    @rule(which=st.integers(0, 1), batch=st.booleans())
    def capture(self, which, batch):
        capture = self.scopes[which].capture([IDS, IDS[:4]] if batch else IDS)
        lam = capture.lam.isel(prompt=1) if batch else capture.lam
        assert np.allclose(lam, self.twin.lam(), atol=1e-6) and float(capture.fidelity.error.max()) < 1e-10
        names = "; ".join(str(each) for _, _, made in self.open for each in made)
        assert capture.facts.get("edits", "") == names
        following = capture.next[0] if batch else capture.next
        best = self.expected()[-1].float().softmax(-1).topk(3)
        assert np.allclose([p for _, p in following[:3]], best.values, atol=1e-6)

    @rule(which=st.integers(0, 1))
    def loss(self, which):
        expected = torch.nn.functional.cross_entropy(self.expected()[:-1], torch.tensor(IDS[1:]))
        assert self.scopes[which].loss(IDS) == pytest.approx(float(expected), rel=1e-5)

    @rule(which=st.integers(0, 1), count=st.integers(1, 3))
    def generate(self, which, count):
        ids = list(IDS)
        for _ in range(count):
            with torch.no_grad():
                ids.append(int(self.twin.model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert self.scopes[which].generate(IDS, count) == " ".join(map(str, ids[len(IDS) :]))

    @rule(data=st.data())
    def backward_after_more(self, data):
        """What was computed keeps its gradient, whatever is opened or closed before it is asked for."""
        got, expected = (each(torch.tensor([IDS])).logits.square().mean() for each in (self.model, self.twin.model))
        if self.open and data.draw(st.booleans()):
            self.closing(data)
        for model, value in ((self.model, got), (self.twin.model, expected)):
            model.zero_grad()
            value.backward()
        for (name, own), other in zip(self.model.named_parameters(), self.twin.model.parameters()):
            assert (own.grad is None) == (other.grad is None), name
            assert own.grad is None or torch.allclose(own.grad, other.grad, rtol=1e-6, atol=1e-8), name

    @rule(seed=st.integers(0, 3))
    def training_step(self, seed):
        for model in (self.model, self.twin.model):
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.02)

    @rule(training=st.booleans())
    def mode(self, training):
        self.training = training
        self.model.train(training)

    @rule(which=st.integers(0, 1))
    def failure(self, which):
        scope = self.scopes[which]
        with pytest.raises(DiffscopeError, match="no head 7"), scope.edit(edits.zero_a2(heads=7)):
            scope.capture(IDS)
        with pytest.raises(ZeroDivisionError), scope.edit(edits.uniform_a2()):
            raise ZeroDivisionError

    @rule()
    def copied(self):
        copied = copy.deepcopy(self.scopes[0])
        of_all, self.twin.edits = self.twin.edits, []
        with torch.no_grad():
            assert torch.allclose(copied.model(torch.tensor([IDS])).logits[0], self.expected(), rtol=0, atol=1e-8)
        self.twin.edits = of_all

    @invariant()
    def nothing_is_left(self):
        assert {part.training for part in self.model.modules()} == {self.training}
        if not any(several for _, several, _ in self.open) and not self.training:
            assert self.seen() == self.before

    def teardown(self):
        for block, _, _ in self.open:
            block.__exit__(None, None, None)
        self.model.eval()
        assert self.seen() == self.before


TestEditedAtRandom = EditedAtRandom.TestCase
TestEditedAtRandom.settings = settings(max_examples=8, stateful_step_count=16)
