"""Models that come with code of their own (Motif, Phi-4-mini-flash), on modules of ours that follow what is documented."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import diffscope
from diffscope import FidelityError, UnsupportedModel, edits, families
from diffscope.families import AttentionPass
from tests import tiny
from tests.families import same
from tests.layouts import gdla, grouped, motif, phi4flash

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*without attention:diffscope.DiffscopeWarning"),  # of Phi-4's Mamba layers
    pytest.mark.filterwarnings("ignore:.*Motif-3 is stale:diffscope.DiffscopeWarning"),
]

LAYOUTS = {"motif": motif, "motif-grouped": grouped, "motif-latent": gdla, "phi4flash": phi4flash}
LAYERS = {name: [0, 1] for name in LAYOUTS} | {"phi4flash": [1, 3, 5, 7]}
IDS = tiny.ids(33)  # far beyond the windows of 6 and 7 keys

VARIANTS = {name: (layout, {}) for name, layout in LAYOUTS.items()} | {
    "motif, a key for every map": (motif, {"num_key_value_heads": 8}),
    "motif, eager": (motif, {"attn_implementation": "eager"}),
    "motif-grouped, eager": (grouped, {"attn_implementation": "eager"}),
    "motif, with bias": (motif, {"use_bias": True}),
    "motif, wide values": (motif, {"wide_values": True}),
    "motif, rotary part inside": (motif, {"rotary_inside": True}),
    "motif-grouped, two noise maps a pair of keys": (grouped, {"num_noise_heads": 4, "num_attention_heads": 12}),
    "motif-latent, no gate": (gdla, {"elementwise_attn_output_gate": False}),
    "motif-latent, no window": (gdla, {"use_sliding_window": False}),
    "motif-latent, queries by the module": (gdla, {"queries_in_float32": False}),
    "phi4flash, windows listed": (phi4flash, {"sliding_window": [None, 6, None, 3, None, None, None, None]}),
}


def attentions(model):
    """The layout's attention modules, and the part of each that knows its maps."""
    modules = diffscope.load(model).family.modules(model)
    return modules, [getattr(module, "inner_cross_attn", module) for module in modules]


def with_lambda(model, value):
    """The layout with another λ, by its own means."""
    for part in attentions(model)[1]:
        if hasattr(part, "lambda_proj"):
            logit = math.log(value / (1 - value))
            part.lambda_proj.register_forward_hook(lambda module, args, out, logit=logit: torch.full_like(out, logit))
        else:
            part.lam = lambda dtype: torch.tensor(value, dtype=dtype)
    return model


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-11), (torch.bfloat16, 0.1)])
def test_every_layer_is_rebuilt(name, dtype, bound):
    layout, more = VARIANTS[name]
    proof = diffscope.load(layout.tiny(**more).to(dtype)).capture([IDS[:19], IDS]).fidelity
    assert float(proof.error.max()) < bound
    assert proof.decided.all() and proof.rows.values.tolist() == [52] * len(proof.rows)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_family_is_found_and_no_other_claims_the_model(name):
    model = LAYOUTS[name].tiny()
    scope = diffscope.load(model)
    assert scope.family.name == name and scope.layer_numbers == LAYERS[name]
    assert [family.name for family in families.FAMILIES if family.modules(model)] == [name]
    assert not scope.family.modules(tiny.own("v1")) and not scope.family.modules(tiny.own("v2"))


@pytest.mark.parametrize("name", VARIANTS)
def test_maps_are_those_of_the_layout(name):
    layout, more = VARIANTS[name]
    model = layout.tiny(**more)
    capture = diffscope.load(model).capture(IDS)
    for layer, part in zip(capture.layers, attentions(model)[1]):
        rows, (first, second) = layer.rows(), part.maps[:, 0]
        lam = part.lam[0].T if isinstance(part.lam, torch.Tensor) else part.lam(torch.float32).expand(rows.lam.shape)
        assert torch.allclose(rows.a1, first, atol=1e-6) and torch.allclose(rows.a2, second, atol=1e-6)
        assert torch.equal(rows.lam, lam)
        assert torch.allclose(rows.d, first - lam[..., None] * second, atol=1e-6)
        assert first.sub(second).abs().max() > 0.1


@pytest.mark.parametrize("name", LAYOUTS)
def test_half_precision_shows_the_model_s_own_lambda(name):
    model = LAYOUTS[name].tiny().to(torch.bfloat16)
    for layer, part in zip(diffscope.load(model).capture(IDS).layers, attentions(model)[1]):
        used = part.lam.transpose(1, 2) if isinstance(part.lam, torch.Tensor) else part.lam(torch.bfloat16)
        assert layer.lam.dtype == torch.bfloat16 and torch.equal(layer.lam, used.expand(layer.lam.shape))
        assert 0 < (layer.lam_fp32 - layer.lam.float()).abs().max() < 0.02


@pytest.mark.parametrize("name", ["motif", "motif-grouped"])
def test_eager_half_precision_rounds_its_scores_and_so_do_the_maps(name):
    model = LAYOUTS[name].tiny(attn_implementation="eager").to(torch.bfloat16)
    capture = diffscope.load(model).capture(IDS)
    for layer, part in zip(capture.layers, attentions(model)[1]):
        assert layer.score_dtype == torch.bfloat16
        assert (layer.rows().a1 - part.maps[0, 0].float()).abs().max() < torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("name, schedule", [("motif", -1), ("motif-grouped", -1), ("phi4flash", 0)])
def test_lambda_init_follows_the_layer_s_number_in_the_model(name, schedule):
    scope = diffscope.load(LAYOUTS[name].tiny())
    layers = scope.capture(IDS).layers
    assert scope.family.convention.schedule == schedule and [layer.layer for layer in layers] == LAYERS[name]
    for layer in layers:
        assert math.isclose(layer.lam_init, 0.8 - 0.6 * math.exp(-0.3 * (layer.layer + schedule)))
        assert abs(float(layer.lam) - layer.lam_init) > 1e-3


def test_windows_are_those_of_the_layers():
    def widths(layout, **more):
        return [layer.mask.window for layer in diffscope.load(layout.tiny(**more)).capture(IDS).layers]

    assert widths(gdla, num_hidden_layers=5) == [None, 7, 7, 7, None]
    assert widths(gdla, sliding_window_pattern="all") == [7, 7]
    assert widths(phi4flash) == [6, 6, None, None]
    assert widths(phi4flash, sliding_window=[None, 6, None, 3, None, None, None, None]) == [6, 3, None, None]


@pytest.mark.parametrize("name", [*LAYOUTS, "motif, wide values"])
def test_cached_steps_see_what_the_whole_prompt_sees(name):
    """Step by step, also several tokens at a time, and where the cache lets go of what left the window."""
    layout, more = VARIANTS[name]
    model, sizes = layout.tiny(**more), (20, 1, 1, 5, 1, 1, 4)
    cache = DynamicCache(config=model.config) if name == "phi4flash" else None
    assert sum(sizes) == len(IDS)
    same.cached_steps_see_the_whole_prompt(model, IDS, sizes, cache, masked=True)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_set_lambda_is_that_of_the_layout(name):
    """In one run, and in cached generation, whichever cache Hugging Face makes for it."""
    same.a_set_lambda_is_that_of(with_lambda(LAYOUTS[name].tiny(), 0.3), LAYOUTS[name].tiny(), IDS, 10)


def by_halves(layer):
    head = torch.arange(layer.n_heads)
    return replace(layer, pairing=replace(layer.pairing, a1=head, a2=head + layer.n_heads))


def of_other_heads(layer):
    return replace(layer, pairing=replace(layer.pairing, a2=layer.pairing.a2.roll(-1)))


@pytest.mark.parametrize(
    "name, wrong, cause",
    [
        ("motif", by_halves, "head h owns maps 2h and 2h \\+ 1"),
        ("phi4flash", by_halves, "head h owns maps 2h and 2h \\+ 1"),
        ("motif", lambda layer: replace(layer, lam=layer.lam + 0.3), "λ is not the value"),
        ("motif-grouped", of_other_heads, "second maps belong to other heads"),
        ("motif-latent", of_other_heads, "second maps belong to other heads"),
    ],
)
def test_a_misreading_is_refused_with_its_cause(name, wrong, cause, monkeypatch):
    scope = diffscope.load(LAYOUTS[name].tiny())
    kind = type(scope.family)
    readings = kind.readings
    monkeypatch.setattr(kind, "readings", lambda family, passage: map(wrong, readings(family, passage)))
    with pytest.raises(FidelityError, match=f"layer {scope.layer_numbers[0]}: .*{name!r}.*likely cause: .*{cause}"):
        scope.capture(IDS)


def test_a_misreading_that_no_known_mistake_explains_is_not_given_a_cause(monkeypatch):
    scope = diffscope.load(LAYOUTS["motif-latent"].tiny())
    kind = type(scope.family)
    readings = kind.readings
    monkeypatch.setattr(kind, "readings", lambda *given: (replace(layer, gate=None) for layer in readings(*given)))
    with pytest.raises(FidelityError, match="layer 0: .*'motif-latent'.*; no mistake that is known explains it"):
        scope.capture(IDS)


@pytest.mark.parametrize("tokens", [33, 4])
def test_shared_keys_may_have_their_tokens_first(tokens):
    """As in a port, and also where there are as many tokens as key maps: then the proof tells."""
    models = [phi4flash.tiny(tokens_first=first) for first in (False, True)]
    ours, port = (diffscope.load(model).capture(IDS[:tokens]) for model in models)
    assert np.abs(ours.map("D", 7, 1) - port.map("D", 7, 1)).max() < 1e-6 and float(port.fidelity.error.max()) < 1e-5


def test_what_is_kept_outlives_the_weights():
    for name, layout in LAYOUTS.items():
        model = layout.tiny()
        layers = diffscope.load(model).capture(IDS).layers
        before = [layer.output() for layer in layers]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        assert all(torch.equal(layer.output(), out) for layer, out in zip(layers, before)), name


def test_tokens_taken_for_heads_are_named():
    """The published Motif-3 mixes them up where a prompt has as many tokens as there are query maps."""
    scope = diffscope.load(gdla.tiny())
    with pytest.raises(UnsupportedModel, match="as many of them as there are query maps \\(10\\)"):
        scope.capture(IDS[:10])
    assert scope.capture(IDS[:11]).fidelity.decided.all()


def test_motif_3_warns_once_that_its_reference_is_stale():
    with pytest.warns(diffscope.DiffscopeWarning, match="public reference code of Motif-3 is stale") as warned:
        capture = diffscope.load(gdla.tiny()).capture(IDS)
    assert len(warned) == 1 and "\n" not in str(warned[0].message) and "stale" in capture.facts["warnings"]
    report = diffscope.check(gdla.tiny())
    assert report.passed and ["stale" in each.says for each in report.findings if each.verdict == "warn"] == [True]


@pytest.mark.parametrize("name", ["motif-latent", "phi4flash"])
def test_padding_on_the_left_is_refused_in_a_bare_call(name):
    """Where the model is handed a mask of padding alone, an edit cannot tell what the rows are."""
    scope = diffscope.load(LAYOUTS[name].tiny())
    mask = torch.ones(2, 12)
    mask[1, :4] = 0
    with torch.no_grad(), scope.edit(edits.set_lambda(0.3)), pytest.raises(UnsupportedModel, match="prompts of one length"):
        scope.model(torch.tensor([IDS[:12]] * 2), attention_mask=mask)


class Ring:
    """A cache of another make."""

    def get_seq_length(self):
        return 0

    def update(self, k, v, layer):
        return k, v


def test_what_a_version_lacks_is_said():
    scope = diffscope.load(motif.tiny())
    with torch.no_grad(), scope.edit(edits.set_lambda(0.3)), pytest.raises(UnsupportedModel, match="what Ring keeps"):
        scope.model(torch.tensor([IDS]), past_key_values=Ring())
    attention = scope.model.model.layers[0].self_attn
    attention.rotary_emb, attention.config.rotary_inside = scope.model.model.rotary_emb.forward, True
    with pytest.raises(UnsupportedModel, match="was not given position_embeddings"):
        scope.capture(IDS)
    other = gdla.tiny()
    for name in ("num_heads", "num_attention_heads"):
        setattr(other.model.layers[0].self_attn if name == "num_heads" else other.config, name, None)
    with pytest.raises(UnsupportedModel, match="num_attention_heads or num_heads"):
        diffscope.load(other).family.read(AttentionPass(other.model.layers[0].self_attn, 0, 0, (33,)))
