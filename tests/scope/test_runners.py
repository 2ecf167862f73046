"""How models are run: what they predict, what continues a prompt, what batches are padded with, and how many tokens there are."""

import pytest
import torch
import transformers
from torch import nn

import diffscope
from diffscope import DiffscopeError, PromptError, UnsupportedModel
from tests import tiny
from tests.layouts import ports

IDS = tiny.ids(9)


def test_a_model_of_masked_tokens_predicts_no_next_ones():
    config = transformers.EuroBertConfig(**tiny.SHAPE, num_attention_heads=4, num_key_value_heads=4)
    scope = diffscope.load(tiny.awake(transformers.EuroBertForMaskedLM(config)))
    assert scope.capture(IDS).next == []
    for ask in (scope.loss, scope.generate):
        with pytest.raises(UnsupportedModel, match="predicts no next tokens"):
            ask(IDS)


class HubForCausalLM(transformers.LlamaPreTrainedModel):
    """A decoder that does not inherit the generation of transformers, as code from the hub need not."""

    def __init__(self, inner):
        super().__init__(inner.config)
        self.inner = inner

    def get_input_embeddings(self):
        return self.inner.get_input_embeddings()

    def get_output_embeddings(self):
        return self.inner.get_output_embeddings()

    def forward(self, input_ids=None, attention_mask=None, use_cache=None):
        return self.inner(input_ids, attention_mask=attention_mask, use_cache=use_cache)


def test_a_decoder_without_the_generation_of_transformers_continues_all_the_same():
    model = tiny.standard("llama")
    scope, other = diffscope.load(model), diffscope.load(HubForCausalLM(model))
    assert other.generate(IDS, 4) == scope.generate(IDS, 4) and other.loss(IDS) == scope.loss(IDS)


class LastForCausalLM(HubForCausalLM):
    """One that takes `logits_to_keep` for a count of last tokens alone."""

    def forward(self, input_ids=None, attention_mask=None, use_cache=None, logits_to_keep=0):
        out = super().forward(input_ids, attention_mask, use_cache)
        return transformers.modeling_outputs.CausalLMOutput(logits=out.logits[:, -logits_to_keep:])


def test_logits_are_those_of_the_tokens_asked_for_where_a_model_counts_from_the_end():
    model = tiny.standard("llama")
    scope, other = diffscope.load(model), diffscope.load(LastForCausalLM(model))
    torch.testing.assert_close(other.logits(torch.tensor([IDS]), 1), scope.logits(torch.tensor([IDS]), 1))
    ours, theirs = ([dict(each.next) for each in of.capture([IDS, IDS[:4]])] for of in (other, scope))
    assert ours == [pytest.approx(each) for each in theirs]


def test_how_a_model_is_loaded_is_not_asked_of_one_that_is_held():
    with pytest.raises(DiffscopeError, match=r"of this one call model.set_attn_implementation\(...\)"):
        diffscope.load(tiny.standard("llama"), attn_implementation="eager")


SETTINGS = {"num_beams": 3, "return_dict_in_generate": True, "min_new_tokens": 3}


@pytest.mark.parametrize("name", SETTINGS)
def test_generation_is_greedy_whatever_the_model_is_set_to(name):
    scope = diffscope.load(tiny.own("v1"))
    ids = torch.tensor([IDS])
    for _ in range(6):
        ids = torch.cat([ids, scope.logits(ids, 1)[:, 0].argmax(-1, keepdim=True)], 1)
    first, *others = ids[0, len(IDS) :].tolist()
    settings = scope.model.generation_config
    setattr(settings, name, SETTINGS[name])
    assert scope.generate(IDS, 6) == " ".join(map(str, [first, *others]))
    settings.eos_token_id = first
    assert scope.generate(IDS, 6) == str(first) and scope.model.generation_config is settings


@pytest.mark.parametrize(
    "count, error, words",
    [
        (0, DiffscopeError, "max_new_tokens is a whole number from 1, and not 0"),
        ("8", DiffscopeError, "max_new_tokens is a whole number from 1, and not '8'"),
        (9, PromptError, "250 tokens and 9 new ones were asked for, but GPT2LMHeadModel has positions for 256; shorten"),
    ],
)
def test_what_cannot_be_continued_is_refused(count, error, words):
    scope = diffscope.load(tiny.standard("gpt2"))
    with pytest.raises(error, match=words):
        scope.generate(tiny.ids(250), count)
    assert scope.generate(tiny.ids(250), 7)


def test_a_batch_is_padded_with_a_token_of_the_vocabulary():
    model = tiny.standard("llama")
    model.config.pad_token_id = tiny.VOCABULARY
    assert diffscope.load(model).capture([IDS, IDS[:4]]).layers[0].lengths == (9, 4)


class Tied(nn.Module):
    """Has as many positions as its blocks have features inside, and a head only where it is not the embedding's weight."""

    def __init__(self, tokens, head):
        super().__init__()
        self.embed, self.positions = nn.Embedding(tokens, 32), nn.Embedding(128, 32)
        attention = [ports.Block(ports.MultiHeadDifferentialAttention(32, 4, 0.5)) for _ in range(2)]
        self.layers = nn.ModuleList(nn.Sequential(block, nn.Linear(32, 128), nn.Linear(128, 32)) for block in attention)
        self.head = nn.Linear(32, tokens) if head else None

    def forward(self, ids):
        x = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed.weight.T if self.head is None else self.head(x)


@pytest.mark.parametrize("tokens, head", [(90, True), (300, False)])
def test_positions_are_not_taken_for_tokens(tokens, head):
    torch.manual_seed(0)
    scope = diffscope.load(tiny.awake(Tied(tokens, head)))
    assert scope.runner.vocabulary == tokens and scope.capture([5, tokens - 1]).ids == [5, tokens - 1]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_token_ids_are_of_any_dtype_of_whole_numbers(dtype):
    scope = diffscope.load(tiny.own("v1"))
    assert torch.equal(scope.logits(torch.tensor([[5, 6]], dtype=dtype)), scope.logits(torch.tensor([[5, 6]])))
    with pytest.raises(PromptError, match="token ids are a tensor of whole numbers"):
        scope.logits(torch.tensor([[True, False]]))
