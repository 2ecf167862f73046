"""The recipe in docs/other_tools.md runs, and what it reads and edits is right."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import diffscope
from tests import tiny

nnsight = pytest.importorskip("nnsight")
nnsight._c.unmount("save")  # a method it gives every object of the process, with which anyio cannot be imported by other tests

PAGE = Path(__file__).parents[1] / "docs" / "other_tools.md"
MODELS = {
    "diffllama": lambda: tiny.diffllama(kv=4),
    "v1": lambda: tiny.own("v1", kv_heads=2),
    "v2": lambda: tiny.own("v2", kv_heads=2),
}
IDS = tiny.ids(20)
BOUND = 1e-4  # logits of size 10 in float32, against float64; the edits move them by more than 1


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the code of the page defines; nnsight reads that code again, from a file."""
    script = tmp_path_factory.mktemp("page") / "recipe.py"
    section = PAGE.read_text(encoding="utf-8").partition("\n## nnsight\n")[2]
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", section, re.S)), encoding="utf-8")
    return runpy.run_path(str(script))


def wrapped(name, implementation="eager"):
    model = MODELS[name]()
    model.set_attn_implementation(implementation)
    return nnsight.NNsight(model), torch.tensor([IDS])


def by_the_formula(model, name, ids=IDS, change_lam=lambda lam, depth: lam, change_a2=lambda a2: a2):
    """The logits in float64, head by head from the formula; of the attention under test it takes the weights only."""
    core, n = model.double().model, len(ids)
    x = core.embed_tokens(torch.tensor(ids))[None]
    rotation = core.rotary_emb(x, torch.arange(n)[None])
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    for depth, layer in enumerate(core.layers):
        at, normed = layer.self_attn, layer.input_layernorm(x)
        q, k, v = (
            projection(normed).view(1, n, -1, at.head_dim).transpose(1, 2) for projection in (at.q_proj, at.k_proj, at.v_proj)
        )
        (q, k, v), heads = (x[0] for x in (*apply_rotary_pos_emb(q, k, *rotation), v)), q.shape[1] // 2  # (map, token, d)
        if name == "v2":
            lam = change_lam((normed[0] @ at.lambda_proj.weight.T).sigmoid(), depth)  # (token, head)
        else:
            lam_init = 0.8 - 0.6 * np.exp(-0.3 * depth)
            first, second = (at.lambda_q1 @ at.lambda_k1).exp(), (at.lambda_q2 @ at.lambda_k2).exp()
            lam = change_lam(first - second + lam_init, depth).expand(n, heads)
        outputs = []
        for head in range(heads):
            group = head // (heads // (len(v) if name == "v2" else len(v) // 2))
            if name == "diffllama":
                queries, keys = (head, head + heads), (group, group + len(k) // 2)
                value = torch.cat([v[group], v[group + len(v) // 2]], dim=-1)
            elif name == "v1":
                queries, keys = (2 * head, 2 * head + 1), (2 * group, 2 * group + 1)
                value = torch.cat([v[2 * group], v[2 * group + 1]], dim=-1)
            else:
                queries, keys, value = (2 * head, 2 * head + 1), (group, group), v[group]
            a1, a2 = (
                (q[i] @ k[j].T / at.head_dim**0.5).masked_fill(future, -torch.inf).softmax(-1) for i, j in zip(queries, keys)
            )
            out = (a1 - lam[:, head, None] * change_a2(a2)) @ value
            if name != "v2":
                out = out * (out.pow(2).mean(-1, keepdim=True) + model.config.rms_norm_eps).rsqrt() * (1 - lam_init)
            if name == "v1":
                out = out * at.subln.weight
            outputs.append(out)
        x = x + at.o_proj(torch.cat(outputs, dim=-1))[None]
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(core.norm(x))


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_reads_what_a_capture_holds(page, name):
    model, ids = wrapped(name)
    read = []
    with torch.no_grad(), model.trace(ids):
        for layer in model.model.layers:
            read.append(nnsight.save((*page[f"read_{name}"](layer), layer.self_attn.o_proj.input)))
        nnsight.save(read)
    capture = diffscope.load(MODELS[name]()).capture(IDS)
    assert len(read) == len(capture.layers) == 2
    for saved, (a1, a2, lam, entering) in zip(capture.layers, read):
        rows = saved.rows()
        for ours, theirs in ((rows.a1, a1), (rows.a2, a2), (rows.d, a1 - lam * a2)):
            assert (ours - theirs[0]).abs().max() < 1e-5
        assert (rows.lam[..., None] - lam).abs().max() < 1e-6
        assert (saved.output().transpose(0, 1).flatten(1) - entering[0]).abs().max() < 1e-5


CHANGES = {"half": lambda lam: lam * 0.5, "zero": torch.zeros_like, "negative": lambda lam: lam * -1.5}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_an_edited_lambda_moves_the_logits_as_the_formula_says(page, name, implementation, change):
    model, ids = wrapped(name, implementation)
    plain = model._module(ids).logits
    lam = page["lam_diffllama" if name == "diffllama" else "lam_own"]
    with torch.no_grad(), model.trace(ids):
        for layer in model.model.layers:
            lam(layer).output = change(lam(layer).output)
        edited = nnsight.save(model.output.logits)
    assert torch.equal(model._module(ids).logits, plain)  # nothing outlives the trace
    assert (plain - by_the_formula(MODELS[name](), name)).abs().max() < BOUND
    assert (edited - by_the_formula(MODELS[name](), name, change_lam=lambda lam, depth: change(lam))).abs().max() < BOUND
    assert (edited - plain).abs().max() > 1


@pytest.mark.parametrize("change", ["uniform", "zero"])
@pytest.mark.parametrize("name", MODELS)
def test_an_edited_second_map_moves_the_logits_as_the_formula_says(page, name, change):
    model, ids = wrapped(name)
    change = page["uniform"] if change == "uniform" else torch.zeros_like
    with torch.no_grad(), model.trace(ids) as tracer:
        for layer in model.model.layers:
            page[f"edit_{name}"](tracer, layer, change)
        edited = nnsight.save(model.output.logits)
    assert (edited - by_the_formula(MODELS[name](), name, change_a2=change)).abs().max() < BOUND
    assert (edited - model._module(ids).logits).abs().max() > 1


def test_the_page_on_the_bundled_model(page):
    """λ of all layers and of two heads, A2, the gradient of λ and a generation, against the formula on a trained model."""
    ids = page["scope"].tokenizer(page["prompt"])["input_ids"]

    def expected(ids=ids, **changes):
        return by_the_formula(diffscope.load("mini-diff").model, "v1", ids, **changes)

    def of_last(change):
        return lambda lam, depth: change(lam) if depth == 2 else lam

    assert (page["halved"] - expected(change_lam=lambda lam, _: lam * 0.5)).abs().max() < BOUND
    assert (page["per_head"] - expected(change_lam=of_last(lambda _: torch.tensor([0.0, 1.0])))).abs().max() < BOUND
    assert (page["smoothed"] - expected(change_a2=page["uniform"])).abs().max() < BOUND

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    expected(change_lam=of_last(lambda lam: lam + step))[0, -1].max().backward()
    assert abs(page["slope"] - step.grad) < BOUND < abs(step.grad)

    for _ in range(3):
        ids = [*ids, int(expected(ids, change_lam=lambda lam, _: 0 * lam)[0, -1].argmax())]
    assert page["without_a2"].tolist() == [ids]


def test_the_warnings_of_the_page_are_true(page):
    model, ids = wrapped("v1", "sdpa")
    with torch.no_grad(), model.trace(ids):
        weights = nnsight.save([model.model.layers[0].self_attn.output[1]])
    assert weights == [None]

    model, ids = wrapped("diffllama")
    plain, inner = model._module(ids).logits, model.model.layers[0].self_attn.source
    with torch.no_grad(), model.trace(ids):
        inner.attention_interface_1.output[1][:] = 0
        returned = nnsight.save(model.output.logits)
    assert torch.equal(returned, plain)

    with torch.no_grad(), model.trace(ids):
        inner.attention_interface_1.source.attn_weights_3.output[:, 4:] = 0
        one_call = nnsight.save(model.output.logits)
    with torch.no_grad(), model.trace(ids) as tracer:
        page["edit_diffllama"](tracer, model.model.layers[0], torch.zeros_like)
        both = nnsight.save(model.output.logits)
    assert (one_call - both).abs().max() > 1

    with model.edit() as (_, edited):
        for layer in edited.model.layers:
            page["lam_diffllama"](layer).output = torch.tensor(0.0)
    with torch.no_grad(), edited.trace(ids):
        logits = nnsight.save(edited.output.logits)
    assert (logits - plain).abs().max() > 1
    assert np.ptp(diffscope.load(model._module).capture(IDS).lam.values) > 0

    with pytest.raises(Exception, match="already ran past"), torch.no_grad(), model.trace(ids):
        nnsight.save((inner.lambda_full_0.output, inner.attention_interface_1.output))
