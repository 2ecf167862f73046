"""The documentation's own family opens a model, and can be forgotten again."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaAttention

import diffscope
from diffscope import DiffscopeError, FidelityError, PromptError, UnsupportedModel, cards, families
from diffscope.families.standard import Standard
from tests import tiny

PAGE = Path(__file__).parents[2] / "docs" / "your_model.md"
MODULE, DECLARED, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
NAMES = {"__name__": __name__}
exec(MODULE, NAMES)
MyAttention = NAMES["MyAttention"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.head = nn.Embedding(100, 32), MyAttention(32, 4), nn.Linear(32, 100)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.attention(x))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
        model.attention.lam.copy_(torch.tensor([0.4, 0.1, 0.7, 0.3]))
    return model


@pytest.fixture
def page():
    """The page's blocks of Python behind that of the module; afterwards its family is forgotten."""
    before = list(families.FAMILIES)
    yield BLOCKS
    families.FAMILIES[:] = before


def test_the_example_opens_its_model(model, page):
    with pytest.raises(DiffscopeError, match="no attention that diffscope reads .*families.register .docs/your_model.md"):
        diffscope.load(model)
    names = {**NAMES, "model": model}
    family = page[0].partition("class MyFamily")[2].partition("\n\n\n")[0]
    assert len(family.splitlines()) <= 15
    exec("\n".join(page), names)
    assert names["capture"].fidelity.decided.all() and float(names["capture"].fidelity.error.max()) < 1e-5
    report = diffscope.check(model)  # of a family that states no convention
    assert report.passed
    assert "head h owns the query maps h, h + H instead of 2h, 2h + 1" in " ".join(report.differences)
    assert report.layers[0]["λ formula"] == "not stated by the family"
    with diffscope.load(model).edit(diffscope.edits.set_lambda(0.1)) as scope:
        edited = scope.capture([5, 17, 3, 99, 17]).next
    model.attention.lam.data.fill_(0.1)
    assert dict(edited) == pytest.approx(dict(scope.capture([5, 17, 3, 99, 17]).next), rel=1e-4)
    model.attention.norm.forward = lambda x: x
    with pytest.raises(FidelityError, match="norm"):
        scope.capture([5, 17, 3, 99, 17])


def test_parts_by_their_names_are_enough_where_nothing_is_turned(model, page):
    exec(DECLARED, {**NAMES})
    assert len(DECLARED.splitlines()) <= 10
    capture = diffscope.load(model).capture([5, 17, 3, 99, 17])
    assert capture.family == "mine" and capture.fidelity.decided.all() and float(capture.fidelity.error.max()) < 1e-5
    assert diffscope.check(model).passed
    written = {**NAMES}
    exec(page[0].partition("\n\n\nregister(")[0], written)
    by_class = diffscope.load(model, family=written["MyFamily"]()).capture([5, 17, 3, 99, 17])
    assert torch.equal(capture.layers[0].rows().d, by_class.layers[0].rows().d)


class ByToken(MyAttention):
    """With a λ of each token and head, and one of the layer beside it."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        del self.lam
        self.lam_proj, self.factor = nn.Linear(width, heads), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        self.lam = (self.factor * self.lam_proj(x).sigmoid()).mT  # (batch, head, token)
        q, k = (part(x).unflatten(-1, (2 * self.heads, -1)).transpose(1, 2) for part in (self.q, self.k))
        a1, a2 = self.masked(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).chunk(2, dim=1)
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.out(self.norm((a1 - self.lam[..., None] * a2) @ v).transpose(1, 2).flatten(2))


PARTS = {"q": "q", "k": "k", "v": "v", "output": "out", "norm": "norm", "pairing": families.Pairing.halves}


def test_a_declared_lambda_may_be_of_each_token_and_of_the_layer(model):
    torch.manual_seed(1)
    model.attention = ByToken(32, 4)
    both = families.Projected(
        "both",
        ByToken,
        heads="heads",
        lam=lambda module, outputs: (module.factor * outputs["lam"].sigmoid()).mT,
        watched_too={"lam": "lam_proj"},
        **PARTS,
    )
    capture = diffscope.load(model, family=both).capture([5, 17, 3, 99, 17])
    assert capture.lam.dims == ("layer", "head", "query") and float(capture.fidelity.error.max()) < 1e-5


class Weighed(MyAttention):
    """With a λ as wide as `like` says, or with a gate that weighs both maps; keeps both weights and D as `seen`."""

    LIKE = {"layer": (1, 1), "head": (4, 1), "token": (1, None), "head and token": (4, None), "gate": (4, None)}

    def __init__(self, width, heads, like):
        super().__init__(width, heads)
        del self.lam
        self.like, (of_heads, token) = like, self.LIKE[like]
        if token is None:
            self.weigh = nn.Linear(width, of_heads)
        else:
            self.weight = nn.Parameter(torch.linspace(0.2, 0.9, of_heads))

    def forward(self, x):
        lam = self.weigh(x).sigmoid().mT[..., None] if hasattr(self, "weigh") else self.weight[:, None, None]
        gain, lam = (lam, 1 - lam) if self.like == "gate" else (torch.ones(1, 1, 1, 1), lam)
        q, k = (part(x).unflatten(-1, (2 * self.heads, -1)).transpose(1, 2) for part in (self.q, self.k))
        a1, a2 = self.masked(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).chunk(2, dim=1)
        d = gain * a1 - lam * a2
        self.seen = gain, lam, d
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.out(self.norm(d @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("like", Weighed.LIKE)
def test_lambda_is_of_a_layer_a_head_a_token_or_both_and_a_gate_weighs_both_maps(model, like):
    torch.manual_seed(1)
    model.attention = tiny.awake(Weighed(32, 4, like))
    of_token = hasattr(model.attention, "weigh")
    lam = (lambda module, outputs: outputs["weigh"].sigmoid().mT) if of_token else "weight"
    weights = {"lam": lam}
    if like == "gate":
        weights = {"gain": lam, "lam": lambda module, outputs: 1 - outputs["weigh"].sigmoid().mT}
    family = families.Projected(
        "weighed", Weighed, heads="heads", watched_too={"weigh": "weigh"} if of_token else None, **weights, **PARTS
    )
    scope = diffscope.load(model, family=family)
    capture = scope.capture([5, 17, 3, 99, 17])
    rows, (gain, lam, d) = capture.layers[0].rows(), model.attention.seen
    torch.testing.assert_close(rows.d, d[0])
    torch.testing.assert_close(rows.lam.expand(d[0].shape[:2]), lam[..., 0].expand(d.shape[:3])[0])
    assert capture.fidelity.decided.all() and diffscope.check(scope).passed
    sums = capture.measure(["row_sum"]).row_sum.sel(map="D", layer=0)
    torch.testing.assert_close(torch.tensor(sums.values), (gain - lam)[0, ..., 0].expand(d[0].shape[:2]), check_dtype=False)
    batch = scope.capture([[5, 17, 3, 99, 17], [8, 2, 40]])
    torch.testing.assert_close(batch[1].layers[0].rows().d, model.attention.seen[2][1, :, :3, :3])


def test_declared_groups_that_do_not_divide_the_heads_are_refused_in_a_line(model):
    model.attention.others, model.attention.pairs = 3, 2
    wrong = families.Projected("wrong", MyAttention, heads="others", groups="pairs", lam=0.5, **PARTS)
    with pytest.raises(UnsupportedModel, match=r"has 3 heads \(2 does not divide 3\); correct the family's heads, groups"):
        diffscope.load(model, family=wrong).capture([5, 17, 3])


def test_declared_heads_that_do_not_share_a_projection_are_refused_in_a_line(model):
    model.attention.others = 3
    wrong = families.Projected("wrong", MyAttention, heads="others", lam=0.5, **PARTS)
    with pytest.raises(UnsupportedModel, match="makes q 32 wide, which 6 heads cannot share; correct the family"):
        diffscope.load(model, family=wrong).capture([5, 17, 3])


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"heads": "head_count"}, "MyAttention has no 'head_count'; correct the family's heads"),
        ({"groups": "out"}, "'out' of MyAttention is no whole number; correct the family's groups"),
        ({"lam": "lamda"}, "MyAttention has no 'lamda'; correct the family's lam"),
        ({"gain": "out"}, "no number and no tensor; correct the family's gain"),
        ({"norm": "subln"}, "MyAttention has no 'subln'; correct the family's norm"),
        (
            {"lam": lambda module, outputs: module.lam[:3]},
            r"the shape \(3,\), which is neither \(4,\) nor broadcasts to \(1, 4, 3\)",
        ),
    ],
)
def test_a_mistyped_declaration_is_told_in_one_line(model, changed, words):
    wrong = families.Projected("wrong", MyAttention, **{"heads": "heads", "lam": "lam", **PARTS, **changed})
    with pytest.raises(UnsupportedModel, match=words) as error:
        diffscope.load(model, family=wrong).capture([5, 17, 3])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(4, 1), (4, 3), (1, 4, 1)])
def test_a_declared_lambda_broadcasts_to_batch_head_and_query_and_outlives_the_weights(model, shape):
    wide = lambda module, outputs: module.lam.reshape(4, 1).expand(shape) if shape != (4, 1) else module.lam[:, None]  # noqa: E731
    family = families.Projected("wide", MyAttention, heads="heads", lam=wide, **PARTS)
    capture = diffscope.load(model, family=family).capture([5, 17, 3])
    with torch.no_grad():
        model.attention.lam.zero_()
    assert capture.lam.sel(layer=0).values.ravel()[:: capture.lam.size // 4] == pytest.approx([0.4, 0.1, 0.7, 0.3])


def test_a_family_is_asked_for_by_its_name():
    model = tiny.standard("llama")
    assert diffscope.load(model, family="standard").family.name == "standard"
    with pytest.raises(UnsupportedModel, match="family 'unilm' recognises no attention"):
        diffscope.load(model, family="unilm")
    for wrong in ("standart", Standard):
        with pytest.raises(DiffscopeError, match="is no family; give an instance of one, or a name: .*, standard$"):
            diffscope.load(model, family=wrong)


def test_a_family_reads_in_one_way_or_in_several():
    class Several(Standard):
        read = families.Family.read

        def readings(self, attention_pass):
            yield super().read(attention_pass)

    assert diffscope.load(tiny.standard("llama"), family=Several()).capture([5, 17, 3]).family == "standard"
    with pytest.raises(TypeError, match="Silent reads no pass; give it a method read, or readings"):
        type("Silent", (families.Family,), {"name": "silent"})


def test_a_family_can_be_used_without_being_known(model, page):
    names = {**NAMES}
    exec(page[0].partition("\n\n\nregister(")[0], names)
    assert diffscope.load(model, family=names["MyFamily"]()).family.name == "mine"
    assert all(family.name != "mine" for family in families.FAMILIES)


def test_a_mistyped_path_of_a_watched_submodule_is_told_in_one_line(model, page):
    names = {**NAMES}
    exec(page[0].partition("\n\n\nregister(")[0], names)
    mistyped = type("Mistyped", (names["MyFamily"],), {"watch": {"q": "q", "k": "key", "v": "v"}})
    words = re.escape("reads outputs['k'], and the module called no such submodule (it called q, v); correct the path in")
    with pytest.raises(UnsupportedModel, match=words) as error:
        diffscope.load(model, family=mistyped()).capture([5, 17, 3])
    assert "\n" not in str(error.value)


class SeesAll(MyAttention):
    def masked(self, scores):
        return scores


def test_a_batch_whose_padding_would_be_attended_to_is_refused(model, page):
    names = {**NAMES}
    exec(page[0].partition("\n\n\nregister(")[0], names)

    class Bidirectional(names["MyFamily"]):
        def modules(self, model):
            return [module for module in model.modules() if isinstance(module, SeesAll)]

        def read(self, passage):
            return replace(super().read(passage), mask=families.Mask("full"))

    with pytest.raises(DiffscopeError, match="family 'mine' recognises no attention in this Model"):
        diffscope.load(model, family=Bidirectional())
    model.attention.__class__ = SeesAll
    scope = diffscope.load(model, family=Bidirectional())
    assert scope.capture([[5, 17, 3], [99, 17, 4]]).layers[0].mask.kind == "full"
    for edit in ([], [diffscope.edits.set_lambda(0.1)]):
        with scope.edit(*edit), pytest.raises(PromptError, match="would attend to padding; give prompts of one length"):
            scope.capture([[5, 17, 3], [99, 17]])
    report = diffscope.check(scope)
    assert report.passed and any("would attend to padding" in finding.says for finding in report.findings)


class AttendsByItself(LlamaAttention):
    def forward(self, hidden_states, *args, **kwargs):
        return self.o_proj(self.q_proj(hidden_states)), None


def test_what_does_not_call_the_attention_interface_is_told_the_way():
    model = tiny.standard("llama")
    model.model.layers[1].self_attn.__class__ = AttendsByItself
    words = "AttendsByItself called the attention interface 0 times: it does not go through .*families.register"
    with pytest.raises(UnsupportedModel, match=words) as error:
        diffscope.load(model).capture([5, 17, 3])
    assert "\n" not in str(error.value)
    model = tiny.diffllama()
    with pytest.raises(
        UnsupportedModel, match="DiffLlamaAttention called the attention interface 2 times where family 'standard'"
    ):
        diffscope.load(model, family=AsStandard()).capture([5, 17, 3])


class AsStandard(Standard):
    def modules(self, model):
        return [layer.self_attn for layer in model.model.layers]


def test_what_is_no_family_is_refused():
    with pytest.raises(DiffscopeError, match="instance of a subclass"):
        families.register(families.Family)


def test_every_family_is_listed_with_what_it_reads():
    """In the order in which they are tried; `diffscope models` lists them without loading any."""
    assert [family.name for family in families.FAMILIES] == list(cards.FAMILIES)
    assert all(family.description for family in families.FAMILIES)
