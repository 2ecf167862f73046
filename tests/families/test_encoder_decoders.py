"""Encoder-decoders: layers of three kinds, keys with tokens and spans of their own, maps that are rectangles."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

import diffscope
from diffscope import (
    DiffscopeError,
    FidelityError,
    PromptError,
    UnsupportedModel,
    attribution,
    edits,
    figures,
    instruments,
    readings,
)
from diffscope.attention.layer import LayerAttention
from diffscope.families.interface import by_distance
from diffscope.families.standard import Standard
from diffscope.models.outline import outline
from diffscope.views import tokens as token_strip
from tests import encoder_decoders, tiny

KINDS = ["encoder", "encoder", "self", "cross", "self", "cross"]


def own_maps(model, prompt):
    """Return the maps that the model itself gives, by kind, in the order of its layers: (prompt, head, query, key)."""
    out = model(**prompt, output_attentions=True)
    return {"encoder": [*out.encoder_attentions], "self": [*out.decoder_attentions], "cross": [*out.cross_attentions]}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", encoder_decoders.MODELS)
def test_maps_are_those_of_the_model(name, count):
    model, prompt = encoder_decoders.model(name), encoder_decoders.prompt(name, count)
    capture = diffscope.load(model).capture(prompt)
    assert capture.kinds == KINDS and capture.layer_numbers == [*range(6)] and capture.fidelity.decided.all()
    for number, one in enumerate(capture):
        own = own_maps(model, prompt)
        for layer in one.layers:
            maps = layer.rows().a1
            want = own[layer.kind].pop(0)[number, :, : layer.n_queries, : layer.n_keys]
            torch.testing.assert_close(maps, want, rtol=0, atol=1e-5)
            assert layer.n_keys == len(one.tokens if layer.kind == "self" else one.key_tokens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bart", "t5", "whisper"])
def test_half_precision_is_proved(name, attention, dtype):
    model = encoder_decoders.model(name, attention).to(dtype)
    capture = diffscope.load(model).capture(encoder_decoders.prompt(name, 2))
    assert capture.fidelity.decided.all() and float(capture.fidelity.error_float32.max()) < 1e-5


def test_a_text_is_read_by_the_encoder_and_the_decoder_starts():
    tokenizer = tiny.tokenizer()
    scope = diffscope.load(encoder_decoders.model("bart"), tokenizer)
    capture = scope.capture("Paris 7421. Rome 2174.", key_spans={"answer": "7421"})
    assert capture.ids == [2] and "".join(capture.key_tokens[at] for at in capture.key_spans["answer"]).strip() == "7421"
    both = scope.capture({"input_ids": "Paris 7421.", "decoder_input_ids": "Rome"})
    assert both.ids == [2, *tokenizer("Rome")["input_ids"]] and both.key_tokens == capture.key_tokens[: len(both.key_tokens)]


def test_a_decoders_text_has_no_end_so_that_the_model_goes_on_with_it():
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <bos>", special_tokens=[("<bos>", 0)])
    scope = diffscope.load(encoder_decoders.model("bart"), tokenizer)
    alone = tokenizer("Rome", add_special_tokens=False)["input_ids"]
    capture = scope.capture({"input_ids": "Rome", "decoder_input_ids": "Rome"})
    assert capture.ids == [2, *alone] and list(capture.key_prompts[0].ids) == [*alone, 0]


@pytest.mark.parametrize(("padded", "mask"), [("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")])
def test_padding_that_no_mask_tells_is_refused(padded, mask):
    scope = diffscope.load(encoder_decoders.model("bart"), tiny.tokenizer())
    prompt = {"input_ids": [[5, 6, 7], [5, 6, 8]], "decoder_input_ids": [[2, 6, 7], [2, 6, 8]]}
    prompt[padded] = [[2, 6, 7], [2, 6, 1]]
    with pytest.raises(PromptError, match=f"prompt 1 of the batch ends with .*; give its {mask} too, in a dict with {padded}:"):
        scope.capture(prompt)
    shown = scope.capture(prompt | {mask: [[1, 1, 1], [1, 1, 0]]})[1]
    assert len(shown.ids if padded == "decoder_input_ids" else shown.key_tokens) == 2


@pytest.fixture(scope="module", params=["bart", "t5"])
def scope(request):
    return diffscope.load(encoder_decoders.model(request.param))


def captured(scope):
    return scope.capture(encoder_decoders.prompt("bart"), {"asked": [4]}, key_spans={"answer": [2, 3]})


@pytest.fixture(scope="module")
def capture(scope):
    return captured(scope)


@pytest.fixture(scope="module")
def of_bart():
    """A capture for what is the same whatever the model."""
    return captured(diffscope.load(encoder_decoders.model("bart")))


def test_statistics_are_of_each_kind_with_its_own_spans(capture):
    measured = capture.measure(["entropy", "span_mass"])
    assert list(measured["kind"].values) == KINDS
    for layer in (1, 2, 3):
        rows = np.stack([capture.map("A1", layer, head).values for head in range(4)]).astype(float)
        entropy = -np.where(rows > 0, rows * np.log(np.where(rows > 0, rows, 1)), 0).sum(-1)
        entropy[:, (rows > 0).sum(-1)[0] < 2] = np.nan
        got = measured.entropy.sel(layer=layer, map="A1").values[:, : rows.shape[1]]
        np.testing.assert_allclose(got, entropy, atol=1e-5)
    mass = measured.span_mass.sel(layer=3, map="A1", normalisation="raw")
    cells = np.stack([capture.map("A1", 3, head, keys="answer").sum("key").values for head in range(4)])
    np.testing.assert_allclose(mass.sel(span="answer").values[:, :5], cells, atol=1e-6)
    assert mass.sel(span="asked").isnull().all() and measured.span_mass.sel(layer=2, span="answer").isnull().all()
    assert measured.entropy.sel(layer=3).isel(query=slice(5, None)).isnull().all()  # which are the encoder's queries alone


def test_queries_are_the_prompts_so_that_the_encoder_is_measured_by_itself(capture):
    assert list(capture.measure(["entropy"], queries="asked").layer) == [2, 3, 4, 5]
    assert list(capture.measure(["entropy"], queries=diffscope.QuerySample(3)).layer) == [2, 3, 4, 5]
    encoder = capture.of_kind("encoder")
    assert encoder.tokens == capture.key_tokens and list(encoder.measure(["entropy"], queries=[8]).layer) == [0, 1]
    with pytest.raises(DiffscopeError, match="no layer of the kind 'both'; there are encoder, self, cross"):
        capture.of_kind("both")


def test_every_statistic_is_measured_of_a_rectangle(capture):
    ranks = capture.measure("all").effective_rank.sel(layer=3, ranked_map="A1", control="map")
    maps = np.stack([capture.map("A1", 3, head).values for head in range(4)])
    energy = np.linalg.svd(maps.astype(float), compute_uv=False) ** 2  # (head, 5)
    np.testing.assert_allclose(ranks.sel(definition="stable_rank"), energy.sum(-1) / energy[:, 0], rtol=1e-4)


@pytest.mark.parametrize("name", ["bart", "t5", "whisper"])
def test_a_check_passes(name):
    if name == "whisper":  # which takes no token ids for its encoder
        with pytest.raises(DiffscopeError, match="no prompt for it can be made up"):
            diffscope.check(encoder_decoders.model(name))
        return
    report = diffscope.check(encoder_decoders.model(name))
    assert report.passed and {finding.verdict for finding in report.findings} <= {"pass", "undecided"}


def test_a_saved_capture_answers_the_same(capture, tmp_path):
    capture.save(tmp_path / "both.dscope")
    opened = diffscope.open(tmp_path / "both.dscope")
    assert opened.kinds == KINDS and opened.key_tokens == capture.key_tokens and opened.key_spans == capture.key_spans
    for layer in capture.layer_numbers:
        np.testing.assert_array_equal(opened.map("A1", layer, 1), capture.map("A1", layer, 1))
    assert opened.measure(["span_mass"]).equals(capture.measure(["span_mass"]))


@pytest.mark.parametrize("kind", ["encoder", "self", "cross"])
@pytest.mark.parametrize("count", [1, 2])
def test_layers_of_one_kind_are_saved_and_opened(scope, kind, count, tmp_path):
    layers = scope.capture(encoder_decoders.prompt("bart", count)).of_kind(kind)
    layers.save(tmp_path / "kind.dscope")
    assert diffscope.open(tmp_path / "kind.dscope").measure(["span_mass"]).equals(layers.measure(["span_mass"]))


def test_layers_of_several_kinds_are_not_averaged(capture):
    measured = capture.measure(["entropy"])
    with pytest.raises(DiffscopeError, match="of the kinds encoder, self, cross; average those of one"):
        diffscope.average(measured, over="layer")
    cross = diffscope.average(measured.sel(layer=measured.kind == "cross"), over="layer")
    np.testing.assert_allclose(cross.entropy, measured.entropy.sel(layer=[3, 5]).mean("layer"), rtol=1e-6)


def test_captures_of_other_keys_are_not_compared(scope, capture):
    prompt = encoder_decoders.prompt("bart")
    assert len(diffscope.compare(capture, scope.capture(prompt)).captures) == 2
    for changed in (prompt["input_ids"].flip(1), prompt["input_ids"][:, :6]):
        other = scope.capture(prompt | {"input_ids": changed, "attention_mask": torch.ones_like(changed)})
        with pytest.raises(DiffscopeError, match="the same prompts"):
            diffscope.compare(capture, other)
        with pytest.raises(DiffscopeError, match="are of different prompts"):
            figures.checkpoints({0: capture, 1: other}, layer=3)


def test_edits_act_on_rectangles(scope):
    prompt = encoder_decoders.prompt("bart")
    layer = scope.capture(prompt).layers[3]
    projection = scope.family.output_projection(scope.family.modules(scope.model)[3])
    entered = []
    with scope.edit(edits.knock_out(queries=[1, 4], keys=[2, 8], layers=3)):
        handle = projection.register_forward_pre_hook(lambda _, args: entered.append(args[0][0]))
        scope.model(**prompt)
        edited = scope.capture(prompt)
        handle.remove()
    scores = layer.q[0] @ layer.k[0].mT * layer.scale
    scores[:, torch.tensor([[1], [4]]), torch.tensor([2, 8])] = -torch.inf
    maps = scores.softmax(-1)
    torch.testing.assert_close(edited.layers[3].rows().a1, maps, rtol=0, atol=2e-6)
    for out in entered:  # bare calls of the model, and captures
        torch.testing.assert_close(out, (maps @ layer.v[0]).transpose(0, 1).flatten(1), rtol=0, atol=2e-5)
    with pytest.raises(DiffscopeError, match="needs square maps; leave layer 3 out|layer 3 is cross-attention"):
        with scope.edit(edits.quantise_logits(6, per="map", layers=3)):
            scope.capture(prompt)


def test_figures_draw_rectangles_with_the_tokens_of_both_sides(capture):
    maps = figures.maps(capture, layer=3, head=1)
    assert maps.data.sizes == {"query": 5, "key": 9} and list(maps.data.key_token.values) == capture.key_tokens
    assert maps.data.attrs["key_spans"]["answer"] == [(2, 4)] and maps.data.attrs["spans"]["asked"] == [(4, 5)]
    row = figures.row(capture, layer=3, head=1, query=4)
    np.testing.assert_array_equal(row.data["A"], capture.map("A1", 3, 1, queries=[4])[0])
    assert figures.heads(capture, statistic="entropy").data.sizes["layer"] == 4  # at a query, which is none of the encoder's
    pooled = capture.pooled_maps(3, [1], size=3, marginals=True)
    np.testing.assert_allclose(pooled.received_A1[0], capture.map("A1", 3, 1).sum("query"), atol=1e-5)


def test_the_print_of_a_rectangle_has_no_grey_and_its_spans_beside_the_names_of_tokens(of_bart):
    legends = {}
    for layer in (2, 3):
        drawn = figures.maps(of_bart, layer=layer).matplotlib()
        legends[layer] = [text.get_text() for text in drawn.legends[0].get_texts()]
        drawn.canvas.draw()
        axes = drawn.axes[0]
        *_, left = (line.get_window_extent().x0 for line in axes.lines)
        assert all(name.get_window_extent().x1 < left for name in axes.get_yticklabels())
    assert "not visible to the query" in legends[2] and legends[3] == ["answer", "asked"]


def test_a_grid_is_of_layers_of_one_kind(capture):
    grid = figures.maps(capture, layers=[3, 5])
    assert dict(grid.data.sizes) == {"model": 1, "layer": 2, "head": 4, "query": 5, "key": 9}
    np.testing.assert_array_equal(grid.data["map"].sel(layer=5, head=2)[0], capture.map("A1", 5, 2))
    assert "5 queries × 9 keys" in grid.plotly().layout.title.text
    for ask in (lambda: figures.maps(capture, layers="all"), capture.thumbnails):
        with pytest.raises(DiffscopeError, match=r"kinds encoder, self, cross.*capture\.of_kind"):
            ask()
    assert capture.of_kind("cross").thumbnails().sizes["key"] == 9
    with pytest.raises(DiffscopeError, match="the text is of tokens that look at one another"):
        token_strip.data(capture, 3, 0, 0)


def test_compared_rectangles_keep_the_spans_of_their_keys(scope, capture):
    both = figures.maps(diffscope.compare(capture, capture), layer=3).data
    assert both.attrs["key_spans"] == figures.maps(capture, layer=3).data.attrs["key_spans"]


def test_the_command_line_reads_layers_of_one_kind(run, of_bart, tmp_path):
    path = tmp_path / "both.dscope"
    of_bart.save(path)
    status, out, _ = run("measure", path, "--of-kind", "cross", "--statistics", "span_mass", "--queries", "asked", "--json")
    told = json.loads(out)
    assert status == 0 and told["tokens"] == 5 and told["keys"]["tokens"] == 9 and told["keys"]["spans"]["answer"] == [2, 3]
    assert told["statistics"]["span_mass"]["coords"]["layer"] == [3, 5]
    assert "5 tokens, 9 tokens of another side" in run("measure", path, "--of-kind", "cross")[1]
    drawn = tmp_path / "layers.pdf"
    for kind, status in (("self", 0), ("cross", 2)):
        told = run("figure", path, "--kind", "statistic_by_layer", "--of-kind", kind, "--out", drawn)
        assert told[0] == status and drawn.exists()
    assert told[2].startswith("error: this figure is of tokens that look at one another") and "--of-kind self" in told[2]
    assert run("figure", path, "--layer", 3, "--head", 1, "--out", tmp_path / "maps.png")[0] == 0
    words = run("figure", "--model", "a", "--baseline", "b", "--of-kind", "self", "--out", drawn)[2]
    assert "leave --of-kind, --decoder-prompt and --key-span out" in words and "Traceback" not in words


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_a_saved_model_opens_with_both_its_sides(name, tmp_path):
    model = encoder_decoders.model(name)
    model.save_pretrained(tmp_path)
    scope, prompt = diffscope.load(tmp_path), encoder_decoders.prompt(name)
    with torch.no_grad():
        torch.testing.assert_close(scope.model(**prompt).logits, model(**prompt).logits)
    assert scope.capture(prompt).kinds == KINDS and scope.has_encoder
    assert outline(str(tmp_path)).kind == name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved encoder-decoder with its tokenizer."""
    folder = tmp_path_factory.mktemp("t5")
    encoder_decoders.model("t5").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def test_the_command_line_takes_a_text_for_each_side(run, folder, tmp_path):
    kept, given = tmp_path / "both.dscope", ["--model", folder, "--prompt", "Paris 7421. Rome 2174."]
    both = [*given, "--decoder-prompt", "Rome is", "--key-span", "answer=7421", "--span", "asked=Rome"]
    status, out, err = run("capture", *both, "--out", kept)
    assert status == 0 and "tokens of another side" in out and "cross" in out, err
    cap, scope = diffscope.open(kept), diffscope.load(folder)
    want = scope.capture({"input_ids": "Paris 7421. Rome 2174.", "decoder_input_ids": "Rome is"}, key_spans={"answer": "7421"})
    assert (cap.tokens, cap.key_tokens, cap.key_spans) == (want.tokens, want.key_tokens, want.key_spans) and cap.spans["asked"]
    np.testing.assert_array_equal(cap.map("D", 3, 1), want.map("D", 3, 1))
    told = json.loads(run("capture", *both, "--json")[1])
    assert told["tokens"] == want.tokens and told["keys"]["spans"]["answer"] == list(want.key_spans["answer"])
    assert json.loads(run("capture", *given, "--json")[1])["tokens"] == scope.capture("Paris").tokens  # the start alone
    for command in ("capture", "measure"):
        assert f" 1 token, {len(want.key_tokens)} tokens of another side" in run(command, *given)[1]
    measured = json.loads(run("measure", *both, "--statistics", "span_mass", "--json")[1])
    assert measured["keys"]["tokens"] == len(want.key_tokens)
    assert run("figure", *both, "--layer", 3, "--head", 1, "--out", tmp_path / "maps.json")[0] == 0
    data = json.loads((tmp_path / "maps.json").read_text())
    assert (data["dims"]["query"], data["dims"]["key"]) == (len(want.tokens), len(want.key_tokens))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--model", "mini-diff", "--prompt", "a", "--decoder-prompt", "b"], "is no encoder with a decoder; leave --decoder"),
        (["--model", "mini-diff", "--prompt", "a", "--key-span", "b=a"], "has no cross-attention, so it has no key_spans"),
        (["--model", "mini-diff", "--prompt", "a", "--key-span", "b"], "--key-span 'b' is not NAME=TEXT"),
    ],
)
def test_texts_of_a_side_that_is_not_there_are_refused(run, arguments, words):
    for command in ("capture", "measure"):
        status, _, err = run(command, *arguments)
        assert status == 2 and words in err and err.startswith("error: ") and err.count("\n") == 1


def test_an_encoder_of_sound_says_what_it_reads():
    with pytest.raises(PromptError, match="reads input_features and no text; in Python give .*'decoder_input_ids': 'a text'"):
        diffscope.load(encoder_decoders.model("whisper"), tiny.tokenizer()).capture("a text")


@pytest.mark.parametrize(
    "look",
    [figures.amplifier, readings.by_layer, instruments.cmrr_by_injection, lambda cap: instruments.anatomy(cap, cap)],
)
def test_what_is_of_one_side_says_so(look, capture):
    with pytest.raises(DiffscopeError, match=r"of tokens that look at one another, .*of_kind\(\"self\"\)"):
        look(capture)


def test_effects_of_edits_are_looked_for_in_all_queries_of_each_side(scope):
    """An edit of a token of the encoder beyond the end of the decoder's text."""
    prompt, made = encoder_decoders.prompt("bart"), [edits.knock_out([0], [8], layers=0)]
    before = scope.capture(prompt)
    with scope.edit(*made):
        after = scope.capture(prompt)
    found = readings.effects(before, after, made).estimates
    rows, other = (cap.layers[0].prompt(0).rows().d for cap in (before, after))
    wanted = torch.linalg.vector_norm(other - rows, dim=(1, 2)) / torch.linalg.vector_norm(rows, dim=(1, 2))
    np.testing.assert_allclose(found["change"].sel(quantity="D", cause="edit", layer=0), wanted, rtol=1e-5)
    assert found["directly"].sel(layer=0).any() and found.attrs["queries"] == 9
    longer = prompt | {
        name: prompt[other] for name, other in (("input_ids", "decoder_input_ids"), ("decoder_input_ids", "input_ids"))
    }
    longer.pop("attention_mask", None)
    cap = scope.capture(longer)
    assert "None of 24 heads" in readings.effects(cap, cap, []).sentence
    with pytest.raises(DiffscopeError, match="effects are of one prompt and one model"):
        readings.effects(before, cap, [])


def test_what_runs_a_decoder_alone_refuses_two_sides_in_a_line(scope):
    prompt = encoder_decoders.prompt("bart")
    asked = [
        lambda: readings.head_types(scope),
        lambda: readings.branches(scope, None),
        lambda: readings.patched_heads(scope, prompt, prompt),
        lambda: attribution.score_attribution(scope, prompt, 3, 0, -1, 0),
        lambda: attribution.path_patches(scope, prompt, prompt, (4, 0, "q1"), []),
    ]
    for ask in asked:
        with pytest.raises(UnsupportedModel, match="has cross-attention, whose keys are of another side"):
            ask()
    for ask in (readings.head_types, lambda cap: readings.branches(cap, None)):
        with pytest.raises(DiffscopeError, match="takes a scope, such as diffscope.load.*not a Capture"):
            ask(scope.capture(prompt))


def test_what_asks_for_an_answer_refuses_two_sides_in_a_line(run, folder, tmp_path):
    for arguments in (["figure", "--kind", "by_depth", "--out", tmp_path / "depths.pdf"], ["evaluate"], ["test"]):
        status, _, err = run(*arguments, "--model", folder)
        last = err.splitlines()[-1]
        assert status == 2 and last.startswith("error: ")
        assert "has cross-attention" in last or "has an encoder and a decoder" in last


def test_types_of_heads_are_of_one_side_even_if_both_have_as_many_tokens(scope):
    prompt = encoder_decoders.prompt("bart")
    cap = scope.capture(prompt | {"decoder_input_ids": prompt["input_ids"].flip(1)})
    with pytest.raises(DiffscopeError, match=r"of tokens that look at one another, .*of_kind\(\"self\"\)"):
        instruments.head_types(cap)
    for kind in ("encoder", "self"):
        own = instruments.head_types(cap.of_kind(kind))["score"].sel(map="A1", type="previous_token")
        maps = np.stack([cap.map("A1", layer, head) for layer in own.layer.values for head in range(4)])
        wanted = np.diagonal(maps, -1, 1, 2).mean(-1).reshape(own.shape)
        np.testing.assert_allclose(own, wanted, atol=1e-6)


def test_edits_by_position_refuse_positions_that_a_layer_does_not_have(scope):
    prompt = encoder_decoders.prompt("bart")  # nine tokens of the encoder, five of the decoder
    source = scope.capture(prompt)
    with scope.edit(edits.knock_out([8], [4])), pytest.raises(PromptError, match=r"layer 2 \(self\) has no key 8; .* by layers="):
        scope.capture(prompt)
    with scope.edit(edits.knock_out([8], [4], layers=[3, 5])):
        scope.capture(prompt)
    with pytest.raises(PromptError, match="queries has token 7, and the source has 5 tokens"):
        edits.patch("A1", source, queries=[7], layers=[2, 4])
    edits.patch("A1", source, queries=[7], layers=[0, 1])
    with scope.edit(edits.patch("A1", source)), pytest.raises(DiffscopeError, match="is cross-attention; leave it out by naming"):
        scope.capture(prompt)


def test_what_continues_a_text_refuses_two_sides(scope):
    prompt = encoder_decoders.prompt("bart")
    for ask in (lambda: scope.generate(prompt), lambda: scope.answer(prompt, "x"), lambda: scope.tokenize(prompt)):
        with pytest.raises(PromptError, match="its prompts are arguments of its forward"):
            ask()
    with pytest.raises(UnsupportedModel, match="has an encoder and a decoder"):
        scope.logits(prompt["input_ids"])
    with torch.no_grad():
        own = scope.model(**prompt).logits[0, :-1]
    loss = torch.nn.functional.cross_entropy(own, prompt["decoder_input_ids"][0, 1:])
    assert scope.loss(prompt) == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.parametrize(
    "prompt, words",
    [
        ({"input_ids": [3, 4], "pixels": [1]}, "takes no 'pixels'"),
        ({"input_ids": [[3, 4], [5, 6]], "decoder_input_ids": [[3]]}, r"lead with the number of prompts.*input_ids \(2, 2\)"),
        ({"input_ids": [[3, 4, 5]], "attention_mask": [[0, 1, 1]]}, "pad input_ids on the right"),
        ({"input_ids": [[3, 4, 5]], "attention_mask": [[1, 1]]}, "not a 1 or 0 for each of input_ids; give one value a token"),
        ({"input_ids": [[3, 4]], "attention_mask": [[1, 2]]}, "not a 1 or 0 for each of input_ids; give one value a token"),
        ({"input_ids": []}, "input_ids of a prompt is empty"),
        (
            [{"input_ids": [3]}, {"input_ids": [3], "labels": [4]}],
            "prompt 0 of the batch has no labels, which others have",
        ),
        (3.5, "is no prompt of"),
    ],
)
def test_prompts_that_cannot_be_run_are_refused_in_a_line(prompt, words, scope):
    with pytest.raises(DiffscopeError, match=words):
        scope.capture(prompt)


def test_a_prompt_may_say_whether_to_keep_a_cache(scope):
    prompt = encoder_decoders.prompt("bart")
    np.testing.assert_array_equal(
        scope.capture(prompt | {"use_cache": True}).map("D", 3, 0), scope.capture(prompt).map("D", 3, 0)
    )
    with pytest.raises(PromptError, match="use_cache of the prompts differ; capture them one by one"):
        scope.capture([prompt | {"use_cache": True}, prompt | {"use_cache": False}])


def test_a_decoder_alone_has_no_key_spans():
    with pytest.raises(PromptError, match="has no cross-attention, so it has no key_spans"):
        diffscope.load(tiny.standard("llama")).capture(tiny.ids(9), key_spans={"answer": [1]})


class Misread(Standard):
    """Reads cross-attention with its keys in another order."""

    def read(self, attention_pass):
        layer = super().read(attention_pass)
        return replace(layer, k=layer.k.roll(1, 2)) if layer.kind == "cross" else layer


def test_a_wrong_reading_of_cross_attention_is_refused():
    with pytest.raises(FidelityError, match="layer 3"):
        diffscope.load(encoder_decoders.model("bart"), family=Misread()).capture(encoder_decoders.prompt("bart"))


def test_a_bias_of_positions_is_kept_by_distance_or_not_at_all():
    table = torch.randn(1, 4, 9)
    bias = table[..., torch.arange(5) - torch.arange(5)[:, None] + 4]
    assert torch.equal(by_distance(bias), table)
    assert torch.equal(by_distance(bias[:, :, 3:])[..., :6], table[..., :6])  # of the last two queries, as with a cache
    bias[0, 0, 2, 2] += 1
    assert by_distance(bias) is None


def test_a_layer_whose_queries_have_no_place_among_the_keys_takes_no_causal_mask():
    q = torch.zeros(1, 1, 2, 4)
    pairing = diffscope.families.Pairing.plain(1)
    with pytest.raises(ValueError, match="no mask is 'causal'"):
        LayerAttention(0, "mine", q, q, q, 1.0, pairing, (2,), "cross", (2,))
