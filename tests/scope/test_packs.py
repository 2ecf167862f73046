"""Packs and embeddings: the captures of a pack are those of its sequences, a prompt of embeddings is that of its tokens."""

import numpy as np
import pytest
import torch
import transformers

import diffscope
from diffscope import Capture, FidelityError, PromptError, UnsupportedModel, edits
from tests import tiny
from tests.layouts import planted

LENGTHS = (5, 13, 1, 9)  # some longer than mistral's window of 7
SEQUENCES = [tiny.ids(n, seed=n) for n in LENGTHS]
ROW = [token for ids in SEQUENCES for token in ids]
POSITIONS = [position for n in LENGTHS for position in range(n)]
PACK = {"input_ids": torch.tensor([ROW]), "position_ids": torch.tensor([POSITIONS])}
WHOLE = torch.ones(len(ROW), len(ROW)).tril().bool()
BLOCKS = torch.block_diag(*(torch.ones(n, n).tril() for n in LENGTHS)).bool()
STANDARD = {name: lambda name=name: tiny.standard(name) for name in ("llama", "mistral", "qwen3", "gpt2")}
MODELS = {
    **STANDARD,
    **{name: lambda name=name: tiny.own(name) for name in ("v1", "v2", "gated", "plus", "shared_a2")},
    "diffllama": tiny.diffllama,
}


def added(visible):
    """A mask as eager attention adds it to the scores, (1, 1, query, key)."""
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]


def worst(capture, other):
    """The largest difference between the maps of two captures of one prompt."""
    pairs = [(layer.rows(), same.rows()) for layer, same in zip(capture.layers, other.layers, strict=True)]
    return max(float((getattr(rows, name) - getattr(same, name)).abs().max()) for rows, same in pairs for name in ("a1", "d"))


def opened(kind, implementation="eager", dtype="float32"):
    scope = diffscope.load(MODELS[kind](), dtype=dtype)
    scope.model.set_attn_implementation(implementation)
    return scope


EAGER = ("v1", "v2", "plus", "diffllama", "mistral")  # of standard models the weights that they give are compared below


@pytest.mark.parametrize(
    "kind, implementation",
    [*((kind, "eager") for kind in EAGER), *((kind, "sdpa") for kind in MODELS if kind not in ("v2", "plus"))],
)
def test_a_pack_is_the_batch_of_its_sequences(kind, implementation):
    scope = opened(kind, implementation)
    batch = scope.capture(PACK, spans={"first": slice(0, 1)})
    assert batch.batch and batch.fidelity.decided.all() and float(batch.fidelity.error.max()) < 1e-5
    assert all(layer.mask.kind == ("window" if kind == "mistral" else "causal") for layer in batch.layers)
    for capture, ids in zip(batch, SEQUENCES, strict=True):
        alone = scope.capture(ids, spans={"first": slice(0, 1)})
        assert capture.prompts == alone.prompts and worst(capture, alone) < 1e-5
        assert [token for token, _ in capture.next][:3] == [token for token, _ in alone.next][:3]
        tails = (each.measure("logit_outliers")["layer_output_outliers"] for each in (capture, alone))
        np.testing.assert_allclose(*tails, rtol=1e-5)
    told = scope.measure(PACK, ["entropy", "sink_rate"])
    for name, values in scope.measure(SEQUENCES, ["entropy", "sink_rate"]).items():
        np.testing.assert_allclose(told[name], values, atol=1e-4)


@pytest.mark.parametrize("kind", STANDARD)
def test_maps_of_a_pack_are_the_weights_that_the_model_gives(kind):
    scope = opened(kind)
    with torch.no_grad():
        weights = scope.model(**PACK, use_cache=False, output_attentions=True).attentions
    batch = scope.capture(PACK)
    start = 0
    for capture, n in zip(batch, LENGTHS):
        for layer, expected in zip(capture.layers, weights):
            assert (layer.rows().a1 - expected[0, :, start : start + n, start : start + n]).abs().max() < 1e-5
        start += n


# What counts tokens does so within a sequence, in every model; places that no token of a sequence has are refused.
PLACED = [edits.drop_sink(), edits.knock_out([0, 1], [0, 2, 3])]
EDITS = [edits.top_k_a1(2), edits.ablate_heads(layers=0, heads=1), edits.set_lambda(0.3), edits.low_rank_a2(2), *PLACED]


@pytest.mark.parametrize("kind", MODELS)
def test_edits_of_a_pack_are_those_of_its_sequences(kind):
    scope = opened(kind, "sdpa")
    for edit in EDITS if kind in ("v1", "diffllama") else PLACED:
        with torch.no_grad(), scope.edit(edit):
            packed = scope.model(**PACK, use_cache=False).logits[0]
            alone = torch.cat([scope.model(torch.tensor([ids]), use_cache=False).logits[0] for ids in SEQUENCES])
            assert (packed - alone).abs().max() < 2e-5 * float(alone.std()), edit
            if kind in ("v1", "diffllama", "mistral"):  # of what was edited, a capture shows the same in every model
                for capture, ids in zip(scope.capture(PACK), SEQUENCES):
                    assert worst(capture, scope.capture(ids)) < 1e-5, edit


def test_in_half_precision_the_formula_of_a_pack_is_proved():
    scope = opened("diffllama", "sdpa", "bfloat16")
    scope.capture(ROW)  # what it proves is of another kind of mask
    proofs = scope.capture(PACK).fidelity
    assert proofs.decided.all() and float(proofs.error_float32.max()) < 2e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:flex_attention called")
def test_in_half_precision_the_mask_of_a_pack_may_be_a_rule_that_is_not_held():
    """Flex attention keeps sequences apart by its block mask, of which only the rule within each is read; here uncompiled."""
    with torch.compiler.set_stance("force_eager"):
        proofs = opened("llama", "flex_attention", "bfloat16").capture(PACK).fidelity
    assert proofs.decided.all() and float(proofs.error_float32.max()) < 2e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_whose_rows_see_little_of_other_sequences_is_refused_too(dtype):
    """Its scores are so large that half precision rounds by more than queries give to other sequences."""
    model = tiny.standard("llama")

    class IgnoringPositions(type(model)):
        def forward(self, input_ids=None, position_ids=None, **options):
            return super().forward(input_ids, **options)

    model.__class__ = IgnoringPositions
    model.model.layers = model.model.layers[:1]
    attention = model.model.layers[0].self_attn
    keys = attention.k_proj.weight.detach().unflatten(0, (-1, attention.head_dim))
    with torch.no_grad():  # every query likes its own key most
        attention.q_proj.weight.copy_(8 * keys.repeat_interleave(attention.num_key_value_groups, 0).flatten(0, 1))
    lengths = (20, 13)
    pack = {
        "input_ids": [*tiny.ids(20), *tiny.ids(13, seed=2)],
        "position_ids": [position for n in lengths for position in range(n)],
    }
    with pytest.raises(UnsupportedModel, match="layer 0 attends across the sequences of the pack"):
        diffscope.load(model, dtype=dtype).capture(pack)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_wrong_in_a_pack_for_another_reason_is_called_that(dtype):
    scope = opened("v1", "sdpa", dtype)
    attention = scope.model.model.layers[1].self_attn
    noise = attention.o_proj.register_forward_pre_hook(lambda module, args: (args[0] + torch.randn_like(args[0]),))
    with pytest.raises(FidelityError, match="layer 1: .*no mistake that is known explains it"):
        scope.capture(PACK)
    noise.remove()
    with torch.no_grad():
        attention.q_proj.weight[0, 0] = torch.nan
    with pytest.raises(FidelityError, match=r"layer 1: q_proj\.weight of this layer holds NaN"):
        scope.capture(PACK)


def test_a_mask_beside_a_pack_has_to_keep_its_sequences_apart():
    scope = opened("diffllama", "sdpa")
    expected = scope.capture(PACK)
    for mask in (added(BLOCKS), BLOCKS[None, None]):
        batch = scope.capture({**PACK, "attention_mask": mask})
        assert max(map(worst, batch, expected)) < 1e-5
    with pytest.raises(UnsupportedModel, match="attends across the sequences of the pack; give them as a batch"):
        scope.capture({**PACK, "attention_mask": added(WHOLE)})
    with pytest.raises(PromptError, match="lets the sequences of a pack see each other; leave it out"):
        scope.capture({**PACK, "attention_mask": torch.ones_like(PACK["input_ids"])})
    with pytest.raises(PromptError, match="of 4 dimensions goes with a pack"):
        scope.capture({"input_ids": PACK["input_ids"], "attention_mask": added(BLOCKS)})
    with pytest.raises(PromptError, match="has the shape"):
        scope.capture({**PACK, "attention_mask": added(BLOCKS[:4, :4])})
    scope.model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedModel, match="adds 1 and 0 and hides no key"):
        scope.capture({**PACK, "attention_mask": BLOCKS[None, None]})


def test_a_model_that_does_not_keep_sequences_apart_is_refused():
    scope = diffscope.load(tiny.gpt_oss())  # its forward makes its masks without position_ids
    with pytest.raises(UnsupportedModel, match="layer 0 attends across the sequences of the pack"):
        scope.capture(PACK)
    with pytest.raises(UnsupportedModel, match="cannot be read in a pack"):
        diffscope.load(tiny.own("signed")).capture(PACK)
    with pytest.raises(UnsupportedModel, match="takes no (inputs_embeds|position_ids); give prompts as token ids"):
        diffscope.load(planted.tiny()).capture(PACK)


SHAPE = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": tiny.VOCABULARY, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "pad_token_id": 0}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
HYBRIDS = {
    "convolutions between": (transformers.Lfm2Config, {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}),
    "states beside": (transformers.FalconH1Config, MAMBA),
}


@pytest.mark.parametrize("kind", HYBRIDS)
def test_a_model_that_carries_more_than_attention_from_token_to_token_is_refused(kind):
    config, more = HYBRIDS[kind]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(**SHAPE, num_hidden_layers=2, **more))
    scope = diffscope.load(tiny.awake(model))
    for ask in (scope.capture, scope.measure, scope.loss):
        with pytest.raises(UnsupportedModel, match="which may mix the sequences of a pack; give its sequences as a batch"):
            ask(PACK)
    assert scope.generate({name: row[:, :18] for name, row in PACK.items()}, 1) == scope.generate(SEQUENCES[:2], 1)


def test_a_bare_call_whose_sequences_see_each_other_is_edited_as_the_model_is():
    scope = opened("llama", "sdpa")
    model = scope.model
    with torch.no_grad():
        plain = model(**PACK).logits  # with a cache transformers makes no mask of the positions
        assert (plain - model(**PACK, use_cache=False).logits).abs().max() > 0.1
        with scope.edit(edits.top_k_a1(1000)):
            assert (model(**PACK).logits - plain).abs().max() < 1e-4
        with scope.edit(edits.drop_sink()):  # the first key of the row, which is the only sink there is
            assert (model(**PACK).logits - model(**PACK, attention_mask=added(WHOLE), use_cache=False).logits).abs().max() < 1e-4


def test_losses_and_continuations_of_a_pack_are_those_of_its_sequences():
    scope = opened("v1")
    kept = [ids for ids in SEQUENCES if len(ids) > 1]
    positions = [position for ids in kept for position in range(len(ids))]
    pack = {
        "input_ids": [token for ids in kept for token in ids],
        "position_ids": positions,
    }  # one row without a batch's dimension
    assert scope.loss(pack) == pytest.approx(scope.loss(kept), abs=1e-5)
    assert scope.generate(pack, 3) == scope.generate(kept, 3)
    with pytest.raises(PromptError, match="a batch of 3; give its prompts one by one"):
        scope.encode(pack)


@pytest.mark.parametrize(
    "prompt, line",
    [
        ([PACK, PACK], "give packs one by one"),
        ({name: torch.cat([value, value]) for name, value in PACK.items()}, "give packs one by one"),
        ({"input_ids": [5, 6, 7, 8], "position_ids": [0, 1, 0, 2]}, "leave them out"),
        ({"input_ids": [5, 6, 7, 8], "position_ids": [3, 4, 0, 1]}, "leave them out"),
        ({"input_ids": [5, 6, 7], "position_ids": [0, 1]}, "another shape"),
        ({"input_ids": [5, 6], "position_ids": [0, 0], "token_type_ids": [0, 1]}, "token_type_ids of a pack are not 0"),
    ],
)
def test_what_is_no_pack_is_refused_in_a_line(prompt, line):
    with pytest.raises(PromptError, match=line):
        opened("llama").capture(prompt)


# embeddings


def embedded(scope, ids):
    return scope.model.get_input_embeddings()(torch.tensor(ids)).detach()


@pytest.mark.parametrize("kind", MODELS)
def test_a_prompt_of_embeddings_is_that_of_its_tokens(kind):
    scope = opened(kind, "sdpa")
    first, second = SEQUENCES[:2]
    alone = [scope.capture(ids, spans={"middle": slice(1, 3)}) for ids in (first, second)]
    vectors = [embedded(scope, ids) for ids in (first, second)]
    capture = scope.capture({"inputs_embeds": vectors[0]}, spans={"middle": slice(1, 3)})
    assert isinstance(capture, Capture) and capture.tokens == [*map(str, range(5))] and capture.text is None
    assert worst(capture, alone[0]) < 1e-5 and capture.spans == alone[0].spans
    named = scope.capture({"inputs_embeds": vectors[0], "input_ids": first}, spans={"middle": slice(1, 3)})
    assert named.prompts == alone[0].prompts and worst(named, alone[0]) < 1e-5
    padded = torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True, padding_side="left")
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(x)).long() for x in vectors], batch_first=True, padding_side="left")
    row = {"inputs_embeds": torch.cat(vectors)[None], "position_ids": [[*range(5), *range(13)]]}
    for batch in ({"inputs_embeds": padded, "attention_mask": mask}, [{"inputs_embeds": each} for each in vectors], row):
        captures = scope.capture(batch, spans={"middle": slice(1, 3)})
        assert captures.batch and max(map(worst, captures, alone)) < 1e-5
    assert scope.loss({"inputs_embeds": vectors[1], "input_ids": second}) == pytest.approx(scope.loss(second), abs=1e-5)
    with scope.edit(edits.drop_sink()):
        assert worst(scope.capture({"inputs_embeds": vectors[0]}), scope.capture(first)) < 1e-5
        with torch.no_grad():
            off = scope.model(inputs_embeds=vectors[0][None]).logits - scope.model(torch.tensor([first])).logits
        assert off.abs().max() < 1e-4


def test_embeddings_are_refused_where_token_ids_are_needed():
    scope = opened("v1")
    vectors = embedded(scope, SEQUENCES[0])
    prompt = {"inputs_embeds": vectors, "input_ids": SEQUENCES[0]}
    for ask in (scope.generate, scope.encode, scope.tokenize, lambda each: scope.answer(each, " 7421")):
        with pytest.raises(PromptError, match="taken by capture, measure, loss and compare alone; give token ids"):
            ask(prompt)
    with pytest.raises(PromptError, match="give input_ids beside them"):
        scope.loss({"inputs_embeds": vectors})
    wrong = {
        "5 wide": vectors[:, :5],
        "float32 of shape": vectors[0],
        "int64 of shape": torch.tensor([SEQUENCES[0]]),
        "give a tensor": "text",
    }
    for line, value in wrong.items():
        with pytest.raises(PromptError, match=line):
            scope.capture({"inputs_embeds": value})
    with pytest.raises(PromptError, match="another shape than inputs_embeds"):
        scope.capture({"inputs_embeds": vectors, "input_ids": [5]})
    with pytest.raises(PromptError, match="are embeddings and token ids"):
        scope.capture([{"inputs_embeds": vectors}, SEQUENCES[1]])
    with pytest.raises(UnsupportedModel, match="takes no (inputs_embeds|position_ids); give prompts as token ids"):
        diffscope.load(planted.tiny()).capture({"inputs_embeds": vectors})
