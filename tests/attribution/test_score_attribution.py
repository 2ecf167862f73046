"""Parts of an attention score: they add up to it, they are what a computation by hand gives, and a planted circuit is found."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import diffscope
from diffscope import edits
from diffscope.attribution import score_attribution
from diffscope.attribution.scores import proved_reading
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel
from tests import tiny
from tests.attribution.test_branch_attribution import MODELS, with_random_vectors
from tests.layouts import gated

IDS = tiny.ids(20)


def exact(model):
    """In float64, with norms that are in float64 too: those of Llama round to float32 whatever the model is."""
    model = with_random_vectors(model).double()
    for module in list(model.modules()):
        for name, part in module.named_children():
            if hasattr(part, "variance_epsilon"):
                norm = torch.nn.RMSNorm(len(part.weight), part.variance_epsilon, dtype=torch.float64)
                norm.load_state_dict(part.state_dict())
                norm.variance_epsilon = part.variance_epsilon
                setattr(module, name, norm)
    return model


def capped():
    """Gemma 2 whose blocks add what attention and MLP wrote as it is; a cap of 2 that scores come near."""
    model = tiny.gemma2()
    for layer in model.model.layers:
        layer.post_attention_layernorm = layer.post_feedforward_layernorm = torch.nn.Identity()
    return model


SUPPORTED = {name: make for name, make in MODELS.items() if name != "YOCO, V3"}
SUPPORTED |= {"Qwen 3, whose queries and keys are normed": lambda: tiny.standard("qwen3"), "capped scores": capped}


def cells(scope, count, seed):
    """Random cells of a model's maps, what they are compared with, and the scores of their rows."""
    random = np.random.default_rng(seed)
    layers = scope.capture(IDS).layers
    for _ in range(count):
        layer = layers[random.integers(len(layers))]
        branch = int(random.integers(2 if layer.differential else 1))
        head, query = int(random.integers(layer.n_heads)), int(random.integers(1, len(IDS)))
        key = int(random.integers(1, query + 1))
        row = layer.logits([query], layer.pairing.of_branch(1 + branch)[[head]])[0, 0].double().numpy()
        against = [None, "row", 0][random.integers(3)]
        yield dict(layer=layer.layer, head=head, query=query, key=key, map=["A1", "A2"][branch], against=against), row


@pytest.mark.parametrize("prepare, bound", [(with_random_vectors, 1e-5), (exact, 1e-9)], ids=["float32", "float64"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_parts_add_up_to_the_score(name, prepare, bound):
    scope = diffscope.load(prepare(SUPPORTED[name]()))
    bound = max(bound, 1e-5) if name == "capped scores" else bound  # norms of Gemma 2 round to float32 whatever the model is
    for cell, row in cells(scope, 3 if prepare is exact else 1, seed=len(name)):
        table = score_attribution(scope, IDS, **cell)
        seen = row[: cell["query"] + 1]
        wanted = seen[cell["key"]] - {None: 0, "row": seen.mean(), 0: seen[0]}[cell["against"]]
        assert float(table["total"]) == pytest.approx(wanted, abs=bound)
        assert float(table["score"].sum()) == pytest.approx(wanted, abs=bound * float(abs(table["score"]).sum()))
        assert float(table["unexplained"]) == pytest.approx(float(table["total"] - table["score"].sum()), abs=1e-12)
        np.testing.assert_allclose(table["of_query"], table["score"].sum("key_part"))
        np.testing.assert_allclose(table["of_key"], table["score"].sum("query_part"))


def test_one_part_is_what_a_computation_by_hand_gives():
    """Llama, layer 1: the embedding at the query times the MLP of layer 0 at the key, with RoPE written out."""
    model = exact(tiny.standard("llama"))
    query, key, head = 12, 4, 1
    seen = {}
    layer = model.model.layers[1]
    layer.input_layernorm.register_forward_pre_hook(lambda module, args: seen.update(stream=args[0][0]))
    model.model.layers[0].register_forward_pre_hook(lambda module, args: seen.update(embedding=args[0][0]))
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: seen.update(mlp=output[0]))
    with torch.no_grad():
        model(torch.tensor([IDS]))
        norm, attention = layer.input_layernorm, layer.self_attn
        wide = attention.head_dim

        def project(part, at, projection, number):
            factor = torch.rsqrt(seen["stream"][at].square().mean() + norm.variance_epsilon)
            x = projection.weight[number * wide : (number + 1) * wide] @ (part[at] * factor * norm.weight)
            cos, sin = model.model.rotary_emb(part[None], torch.tensor([[at]]))
            half = torch.cat([-x[wide // 2 :], x[: wide // 2]])
            return x * cos[0, 0] + half * sin[0, 0]

        group = head // attention.num_key_value_groups
        q = project(seen["embedding"], query, attention.q_proj, head)
        k = project(seen["mlp"], key, attention.k_proj, group)
        wanted = float(q @ k * attention.scaling)
    table = score_attribution(diffscope.load(model), IDS, 1, head, query, key)
    assert float(table["score"].sel(query_part="embedding", key_part="L0 MLP")) == pytest.approx(wanted, rel=1e-6)


def parts_by_hand(model, layer, query):
    """What each part of a DiffLlama writes before a layer, (token, hidden) by name, and q of it there and k of every key, by map.

    From what hooks see of the modules; maps, values, norms and RoPE are written out.
    """
    config, blocks = model.config, model.model.layers
    heads, d, tokens = config.num_attention_heads // 2, blocks[0].self_attn.head_dim, len(IDS)
    seen = {}
    hooks = []
    for number, block in enumerate(blocks):
        keep = lambda name, number: lambda module, args, output: seen.update({(name, number): (args, output)})  # noqa: E731
        hooks += [block.input_layernorm.register_forward_hook(keep("norm", number))]
        hooks += [block.mlp.register_forward_hook(keep("mlp", number))]
    with torch.no_grad():
        model(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()
    cos, sin = (x[0] for x in model.model.rotary_emb(seen["norm", 0][1], torch.arange(tokens)[None]))

    def turned(x, at=slice(None)):
        return x * cos[at] + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1) * sin[at]

    parts = {"embedding": seen["norm", 0][0][0][0]}
    for number, block in enumerate(blocks[:layer]):
        own, x = block.self_attn, seen["norm", number][1][0]
        q, k, v = (projection(x).unflatten(-1, (-1, d)) for projection in (own.q_proj, own.k_proj, own.v_proj))
        lam = (own.lambda_q1 @ own.lambda_k1).exp() - (own.lambda_q2 @ own.lambda_k2).exp() + own.lambda_init
        for head in range(heads):
            mixed = []
            for map in (head, head + heads):
                group = map // own.num_key_value_groups
                scores = turned(q[:, map]) @ turned(k[:, group]).T * d**-0.5
                weights = scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -torch.inf).softmax(-1)
                at = group % (v.shape[1] // 2)
                mixed.append(weights @ torch.cat([v[:, at], v[:, at + v.shape[1] // 2]], -1))
            branches = mixed[0], -lam * mixed[1]
            factor = (sum(branches).square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * (1 - own.lambda_init)
            columns = own.o_proj.weight[:, 2 * d * head : 2 * d * (head + 1)]
            for name, branch in zip(("A1", "A2"), branches):
                parts[f"L{number}H{head} {name}"] = branch * factor @ columns.T
        parts[f"L{number} biases"] = own.o_proj.bias.expand(tokens, -1)
        parts[f"L{number} MLP"] = seen["mlp", number][1][0]
    norm, own = blocks[layer].input_layernorm, blocks[layer].self_attn
    (stream,), _ = seen["norm", layer]
    factor = (stream[0].square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt() * norm.weight

    def projected(head, branch):
        map = head + heads * (branch - 1)
        rows = [slice(d * at, d * (at + 1)) for at in (map, map // own.num_key_value_groups)]
        q = [turned(part[query] * factor[query] @ own.q_proj.weight[rows[0]].T, query) for part in parts.values()]
        k = [turned(part * factor @ own.k_proj.weight[rows[1]].T) for part in parts.values()]
        q, k = [*q, turned(own.q_proj.bias[rows[0]], query)], [*k, turned(own.k_proj.bias[rows[1]].expand(tokens, -1))]
        return torch.stack(q), torch.stack(k)  # (part, d), (part, key, d)

    return [*parts, "biases"], projected


@pytest.mark.parametrize("layer", [0, 2])
@torch.no_grad()
def test_every_part_of_a_diffllama_is_what_a_computation_by_hand_gives(layer):
    """Its sums say nothing of whether a part is another's: grouped keys, both maps, biases, in float64."""
    model = exact(tiny.diffllama(8, 4, num_hidden_layers=3, attention_bias=True))
    names, projected = parts_by_hand(model, layer, 11)
    scope, head = diffscope.load(model), 2
    for branch, against in ((1, None), (2, None), (2, "row")):
        q, k = projected(head, branch)
        compared = k[:, 5] - (k[:, :12].mean(1) if against else 0)
        wanted = (q @ compared.T * model.model.layers[layer].self_attn.scaling).numpy()
        table = score_attribution(scope, IDS, layer, head, 11, 5, map=f"A{branch}", against=against)
        assert sorted(names) == sorted(table["query_part"].values)
        found = table["score"].sel(query_part=names, key_part=names)
        np.testing.assert_allclose(found, wanted, atol=1e-6 * abs(wanted).max())
        assert min(abs(wanted).max(0).min(), abs(wanted).max(1).min()) > 1e-3 or layer == 0


def test_a_planted_circuit_is_found():
    """A2 of layer 1, head 1 reads a direction that only A1 and A2 of layer 0, head 2 write."""
    model = tiny.diffllama()
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    hidden = model.config.hidden_size
    basis = torch.linalg.qr(torch.randn(hidden, 4, generator=torch.Generator().manual_seed(3)))[0]  # (hidden, direction)
    aside = torch.eye(hidden) - basis @ basis.T
    width = first.o_proj.in_features // (model.config.num_attention_heads // 2)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight @ aside)
        model.model.layers[0].mlp.down_proj.weight.copy_(aside @ model.model.layers[0].mlp.down_proj.weight)
        planted = slice(2 * width, 3 * width)
        along = basis @ basis.T @ first.o_proj.weight[:, planted]
        first.o_proj.weight.copy_(aside @ first.o_proj.weight)
        first.o_proj.weight[:, planted] = along
        model.model.layers[1].input_layernorm.weight.fill_(1.0)
        rows = second.k_proj.weight.view(-1, second.head_dim, hidden)  # (key map, d, hidden)
        rows[len(rows) // 2 :] = rows[len(rows) // 2 :] @ basis @ basis.T  # keys of second maps
    scope = diffscope.load(model)
    table = score_attribution(scope, IDS, 1, 1, -1, 7, map="A2", against="row")
    of_key = table["of_key"]
    named = of_key.sel(key_part=["L0H2 A1", "L0H2 A2"])
    assert float(named.sum()) == pytest.approx(float(table["total"]), rel=1e-4) and abs(float(table["total"])) > 0.01
    assert float(abs(of_key.drop_sel(key_part=["L0H2 A1", "L0H2 A2"])).max()) < 1e-5 * float(abs(named).max())
    others = score_attribution(scope, IDS, 1, 1, -1, 7, map="A1", against="row")["of_key"]
    assert float(abs(others.drop_sel(key_part=["L0H2 A1", "L0H2 A2"])).max()) > 0.1 * float(abs(others).max())


def test_a_model_in_half_precision_is_attributed_in_float32():
    scope = diffscope.load(tiny.diffllama().bfloat16())
    table = score_attribution(scope, IDS, 1, 0, -1, 3, map="A2")
    assert 0 < abs(float(table["unexplained"])) < 0.05 and table["score"].dtype == np.float64


def test_positions_may_count_from_the_end_and_the_model_is_left_as_it_was():
    model = tiny.diffllama()
    scope = diffscope.load(model)
    before = scope.capture(IDS).next
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    from_end = score_attribution(scope, IDS, 1, 0, -1, -5)
    assert from_end.equals(score_attribution(scope, IDS, 1, 0, 19, 15)) and from_end.attrs["key"] == 15
    assert [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()] == hooks
    assert dict(scope.capture(IDS).next) == dict(before)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(layer=9), "no layer 9 .* choose from 0, 1"),
        (dict(head=9), "layer 1 has no head 9; choose from 0 to"),
        (dict(map="D"), "no map 'D'; choose from A1, A2"),
        (dict(query=20), "the query 20 is outside of the prompt, which has 20 tokens"),
        (dict(key=-21), "the key -21 is outside"),
        (dict(query=3), "token 3 does not see key 5; choose a key that it sees"),
        (dict(against=19, query=10), "token 10 does not see key 19"),
        (dict(against=5), "key 5 is compared with itself"),
        (dict(against="mean"), "against is a token position, 'row' or None, not 'mean'"),
    ],
)
def test_what_is_not_there_is_said(change, words):
    scope = diffscope.load(tiny.diffllama())
    with pytest.raises(PromptError, match=words):
        score_attribution(scope, IDS, **{**dict(layer=1, head=0, query=-1, key=5), **change})


def test_scores_that_are_no_sum_of_parts_are_refused():
    bent = with_random_vectors(tiny.standard("llama"))
    bent.model.layers[1].self_attn.q_proj = torch.nn.Sequential(bent.model.layers[1].self_attn.q_proj, torch.nn.Softsign())
    with pytest.raises(UnsupportedModel, match="layer 1: its scores are no sum .* norm its queries or keys outside of a module"):
        score_attribution(diffscope.load(bent), IDS, 1, 0, -1, 5)
    shared = diffscope.load(gated.tiny())
    last = shared.capture(IDS).layer_numbers[-1]  # whose keys were made by an earlier layer
    with pytest.raises(UnsupportedModel, match=f"layer {last} does not make its queries and keys of what it reads"):
        score_attribution(shared, IDS, last, 0, -1, -2)
    biased = tiny.standard("llama")
    distance = torch.arange(20) - torch.arange(20)[:, None]  # (query, key)
    for layer in biased.model.layers:
        forward = partial(layer.self_attn.forward, position_bias=0.1 * distance.expand(1, 4, 20, 20))
        layer.self_attn.forward = forward
    with pytest.raises(UnsupportedModel, match="layer 1 adds a bias by position to its scores"):
        score_attribution(diffscope.load(biased), IDS, 1, 0, -1, 5)
    with pytest.raises(PromptError, match="no map 'A2'; choose from A1"):
        score_attribution(diffscope.load(tiny.standard("llama")), IDS, 1, 0, -1, 5, map="A2")


@pytest.mark.parametrize("change", [dict(layer=[1]), dict(layer=1.0), dict(head="0"), dict(head=-1)])
def test_layers_and_heads_are_whole_numbers_from_0(change):
    with pytest.raises(DiffscopeError, match="a (layer|head) is a whole number from 0, and not"):
        score_attribution(diffscope.load(tiny.diffllama()), IDS, **{**dict(layer=1, head=0, query=-1, key=5), **change})


def test_of_several_readings_of_a_module_the_nearest_is_the_one_that_was_proved():
    """In half precision RoPE by θ and by −θ may both be within what rounding does."""
    captured, *others = (SimpleNamespace(layer=0, q=torch.full((4,), size).bfloat16()) for size in (1.0, 1.05, 1.01, 3.0))
    assert proved_reading(others, captured, lambda layer: [layer.q.double()]) == 1

    def one_alone(size):
        yield SimpleNamespace(q=torch.full((4,), size))
        raise UnsupportedModel("read otherwise, it is nothing")

    assert proved_reading(one_alone(1.0), captured, lambda layer: [layer.q.double()]) == 0
    with pytest.raises(UnsupportedModel, match="not made of what earlier parts wrote"):
        proved_reading(one_alone(3.0), captured, lambda layer: [layer.q.double()])
    with pytest.raises(UnsupportedModel, match="not made of what earlier parts wrote"):
        proved_reading(others[2:], captured, lambda layer: [layer.q.double()])


def test_edits_are_refused():
    scope = diffscope.load(tiny.diffllama())
    with scope.edit(edits.set_lambda(1.0)), pytest.raises(DiffscopeError, match="leave the edits that are on"):
        score_attribution(scope, IDS, 1, 0, -1, 5)


def test_norms_of_queries_are_held_in_half_precision_too():
    scope = diffscope.load(with_random_vectors(tiny.standard("qwen3")).bfloat16())
    table = score_attribution(scope, IDS, 1, 0, -1, 5, against="row")
    assert 0 < abs(float(table["unexplained"])) < 0.05


def test_a_differential_model_whose_queries_and_keys_are_normed():
    scope = diffscope.load(with_random_vectors(gated.tiny(qk_norm=True)))
    layer = scope.capture(IDS).layers[0]
    for branch, name in enumerate(("A1", "A2")):
        maps = layer.pairing.of_branch(1 + branch)[[1]]
        row = layer.logits([15], maps)[0, 0].double().numpy()
        table = score_attribution(scope, IDS, layer.layer, 1, 15, 14, map=name)
        assert float(table["score"].sum()) == pytest.approx(row[14], abs=1e-5)


def test_the_figure_adds_up_to_the_score():
    table = score_attribution(diffscope.load(tiny.diffllama()), IDS, 1, 1, -1, 7, map="A2", against="row")
    drawn = diffscope.figures.score_parts(table, parts=2).data["value"].isel(panel=0)
    assert list(drawn["x"].values[-2:]) == ["others", "all"] == list(drawn["y"].values[-2:])
    assert float(drawn.sel(x="all", y="all")) == pytest.approx(float(table["total"]), abs=1e-5)
    largest = abs(table["of_key"]).idxmax().item()
    assert float(drawn.sel(x=largest, y="all")) == pytest.approx(float(table["of_key"].sel(key_part=largest)))
    with pytest.raises(DiffscopeError, match="a figure names 1 to 64 parts"):
        diffscope.figures.score_parts(table, parts=0)


def test_a_score_that_hardly_differs_from_its_row_is_attributed_too():
    """Its difference is of the size of the model's own rounding, which is no other sum."""
    scope = diffscope.load(with_random_vectors(tiny.diffllama(seed=9)))
    table = score_attribution(scope, IDS, 0, 3, 6, 1, map="A2", against="row")
    assert abs(float(table["total"])) < 0.01 and abs(float(table["unexplained"])) < 1e-6
