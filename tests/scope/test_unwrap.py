"""A model as people hold it: its maps are those it gives itself, and it is left as it was; or a line says what to pass."""

import copy

import pytest
import torch

import diffscope
from diffscope import UnsupportedModel, edits
from tests import tiny
from tests.wrappings import (
    WRAPPINGS,
    attention_compiled,
    autocast,
    compiled,
    difference,
    lora,
    offloaded,
    own_maps,
    sharded,
    state,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of packages that wrap, on transformers

IDS = tiny.ids(20)
ADAPTED = [name for name in WRAPPINGS if name.startswith("PEFT")]
REFUSED = {
    "PEFT: prompt tuning": "PROMPT_TUNING.* pass model.get_base_model()",
    "PEFT: prefix tuning": "PREFIX_TUNING.* pass model.get_base_model()",
    "part of a policy": "Policy is not a Hugging Face model itself; pass .* its part .lm .DiffLlamaForCausalLM",
    "its decoder alone": "no language-model head",
}
IN_HALF = {
    "under autocast, bfloat16": "bfloat16",
    "under autocast, float16": "float16",
    "forward under autocast (accelerate)": "bfloat16",
    "in bfloat16": "bfloat16",
}
# What benchmarks/conformance_tables.py tries too.
OF_OTHERS = ("bitsandbytes", "torchao", "quanto", "quantize_dynamic", "FSDP", "Distributed")


def held_as(name, model):
    if name in ADAPTED:
        pytest.importorskip("peft")
    return WRAPPINGS[name].wrap(model)


@pytest.mark.parametrize("name", [name for name in WRAPPINGS if not name.startswith(OF_OTHERS)])
def test_maps_are_its_own_and_it_is_left_alone(name):
    model = tiny.diffllama()
    model.set_attn_implementation("eager")
    held = held_as(name, model)
    before = state(held)
    if name in REFUSED:
        with pytest.raises(UnsupportedModel, match=REFUSED[name]) as refusal:
            diffscope.load(held)
        assert "\n" not in str(refusal.value) and state(held) == before
        return
    scope = diffscope.load(held)
    with WRAPPINGS[name].context():
        capture = scope.capture(IDS)
    assert state(held) == before
    with WRAPPINGS[name].context():
        maps = own_maps(tiny.diffllama() if WRAPPINGS[name].same else held, IDS)
    assert difference(capture, maps) < (4e-3 if name == "in bfloat16" else 1e-5)  # to which it rounds what it gives
    assert capture.facts["dtype"] == IN_HALF.get(name, "float32")


def test_a_compiled_module_is_not_taken_for_two():
    """It seems to have all that the module inside it has."""
    plain = diffscope.load(tiny.standard("llama")).capture(IDS)
    scope = diffscope.load(attention_compiled(tiny.standard("llama")))
    assert scope.n_layers == 2 and scope.capture(IDS).map("A1", 1, 3).equals(plain.map("A1", 1, 3))


@pytest.mark.parametrize("make, dtype", [(tiny.diffllama, torch.float32), (tiny.own, torch.bfloat16)])
def test_a_lambda_under_autocast_is_cast_as_the_model_casts_it(make, dtype):
    """DiffLlama to the dtype of its queries, which RoPE has widened; the models of diffscope to that of what was attended."""
    scope = diffscope.load(make())
    with torch.autocast("cpu", torch.bfloat16):
        layer = scope.capture(IDS).layers[0]
    assert layer.lam.dtype == dtype and torch.equal(layer.lam, layer.lam_fp32.to(dtype))


def test_shards_are_refused():
    with pytest.raises(UnsupportedModel, match="sharded over processes"):
        diffscope.load(sharded(tiny.diffllama()))
    torch.distributed.destroy_process_group()


def test_wrapped_and_bare_are_one_model_for_edits():
    model = tiny.diffllama()
    inside, outside = diffscope.load(model), diffscope.load(compiled(model))
    plain = inside.loss(IDS)
    with outside.edit(edits.zero_a2()):
        assert inside.loss(IDS) == outside.loss(IDS) != plain
    assert inside.loss(IDS) == plain


def test_an_edit_reaches_offloaded_layers():
    bare, held = diffscope.load(tiny.own("v1")), diffscope.load(offloaded(tiny.own("v1")))
    plain = bare.loss(IDS)
    with bare.edit(edits.ablate_heads(heads=0)), held.edit(edits.ablate_heads(heads=0)):
        assert held.loss(IDS) == bare.loss(IDS) != plain
        assert held.generate(IDS, 3) == bare.generate(IDS, 3)


def test_what_was_compiled_stays_compiled():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    held = torch.compile(tiny.diffllama(num_hidden_layers=1), backend=backend)
    ids = torch.tensor([IDS])
    with torch.no_grad():
        plain = held(ids).logits
        compiled_at_first = len(graphs)
        diffscope.load(held).capture(IDS)
        with diffscope.load(held).edit(edits.set_lambda(0.3)):
            assert not torch.equal(held(ids).logits, plain)
        assert torch.equal(held(ids).logits, plain)
    assert len(graphs) == compiled_at_first > 0


def training_step(model, ids, look, context):
    """Loss and gradients of a step with dropout, with looks at the model before it and between forward and backward."""
    torch.manual_seed(3)
    model.zero_grad()
    with context():
        look()
        loss = model(ids, labels=ids).loss
        look()
    loss.backward()
    look()
    return [loss.detach(), torch.rand(1), *(x.grad.clone() for x in model.parameters() if x.grad is not None)]


@pytest.mark.parametrize("context", [torch.enable_grad, autocast(torch.bfloat16)], ids=["float32", "autocast"])
@pytest.mark.parametrize("adapted", [False, True], ids=["checkpointed", "PEFT"])
def test_a_look_within_training_changes_no_step(adapted, context):
    model = tiny.standard("llama")
    for part in model.modules():
        part.attention_dropout = 0.2
    if adapted:
        pytest.importorskip("peft")
        model = lora(model, lora_dropout=0.2).train()
    else:
        model.train().gradient_checkpointing_enable()
    ids, twin = torch.tensor([IDS]), copy.deepcopy(model)
    scope = diffscope.load(model)
    plain = training_step(twin, ids, lambda: None, context)
    looked = training_step(model, ids, lambda: scope.capture(IDS).measure("entropy"), context)
    assert len(plain) > 10 and all(map(torch.equal, plain, looked))


def test_numbers_of_a_capture_do_not_depend_on_autocast():
    capture = diffscope.load(tiny.own("v1")).capture(IDS)
    names = ["column_sink", "map_distance", "head_cka", "entropy"]
    plain = capture.measure(names)
    with torch.autocast("cpu", torch.bfloat16):
        assert capture.measure(names).identical(plain)
        assert torch.equal(capture.layers[0].output(), capture.layers[0].output().float())
        outputs = capture.layers[0].output()
    assert torch.equal(outputs, capture.layers[0].output())


def test_a_gate_s_float32_value_is_that_of_the_adapted_projection():
    """λ in float32 is recomputed from a linear layer's weights, which of an adapted one are not all there is."""
    pytest.importorskip("peft")
    scope = diffscope.load(lora(tiny.own("v2"), targets=["lambda_proj"]))
    (layer, _) = scope.capture(IDS).layers
    assert torch.allclose(layer.lam_fp32, layer.lam.float(), atol=1e-6)


def test_autocast_is_refused_where_it_is_not_known_what_it_reaches():
    from tests.layouts import motif

    scope = diffscope.load(motif.tiny())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UnsupportedModel, match="under torch.autocast"):
        scope.capture(IDS)
