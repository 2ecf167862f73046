"""A look leaves the model as it was: whatever is compiled, whatever fails, and whoever else runs the model meanwhile."""

import functools
import gc
import shutil
import threading
import warnings

import pytest
import torch
import transformers.integrations.flex_attention

import diffscope
from diffscope import DiffscopeWarning, MeasurementInterrupted, UnsupportedModel, edits
from diffscope.families import flex
from diffscope.families.compilation import as_compiled, as_written
from diffscope.families.threads import Hook
from tests import tiny
from tests.layouts import unilm
from tests.wrappings import state

IDS = tiny.ids(40)
BATCH = torch.tensor([IDS])
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")


@torch.no_grad()
def logits_of(model, ids=BATCH):
    out = model(ids)
    return out if isinstance(out, torch.Tensor) else out.logits


def in_a_thread(run):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return thread


# compiled in part


class Counting:
    """A backend that counts its graphs and rounds as none other does, so that it shows whether a graph was run."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return lambda *args: tuple(x * 1.25 if isinstance(x, torch.Tensor) else x for x in graph(*args))


def torch_compiles():
    """Whether torch compiles what it is asked to, as it does at first."""
    backend = Counting()
    torch.compile(eval("lambda x: x + 1"), backend=backend)(torch.ones(3))  # code that was never compiled
    return backend.graphs == 1


def compiled_in_part(backend, dtype):
    """unilm's V2 whose subtraction its author compiles."""

    def subtracted(out, lam):
        return out[:, :, 0::2] - lam.sigmoid()[..., None] * out[:, :, 1::2]

    compiled = torch.compile(subtracted, backend=backend)

    class Attention(unilm.MultiheadFlashDiffV2):
        def forward(self, x, rel_pos):
            q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
            q, k = unilm.apply_rotary_emb(q, *rel_pos), unilm.apply_rotary_emb(k, *rel_pos)
            return self.o_proj(compiled(unilm.flash_attn_func(q, k, v), self.lambda_proj(x)).flatten(2))

    torch.manual_seed(0)
    model = unilm.Model([Attention(True, 64, 4, 2, 16) for _ in range(2)], 64, 8)
    return tiny.awake(model).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_function_that_an_author_compiles_stays_compiled_as_it_was(dtype):
    backend = Counting()
    model = compiled_in_part(backend, dtype)
    plain = logits_of(model)
    graphs = backend.graphs
    scope = diffscope.load(model)
    for prompt in (IDS, IDS[:30], [IDS, IDS[:9]], tiny.ids(60)):
        assert scope.capture(prompt).fidelity.decided.all()
    with scope.edit(edits.zero_a2()):
        scope.loss(IDS[:20])
    assert torch.equal(logits_of(model), plain) and backend.graphs == graphs == 1


def test_what_is_first_run_in_a_look_is_compiled_afterwards():
    backend = Counting()
    model = compiled_in_part(backend, torch.bfloat16)
    diffscope.load(model).capture(IDS)
    assert backend.graphs == 0
    assert torch.equal(logits_of(model), logits_of(compiled_in_part(Counting(), torch.bfloat16))) and backend.graphs == 1


def test_looks_of_two_threads_leave_torch_compiling():
    scopes = [diffscope.load(tiny.own("v1", seed=seed)) for seed in range(2)]
    both = threading.Barrier(2)
    for scope in scopes:  # each begins before the other ends
        scope.model.register_forward_hook(lambda *_: both.wait(120) < 0 or None)
    threads = [threading.Thread(target=scope.capture, args=(IDS,)) for scope in scopes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch_compiles()


def test_a_look_from_compiled_code_is_refused_in_a_line_that_says_how():
    scope = diffscope.load(tiny.own("v1"))

    def looking(look):
        return torch.compile(lambda x: x + len(look(IDS).layers), backend="eager")(torch.zeros(1))

    with pytest.raises(UnsupportedModel, match=r"from code that torch.compile runs.* torch.compiler.disable"):
        looking(scope.capture)
    assert looking(torch.compiler.disable(scope.capture)) == 2 and torch_compiles()


class Noting:
    """A backend that runs graphs as they are and notes which of those with FlexAttention ran."""

    def __init__(self):
        self.graphs, self.ran = 0, []

    def __call__(self, graph, inputs):
        if not any("flex_attention" in str(node.target) for node in graph.graph.nodes):
            return graph
        number, self.graphs = self.graphs, self.graphs + 1
        return lambda *args: self.ran.append(number) or graph(*args)


@pytest.fixture
def flex_compiles(monkeypatch):
    """Compile FlexAttention, a model's and that of captures, with another backend than torch's, which takes a minute."""
    singleton = transformers.integrations.flex_attention.WrappedFlexAttention

    def with_backend(backend):
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
        monkeypatch.setattr(singleton, "_instance", None)
        monkeypatch.setattr(singleton, "_is_flex_compiled", False)
        flex._forward.cache_clear()

    yield with_backend
    flex._forward.cache_clear()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:flex_attention called")
@pytest.mark.parametrize("backend", [Noting, pytest.param(lambda: "inductor", marks=[pytest.mark.full, needs_compiler])])
def test_flex_attention_is_read_in_half_precision_and_left_as_it_was(backend, flex_compiles):
    model, backend = tiny.standard("llama").to(torch.bfloat16), backend()
    model.model.layers = model.model.layers[:1]
    flex_compiles(backend)
    model.set_attn_implementation("flex_attention")
    plain, own = logits_of(model), getattr(backend, "ran", [])[:]
    scope = diffscope.load(model)
    capture = scope.capture(IDS)
    assert capture.fidelity.decided.all() and float(capture.fidelity.error_float32.max()) < 1e-5
    assert capture.facts["attention"] == "flex_attention"
    scope.capture(IDS[:30])  # of which torch makes other code, for any length
    model.model.layers[0].self_attn.scaling *= 1.02
    scope.capture(IDS)  # which is read
    model.model.layers[0].self_attn.scaling /= 1.02
    if own:
        assert backend.graphs > len({*own})  # captures ran others
        backend.ran.clear()
    assert torch.equal(logits_of(model), plain) and getattr(backend, "ran", []) == own


# what fails


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def in_the_module(scope, error, monkeypatch):
    monkeypatch.setattr(type(scope.model.model.layers[1].self_attn), "forward", failing(error))


def in_a_part_of_it(scope, error, monkeypatch):
    handle = scope.model.model.layers[1].self_attn.o_proj.register_forward_hook(failing(error))
    monkeypatch.callback(handle.remove)


def in_its_float32_copy(scope, error, monkeypatch):
    kind = type(scope.model.model.layers[1].self_attn)
    forward = kind.forward

    @functools.wraps(forward)
    def fail_in_float32(self, *args, **kwargs):
        if self.layer_idx == 1 and self.o_proj.weight.dtype == torch.float32:
            raise error
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", fail_in_float32)


def in_its_reading(scope, error, monkeypatch):
    monkeypatch.setattr(type(scope.family), "read", failing(error))


def in_the_proof(scope, error, monkeypatch):
    monkeypatch.setattr("diffscope.proof.prove.fidelities", failing(error))


def in_the_proof_of_its_formula(scope, error, monkeypatch):
    monkeypatch.setattr("diffscope.proof.float32.fidelities", failing(error))


def in_statistics(scope, error, monkeypatch):
    monkeypatch.setattr("diffscope.stats.measure.MeasurementRun.add", failing(error))


STAGES = [
    in_the_module,
    in_a_part_of_it,
    in_its_float32_copy,
    in_its_reading,
    in_the_proof,
    in_the_proof_of_its_formula,
    in_statistics,
]


class Patches(pytest.MonkeyPatch):
    """Whose changes are undone before the model is looked at again."""

    def __init__(self):
        super().__init__()
        self.callbacks = []

    def callback(self, function):
        self.callbacks.append(function)

    def undo(self):
        super().undo()
        for function in self.callbacks:
            function()


@pytest.mark.parametrize("edited", [False, True], ids=["plain", "edited"])
@pytest.mark.parametrize("error", [RuntimeError("of somebody's code"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_look_that_fails_leaves_the_model_as_it_was(stage, error, edited):
    model = tiny.own("v1").to(torch.bfloat16).train()
    before, plain = state(model), logits_of(model)
    scope = diffscope.load(model)
    patches = Patches()
    stage(scope, error, patches)
    try:
        with scope.edit(*([edits.uniform_a2(layers=0)] if edited else [])):
            if stage is in_its_float32_copy and isinstance(error, RuntimeError):  # which says no more than that it cannot be run
                assert scope.capture(IDS).undecided == {"its module cannot be run in float32: of somebody's code": [1]}
            else:
                with pytest.raises((type(error), MeasurementInterrupted)):
                    scope.measure(IDS, ["entropy"])
    finally:
        patches.undo()
    assert state(model) == before and torch.equal(logits_of(model), plain)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert torch_compiles()
    assert scope.capture(IDS).fidelity.decided.all()


# who else runs the model


def in_thread(function, *args):
    """What a function gives or raises in a thread of its own."""
    results = []

    def run():
        try:
            results.append(function(*args))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


MODELS = {
    "the interface": lambda: tiny.own("v1").to(torch.bfloat16),
    "modules of its own": lambda: unilm.tiny(kind="flash1").to(torch.bfloat16),
}


@pytest.mark.parametrize("name", MODELS)
def test_another_thread_runs_the_model_itself_while_it_is_looked_at(name):
    model = MODELS[name]()
    other = torch.tensor([tiny.ids(25, seed=1)])
    plain = logits_of(model, other)
    scope = diffscope.load(model)
    alone = scope.capture(IDS)
    main, seen = threading.get_ident(), []
    attention = scope.family.modules(model)[1]

    def run_elsewhere(module, *_):
        if threading.get_ident() == main:
            seen.append(in_thread(logits_of, model, other))

    handles = [
        attention.register_forward_pre_hook(run_elsewhere),
        scope.family.output_projection(attention).register_forward_pre_hook(run_elsewhere),
        attention.register_forward_hook(run_elsewhere),
    ]
    capture = scope.capture(IDS)
    for handle in handles:
        handle.remove()
    assert len(seen) == 3 and all(torch.equal(logits, plain) for logits in seen)
    assert all(torch.equal(a.output(), b.output()) for a, b in zip(capture.layers, alone.layers, strict=True))
    assert capture.next == alone.next


@pytest.mark.parametrize("name", MODELS)
def test_an_edit_acts_in_its_own_thread_and_says_so_to_others(name):
    model = MODELS[name]()
    plain = logits_of(model)
    scope = diffscope.load(model)
    with scope.edit(edits.zero_a2()):
        edited = logits_of(model)
        with pytest.warns(DiffscopeWarning, match="is edited in another thread, and this run of it is not"):
            assert torch.equal(in_thread(logits_of, model), plain)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is said once
            assert torch.equal(in_thread(logits_of, model), plain)
        assert torch.equal(logits_of(model), edited) and not torch.equal(edited, plain)
    assert torch.equal(logits_of(model), plain)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_threads_that_run_all_the_while_are_never_disturbed(implementation):
    model = tiny.own("v1")
    model.set_attn_implementation(implementation)
    before, plain = state(model), logits_of(model)
    scope = diffscope.load(model)
    over, wrong = threading.Event(), []

    def run():
        while not over.is_set():
            if not torch.equal(logits_of(model), plain):
                wrong.append("other logits")

    def guarded():
        try:
            run()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        scope.capture(IDS[:20])
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong
    scope.capture(IDS)
    assert state(model) == before


def test_a_thread_that_has_the_number_of_one_that_ended_is_another_thread():
    hooks, acted, asked = [], [], []
    number = in_a_thread(lambda: hooks.append(Hook(acted.append))).ident

    def run():
        if threading.get_ident() == number:
            asked.append(hooks[0]("a call"))

    for _ in range(50):
        if not asked:
            in_a_thread(run)
    if not asked:
        pytest.skip("no number of a thread was used again")
    assert not acted


def test_a_block_that_another_thread_lets_go_of_is_closed_by_its_own_and_leaves_the_model_as_it_was():
    model = tiny.own()
    scope, before, plain, opened = diffscope.load(model), state(model), logits_of(model), []
    dropped, entered = threading.Event(), threading.Event()
    after = []

    def run():
        opened.append(scope.edit(edits.set_lambda(0.0)))
        opened[0].__enter__()
        entered.set()
        dropped.wait(60)
        after.append(torch.equal(logits_of(model), plain))  # it is still edited
        scope.capture(IDS)
        after.append(torch.equal(logits_of(model), plain))

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait(60)
    with pytest.warns(DiffscopeWarning, match="stays open until the thread that opened it uses the model again"):
        opened.clear()
    dropped.set()
    thread.join(60)
    assert after == [False, True] and state(model) == before and torch.equal(logits_of(model), plain)


def test_each_block_of_edits_warns_another_thread():
    model = tiny.own()
    scope, seen = diffscope.load(model), []

    def run():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            logits_of(model)
            logits_of(model)
        seen.append(len(caught))

    for _ in range(2):
        with scope.edit(edits.set_lambda(0.0)):
            in_a_thread(run)
    assert seen == [1, 1]


# torch's stance, of which there is one


def compiles():
    """Whether torch compiles what it is given now."""
    ran = []
    torch.compile(lambda x: x + 1, backend=lambda graph, inputs: ran.append(graph) or graph.forward)(torch.ones(2))
    return bool(ran)


def test_what_is_compiled_apart_beyond_the_end_of_a_look_leaves_torch_compiling():
    begun, end = threading.Event(), threading.Event()

    def apart():
        with as_compiled():
            begun.set()
            end.wait(60)

    with as_written():
        assert not compiles()
        thread = threading.Thread(target=apart)
        thread.start()
        begun.wait(60)
    end.set()
    thread.join(60)
    assert compiles()


def test_a_block_that_is_collected_while_the_stance_is_set_does_not_wait_for_itself(monkeypatch):
    block = diffscope.load(tiny.own()).edit(edits.set_lambda(0.5))
    block.__enter__()
    ring = [block]
    ring.append(ring)
    del block
    set_stance = torch.compiler.set_stance

    def collecting(stance):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ring.clear()
            gc.collect()
        return set_stance(stance)

    monkeypatch.setattr(torch.compiler, "set_stance", collecting)
    with as_compiled():  # the stance is set anew when it ends
        pass
    assert compiles()
